//! decide: residency → cost → routing; the reasons go into the record.

use super::journey::{Fault, Journey};
use crate::error::{ErrorKind, RequestError};
use crate::live::Home;
use crate::rollout;
use portolan_base::{BlockHash, INDEX_BLOCK_TOKENS, Tokens};
use portolan_decide::{
    DecideInput, Decision, DecisionRecord, Deferrals, InstanceIndex, KvSize, PrefillMode, Refusal,
    RequestFacts, RequestKind, RequestPolicies, Route, decide,
};
use portolan_policy::NameTables;
use portolan_ports::{Engine, Retention};
use std::time::Duration;
use tokio::runtime::{Handle, RuntimeFlavor};

impl Journey {
    /// Asks the policies until they answer with a plan.
    pub(super) async fn decide(&mut self, held: &[u32]) -> Result<Vec<Route>, Fault> {
        let begun = self.enter("decide");
        self.tell_of_length(held);
        let plan = self.ask(held).await;
        if let Ok(routes) = &plan {
            self.predict(routes);
        }
        self.note_stage("decide", begun);
        plan
    }

    /// Tells the fleet how much of the prompt is left to compute, whoever computes it. A prompt that is computed ahead of
    /// its request is computed here, and of one that no tokenizer of ours has seen nothing is known: neither says where
    /// requests had better go.
    fn tell_of_length(&self, held: &[u32]) {
        let prompt = self.record.prompt_tokens;
        if prompt == 0 || self.request.kind == RequestKind::Prewarm {
            return;
        }
        let most = held.iter().copied().max().unwrap_or(0);
        // The last token is computed even where all of the prompt is cached.
        let uncached = Tokens(prompt - most.min(prompt - 1));
        self.site.parts.fleet.decided(uncached);
    }

    /// Tells the index what the first route leaves where, before anything of it exists: of a burst with one prefix, the
    /// requests that follow the first go where that went. Only what may stay is told, and of a hybrid model only where it
    /// is computed: received recurrent states are not kept.
    fn predict(&self, routes: &[Route]) {
        let Some(Route { prefill, decode, .. }) = routes.first() else {
            return;
        };
        let received = (decode != prefill && !self.model().description.layout.is_hybrid()).then_some(decode);
        let keeps = |instance: &InstanceIndex| self.retention(*instance) == Retention::Keep;
        let instances = [Some(prefill), received].into_iter().flatten().copied();
        // Engines that are salted from end to end may have another chain.
        let is_ours = |instance: &InstanceIndex| {
            let view = self.fleet.instance(*instance);
            view.is_some_and(|view| view.serving.is_pieces())
        };
        let (ours, salted): (Vec<_>, Vec<_>) = instances.filter(keeps).partition(is_ours);
        // The last token's KV is made by decoding, after which the block may be full or not.
        let tokens = self.request.prompt.len().saturating_sub(1);
        let blocks = kept_blocks(tokens, self.model().description.layout.block_tokens);
        let fleet = &self.site.parts.fleet;
        fleet.predict(&ours, &self.chain[..blocks.min(self.chain.len())], &self.about);
        if !salted.is_empty() {
            let computed = &self.request.prompt[..tokens / INDEX_BLOCK_TOKENS * INDEX_BLOCK_TOKENS];
            let chain = BlockHash::chain(&self.salted_key(), computed);
            fleet.predict(&salted, &chain, &self.about);
        }
    }

    async fn ask(&mut self, held: &[u32]) -> Result<Vec<Route>, Fault> {
        let seed = self.site.parts.random.next_u64();
        let mut deferrals = Deferrals::default();
        let before = (self.record.policies.len(), self.record.fallbacks.len());
        loop {
            match self.decide_once(held, seed)? {
                Decision::Go(plan) => {
                    self.placements = Some(plan.placements);
                    return Ok(plan.routes);
                }
                Decision::Refuse(refusal) => return Err(Fault::Refused(client_error(&refusal))),
                Decision::Defer(ms) => {
                    let Some(hold) = deferrals.hold(ms, self.now()) else {
                        return Err(Fault::Refused(held_too_long()));
                    };
                    self.count_round(before);
                    tokio::time::sleep(hold).await;
                    self.fleet = self.site.parts.fleet.view();
                }
            }
        }
    }

    /// The record keeps the last round; what one before it cost counts all the same.
    fn count_round(&mut self, (policies, fallbacks): (usize, usize)) {
        let calls = self.record.policies.split_off(policies);
        let given_up = self.record.fallbacks.split_off(fallbacks);
        self.site.metrics.decided(&calls, &given_up);
        rollout::count_calls(&self.site, Some(&self.record.tenant), &calls);
    }

    fn decide_once(&mut self, held: &[u32], seed: u64) -> Result<Decision, Fault> {
        let facts = self.facts(seed)?;
        let layout = &self.model().description.layout;
        let kv = KvSize::from(layout.as_ref());
        let input = DecideInput {
            request: &facts,
            fleet: &self.fleet,
            kv,
            held,
            fetch_block: Some(Tokens(layout.block_tokens)),
            policies: &self.policies,
        };
        let clock = self.site.parts.clock.as_ref();
        let (decision, record) = ask_policies(&self.policies, || decide(&input, clock));
        self.note_decision(record);
        Ok(decision)
    }

    fn note_decision(&mut self, record: DecisionRecord) {
        for fallback in &record.fallbacks {
            tracing::warn!(
                request = %self.request.id, tenant = %self.request.tenant.name, asked = %fallback.from,
                instead = %fallback.to, reason = %fallback.reason, "a policy gave no usable answer"
            );
        }
        self.record.request = record.request;
        self.record.candidates = record.candidates;
        self.record.left_out = record.left_out;
        self.record.placements = record.placements;
        self.record.verdicts = record.verdicts;
        self.record.policies.extend(record.policies);
        self.record.fallbacks.extend(record.fallbacks);
    }

    fn facts(&self, seed: u64) -> Result<RequestFacts, Fault> {
        let request = &self.request;
        let names = self.site.parts.fleet.names();
        let index = |names: &[String], name: &str| position(names, name);
        let restricted = jurisdiction(&names, &request.tenant.jurisdiction).map_err(|error| {
            Fault::Refused(
                RequestError::new(ErrorKind::Forbidden, error.to_string()).with_code("residency_denied"),
            )
        })?;
        Ok(RequestFacts {
            id: request.id.clone(),
            tenant: 0,
            model: index(&names.models, request.model.as_str()),
            session: request.session.as_deref().map_or(0, |s| self.key.opaque(s)),
            origin: self.site.parts.index,
            jurisdiction: restricted,
            user_class: index(&names.user_classes, &request.tenant.user_class),
            kind: request.kind,
            prompt_tokens: self.record.prompt_tokens,
            max_output_tokens: request.max_tokens,
            expected_output_tokens: self
                .site
                .outputs
                .expected(&request.tenant.name, request.max_tokens),
            prefill_mode: self.prefill_mode(),
            manner: request.manner,
            priority: request.priority,
            ttft_slo_ms: request.ttft_slo_ms,
            seed,
            now: self.now(),
            labels: request.labels.clone(),
        })
    }

    /// Where the prompt is to be computed: as the client asked, or as the operator rules where it did not.
    fn prefill_mode(&self) -> PrefillMode {
        let computes = |engine: &std::sync::Arc<dyn Engine>| {
            let about = engine.describe();
            about.model == self.request.model && about.role.prefills()
        };
        let home = match self.site.parts.engines.values().any(computes) {
            true => Home::Prefills,
            false => Home::Cannot,
        };
        let tokens = Tokens(self.record.prompt_tokens);
        self.site
            .live()
            .prefill
            .mode(self.request.prefill_mode, tokens, home)
    }

    pub(super) fn model(&self) -> &crate::site::ServedModel {
        self.site
            .parts
            .models
            .get(&self.request.model)
            .expect("admit checked that the model is served")
    }
}

/// Runs what blocks: a call of a component takes under a millisecond on the calling thread, up to its deadline in the
/// runtime's slow lane. The other tasks of this worker move on meanwhile, so that a looping policy stops nobody's stream.
/// Threads that are not the runtime's just run it.
pub(crate) fn without_holding_up_others<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Asks policies so. Leaving a worker to others costs as much as some decisions, so what only built-in policies answer is
/// answered where it is asked.
pub fn ask_policies<T>(policies: &RequestPolicies, ask: impl FnOnce() -> T) -> T {
    match policies.are_built_in() {
        true => ask(),
        false => without_holding_up_others(ask),
    }
}

/// The index of a jurisdiction by name; 0, no restriction, when none is stated.
///
/// # Errors
/// When no site lies in a jurisdiction of this name: data that says it is restricted is never taken for unrestricted.
pub(crate) fn jurisdiction(names: &NameTables, name: &str) -> Result<u32, UnknownJurisdiction> {
    match name {
        "" => Ok(0),
        name => names
            .jurisdiction(name)
            .ok_or_else(|| UnknownJurisdiction(name.to_owned())),
    }
}

/// A jurisdiction that no site lies in.
#[derive(Debug, thiserror::Error)]
#[error("no site lies in jurisdiction {0:?}")]
pub(crate) struct UnknownJurisdiction(String);

fn position(names: &[String], name: &str) -> u32 {
    names
        .iter()
        .position(|n| n == name)
        .and_then(|i| u32::try_from(i).ok())
        .unwrap_or(0)
}

/// How many index blocks of `tokens` an instance of ours keeps: its pool has whole blocks of `block_tokens` only, so that
/// of a shorter beginning there is nothing to come back for.
fn kept_blocks(tokens: usize, block_tokens: u32) -> usize {
    let block = (block_tokens as usize).max(1);
    tokens / block * block / INDEX_BLOCK_TOKENS
}

fn held_too_long() -> RequestError {
    let text = "the routing policy held the request for too long; try again later";
    RequestError::unavailable(text, Duration::from_secs(1)).with_code("deferred")
}

fn client_error(refusal: &Refusal) -> RequestError {
    let text = refusal.to_string();
    match refusal {
        Refusal::Residency(_) => RequestError::new(ErrorKind::Forbidden, text).with_code("residency_denied"),
        Refusal::Policy(_) => {
            let said = text.trim();
            let said = if said.is_empty() {
                "the routing policy refused the request"
            } else {
                said
            };
            RequestError::new(ErrorKind::Forbidden, said).with_code("policy_refused")
        }
        Refusal::NoInstance(_) | Refusal::NoRoute => {
            RequestError::unavailable(text, Duration::from_secs(1)).with_code("no_route")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_keeps_whole_blocks_of_its_own() {
        assert_eq!(
            [63, 64, 127, 128].map(|tokens| kept_blocks(tokens, 64)),
            [0, 4, 4, 8]
        );
        assert_eq!([15, 16, 79].map(|tokens| kept_blocks(tokens, 16)), [0, 1, 4]);
        assert_eq!(kept_blocks(79, 0), 4);
    }
}
