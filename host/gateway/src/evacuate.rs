//! Empties the site: prefixes that are asked for here move to the sites that take over, the hottest first, within a time
//! and so many bytes, as second copies: after all that somebody waits for, and within each link's budget.
//!
//! Whoever takes a prefix orders it from here (`peer/hand_over.rs`), after the residency answer for purpose replicate was
//! asked, here and there. What is worth moving and in which order is decided in [`portolan_decide::hot`].

mod progress;
mod take;

pub(crate) use progress::Progress;

use crate::site::Site;
use parking_lot::Mutex;
use portolan_base::{Bytes, Moment};
use portolan_decide::{Hot, HotPrompts, Placements};
use portolan_policy::Subject;
use portolan_ports::{Applied, Cancel, Invalidated, KvOrder};
use progress::Outcome;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Prefixes that move at once, and that a site takes at once: one computes its checksums while the other crosses.
const AT_ONCE: usize = 2;

/// A prompt that was served here, with what is needed to hand its KV over.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// The prompt without its last token, whose data it is, what it depends on. To whom it goes is filled in.
    pub(crate) order: Arc<KvOrder>,
    /// Whose data, for the residency answer.
    pub(crate) subject: Subject,
    /// What the request's own residency answer said.
    pub(crate) placements: Placements,
    /// Labels a policy may look up.
    pub(crate) labels: Arc<BTreeMap<String, String>>,
}

/// How far emptying the site may go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EvacuationBounds {
    pub(crate) until: Moment,
    pub(crate) most: Bytes,
}

/// What the site is asked for, and its emptying if one was ordered.
#[derive(Debug)]
pub(crate) struct Evacuation {
    hot: Mutex<HotPrompts<Served>>,
    run: Mutex<Option<Arc<Run>>>,
    /// Prefixes of other sites that are being taken.
    taking: Semaphore,
}

/// One emptying.
#[derive(Debug)]
struct Run {
    bounds: EvacuationBounds,
    cancel: Cancel,
    left: Mutex<VecDeque<Hot<Served>>>,
    progress: Mutex<Progress>,
}

impl Default for Evacuation {
    fn default() -> Self {
        Self {
            hot: Mutex::default(),
            run: Mutex::default(),
            taking: Semaphore::new(AT_ONCE),
        }
    }
}

impl Evacuation {
    /// A request asked for a prompt whose KV may stay here.
    pub(crate) fn note(&self, now: Moment, blocks: Vec<portolan_base::BlockHash>, served: Served) {
        let tenant = served.order.tenant.clone();
        self.hot.lock().note(now, &tenant, blocks, served);
    }

    /// Room to take one prefix; none when as many as may be are being taken.
    pub(crate) fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.taking.try_acquire().ok()
    }

    /// How far the last emptying came; none: there was none since the start.
    pub(crate) fn progress(&self) -> Option<Progress> {
        self.run.lock().as_ref().map(|run| run.progress.lock().clone())
    }

    /// Ends the emptying that is under way.
    pub(crate) fn cancel(&self) {
        if let Some(run) = self.run.lock().as_ref() {
            run.cancel.cancel();
        }
    }
}

impl Applied for Evacuation {
    /// Prompts go with their tenant and with their model's version: of the rest, what is held is looked at when it moves.
    fn applied(&self, what: &Invalidated) {
        let mut hot = self.hot.lock();
        match what {
            Invalidated::Model { model } => hot.forget(|_, served| served.order.model == *model),
            Invalidated::Tenant {
                scope: portolan_base::Scope::Tenant(tenant),
            } => hot.forget(|of, _| of == tenant),
            Invalidated::Tenant { .. } | Invalidated::Dependency { .. } | Invalidated::Prefix { .. } => {}
        }
    }
}

/// Begins to empty the site. One that is under way ends.
pub(crate) fn begin(site: &Arc<Site>, bounds: EvacuationBounds) {
    let hottest: VecDeque<_> = site.evacuation.hot.lock().hottest().into();
    let run = Arc::new(Run {
        bounds,
        cancel: Cancel::new(),
        progress: Mutex::new(Progress::of(hottest.len())),
        left: Mutex::new(hottest),
    });
    if let Some(before) = site.evacuation.run.lock().replace(Arc::clone(&run)) {
        before.cancel.cancel();
    }
    let site = Arc::clone(site);
    tokio::spawn(async move {
        let one = || work(&site, &run);
        tokio::join!(one(), one());
        run.progress.lock().end();
        let told = run.progress.lock().clone();
        tracing::info!(
            site = %site.parts.name, moved = told.moved, there_already = told.there_already, tokens = told.tokens,
            bytes = told.bytes, not_moved = told.not_moved.len(), "the site was emptied as far as it could be"
        );
    });
}

/// Moves one prefix after the other until none is left. What is left when the time is over is named.
async fn work(site: &Arc<Site>, run: &Run) {
    loop {
        let next = run.left.lock().pop_front();
        let Some(hot) = next else { return };
        let moving = take::hand_over(site, run, &hot);
        let outcome = tokio::select! {
            outcome = moving => outcome,
            () = run.cancel.cancelled() => Outcome::not_moved("the site was returned to service"),
        };
        run.progress.lock().count(site, &hot, outcome);
    }
}
