//! A second prefill beside a slow one: what is ordered from another site is computed here too once that takes too long, and
//! whichever is whole first is used. Off unless it is configured.

use super::journey::{Journey, Leg, Prefiller};
use crate::receive::{Arrival, BrokenOff};
use portolan_decide::Route;
use portolan_ports::{Engine, EngineError, KvPiece, PrefillJob, PrefillReport};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// What may be begun beside an order.
pub(super) struct Hedge {
    /// The route that computes the prompt here and generates the answer where the other one does.
    pub(super) leg: Leg,
    /// When it is begun.
    pub(super) after: Duration,
}

/// What an engine computed.
pub(super) struct Computed {
    pub(super) pieces: Vec<KvPiece>,
    pub(super) report: PrefillReport,
}

/// Who was first.
pub(super) enum First {
    /// The order ended, well or not, and nothing was computed beside it.
    Ordered(Result<Arrival, BrokenOff>),
    /// The prompt was computed here. With the order's failure, if it failed before.
    Computed {
        hedge: Box<Hedge>,
        computed: Computed,
        failed: Option<BrokenOff>,
    },
}

impl Journey {
    /// What may be begun beside the order of `leg`; `rest` are the plan's other routes.
    pub(super) fn hedge(&self, leg: &Leg, rest: &[Route]) -> Option<Hedge> {
        let after = self.site.live().timeouts.hedge(&leg.facts)?;
        let here = |route: &Route| {
            let site = self.fleet.instance(route.prefill).map(|instance| instance.site);
            site == Some(self.site.parts.index) && route.decode == leg.route.decode
        };
        let other = *rest.iter().find(|route| here(route))?;
        let leg = self.leg(other, &[]).ok()?;
        Some(Hedge { leg, after })
    }

    /// The job of the prompt, of which the decode instance holds so many tokens, on `leg`.
    pub(super) fn prefill_job(&self, leg: &Leg, held: u32) -> PrefillJob {
        PrefillJob {
            request: self.id(),
            key: self.key,
            about: Arc::clone(&self.about),
            tokens: self.prefill_tokens(),
            held,
            retention: self.if_current(leg.keep_there),
            cancel: leg.cancel.clone(),
        }
    }
}

/// Waits for an order, and computes beside it what takes too long if `may_begin` then says so. Whatever loses is cancelled.
pub(super) async fn first(
    ordered: impl Future<Output = Result<Arrival, BrokenOff>>,
    hedge: Option<(Hedge, PrefillJob)>,
    may_begin: impl FnOnce(&Hedge) -> bool,
) -> First {
    tokio::pin!(ordered);
    let Some((hedge, job)) = hedge else {
        return First::Ordered(ordered.await);
    };
    tokio::select! {
        biased;
        arrival = &mut ordered => return First::Ordered(arrival),
        () = tokio::time::sleep(hedge.after) => {}
    }
    let Prefiller::Here(engine) = &hedge.leg.prefiller else {
        return First::Ordered(ordered.await);
    };
    if !may_begin(&hedge) {
        return First::Ordered(ordered.await);
    }
    let engine = Arc::clone(engine);
    let computing = compute(engine.as_ref(), job);
    tokio::pin!(computing);
    let mut failed = None;
    let computed = tokio::select! {
        biased;
        arrival = &mut ordered => match arrival {
            Ok(arrival) => return First::Ordered(Ok(arrival)),
            Err(broken) => {
                failed = Some(broken);
                computing.await
            }
        },
        computed = &mut computing => computed,
    };
    match (computed, failed) {
        (Ok(computed), failed) => First::Computed {
            hedge: Box::new(hedge),
            computed,
            failed,
        },
        (Err(_), Some(broken)) => First::Ordered(Err(broken)),
        (Err(_), None) => First::Ordered(ordered.await),
    }
}

/// Computes a prompt on an instance of this site.
pub(super) async fn compute(engine: &dyn Engine, job: PrefillJob) -> Result<Computed, EngineError> {
    let (pieces_in, mut pieces_out) = mpsc::unbounded_channel::<KvPiece>();
    let report = engine.prefill(job, pieces_in).await?;
    let mut pieces = Vec::new();
    while let Ok(piece) = pieces_out.try_recv() {
        pieces.push(piece);
    }
    Ok(Computed { pieces, report })
}
