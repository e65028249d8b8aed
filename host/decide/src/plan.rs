//! The decision: which routes, in which order, and why.

use crate::ask::{Asker, MAX_DEFER_MS};
use crate::fleet::{FleetView, InstanceIndex, InstanceView};
use crate::order::order_by_score;
use crate::record::{CandidateRecord, DecisionRecord, LeftOut, RouteRecord};
use crate::request::{RequestFacts, RequestKind};
use crate::residency::Placements;
use crate::route::{Candidates, KvSize, Route};
use crate::standing::Standing;
use crate::table::RequestPolicies;
use portolan_base::{Clock, Tokens};
use portolan_policy::builtin::{self, Cost, Routing};
use portolan_policy::{
    Answer, CostMatrix, CostView, Matrix, NEVER, Purpose, Question, QuestionKind, RequestView,
    RoutingDecision, Subject,
};

/// Everything a decision is made from.
#[derive(Clone, Copy)]
pub struct DecideInput<'a> {
    /// The request.
    pub request: &'a RequestFacts,
    /// The fleet.
    pub fleet: &'a FleetView,
    /// How large the model's KV is.
    pub kv: KvSize,
    /// Prompt tokens each instance holds KV for, by instance index.
    pub held: &'a [u32],
    /// Tokens in a block of KV, where the host fetches what another site holds if that is quicker than computing it;
    /// none: it fetches nothing, and no estimate counts on it.
    pub fetch_block: Option<Tokens>,
    /// The versions this request was admitted with.
    pub policies: &'a RequestPolicies,
}

/// An ordered plan: the first route is taken, the rest are its fallbacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Routes, best first. Not empty.
    pub routes: Vec<Route>,
    /// What each site may do with the data.
    pub placements: Placements,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No ready instance serves the model for this request.
    #[error("no instance can serve this request: {0}")]
    NoInstance(String),
    /// Every route touches a site that may not see the data.
    #[error("the residency answer leaves no route: {0}")]
    Residency(String),
    /// The routing policy ruled every route out.
    #[error("the routing policy ruled out every route")]
    NoRoute,
    /// The routing policy refused the request; the text is the policy's own, for the client.
    #[error("{0}")]
    Policy(String),
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Take these routes in order.
    Go(Plan),
    /// Ask again after this many milliseconds.
    Defer(u32),
    /// Do not serve it.
    Refuse(Refusal),
}

/// Decides one request: candidates, then residency, cost and routing, each policy call with its fallback.
pub fn decide(input: &DecideInput<'_>, clock: &dyn Clock) -> (Decision, DecisionRecord) {
    let id = input.request.id.clone();
    let mut asker = Asker::new(clock, &input.request.labels, id.as_str());
    let mut desk = Desk {
        input,
        clock,
        record: DecisionRecord::default(),
    };
    let decision = desk.decide(&mut asker);
    desk.record.policies = asker.calls;
    desk.record.fallbacks = asker.fallbacks;
    (decision, desk.record)
}

struct Desk<'a> {
    input: &'a DecideInput<'a>,
    clock: &'a dyn Clock,
    record: DecisionRecord,
}

impl Desk<'_> {
    fn decide(&mut self, asker: &mut Asker<'_>) -> Decision {
        let DecideInput {
            request,
            fleet,
            kv,
            held,
            ..
        } = *self.input;
        let row = request.row(fleet.offload_threshold.0, fleet.bandwidth_is_scarce());
        self.record.request = row;
        let row = row.to_cells();
        let mut all = Candidates::enumerate(request, fleet, kv, held);
        self.record.candidates = all
            .routes
            .iter()
            .zip(&all.rows)
            .map(|(r, row)| self.candidate(*r, row))
            .collect();
        self.record.left_out = self.left_out(&all);
        if all.routes.is_empty() {
            return Decision::Refuse(Refusal::NoInstance(self.why_empty()));
        }
        let placements = self.placements(&row, asker);
        let allowed = self.allowed(&all, &placements);
        if allowed.is_empty() {
            return Decision::Refuse(Refusal::Residency(self.denied_sites()));
        }
        all.count_on_fetches(self.input, &placements);
        for &position in &allowed {
            self.record.candidates[position].facts = all.rows[position];
        }
        let candidates = all.select(&allowed);
        let matrix = candidates.matrix();
        let routes = matrix.as_matrix();
        let costs = self.costs(&row, routes, asker);
        for (&position, cost) in allowed.iter().zip(costs.as_matrix().rows()) {
            self.record.candidates[position].cost = Some(CostView(cost).to_row());
        }
        match self.routing(&row, routes, costs.as_matrix(), asker) {
            RoutingDecision::Scores(scores) => match self.order(&allowed, &candidates, &scores) {
                routes if routes.is_empty() => Decision::Refuse(Refusal::NoRoute),
                routes => Decision::Go(Plan { routes, placements }),
            },
            RoutingDecision::Defer(ms) => Decision::Defer(ms.min(MAX_DEFER_MS)),
            RoutingDecision::Refuse(reason) => Decision::Refuse(Refusal::Policy(reason)),
        }
    }

    /// What each site may do with the data.
    fn placements(&mut self, row: &[u32], asker: &mut Asker<'_>) -> Placements {
        let DecideInput {
            request,
            fleet,
            policies,
            ..
        } = *self.input;
        let subject = Subject {
            purpose: match request.kind {
                RequestKind::Prewarm => Purpose::Prewarm,
                RequestKind::Interactive | RequestKind::Batch => Purpose::Serve,
            },
            data_jurisdiction: request.jurisdiction,
            data_class: request.user_class,
            from_site: None,
        };
        let placements = Placements::ask(policies, subject, row, (fleet, request.origin), asker);
        self.record.placements = fleet
            .sites
            .iter()
            .zip(placements.as_slice())
            .map(|(site, placement)| (site.name.as_str().to_owned(), *placement))
            .collect();
        self.record.verdicts = placements.verdicts(fleet, request.jurisdiction);
        placements
    }

    /// Positions of the candidates whose sites may both see the data.
    fn allowed(&mut self, all: &Candidates, placements: &Placements) -> Vec<usize> {
        let fleet = self.input.fleet;
        let mut allowed = Vec::new();
        for (position, route) in all.routes.iter().enumerate() {
            let site_of = |instance| fleet.instance(instance).map(|i| i.site);
            let denied = [route.prefill, route.decode]
                .into_iter()
                .filter_map(site_of)
                .find(|site| !placements.allows(*site))
                .and_then(|site| fleet.site(site));
            match denied {
                None => allowed.push(position),
                Some(site) => {
                    self.record.candidates[position].excluded =
                        Some(format!("residency denies {}", site.name));
                }
            }
        }
        allowed
    }

    fn costs(&self, row: &[u32], routes: Matrix<'_>, asker: &mut Asker<'_>) -> CostMatrix {
        if let Some(policy) = &self.input.policies.cost
            && let Some(Answer::Cost(cells)) = asker.ask(
                policy.as_ref(),
                Question::Cost { request: row, routes },
                "the built-in cost",
            )
        {
            return CostMatrix { cells };
        }
        let begun = self.clock.now();
        let costs = builtin::Ttft::default().estimate_all(RequestView(row), builtin::Routes(routes));
        asker.note_built_in(QuestionKind::Cost, "ttft", self.micros_since(begun));
        costs
    }

    fn routing(
        &self,
        row: &[u32],
        routes: Matrix<'_>,
        costs: Matrix<'_>,
        asker: &mut Asker<'_>,
    ) -> RoutingDecision {
        if let Some(policy) = &self.input.policies.routing {
            let question = Question::Routing {
                request: row,
                routes,
                costs,
            };
            if let Some(Answer::Routing(decision)) =
                asker.ask(policy.as_ref(), question, "the built-in router")
            {
                return decision;
            }
        }
        let begun = self.clock.now();
        let decision = builtin::LowestCost.decide(RequestView(row), builtin::Candidates::new(routes, costs));
        asker.note_built_in(QuestionKind::Routing, "lowest-cost", self.micros_since(begun));
        decision
    }

    fn micros_since(&self, begun: portolan_base::Moment) -> u64 {
        u64::try_from(self.clock.now().since(begun).as_micros()).unwrap_or(u64::MAX)
    }

    /// Routes by score, without those ruled out; near-equals at the top are rotated by the seed.
    fn order(&mut self, allowed: &[usize], candidates: &Candidates, scores: &[u32]) -> Vec<Route> {
        let order = order_by_score(scores, self.input.request.seed);
        for (rank, &i) in (0u32..).zip(&order) {
            self.record.candidates[allowed[i]].rank = Some(rank);
        }
        self.mark_ruled_out(allowed, scores);
        order.into_iter().map(|i| candidates.routes[i]).collect()
    }

    fn mark_ruled_out(&mut self, allowed: &[usize], scores: &[u32]) {
        for (&position, &score) in allowed.iter().zip(scores) {
            let candidate = &mut self.record.candidates[position];
            candidate.score = Some(score);
            if score == NEVER {
                candidate.excluded = Some("the routing policy says never".to_owned());
            }
        }
    }

    fn candidate(&self, route: Route, facts: &portolan_policy::RouteRow) -> CandidateRecord {
        CandidateRecord {
            route: route_record(self.input.fleet, route),
            facts: *facts,
            cost: None,
            score: None,
            rank: None,
            excluded: None,
        }
    }

    /// Instances of the model that are in no candidate because of their standing or their link.
    fn left_out(&self, all: &Candidates) -> Vec<LeftOut> {
        let DecideInput { request, fleet, .. } = *self.input;
        let unreachable = |site| {
            fleet
                .links
                .get(&(site, request.origin))
                .is_some_and(|link| !link.up)
        };
        let reason = |instance: &InstanceView| match instance.standing {
            Standing::Ready if unreachable(instance.site) => Some("its link is down".to_owned()),
            Standing::Ready => None,
            standing => Some(standing.to_string()),
        };
        let used = |index| all.routes.iter().any(|r| r.prefill == index || r.decode == index);
        fleet
            .indexed()
            .filter(|(_, instance)| instance.model == request.model)
            .filter_map(|(index, instance)| reason(instance).map(|reason| (index, reason)))
            .filter(|(index, _)| !used(*index))
            .map(|(index, reason)| {
                let (site, instance) = instance_names(fleet, index);
                LeftOut {
                    site,
                    instance,
                    reason,
                }
            })
            .collect()
    }

    fn why_empty(&self) -> String {
        let DecideInput { request, fleet, .. } = *self.input;
        let of_model = || fleet.instances.iter().filter(|i| i.model == request.model);
        let here = |i: &&InstanceView| i.site == request.origin && i.role.decodes();
        match (
            of_model().count(),
            of_model().filter(here).filter(|i| i.standing.is_ready()).count(),
        ) {
            (0, _) => "no site has one for this model".to_owned(),
            (_, 0) => "none that can decode is ready at the site the request came in".to_owned(),
            _ => format!(
                "none that can prefill is ready and reachable with prefill_policy {}",
                request.prefill_mode.as_str()
            ),
        }
    }

    fn denied_sites(&self) -> String {
        let denied: Vec<&str> = self
            .record
            .placements
            .iter()
            .filter(|(_, placement)| *placement == portolan_policy::Placement::Denied)
            .map(|(site, _)| site.as_str())
            .collect();
        format!("denied: {}", denied.join(", "))
    }
}

/// The names of an instance's site and of the instance; dashes where it left the fleet.
pub fn instance_names(fleet: &FleetView, index: InstanceIndex) -> (String, String) {
    let instance = fleet.instance(index);
    let site = instance.and_then(|i| fleet.site(i.site));
    let site = site.map_or("-", |s| s.name.as_str()).to_owned();
    (site, instance.map_or("-", |i| i.name.as_str()).to_owned())
}

/// A route by names. Instances that left the fleet are named by a dash.
pub fn route_record(fleet: &FleetView, route: Route) -> RouteRecord {
    let (prefill_site, prefill_instance) = instance_names(fleet, route.prefill);
    let (decode_site, decode_instance) = instance_names(fleet, route.decode);
    RouteRecord {
        prefill_site,
        prefill_instance,
        decode_site,
        decode_instance,
    }
}

#[cfg(test)]
mod tests;
