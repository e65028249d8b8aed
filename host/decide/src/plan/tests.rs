//! Decisions over a fleet of two sites, with policies that answer what a test wants.

use super::*;
use crate::fleet::{InstanceIndex, InstanceView, LinkView, SiteIndex, SiteView};
use crate::request::{PrefillMode, RequestKind};
use crate::rollout::Draw;
use crate::table::PolicyTable;
use portolan_base::{
    BitsPerSecond, Bytes, InstanceName, Moment, Permille, RequestId, Role, SiteName, TenantName, Tokens,
};
use portolan_policy::{
    Answered, BoundAs, Call, Placement, Policy, PolicyDescriptor, PolicyFault, PolicySource, RouteColumn,
    Scope,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const HOME: SiteIndex = SiteIndex(0);
const ABROAD: SiteIndex = SiteIndex(1);
const EU: u32 = 1;
const US: u32 = 2;

struct Still;

impl Clock for Still {
    fn now(&self) -> Moment {
        Moment(1_000_000)
    }
}

type Says = dyn Fn(&Call<'_>) -> Result<Answer, PolicyFault> + Send + Sync;

/// Answers every question of its kind with the same.
struct Scripted {
    who: PolicyDescriptor,
    says: Box<Says>,
}

impl Policy for Scripted {
    fn descriptor(&self) -> &PolicyDescriptor {
        &self.who
    }

    fn ask(&self, call: &Call<'_>) -> Answered {
        Answered {
            result: (self.says)(call),
            fuel: Some(7),
        }
    }
}

fn policy(
    question: QuestionKind,
    says: impl Fn(&Call<'_>) -> Result<Answer, PolicyFault> + Send + Sync + 'static,
) -> Arc<dyn Policy> {
    let who = PolicyDescriptor {
        question,
        name: "scripted".into(),
        version: "v".into(),
        source: PolicySource::Tenant,
        bound: BoundAs::default(),
    };
    Arc::new(Scripted {
        who,
        says: Box::new(says),
    })
}

fn answering(answer: Answer) -> Arc<dyn Policy> {
    let question = match answer {
        Answer::Residency(_) => QuestionKind::Residency,
        Answer::Cost(_) => QuestionKind::Cost,
        Answer::Routing(_) => QuestionKind::Routing,
        Answer::Invalidation(_) => QuestionKind::Invalidation,
    };
    policy(question, move |_| Ok(answer.clone()))
}

fn failing(question: QuestionKind) -> Arc<dyn Policy> {
    policy(question, |_| Err(PolicyFault::Trap("unreachable".into())))
}

fn scores(scores: &[u32]) -> RequestPolicies {
    let routing = answering(Answer::Routing(RoutingDecision::Scores(scores.to_vec())));
    RequestPolicies {
        routing: Some(routing),
        ..Default::default()
    }
}

fn instance(name: &str, site: SiteIndex, ns_per_token: u64) -> InstanceView {
    InstanceView {
        name: InstanceName::new(name).unwrap(),
        site,
        model: 0,
        role: Role::Both,
        serving: Default::default(),
        standing: Standing::Ready,
        prefill_queued_requests: 0,
        prefill_queued_tokens: 0,
        decode_running: 0,
        decode_slots: 8,
        kv_used: Permille(0),
        prefill_busy: Permille(0),
        decode_busy: Permille(0),
        prefill_ns_per_token: ns_per_token,
        prefill_curve: Default::default(),
        decode_step_us: 100,
        price_micros_per_kilotoken: 0,
    }
}

/// Home and abroad; abroad computes ten times faster, behind a link of 10 ms and 1 Gbit/s.
fn fleet() -> FleetView {
    let site = |name, jurisdiction| SiteView {
        name: SiteName::new(name).unwrap(),
        jurisdiction,
    };
    let link = LinkView {
        up: true,
        rtt: Duration::from_millis(10),
        capacity: BitsPerSecond(1_000_000_000),
        busy: Permille(0),
        loss: Permille(0),
        price_micros_per_gib: 0,
        measured: Default::default(),
    };
    FleetView {
        sites: vec![site("home", EU), site("abroad", US)],
        instances: vec![instance("h1", HOME, 1_000_000), instance("a1", ABROAD, 100_000)],
        links: BTreeMap::from([((ABROAD, HOME), link), ((HOME, ABROAD), link)]),
        elsewhere: Default::default(),
        offload_threshold: Tokens(0),
        congestion_mark: Permille(700),
        bandwidth: Default::default(),
    }
}

fn request() -> RequestFacts {
    RequestFacts {
        id: RequestId::from_client("r").unwrap(),
        tenant: 0,
        model: 0,
        session: 0,
        origin: HOME,
        jurisdiction: 0,
        user_class: 0,
        kind: RequestKind::Interactive,
        prompt_tokens: 1001,
        max_output_tokens: 10,
        expected_output_tokens: 10,
        prefill_mode: PrefillMode::Auto,
        manner: Default::default(),
        priority: 0,
        ttft_slo_ms: 0,
        seed: 0,
        now: Moment(0),
        labels: BTreeMap::new(),
    }
}

fn run(request: &RequestFacts, fleet: &FleetView, policies: &RequestPolicies) -> (Decision, DecisionRecord) {
    let kv = KvSize {
        fixed: Bytes(0),
        per_token: Bytes(1024),
    };
    decide(
        &DecideInput {
            request,
            fleet,
            kv,
            held: &[],
            fetch_block: None,
            policies,
        },
        &Still,
    )
}

fn prefills(decision: &Decision) -> Vec<InstanceIndex> {
    match decision {
        Decision::Go(plan) => plan.routes.iter().map(|route| route.prefill).collect(),
        other => panic!("no plan: {other:?}"),
    }
}

const H1: InstanceIndex = InstanceIndex(0);
const A1: InstanceIndex = InstanceIndex(1);

#[test]
fn without_policies_the_built_in_ones_take_the_cheapest_route_and_keep_the_other() {
    let (decision, record) = run(&request(), &fleet(), &RequestPolicies::default());
    assert_eq!(prefills(&decision), [A1, H1]);
    let calls: Vec<_> = record
        .policies
        .iter()
        .map(|p| (p.question, p.version.as_str()))
        .collect();
    assert_eq!(
        calls,
        [
            (QuestionKind::Cost, "built-in"),
            (QuestionKind::Routing, "built-in")
        ]
    );
    assert!(record.fallbacks.is_empty());
    let short = RequestFacts {
        prompt_tokens: 5,
        ..request()
    };
    assert_eq!(
        prefills(&run(&short, &fleet(), &RequestPolicies::default()).0),
        [H1, A1],
        "a round trip costs more"
    );
}

#[test]
fn a_prefix_held_at_home_changes_the_choice() {
    let (request, fleet, policies) = (request(), fleet(), RequestPolicies::default());
    let kv = KvSize {
        fixed: Bytes(0),
        per_token: Bytes(1024),
    };
    let input = DecideInput {
        request: &request,
        fleet: &fleet,
        kv,
        held: &[992, 0],
        fetch_block: None,
        policies: &policies,
    };
    let (decision, record) = decide(&input, &Still);
    assert_eq!(prefills(&decision), [H1, A1]);
    let facts = &record.candidates[1].facts;
    assert_eq!(
        (facts.cached_tokens, facts.fetchable_tokens, facts.transfer_kib),
        (0, 992, 8)
    );
}

/// A decision where abroad holds 960 tokens, and the host fetches blocks of 64.
fn with_fetches(request: &RequestFacts, fleet: &FleetView, policies: &RequestPolicies) -> DecisionRecord {
    let input = DecideInput {
        request,
        fleet,
        kv: KvSize {
            fixed: Bytes(0),
            per_token: Bytes(1024),
        },
        held: &[0, 960],
        fetch_block: Some(Tokens(64)),
        policies,
    };
    decide(&input, &Still).1
}

#[test]
fn an_estimate_counts_on_a_fetch_where_one_would_be_done() {
    let record = with_fetches(&request(), &fleet(), &RequestPolicies::default());
    let at = |site: &str| {
        let mut found = record.candidates.iter();
        found.find(|c| c.route.prefill_site == site).unwrap()
    };
    // 960 KiB in 10 ms and 7.86 on the link, and 40 tokens of 1 ms each.
    let (home, abroad) = (at("home").facts, at("abroad").facts);
    assert_eq!(
        (home.fetch_tokens, home.fetch_kib, home.fetch_us),
        (960, 960, 17_864)
    );
    assert_eq!((home.prefill_us, home.cached_tokens), (17_864 + 40_000, 0));
    assert_eq!((abroad.fetch_tokens, abroad.prefill_us), (0, 4_000));
    assert_eq!(at("home").cost.unwrap().prefill_us, 17_864 + 40_000);
    let mut slow = fleet();
    slow.links
        .values_mut()
        .for_each(|link| link.capacity = BitsPerSecond(1_000_000));
    let record = with_fetches(&request(), &slow, &RequestPolicies::default());
    let home = record.candidates.iter().find(|c| c.route.prefill_site == "home");
    assert_eq!(
        home.map(|c| (c.facts.fetch_tokens, c.facts.prefill_us)),
        Some((0, 1_000_000))
    );
}

#[test]
fn a_fetch_has_its_price_and_what_is_not_computed_has_none() {
    let mut priced = fleet();
    priced.instances[0].price_micros_per_kilotoken = 1000;
    let price = |fleet: &FleetView| {
        let record = with_fetches(&request(), fleet, &RequestPolicies::default());
        let home = record.candidates.iter().find(|c| c.route.prefill_site == "home");
        home.unwrap().facts.price_micros
    };
    let free = price(&priced);
    priced
        .links
        .values_mut()
        .for_each(|link| link.price_micros_per_gib = 1 << 19);
    assert_eq!(price(&priced) - free, 480, "960 KiB");
    priced.links.values_mut().for_each(|link| link.up = false);
    assert_eq!(price(&priced) - free, 960, "960 tokens computed");
}

#[test]
fn no_estimate_counts_on_a_fetch_that_residency_does_not_allow() {
    let placed = |home, abroad| RequestPolicies {
        platform_residency: Some(answering(Answer::Residency(vec![home, abroad]))),
        ..Default::default()
    };
    let fetched = |policies: &RequestPolicies| {
        let record = with_fetches(&request(), &fleet(), policies);
        let home = record.candidates.iter().find(|c| c.route.prefill_site == "home");
        home.map(|c| c.facts.fetch_tokens)
    };
    assert_eq!(
        fetched(&placed(Placement::Resident, Placement::Resident)),
        Some(960)
    );
    assert_eq!(
        fetched(&placed(Placement::Resident, Placement::Transient)),
        Some(960)
    );
    assert_eq!(fetched(&placed(Placement::Resident, Placement::Denied)), Some(0));
    assert_eq!(
        fetched(&placed(Placement::Transient, Placement::Resident)),
        Some(0),
        "what is fetched has to be kept"
    );
}

#[test]
fn data_that_must_stay_stays_whoever_routes() {
    let eu = RequestFacts {
        jurisdiction: EU,
        ..request()
    };
    let (decision, record) = run(&eu, &fleet(), &RequestPolicies::default());
    assert_eq!(prefills(&decision), [H1]);
    let abroad = record
        .candidates
        .iter()
        .find(|c| c.route.prefill_site == "abroad")
        .unwrap();
    assert_eq!(abroad.excluded.as_deref(), Some("residency denies abroad"));
    assert_eq!(abroad.cost, None, "a denied route is not even priced");
    let elsewhere = RequestFacts {
        jurisdiction: US,
        ..request()
    };
    let refused = run(&elsewhere, &fleet(), &RequestPolicies::default()).0;
    assert!(
        matches!(refused, Decision::Refuse(Refusal::Residency(_))),
        "{refused:?}"
    );
}

#[test]
fn platform_and_tenant_must_both_allow() {
    use Placement::{Denied, Resident, Transient};
    let residency = |placements: [Placement; 2]| Some(answering(Answer::Residency(placements.to_vec())));
    for (platform, tenant, expected) in [
        (
            residency([Resident, Resident]),
            residency([Resident, Denied]),
            vec![H1],
        ),
        (
            residency([Resident, Denied]),
            residency([Resident, Resident]),
            vec![H1],
        ),
        (
            residency([Denied, Resident]),
            residency([Resident, Resident]),
            vec![],
        ),
        (
            residency([Transient, Transient]),
            residency([Resident, Resident]),
            vec![A1, H1],
        ),
        (None, residency([Resident, Resident]), vec![A1, H1]),
        (residency([Resident, Denied]), None, vec![H1]),
    ] {
        let policies = RequestPolicies {
            platform_residency: platform,
            tenant_residency: tenant,
            ..Default::default()
        };
        match run(&request(), &fleet(), &policies).0 {
            Decision::Refuse(Refusal::Residency(_)) => assert!(expected.is_empty()),
            decision => assert_eq!(prefills(&decision), expected),
        }
    }
}

#[test]
fn a_tenants_generous_residency_does_not_widen_what_the_data_may_do() {
    let open = answering(Answer::Residency(vec![Placement::Resident; 2]));
    let policies = RequestPolicies {
        tenant_residency: Some(open),
        ..Default::default()
    };
    let eu = RequestFacts {
        jurisdiction: EU,
        ..request()
    };
    assert_eq!(prefills(&run(&eu, &fleet(), &policies).0), [H1]);
}

#[test]
fn every_fault_has_its_fallback_and_leaves_a_trace() {
    let closed = RequestPolicies {
        platform_residency: Some(failing(QuestionKind::Residency)),
        ..Default::default()
    };
    let (decision, record) = run(&request(), &fleet(), &closed);
    assert_eq!(prefills(&decision), [H1], "only the origin's jurisdiction");
    assert_eq!(
        (record.fallbacks.len(), record.policies[0].outcome.as_str()),
        (1, "trap")
    );

    for (question, to) in [
        (QuestionKind::Cost, "the built-in cost"),
        (QuestionKind::Routing, "the built-in router"),
    ] {
        let mut policies = RequestPolicies::default();
        match question {
            QuestionKind::Cost => policies.cost = Some(failing(question)),
            _ => policies.routing = Some(failing(question)),
        }
        let (decision, record) = run(&request(), &fleet(), &policies);
        assert_eq!(prefills(&decision), [A1, H1], "{question}");
        assert_eq!(record.fallbacks[0].to, to);
    }
}

#[test]
fn answers_of_the_wrong_size_or_kind_are_faults() {
    let wrong = [
        RequestPolicies {
            cost: Some(answering(Answer::Cost(vec![1; 11]))),
            ..Default::default()
        },
        scores(&[1]),
        scores(&[1, 2, 3]),
        RequestPolicies {
            routing: Some(answering(Answer::Cost(vec![1; 12]))),
            ..Default::default()
        },
        RequestPolicies {
            tenant_residency: Some(answering(Answer::Residency(vec![Placement::Resident]))),
            ..Default::default()
        },
    ];
    for policies in wrong {
        let (decision, record) = run(&request(), &fleet(), &policies);
        assert!(matches!(decision, Decision::Go(_)));
        assert!(
            record.policies.iter().any(|p| p.outcome == "bad-answer"),
            "{:?}",
            record.policies
        );
        assert_eq!(record.fallbacks.len(), 1);
    }
}

#[test]
fn a_router_may_defer_refuse_or_rule_everything_out() {
    let routing = |decision| RequestPolicies {
        routing: Some(answering(Answer::Routing(decision))),
        ..Default::default()
    };
    let run = |policies: &RequestPolicies| run(&request(), &fleet(), policies).0;
    assert_eq!(run(&routing(RoutingDecision::Defer(5))), Decision::Defer(5));
    assert_eq!(
        run(&routing(RoutingDecision::Defer(u32::MAX))),
        Decision::Defer(MAX_DEFER_MS)
    );
    let no = Decision::Refuse(Refusal::Policy("not today".into()));
    assert_eq!(run(&routing(RoutingDecision::Refuse("not today".into()))), no);
    assert_eq!(run(&scores(&[NEVER, NEVER])), Decision::Refuse(Refusal::NoRoute));
    assert_eq!(prefills(&run(&scores(&[3, NEVER]))).len(), 1);
}

#[test]
fn near_equals_share_the_load_by_the_seed_and_clear_winners_do_not() {
    let first = |seed, scored: &[u32]| {
        prefills(&run(&RequestFacts { seed, ..request() }, &fleet(), &scores(scored)).0)[0]
    };
    let count = |scored: &[u32]| {
        (0..100)
            .filter(|&seed| first(seed, scored) == first(0, scored))
            .count()
    };
    assert_eq!(count(&[1000, 1009]), 50, "within one hundredth");
    assert_eq!(count(&[1000, 1011]), 100, "beyond it");
    assert_eq!(count(&[0, 1]), 100, "small scores are told apart");
}

#[test]
fn what_the_client_asked_of_prefill_is_kept() {
    for (mode, expected) in [
        (PrefillMode::LocalOnly, vec![H1]),
        (PrefillMode::RemoteRequired, vec![A1]),
        (PrefillMode::RemotePreferred, vec![A1, H1]),
    ] {
        let asked = RequestFacts {
            prefill_mode: mode,
            manner: Default::default(),
            prompt_tokens: 5,
            ..request()
        };
        assert_eq!(
            prefills(&run(&asked, &fleet(), &RequestPolicies::default()).0),
            expected,
            "{mode:?}"
        );
    }
}

#[test]
fn what_is_not_ready_or_reachable_is_no_candidate() {
    let mut down = fleet();
    down.links.values_mut().for_each(|link| link.up = false);
    assert_eq!(
        prefills(&run(&request(), &down, &RequestPolicies::default()).0),
        [H1]
    );
    let mut tripped = fleet();
    tripped.instances[1].standing = Standing::Broken;
    assert_eq!(
        prefills(&run(&request(), &tripped, &RequestPolicies::default()).0),
        [H1]
    );
    tripped.instances[0].standing = Standing::Broken;
    let none = run(&request(), &tripped, &RequestPolicies::default()).0;
    assert!(matches!(none, Decision::Refuse(Refusal::NoInstance(_))));
    let other = RequestFacts {
        model: 9,
        ..request()
    };
    let unknown = run(&other, &fleet(), &RequestPolicies::default()).0;
    assert!(
        matches!(&unknown, Decision::Refuse(Refusal::NoInstance(why)) if why.contains("no site")),
        "{unknown:?}"
    );
}

#[test]
fn who_was_left_out_is_told_with_the_reason() {
    let mut trouble = fleet();
    trouble.instances[1].standing = Standing::Draining;
    trouble.instances.push(instance("h2", HOME, 1_000_000));
    trouble.instances.push(instance("a2", ABROAD, 100_000));
    trouble.instances[2].standing = Standing::Broken;
    trouble.links.values_mut().for_each(|link| link.up = false);
    let (_, record) = run(&request(), &trouble, &RequestPolicies::default());
    let told: Vec<_> = record
        .left_out
        .iter()
        .map(|left| (&*left.site, &*left.instance, &*left.reason))
        .collect();
    let expected = [
        ("abroad", "a1", "draining"),
        ("home", "h2", "failed too often in a row"),
        ("abroad", "a2", "its link is down"),
    ];
    assert_eq!(told, expected);
}

#[test]
fn one_that_comes_back_takes_its_share_and_all_when_there_is_no_other() {
    let tenth = Standing::Returning(Permille(100));
    let mut back = fleet();
    back.instances[1].standing = tenth;
    let first = |seed: u64, fleet: &FleetView| {
        let request = RequestFacts { seed, ..request() };
        prefills(&run(&request, fleet, &RequestPolicies::default()).0)[0]
    };
    let abroad = (0..1000).filter(|seed| first(*seed, &back) == A1).count();
    assert!((60..140).contains(&abroad), "{abroad}");
    back.instances[0].standing = tenth;
    let none = (0..1000).filter(|seed| first(*seed, &back) == H1).count();
    assert!(
        none < 140,
        "nobody else decodes at home, so all may be used: {none}"
    );
}

#[test]
fn a_large_fleet_is_cut_to_the_best_few_of_each_pair_of_sites() {
    let mut large = fleet();
    let more = (0..200).map(|i| instance(&format!("a{i}x"), ABROAD, 100_000 + i));
    large.instances.extend(more);
    let (_, record) = run(&request(), &large, &RequestPolicies::default());
    assert!(record.candidates.len() <= crate::MAX_ROUTES);
    let local = record
        .candidates
        .iter()
        .filter(|c| c.route.prefill_site == "home")
        .count();
    assert_eq!(
        (local, record.candidates.len()),
        (1, 9),
        "the local route is still there"
    );
}

#[test]
fn the_tenants_policy_comes_before_the_platforms() {
    let acme = TenantName::new("acme").unwrap();
    let named = |name: &str| {
        let who = PolicyDescriptor {
            question: QuestionKind::Routing,
            name: name.into(),
            version: "v".into(),
            source: PolicySource::Platform,
            bound: BoundAs::default(),
        };
        Arc::new(Scripted {
            who,
            says: Box::new(|_| Err(PolicyFault::Saturated)),
        }) as Arc<dyn Policy>
    };
    let table = PolicyTable::new().with(Scope::Platform, QuestionKind::Routing, named("platform"));
    let both = table.with(Scope::Tenant(acme.clone()), QuestionKind::Routing, named("acme"));
    let name = |table: &PolicyTable, tenant: &TenantName| {
        table
            .for_tenant(tenant, Draw::default())
            .routing
            .map(|p| p.descriptor().name.clone())
    };
    assert_eq!(name(&both, &acme).as_deref(), Some("acme"));
    assert_eq!(
        name(&both, &TenantName::new("globex").unwrap()).as_deref(),
        Some("platform")
    );
    assert_eq!(
        name(
            &both.without(&Scope::Tenant(acme.clone()), QuestionKind::Routing),
            &acme
        )
        .as_deref(),
        Some("platform")
    );
    assert_eq!(
        name(&table, &acme).as_deref(),
        Some("platform"),
        "the older table is as it was"
    );
}

proptest! {
    #[test]
    fn no_answer_of_a_policy_breaks_a_limit(
        answers in proptest::collection::vec(any::<u32>(), 0..6),
        costs in proptest::collection::vec(any::<u32>(), 0..30),
        placements in proptest::collection::vec(0u8..3, 0..4),
        jurisdiction in 0u32..4,
        seed in any::<u64>(),
    ) {
        let placements = placements.iter().map(|p| match p { 0 => Placement::Denied, 1 => Placement::Transient, _ => Placement::Resident });
        let policies = RequestPolicies {
            tenant_residency: Some(answering(Answer::Residency(placements.collect()))),
            cost: Some(answering(Answer::Cost(costs))),
            routing: Some(answering(Answer::Routing(RoutingDecision::Scores(answers)))),
            ..RequestPolicies::default()
        };
        let asked = RequestFacts { jurisdiction, seed, ..request() };
        let fleet = fleet();
        let (decision, record) = run(&asked, &fleet, &policies);
        if let Decision::Go(plan) = decision {
            prop_assert!(!plan.routes.is_empty());
            let mut seen = std::collections::HashSet::new();
            for route in plan.routes {
                prop_assert!(seen.insert(route));
                for end in [route.prefill, route.decode] {
                    let site = fleet.site(fleet.instance(end).unwrap().site).unwrap();
                    prop_assert!(jurisdiction == 0 || site.jurisdiction == jurisdiction);
                    let placed = record.placements.iter().find(|(name, _)| name == site.name.as_str());
                    prop_assert_ne!(placed.unwrap().1, Placement::Denied);
                }
            }
        }
        prop_assert_eq!(record.request.to_cells().len(), portolan_policy::RequestColumn::COUNT);
        prop_assert!(record.candidates.iter().all(|c| c.facts.to_cells().len() == RouteColumn::COUNT));
    }
}

#[test]
fn who_answers_a_question_is_the_same_until_that_question_is_changed() {
    let says = || policy(QuestionKind::Residency, |_| Err(PolicyFault::Trap("t".into())));
    let of = |table: &PolicyTable| table.answerers(QuestionKind::Residency);
    let acme = || Scope::Tenant(TenantName::new("acme").unwrap());
    let empty = PolicyTable::new();
    let bound = empty.with(Scope::Platform, QuestionKind::Residency, says());
    assert!(of(&empty) != of(&bound) && of(&bound) == of(&bound.clone()));
    let more = bound.with(acme(), QuestionKind::Routing, says());
    let more = more.with(Scope::Platform, QuestionKind::Cost, says());
    assert!(of(&more) == of(&bound), "other questions");
    let again = more.with(Scope::Platform, QuestionKind::Residency, says());
    assert!(of(&again) != of(&bound), "another version");
    let own = more.with(acme(), QuestionKind::Residency, says());
    assert!(of(&own) != of(&more), "a tenant's");
    assert!(of(&own.without(&acme(), QuestionKind::Residency)) == of(&bound));
    let trial = crate::table::Trial {
        policy: says(),
        stage: crate::rollout::TrialStage::Shadow,
    };
    let tried = bound.with_trial(Scope::Platform, QuestionKind::Residency, trial);
    assert!(of(&tried) != of(&bound));
    assert!(of(&tried.without_trial(&Scope::Platform, QuestionKind::Residency)) == of(&bound));
}
