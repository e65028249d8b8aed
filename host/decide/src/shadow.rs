//! What a version on trial would have decided. It is asked with what the path record says the decision was made from,
//! once the answer is out, and nobody obeys it.

use crate::ask::Asker;
use crate::order::order_by_score;
use crate::record::{CandidateRecord, PathRecord, RouteRecord, ShadowRecord};
use portolan_base::Clock;
use portolan_policy::builtin::{self, Routing};
use portolan_policy::{
    Answer, CostColumn, CostMatrix, Matrix, Placement, Policy, Purpose, Question, QuestionKind, RequestView,
    RouteMatrix, RoutingDecision, Subject,
};

/// Asks `shadow` what was asked for the request of `record`. `None` when the decision never came to that question.
///
/// - residency: it differs when it places some site otherwise than the answers that counted, together.
/// - cost: it differs when another route is cheapest. No router is asked again, since that would count in its state.
/// - routing: it differs when another route, or none, comes first on the same costs.
pub fn ask(shadow: &dyn Policy, record: &PathRecord, clock: &dyn Clock) -> Option<ShadowRecord> {
    let mut asker = Asker::new(clock, &record.labels, record.request_id.as_str());
    let differs = match shadow.descriptor().question {
        QuestionKind::Residency => residency(shadow, record, &mut asker),
        QuestionKind::Cost => cost(shadow, record, &mut asker),
        QuestionKind::Routing => routing(shadow, record, &mut asker),
        QuestionKind::Invalidation => None,
    };
    let call = asker.calls.pop()?;
    Some(ShadowRecord { call, differs })
}

fn residency(shadow: &dyn Policy, record: &PathRecord, asker: &mut Asker<'_>) -> Option<String> {
    if record.placements.is_empty() {
        return None;
    }
    let subject = Subject {
        purpose: Purpose::Serve,
        data_jurisdiction: record.request.jurisdiction,
        data_class: record.request.user_class,
        from_site: None,
    };
    let request = record.request.to_cells();
    let question = Question::Residency {
        subject,
        request: &request,
        sites: record.placements.len(),
    };
    let Some(Answer::Residency(placements)) = asker.ask(shadow, question, "") else {
        return None;
    };
    let otherwise: Vec<String> = record
        .placements
        .iter()
        .zip(placements)
        .filter(|((_, counted), said)| counted != said)
        .map(|((site, _), said)| format!("{site} {}", word(said)))
        .collect();
    (!otherwise.is_empty()).then(|| otherwise.join(", "))
}

const fn word(placement: Placement) -> &'static str {
    match placement {
        Placement::Denied => "denied",
        Placement::Transient => "transient",
        Placement::Resident => "resident",
    }
}

fn cost(shadow: &dyn Policy, record: &PathRecord, asker: &mut Asker<'_>) -> Option<String> {
    let priced = Priced::of(record)?;
    let (request, routes) = (record.request.to_cells(), priced.routes.as_matrix());
    let question = Question::Cost {
        request: &request,
        routes,
    };
    let Some(Answer::Cost(cells)) = asker.ask(shadow, question, "") else {
        return None;
    };
    let cheapest = |costs: Matrix<'_>| {
        let candidates = builtin::Candidates::new(routes, costs);
        priced.first(&builtin::LowestCost.decide(RequestView(&request), candidates))
    };
    let (counted, said) = (
        cheapest(priced.costs.as_matrix()),
        cheapest(Matrix::new(CostColumn::COUNT as u32, &cells)),
    );
    (counted != said).then(|| match said {
        Ok(route) => format!("cheapest: {}", in_words(route)),
        Err(why) => why,
    })
}

fn routing(shadow: &dyn Policy, record: &PathRecord, asker: &mut Asker<'_>) -> Option<String> {
    let priced = Priced::of(record)?;
    let request = record.request.to_cells();
    let question = Question::Routing {
        request: &request,
        routes: priced.routes.as_matrix(),
        costs: priced.costs.as_matrix(),
    };
    let Some(Answer::Routing(decision)) = asker.ask(shadow, question, "") else {
        return None;
    };
    let taken = priced.candidates.iter().find(|c| c.rank == Some(0));
    match priced.first(&decision) {
        Ok(route) if taken.is_some_and(|taken| taken.route == *route) => None,
        Ok(route) => Some(in_words(route)),
        Err(why) => Some(why),
    }
}

/// The candidates that residency left, as the cost and routing policies saw them.
struct Priced<'a> {
    candidates: Vec<&'a CandidateRecord>,
    routes: RouteMatrix,
    costs: CostMatrix,
    seed: u64,
}

impl<'a> Priced<'a> {
    /// `None` when no route was left.
    fn of(record: &'a PathRecord) -> Option<Self> {
        let mut priced = Self {
            candidates: Vec::new(),
            routes: RouteMatrix::default(),
            costs: CostMatrix::default(),
            seed: RequestView(&record.request.to_cells()).seed(),
        };
        for candidate in &record.candidates {
            if let Some(cost) = &candidate.cost {
                priced.routes.push(&candidate.facts);
                priced.costs.push(cost);
                priced.candidates.push(candidate);
            }
        }
        (!priced.candidates.is_empty()).then_some(priced)
    }

    /// The route that a router's decision takes first, or what it does instead.
    fn first(&self, decision: &RoutingDecision) -> Result<&'a RouteRecord, String> {
        match decision {
            RoutingDecision::Scores(scores) => order_by_score(scores, self.seed)
                .first()
                .and_then(|&position| self.candidates.get(position))
                .map(|candidate| &candidate.route)
                .ok_or_else(|| "no route".to_owned()),
            RoutingDecision::Defer(ms) => Err(format!("defer {ms} ms")),
            RoutingDecision::Refuse(reason) => Err(format!("refuse: {reason}")),
        }
    }
}

fn in_words(route: &RouteRecord) -> String {
    format!(
        "prefill at {}/{}, decode at {}/{}",
        route.prefill_site, route.prefill_instance, route.decode_site, route.decode_instance
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::Moment;
    use portolan_policy::{
        Answered, BoundAs, Call, CostRow, PolicyDescriptor, PolicyFault, PolicySource, RequestRow, RouteRow,
    };

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Moment {
            Moment(5)
        }
    }

    struct Says(PolicyDescriptor, Result<Answer, PolicyFault>);

    impl Policy for Says {
        fn descriptor(&self) -> &PolicyDescriptor {
            &self.0
        }

        fn ask(&self, _: &Call<'_>) -> Answered {
            Answered {
                result: self.1.clone(),
                fuel: Some(3),
            }
        }
    }

    fn says(question: QuestionKind, answer: Result<Answer, PolicyFault>) -> Says {
        let who = PolicyDescriptor {
            question,
            name: "new".into(),
            version: "v".into(),
            source: PolicySource::Tenant,
            bound: BoundAs::default(),
        };
        Says(who, answer)
    }

    fn scores(scores: &[u32]) -> Says {
        let decision = RoutingDecision::Scores(scores.to_vec());
        says(QuestionKind::Routing, Ok(Answer::Routing(decision)))
    }

    fn candidate(site: &str, total_us: u32, rank: u32) -> CandidateRecord {
        CandidateRecord {
            route: RouteRecord {
                prefill_site: site.into(),
                prefill_instance: "i".into(),
                decode_site: "home".into(),
                decode_instance: "i".into(),
            },
            facts: RouteRow::default(),
            cost: Some(CostRow {
                total_us,
                ..CostRow::default()
            }),
            score: Some(total_us),
            rank: Some(rank),
            excluded: None,
        }
    }

    /// Two priced routes, the first was taken; a third that residency excluded stands between them.
    fn record() -> PathRecord {
        let denied = CandidateRecord {
            cost: None,
            score: None,
            rank: None,
            ..candidate("denied", 0, 0)
        };
        PathRecord {
            request_id: portolan_base::RequestId::from_client("r").unwrap(),
            trace_id: None,
            tenant: portolan_base::TenantName::new("acme").unwrap(),
            model: "m".into(),
            accepted_ms: 0,
            prompt_tokens: 1,
            completion_tokens: 1,
            ttft_ms: None,
            route: None,
            request: RequestRow::default(),
            labels: Default::default(),
            candidates: vec![candidate("near", 100, 0), denied, candidate("far", 900, 1)],
            left_out: Vec::new(),
            policies: Vec::new(),
            shadows: Vec::new(),
            verdicts: Vec::new(),
            placements: vec![
                ("near".into(), Placement::Resident),
                ("denied".into(), Placement::Denied),
            ],
            stages: Vec::new(),
            kv: Default::default(),
            fetches: Vec::new(),
            fallbacks: Vec::new(),
            status: "ok".into(),
            error: None,
        }
    }

    fn differs(policy: &Says) -> Option<String> {
        let shadow = ask(policy, &record(), &Still).unwrap();
        assert_eq!((shadow.call.name.as_str(), shadow.call.fuel), ("new", Some(3)));
        shadow.differs
    }

    #[test]
    fn a_router_differs_by_the_route_it_puts_first() {
        assert_eq!(differs(&scores(&[1, 500])), None);
        let far = "prefill at far/i, decode at home/i";
        assert_eq!(differs(&scores(&[500, 1])).as_deref(), Some(far));
        assert_eq!(
            differs(&scores(&[u32::MAX, u32::MAX])).as_deref(),
            Some("no route")
        );
        let refuse = Answer::Routing(RoutingDecision::Refuse("full".into()));
        let refuses = says(QuestionKind::Routing, Ok(refuse));
        assert_eq!(differs(&refuses).as_deref(), Some("refuse: full"));
    }

    #[test]
    fn a_cost_policy_differs_by_the_cheapest_route() {
        let costs = |totals: [u32; 2]| {
            let mut matrix = CostMatrix::default();
            for total_us in totals {
                matrix.push(&CostRow {
                    total_us,
                    ..CostRow::default()
                });
            }
            says(QuestionKind::Cost, Ok(Answer::Cost(matrix.cells)))
        };
        assert_eq!(differs(&costs([7_000, 9_000])), None);
        let far = "cheapest: prefill at far/i, decode at home/i";
        assert_eq!(differs(&costs([9_000, 7_000])).as_deref(), Some(far));
    }

    #[test]
    fn a_residency_policy_differs_by_any_placement() {
        let places = |placements: [Placement; 2]| {
            says(
                QuestionKind::Residency,
                Ok(Answer::Residency(placements.to_vec())),
            )
        };
        assert_eq!(differs(&places([Placement::Resident, Placement::Denied])), None);
        let otherwise = differs(&places([Placement::Denied, Placement::Denied]));
        assert_eq!(otherwise.as_deref(), Some("near denied"));
    }

    #[test]
    fn a_fault_is_recorded_and_is_no_difference() {
        let trap = says(
            QuestionKind::Routing,
            Err(PolicyFault::Trap("unreachable".into())),
        );
        let shadow = ask(&trap, &record(), &Still).unwrap();
        assert_eq!((&*shadow.call.outcome, shadow.differs), ("trap", None));
        let short = scores(&[1]);
        assert_eq!(ask(&short, &record(), &Still).unwrap().call.outcome, "bad-answer");
        let mut refused = record();
        refused.candidates.clear();
        assert_eq!(ask(&scores(&[]), &refused, &Still), None, "it was never asked");
    }
}
