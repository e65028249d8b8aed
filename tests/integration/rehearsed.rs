//! A policy at the live gateway, and the same file as the simulator loads it: identical answers on identical views.

use portolan::lab::component::Workshop;
use portolan::simulation::cast::Player;
use portolan_base::Moment;
use portolan_decide::order::order_by_score;
use portolan_decide::{PathRecord, RequestPolicies};
use portolan_policy::{
    Answer, Call, CostMatrix, NameTables, Policy, Question, QuestionKind, RequestView, RouteMatrix,
    RoutingDecision, SiteEntry,
};
use portolan_sim::VirtualClock;
use portolan_tests::world::{ACME, shipped};
use portolan_tests::{Ask, Link, Oracle, World, oracle_folder};
use std::path::PathBuf;
use std::sync::Arc;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../plugins/dist/{name}.wasm"))
}

/// The two sites of the tests, as policies know them: only the number of sites and their names matter here.
fn names(record: &PathRecord) -> NameTables {
    let site = |(name, _): &(String, portolan_policy::Placement)| SiteEntry {
        name: name.clone(),
        region: String::new(),
        jurisdiction: 0,
    };
    NameTables {
        sites: record.placements.iter().map(site).collect(),
        jurisdictions: vec!["any".to_owned()],
        models: vec![record.model.clone()],
        user_classes: vec!["standard".to_owned()],
        ..NameTables::default()
    }
}

/// What the simulator's copy says to what the live one was asked.
fn asked_again(policy: &Arc<dyn Policy>, record: &PathRecord) -> Answer {
    let request = record.request.to_cells();
    let priced = || {
        record
            .candidates
            .iter()
            .filter(|candidate| candidate.cost.is_some())
    };
    let (mut routes, mut costs) = (RouteMatrix::default(), CostMatrix::default());
    for candidate in priced() {
        routes.push(&candidate.facts);
        costs.push(candidate.cost.as_ref().unwrap());
    }
    let question = match policy.descriptor().question {
        QuestionKind::Cost => Question::Cost {
            request: &request,
            routes: routes.as_matrix(),
        },
        _ => Question::Routing {
            request: &request,
            routes: routes.as_matrix(),
            costs: costs.as_matrix(),
        },
    };
    let call = Call {
        question,
        labels: &record.labels,
        request_id: record.request_id.as_str(),
    };
    policy.ask(&call).result.unwrap()
}

#[test]
fn a_live_policy_and_the_simulators_copy_answer_alike() {
    let world = World::start(
        &oracle_folder("tiny-qwen3"),
        Link {
            delay_ms: 0,
            rate_mbps: 0,
        },
    );
    let prompts = Oracle::of("tiny-qwen3").prompts;
    let workshop = Workshop::unhurried().unwrap();
    let clock = Arc::new(VirtualClock::default());
    for (question, name) in [
        ("routing", "offload"),
        ("routing", "prefix-affinity"),
        ("cost", "price-aware"),
    ] {
        let pushed = world.push(ACME, ("acme", question), &shipped(name), "").unwrap();
        let player = Player::find(file(name).to_str().unwrap(), &workshop).unwrap();
        for case in prompts.iter().cycle().take(12) {
            let record = world.ask(&Ask::tokens(&case.prompt_ids).max(1)).record;
            let policies: RequestPolicies = player.load(&workshop, &names(&record), &clock).unwrap();
            let copy = policies.routing.or(policies.cost).unwrap();
            let live = record
                .policies
                .iter()
                .find(|call| call.version == pushed["version"])
                .unwrap();
            assert_eq!(
                (live.outcome.as_str(), &copy.descriptor().version),
                ("ok", &live.version)
            );
            check(&record, asked_again(&copy, &record));
        }
    }
    assert_eq!(
        portolan_base::Clock::now(clock.as_ref()),
        Moment(0),
        "nobody moved the virtual clock"
    );
}

/// The answer is what the record holds, and leads where the request went.
fn check(record: &PathRecord, answer: Answer) {
    let priced: Vec<_> = record
        .candidates
        .iter()
        .filter(|candidate| candidate.cost.is_some())
        .collect();
    assert!(priced.len() > 1, "one candidate leaves nothing to decide");
    match answer {
        Answer::Cost(cells) => {
            let live: Vec<u32> = priced.iter().flat_map(|c| c.cost.unwrap().to_cells()).collect();
            assert_eq!(cells, live);
        }
        Answer::Routing(RoutingDecision::Scores(scores)) => {
            let live: Vec<Option<u32>> = priced.iter().map(|candidate| candidate.score).collect();
            assert_eq!(scores.iter().copied().map(Some).collect::<Vec<_>>(), live);
            let seed = RequestView(&record.request.to_cells()).seed();
            let first = order_by_score(&scores, seed)[0];
            assert_eq!(priced[first].rank, Some(0));
        }
        other => panic!("{other:?}"),
    }
}
