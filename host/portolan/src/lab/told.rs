//! One call and what came of it, asked through the very code that asks on behalf of live requests.

use super::situation::Situation;
use portolan_base::Clock;
use portolan_decide::ask::Asker;
use portolan_decide::order::order_by_score;
use portolan_policy::{Answer, CostView, Matrix, Policy, QuestionKind, RoutingDecision};
use serde_json::{Value, json};

/// What a call brought.
#[derive(Clone, Debug)]
pub struct Told {
    /// The answer, or the fault.
    pub result: Result<Answer, Fault>,
    /// Fuel used, where metered.
    pub fuel: Option<u64>,
    /// How long it took, in µs.
    pub micros: u64,
}

/// A call that gave no usable answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The fault's word, as in path records.
    pub word: String,
    /// The fault in full.
    pub detail: String,
}

/// Asks `policy` the question of `kind`.
pub fn ask(policy: &dyn Policy, situation: &Situation, kind: QuestionKind, clock: &dyn Clock) -> Told {
    let mut asker = Asker::new(clock, &situation.labels, &situation.request_id);
    let answer = asker.ask(policy, situation.question(kind), "");
    let call = asker.calls.pop();
    let fault = || {
        let said = call.as_ref();
        Fault {
            word: said.map_or_else(String::new, |call| call.outcome.clone()),
            detail: said.and_then(|call| call.detail.clone()).unwrap_or_default(),
        }
    };
    Told {
        result: answer.ok_or_else(fault),
        fuel: call.as_ref().and_then(|call| call.fuel),
        micros: call.as_ref().map_or(0, |call| call.micros),
    }
}

/// The scores by which an answer orders the routes: a router's own, or the totals of a cost policy.
pub fn scores(answer: &Answer) -> Option<Vec<u32>> {
    match answer {
        Answer::Routing(RoutingDecision::Scores(scores)) => Some(scores.clone()),
        Answer::Cost(cells) => Some(cost_rows(cells).map(|row| row.total_us()).collect()),
        _ => None,
    }
}

/// The rows of a cost answer.
pub fn cost_rows(cells: &[u32]) -> impl Iterator<Item = CostView<'_>> {
    let stride = portolan_policy::CostColumn::COUNT as u32;
    Matrix::new(stride, cells).rows().map(CostView)
}

/// An answer as JSON: sites and routes by name, where they have one.
pub fn answer_as_json(answer: &Answer, situation: &Situation) -> Value {
    match answer {
        Answer::Residency(placements) => {
            let sites = situation.names.sites.iter().zip(placements);
            let named = sites.map(|(site, placement)| (site.name.clone(), json!(placement)));
            json!({ "placements": Value::Object(named.collect()) })
        }
        Answer::Cost(cells) => {
            let rows: Vec<_> = cost_rows(cells).map(|row| row.to_row()).collect();
            json!({ "costs": rows, "order": order(answer, situation) })
        }
        Answer::Routing(RoutingDecision::Scores(scores)) => {
            json!({ "scores": scores, "order": order(answer, situation) })
        }
        Answer::Routing(RoutingDecision::Defer(ms)) => json!({ "defer_ms": ms }),
        Answer::Routing(RoutingDecision::Refuse(reason)) => json!({ "refuse": reason }),
        Answer::Invalidation(directives) => json!({ "directives": directives }),
    }
}

/// The routes in the order in which the host would take them.
pub fn order(answer: &Answer, situation: &Situation) -> Vec<usize> {
    scores(answer).map_or_else(Vec::new, |scores| order_by_score(&scores, situation.seed()))
}
