//! fetch: the prefix KV that need not be computed. What another site holds comes here when that is cheaper than
//! computing it; what the decode instance holds is not sent again.

use super::decide::without_holding_up_others;
use super::journey::{Fault, Journey, Leg, Prefiller};
use crate::receive::{Arrival, BrokenOff, receive_within};
use portolan_base::{Bytes, InstanceName, SiteName, Tokens};
use portolan_decide::ask::Asker;
use portolan_decide::record::{Fallback, FetchRecord};
use portolan_decide::{FetchInput, FetchPlan, KvSize, Placements, SiteIndex};
use portolan_policy::{Placement, Purpose, Subject};
use portolan_ports::{
    Engine, Fidelity, HeldPrefix, KeepJob, KvOrder, KvSet, KvSetError, OrderPurpose, Retention,
};
use std::sync::Arc;
use std::time::Duration;

/// Why the beginning of a prompt is computed though another site holds it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfetched {
    #[error("the residency answer does not let this data come from {0} and stay here")]
    Residency(String),
    #[error(transparent)]
    Order(Fault),
    #[error("{error}")]
    Kv { error: KvSetError, bytes: Bytes },
    #[error("the instance has no room to keep what came")]
    NoRoom { bytes: Bytes },
    #[error("{error}")]
    Transfer { error: Fault, bytes: Bytes },
}

impl Unfetched {
    /// What crossed all the same.
    fn bytes(&self) -> Bytes {
        match self {
            Self::Residency(_) | Self::Order(_) => Bytes(0),
            Self::Kv { bytes, .. } | Self::NoRoom { bytes } | Self::Transfer { bytes, .. } => *bytes,
        }
    }
}

/// What came and was kept.
struct Fetched {
    tokens: Tokens,
    bytes: Bytes,
}

impl Journey {
    /// Brings to the prefill instance what another site holds, where that pays; then the attention KV that the decode
    /// instance holds for the beginning of the prompt. `holders` says how many of its tokens each instance is thought
    /// to hold. A prefill instance of another site fetches nothing: its own cache answers there.
    pub(super) async fn fetch(&mut self, leg: &Leg, holders: &[u32]) -> HeldPrefix {
        let begun = self.enter("fetch");
        // What a route before this one brought is not what this one decodes from.
        self.record.kv.quantised = None;
        if let Prefiller::Here(engine) = &leg.prefiller {
            self.bring(leg, engine, holders).await;
        }
        let held = leg.decoder.held(&self.key, &self.prefill_tokens());
        self.note_stage("fetch", begun);
        held
    }

    /// Fetches if it pays, and writes down how that went. Whatever goes wrong is computed.
    async fn bring(&mut self, leg: &Leg, engine: &Arc<dyn Engine>, holders: &[u32]) {
        // What is fetched goes through the instance's cache, and a site that is not resident keeps nothing.
        if leg.keep_there != Retention::Keep {
            return;
        }
        let Some((plan, has)) = self.fetch_plan(leg, engine, holders) else {
            return;
        };
        let names = portolan_decide::plan::instance_names(&self.fleet, plan.from);
        let begun = self.elapsed_ms();
        let outcome = match self.may_fetch(plan.site) {
            true => self.fetch_from(&names, leg, engine, (&plan, &has)).await,
            false => Err(Unfetched::Residency(names.0.clone())),
        };
        let (tokens, bytes) = match &outcome {
            Ok(fetched) => (fetched.tokens.0, fetched.bytes),
            Err(unfetched) => (0, unfetched.bytes()),
        };
        self.record.kv.bytes_moved += bytes.0;
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        self.record.fetches.push(FetchRecord {
            site: names.0.clone(),
            instance: names.1.clone(),
            wanted_tokens: (plan.tokens - Tokens(has.tokens)).0,
            tokens,
            bytes: bytes.0,
            took_ms: self.elapsed_ms() - begun,
            estimated_ms: millis(plan.takes),
            computing_ms: millis(plan.computing),
        });
        if let Err(unfetched) = outcome {
            self.note_unfetched(&plan, &names, &unfetched);
        }
    }

    /// The fetch that pays, and what the prefill instance has.
    fn fetch_plan(
        &self,
        leg: &Leg,
        engine: &Arc<dyn Engine>,
        holders: &[u32],
    ) -> Option<(FetchPlan, HeldPrefix)> {
        let layout = &engine.describe().layout;
        let tokens = self.prefill_tokens();
        let at = leg.route.prefill;
        let thought = holders.get(at.0 as usize).copied().unwrap_or(0);
        let input = FetchInput {
            fleet: &self.fleet,
            kv: KvSize::from(layout.as_ref()),
            block: Tokens(layout.block_tokens),
            held: holders,
            at,
            has: Tokens(thought),
            wanted: Tokens(u32::try_from(tokens.len()).unwrap_or(u32::MAX)),
        };
        let seen = self.placements.as_ref()?;
        let allowed = |site| seen.allows(site);
        // Only a fetch that may pay is worth naming all blocks of the prompt for.
        FetchPlan::best(&input, allowed)?;
        let has = engine.kept(&self.key, &tokens);
        let input = FetchInput {
            has: Tokens(has.tokens),
            ..input
        };
        FetchPlan::best(&input, allowed).map(|plan| (plan, has))
    }

    /// Asks the request's residency policies again: the data may come from `holder`, to which the prompt's tokens are
    /// sent for that, and may stay here. A policy that fails allows only this site's own jurisdiction.
    fn may_fetch(&mut self, holder: SiteIndex) -> bool {
        let parts = &self.site.parts;
        let row = self.record.request;
        let subject = Subject {
            purpose: Purpose::Fetch,
            data_jurisdiction: row.jurisdiction,
            data_class: row.user_class,
            from_site: Some(holder.0),
        };
        let mut asker = Asker::new(
            parts.clock.as_ref(),
            &self.request.labels,
            self.request.id.as_str(),
        );
        let place = (self.fleet.as_ref(), parts.index);
        let cells = row.to_cells();
        let placements =
            without_holding_up_others(|| Placements::ask(&self.policies, subject, &cells, place, &mut asker));
        let may = placements.allows(holder) && placements.of(parts.index) == Placement::Resident;
        self.record.policies.extend(asker.calls);
        self.record.fallbacks.extend(asker.fallbacks);
        may
    }

    async fn fetch_from(
        &self,
        (site, instance): &(String, String),
        leg: &Leg,
        engine: &Arc<dyn Engine>,
        (plan, has): (&FetchPlan, &HeldPrefix),
    ) -> Result<Fetched, Unfetched> {
        let gone = |_| Unfetched::Order(Fault::InstanceGone(instance.clone()));
        let peer = SiteName::new(site).map_err(gone)?;
        let tokens = &self.prefill_tokens()[..plan.tokens.0 as usize];
        let order = self.order(leg, tokens.into(), has.tokens);
        let order = KvOrder {
            instance: InstanceName::new(instance).map_err(gone)?,
            // What is kept serves later requests, which may have to be exact.
            fidelity: Fidelity::Exact,
            purpose: OrderPurpose::Fetch,
            ..order.map_err(Unfetched::Order)?
        };
        let (parts, layout) = (&self.site.parts, &engine.describe().layout);
        let (transport, clock) = (parts.transport.as_ref(), parts.clock.as_ref());
        let arrival = receive_within(plan.deadline(), transport, &peer, order, layout, clock).await;
        let Arrival {
            mut pieces,
            report,
            tokens: came,
            ..
        } = arrival.map_err(|BrokenOff { error, bytes }| Unfetched::Transfer {
            error: Fault::Transfer {
                instance: plan.from,
                error,
            },
            bytes,
        })?;
        let bytes = report.bytes;
        // States of a shorter prefix are of no use to a longer one.
        pieces.extend(has.pieces.iter().filter(|piece| !piece.id.is_empty()).cloned());
        let kv = KvSet::assemble(Arc::clone(layout), came, pieces)
            .map_err(|error| Unfetched::Kv { error, bytes })?;
        let job = KeepJob {
            key: self.key,
            tokens: tokens[..came as usize].into(),
            kv,
            about: Arc::clone(&self.about),
        };
        let engine = Arc::clone(engine);
        let kept = tokio::task::spawn_blocking(move || engine.keep(&job)).await;
        let gained = kept.unwrap_or_default() - Tokens(has.tokens);
        match gained {
            Tokens(0) => Err(Unfetched::NoRoom { bytes }),
            tokens => Ok(Fetched { tokens, bytes }),
        }
    }

    fn note_unfetched(&mut self, plan: &FetchPlan, names: &(String, String), unfetched: &Unfetched) {
        if let Unfetched::Transfer { error, .. } = unfetched {
            self.blame(error);
        }
        let fallback = Fallback {
            stage: "fetch".to_owned(),
            from: format!("{} tokens from {}/{}", plan.tokens.0, names.0, names.1),
            to: "computing them".to_owned(),
            reason: unfetched.to_string(),
        };
        tracing::warn!(request = %self.request.id, from = %fallback.from, reason = %fallback.reason, "not fetched");
        self.record.fallbacks.push(fallback);
    }
}
