//! One recorded request, decided again. The other questions are answered as the record says, where it does: a router
//! gets the recorded costs; a cost or residency policy is followed by a router given, or the built-in `lowest-cost`.

use super::situation::{of_request, priced};
use portolan_base::{Clock, SiteName};
use portolan_decide::ask::Asker;
use portolan_decide::order::order_by_score;
use portolan_decide::{FleetView, PathRecord, Placements, RequestPolicies, SiteIndex, SiteView};
use portolan_policy::builtin::{Candidates, LowestCost, Routing};
use portolan_policy::{
    Answer, CostMatrix, Matrix, NameTables, Policy, Question, QuestionKind, RequestView, RouteMatrix,
    RoutingDecision,
};
use std::sync::Arc;

/// What decides again.
pub struct Replayer<'a> {
    /// The policy that is tried.
    pub policy: Arc<dyn Policy>,
    /// The router that follows a cost or residency policy; the built-in `lowest-cost` when there is none.
    pub router: Option<Arc<dyn Policy>>,
    /// The fleet's sites with their jurisdictions.
    pub names: &'a NameTables,
    /// Times the calls.
    pub clock: &'a dyn Clock,
}

/// Where a decision leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// To the candidate at this position.
    Route(usize),
    /// Nowhere, and why.
    Nowhere(String),
}

/// A decision made again.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Where it leads.
    pub outcome: Outcome,
    /// Why something else answered than the policy.
    pub fallbacks: Vec<String>,
    /// Whether the routes had to be priced by the built-in `ttft`, since a newly allowed one has no recorded cost.
    pub repriced: bool,
}

/// Where the recorded decision led.
pub fn recorded(record: &PathRecord) -> Outcome {
    let first = record
        .candidates
        .iter()
        .position(|candidate| candidate.rank == Some(0));
    first.map_or_else(
        || Outcome::Nowhere(record.error.clone().unwrap_or_else(|| record.status.clone())),
        Outcome::Route,
    )
}

impl Replayer<'_> {
    /// Decides again.
    pub fn replay(&self, record: &PathRecord) -> Replayed {
        let row = record.request.to_cells();
        let mut asker = Asker::new(self.clock, &record.labels, record.request_id.as_str());
        let kind = self.policy.descriptor().question;
        let open = match kind {
            QuestionKind::Residency => self.allowed(record, &row, &mut asker),
            _ => priced_candidates(record),
        };
        let mut routes = RouteMatrix::default();
        open.iter()
            .for_each(|&i| routes.push(&record.candidates[i].facts));
        let (costs, repriced) = self.costs(record, &open, (&row, &routes), &mut asker);
        let outcome = if open.is_empty() {
            Outcome::Nowhere("residency leaves no route".to_owned())
        } else {
            let decision = self.route((&row, &routes), &costs, &mut asker);
            outcome(decision, &open, RequestView(&row).seed())
        };
        Replayed {
            outcome,
            fallbacks: asker
                .fallbacks
                .iter()
                .map(|f| format!("{}: {}, so {} answered", f.from, f.reason, f.to))
                .collect(),
            repriced,
        }
    }

    /// Positions of the candidates whose sites the residency policy allows.
    fn allowed(&self, record: &PathRecord, row: &[u32], asker: &mut Asker<'_>) -> Vec<usize> {
        let policies = RequestPolicies {
            platform_residency: Some(Arc::clone(&self.policy)),
            ..RequestPolicies::default()
        };
        let fleet = FleetView {
            sites: self.sites(),
            ..FleetView::default()
        };
        let origin = SiteIndex(record.request.origin_site);
        let placements = Placements::ask(
            &policies,
            of_request(&record.request),
            row,
            (&fleet, origin),
            asker,
        );
        let allows = |site: u32| placements.allows(SiteIndex(site));
        let candidates = record.candidates.iter().enumerate();
        candidates
            .filter(|(_, c)| allows(c.facts.prefill_site) && allows(c.facts.decode_site))
            .map(|(i, _)| i)
            .collect()
    }

    fn sites(&self) -> Vec<SiteView> {
        let site = |entry: &portolan_policy::SiteEntry| {
            Some(SiteView {
                name: SiteName::new(&entry.name).ok()?,
                jurisdiction: entry.jurisdiction,
            })
        };
        self.names.sites.iter().filter_map(site).collect()
    }

    fn costs(
        &self,
        record: &PathRecord,
        open: &[usize],
        (row, routes): (&[u32], &RouteMatrix),
        asker: &mut Asker<'_>,
    ) -> (CostMatrix, bool) {
        let built_in = || CostMatrix {
            cells: priced(row, routes.as_matrix().cells()),
        };
        if self.policy.descriptor().question == QuestionKind::Cost {
            let question = Question::Cost {
                request: row,
                routes: routes.as_matrix(),
            };
            return match asker.ask(self.policy.as_ref(), question, "the built-in cost") {
                Some(Answer::Cost(cells)) => (CostMatrix { cells }, false),
                _ => (built_in(), false),
            };
        }
        let mut costs = CostMatrix::default();
        for &i in open {
            match &record.candidates[i].cost {
                Some(cost) => costs.push(cost),
                // Costs of two policies do not compare, so all are priced anew.
                None => return (built_in(), true),
            }
        }
        (costs, false)
    }

    fn route(
        &self,
        (row, routes): (&[u32], &RouteMatrix),
        costs: &CostMatrix,
        asker: &mut Asker<'_>,
    ) -> RoutingDecision {
        let (routes, costs): (Matrix<'_>, Matrix<'_>) = (routes.as_matrix(), costs.as_matrix());
        let router = match self.policy.descriptor().question {
            QuestionKind::Routing => Some(&self.policy),
            _ => self.router.as_ref(),
        };
        let question = Question::Routing {
            request: row,
            routes,
            costs,
        };
        let answered = router.and_then(|router| asker.ask(router.as_ref(), question, "the built-in router"));
        match answered {
            Some(Answer::Routing(decision)) => decision,
            _ => LowestCost.decide(RequestView(row), Candidates::new(routes, costs)),
        }
    }
}

/// Candidates that were priced: those that the recorded residency left in.
fn priced_candidates(record: &PathRecord) -> Vec<usize> {
    let candidates = record.candidates.iter().enumerate();
    candidates
        .filter(|(_, c)| c.cost.is_some())
        .map(|(i, _)| i)
        .collect()
}

fn outcome(decision: RoutingDecision, open: &[usize], seed: u64) -> Outcome {
    match decision {
        RoutingDecision::Scores(scores) => order_by_score(&scores, seed)
            .first()
            .and_then(|first| open.get(*first))
            .map_or_else(
                || Outcome::Nowhere("the router ruled out every route".to_owned()),
                |position| Outcome::Route(*position),
            ),
        RoutingDecision::Defer(ms) => Outcome::Nowhere(format!("deferred by {ms} ms")),
        RoutingDecision::Refuse(why) => Outcome::Nowhere(format!("refused: {why}")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use portolan_base::Moment;
    use portolan_decide::{CandidateRecord, KvRecord, RouteRecord};
    use portolan_policy::{
        Answered, BoundAs, Call, CostRow, Placement, PolicyDescriptor, PolicyFault, PolicySource,
    };
    use portolan_policy::{RequestRow, RouteRow, SiteEntry};

    /// A record whose candidates prefill at sites 0, 1, … with these prices and recorded costs; the cheapest was
    /// taken.
    pub(in crate::lab) fn record(id: &str, routes: &[(u32, u32)]) -> PathRecord {
        let best = (0..routes.len()).min_by_key(|&i| routes[i].1);
        let candidate = |(i, &(price_micros, total_us)): (usize, &(u32, u32))| CandidateRecord {
            route: RouteRecord {
                prefill_site: format!("site-{i}"),
                prefill_instance: "p".into(),
                decode_site: "site-0".into(),
                decode_instance: "d".into(),
            },
            facts: RouteRow {
                prefill_site: i as u32,
                prefill_us: total_us,
                transfer_kib: i as u32 * 100,
                price_micros,
                ..RouteRow::default()
            },
            cost: Some(CostRow {
                total_us,
                ..CostRow::default()
            }),
            score: Some(total_us),
            rank: (Some(i) == best).then_some(0),
            excluded: None,
        };
        serde_json::from_value(serde_json::json!({
            "request_id": id, "tenant": "acme", "model": "m", "accepted_ms": 1, "prompt_tokens": 10,
            "completion_tokens": 1, "route": null, "request": RequestRow::default(),
            "candidates": routes.iter().enumerate().map(candidate).collect::<Vec<_>>(),
            "policies": [], "placements": [["site-0", "resident"], ["site-1", "resident"]], "stages": [],
            "kv": KvRecord::default(), "fallbacks": [], "status": "ok"
        }))
        .unwrap()
    }

    /// Says the same to every call.
    pub(in crate::lab) struct Says(PolicyDescriptor, Result<Answer, PolicyFault>);

    pub(in crate::lab) fn says(
        question: QuestionKind,
        result: Result<Answer, PolicyFault>,
    ) -> Arc<dyn Policy> {
        let descriptor = PolicyDescriptor {
            question,
            name: "tried".into(),
            version: "0".into(),
            source: PolicySource::Tenant,
            bound: BoundAs::default(),
        };
        Arc::new(Says(descriptor, result))
    }

    impl Policy for Says {
        fn descriptor(&self) -> &PolicyDescriptor {
            &self.0
        }
        fn ask(&self, _: &Call<'_>) -> Answered {
            Answered {
                result: self.1.clone(),
                fuel: None,
            }
        }
    }

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Moment {
            Moment(0)
        }
    }

    pub(in crate::lab) fn replay(policy: Arc<dyn Policy>, record: &PathRecord) -> Replayed {
        let site = |i: u32| SiteEntry {
            name: format!("site-{i}"),
            region: String::new(),
            jurisdiction: i + 1,
        };
        let names = NameTables {
            sites: vec![site(0), site(1)],
            ..NameTables::default()
        };
        let replayer = Replayer {
            policy,
            router: None,
            names: &names,
            clock: &Still,
        };
        replayer.replay(record)
    }

    #[test]
    fn a_router_is_asked_with_the_recorded_costs() {
        let record = record("req-1", &[(1, 10), (2, 20)]);
        assert_eq!(recorded(&record), Outcome::Route(0));
        let scores = Answer::Routing(RoutingDecision::Scores(vec![9, 3]));
        let replayed = replay(says(QuestionKind::Routing, Ok(scores)), &record);
        assert_eq!(replayed.outcome, Outcome::Route(1));
        let refusal = Answer::Routing(RoutingDecision::Refuse("no".into()));
        let replayed = replay(says(QuestionKind::Routing, Ok(refusal)), &record);
        assert_eq!(replayed.outcome, Outcome::Nowhere("refused: no".into()));
    }

    #[test]
    fn a_cost_policy_is_followed_by_the_cheapest_route_and_a_fault_by_the_fallback() {
        let record = record("req-1", &[(1, 10), (2, 20)]);
        let costs = Answer::Cost(vec![9_000, 0, 0, 0, 0, 0, 3_000, 0, 0, 0, 0, 0]);
        let replayed = replay(says(QuestionKind::Cost, Ok(costs)), &record);
        assert_eq!(replayed.outcome, Outcome::Route(1));
        for bad in [Err(PolicyFault::Saturated), Ok(Answer::Cost(vec![1]))] {
            let replayed = replay(says(QuestionKind::Cost, bad), &record);
            assert_eq!(replayed.outcome, Outcome::Route(0));
            assert_eq!(replayed.fallbacks.len(), 1, "{replayed:?}");
        }
    }

    #[test]
    fn a_residency_policy_closes_and_opens_routes() {
        let mut record = record("req-1", &[(1, 10), (2, 20)]);
        let only = |a, b| says(QuestionKind::Residency, Ok(Answer::Residency(vec![a, b])));
        let replayed = replay(only(Placement::Denied, Placement::Resident), &record);
        assert_eq!(
            replayed.outcome,
            Outcome::Nowhere("residency leaves no route".into())
        );
        // The second candidate decodes at site 0 and was excluded: its cost is not on record.
        record.candidates[1].cost = None;
        let replayed = replay(only(Placement::Resident, Placement::Resident), &record);
        assert_eq!((replayed.outcome, replayed.repriced), (Outcome::Route(0), true));
        let failed = replay(
            says(QuestionKind::Residency, Err(PolicyFault::Saturated)),
            &record,
        );
        assert_eq!(
            failed.outcome,
            Outcome::Route(0),
            "only the origin's jurisdiction stays"
        );
        assert_eq!((failed.fallbacks.len(), failed.repriced), (1, false));
    }
}
