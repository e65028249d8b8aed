//! Tables, golden scores and properties of the built-in policies.

mod costs;
mod golden;
mod properties;
mod routes;
mod rules;

use super::*;
use crate::{
    Answer, Call, CostMatrix, CostRow, Event, Matrix, NameTables, Policy, Question, QuestionKind, RequestRow,
    RouteMatrix, RouteRow, RoutingDecision, SiteEntry,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Properties are tried on the same inputs each time.
pub(super) fn seeded(cases: u32) -> proptest::test_runner::Config {
    let rng_seed = proptest::test_runner::RngSeed::Fixed(1);
    proptest::test_runner::Config {
        cases,
        rng_seed,
        failure_persistence: None,
        ..Default::default()
    }
}

/// Two sites in the EU, one in the UK, one in the US.
fn four_sites() -> NameTables {
    let site = |name: &str, region: &str, jurisdiction| SiteEntry {
        name: name.to_owned(),
        region: region.to_owned(),
        jurisdiction,
    };
    NameTables {
        tenant: "acme".to_owned(),
        sites: vec![
            site("fra", "eu", 1),
            site("ams", "eu", 1),
            site("lon", "uk", 2),
            site("iad", "us", 3),
        ],
        jurisdictions: ["any", "eu", "uk", "us"].map(str::to_owned).to_vec(),
        models: vec!["m".to_owned()],
        user_classes: vec!["standard".to_owned()],
    }
}

fn made(question: QuestionKind, name: &str, config: &str) -> Arc<dyn Policy> {
    policy(question, name, config, &four_sites()).unwrap()
}

fn ask(policy: &dyn Policy, question: Question<'_>) -> Answer {
    policy
        .ask(&Call {
            question,
            labels: &BTreeMap::new(),
            request_id: "r",
        })
        .result
        .unwrap()
}

/// What `name` scores; each route comes with its total cost in µs.
fn scores(name: &str, config: &str, request: RequestRow, routes: &[(RouteRow, u32)]) -> Vec<u32> {
    let (mut matrix, mut costs) = (RouteMatrix::default(), CostMatrix::default());
    for (row, total_us) in routes {
        matrix.push(row);
        costs.push(&CostRow {
            total_us: *total_us,
            ..CostRow::default()
        });
    }
    let question = Question::Routing {
        request: &request.to_cells(),
        routes: matrix.as_matrix(),
        costs: costs.as_matrix(),
    };
    match ask(&*made(QuestionKind::Routing, name, config), question) {
        Answer::Routing(RoutingDecision::Scores(scores)) => scores,
        other => panic!("{other:?}"),
    }
}

/// The routes in the order that the scores put them, routes never taken left out.
fn order(scores: &[u32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).filter(|i| scores[*i] != crate::NEVER).collect();
    order.sort_by_key(|i| scores[*i]);
    order
}

/// Prefill at `prefill_site`, decode at site 0.
fn route(prefill_site: u32) -> RouteRow {
    RouteRow {
        prefill_site,
        prefill_instance: prefill_site,
        ..RouteRow::default()
    }
}
