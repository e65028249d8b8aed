//! A site's invalidation agent: follows the control stream, makes what an order is about unreachable here, says so, and
//! holds the site's cache-validity lease. Docs: `docs/invalidation.md`; the rules: [`crate::validity`].
//!
//! | file | does |
//! |---|---|
//! | `follow.rs` | follows the stream, applies orders, renews the lease |
//! | `order.rs` | gives an order and waits until it holds everywhere; asks what it would do |
//! | `apply.rs` | from an order to the blocks it is about |
//! | `record.rs` | what survives a restart |
//! | `times.rs` | how long orders take, and who is late |

mod apply;
mod epochs;
mod follow;
mod order;
mod record;
#[cfg(test)]
mod tests;
mod times;

use crate::validity::{LeaseRules, Peers, SiteValidity};
use async_trait::async_trait;
use parking_lot::Mutex;
use portolan_base::{BlockId, Clock, ModelName, Moment, Provenance, Random, Sequence, SiteName};
use portolan_kv::Selector;
use portolan_kv::tier::Tiers;
use portolan_ports::{
    Applied, AppliedReport, AsOf, Begun, Bus, CacheValidity, ControlError, ControlStream, Deciding, Given,
    InUse, Invalidated, Invalidation, Order, Patience, Sample, SiteEffect, Stale, StreamId,
};
use record::Record;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use times::Times;
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::JoinSet;

/// What sites said lately, kept for orders whose acknowledgement is slower than the sites: a second at a thousand
/// orders a second.
const SAID_MAX: usize = 1024;

/// Questions that are out at once: each makes every site go through its index, and is out for a second where one does not
/// answer. One more waits.
const REHEARSALS_AT_ONCE: usize = 16;

/// Orders that end requests, kept for a request that is slow to look.
const ABORTS_KEPT: usize = 64;

/// What an agent is made of.
pub struct InvalidationParts {
    /// The site it acts for.
    pub site: SiteName,
    /// All sites, this one too: those whose word is told to whoever waits.
    pub sites: Vec<SiteName>,
    /// Models served here, with their configured versions.
    pub models: BTreeMap<ModelName, u64>,
    /// The one order of events.
    pub stream: Arc<dyn ControlStream>,
    /// Tells the other sites what was applied.
    pub bus: Arc<dyn Bus>,
    /// What is cached here.
    pub tiers: Arc<Tiers>,
    /// Decides which blocks die.
    pub deciding: Arc<dyn Deciding>,
    /// How long leases last.
    pub rules: LeaseRules,
    /// Where it writes down how far it is; none: it forgets everything at each start.
    pub file: Option<PathBuf>,
    /// Reads the time.
    pub clock: Arc<dyn Clock>,
    /// Draws the incarnation and the ids of orders.
    pub random: Arc<dyn Random>,
}

/// A site's agent.
pub struct SiteInvalidation {
    parts: InvalidationParts,
    state: Mutex<State>,
    /// Held while the record is written: two writers at once would mix their files.
    writing: Mutex<()>,
    /// Counts what could end somebody's waiting.
    changed: watch::Sender<u64>,
    aborts: broadcast::Sender<Arc<Invalidation>>,
    times: Times,
    also: OnceLock<Arc<dyn Applied>>,
    rehearsals: Semaphore,
}

struct State {
    validity: SiteValidity,
    peers: Peers,
    /// What sites said lately, with when it came.
    said: VecDeque<(AppliedReport, Moment)>,
    /// Orders of this site that it met and applied, by their id, and in which stream.
    met: VecDeque<(String, StreamId)>,
    /// Answers to what this site asked before an order, by the question's number.
    effects: BTreeMap<u64, Vec<SiteEffect>>,
    record: Record,
    /// Whether an order was applied since the record was written.
    unwritten: bool,
}

impl SiteInvalidation {
    /// An agent that knows what its file says. Nothing cached may be used until it has caught up.
    pub fn new(parts: InvalidationParts) -> Arc<Self> {
        let now = parts.clock.now();
        parts.tiers.trust_until(Moment(0));
        let known = parts.file.as_deref().and_then(Record::read);
        if known.is_none() {
            // Whatever lies here may be older than orders that nobody here remembers.
            parts.tiers.invalidate(&Selector::All);
        }
        let record = known.unwrap_or_default();
        let at = (record.stream.clone(), record.sequence);
        let process = (parts.site.clone(), parts.random.next_u64());
        let state = State {
            validity: SiteValidity::new(process, parts.rules, at),
            peers: Peers::new(parts.rules, now),
            said: VecDeque::new(),
            met: VecDeque::new(),
            effects: BTreeMap::new(),
            record,
            unwritten: false,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            writing: Mutex::default(),
            changed: watch::Sender::new(0),
            aborts: broadcast::channel(ABORTS_KEPT).0,
            times: Times::default(),
            also: OnceLock::new(),
            rehearsals: Semaphore::new(REHEARSALS_AT_ONCE),
            parts,
        })
    }

    /// Has something else that is kept here told of orders. Set once.
    pub fn tell_too(&self, applied: Arc<dyn Applied>) {
        drop(self.also.set(applied));
    }

    /// Starts to follow; dropping the set ends it.
    pub fn start(self: &Arc<Self>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        // Listens before anything is said.
        let messages = self.parts.bus.subscribe();
        tasks.spawn(Arc::clone(self).hear(messages));
        tasks.spawn(Arc::clone(self).follow());
        tasks.spawn(Arc::clone(self).beat());
        tasks.spawn(Arc::clone(self).tick());
        tasks.spawn(Arc::clone(self).make_room());
        tasks
    }

    /// Returns once the site has a lease.
    pub async fn caught_up(&self) {
        let mut changed = self.changed.subscribe();
        while !self.state.lock().validity.is_valid(self.now()) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Writes down how far the site is, and waits for the disk. To be called when it ends in order.
    pub fn write_down(&self) {
        if let Some(file) = &self.parts.file {
            let _writing = self.writing.lock();
            let record = self.state.lock().record.clone();
            if let Err(error) = record.write(file) {
                tracing::warn!(site = %self.parts.site, file = %file.display(), %error,
                    "how far the control stream was followed could not be written down");
            }
        }
    }

    fn now(&self) -> Moment {
        self.parts.clock.now()
    }

    /// Wakes whoever waits.
    fn something_changed(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

#[async_trait]
impl CacheValidity for SiteInvalidation {
    fn begin(&self) -> Begun {
        self.state.lock().validity.begin()
    }

    fn place(&self) -> AsOf {
        let state = self.state.lock();
        AsOf {
            applied: state.validity.applied_to(),
            stream: state.validity.stream().cloned(),
        }
    }

    fn check(&self, now: Moment) -> Result<(), Stale> {
        match self.state.lock().validity.is_valid(now) {
            true => Ok(()),
            false => Err(Stale::Lapsed),
        }
    }

    fn check_kv(
        &self,
        kv: InUse<'_>,
        now: Moment,
        has_block: &dyn Fn(&BlockId) -> bool,
    ) -> Result<(), Stale> {
        let state = self.state.lock();
        if !state.validity.is_valid(now) {
            return Err(Stale::Lapsed);
        }
        let covers = |order: &Invalidated| match order {
            Invalidated::Prefix { block, .. } => has_block(block),
            order => self.covers(order, kv.about),
        };
        match state.validity.still(kv.begun, &kv.about.scope, covers) {
            true => Ok(()),
            false => Err(Stale::Invalidated),
        }
    }

    fn version(&self, model: &ModelName, configured: u64) -> u64 {
        self.state.lock().record.version(model, configured)
    }

    fn epoch(&self, about: &Provenance) -> Sequence {
        self.state.lock().record.epochs.of(about)
    }

    fn aborts(&self) -> broadcast::Receiver<Arc<Invalidation>> {
        self.aborts.subscribe()
    }

    async fn invalidate(&self, order: Order, patience: Patience) -> Result<Given, ControlError> {
        self.give(order, patience).await
    }

    async fn rehearse(&self, what: &Invalidated) -> Vec<SiteEffect> {
        self.ask_effects(what).await
    }

    fn samples(&self) -> Vec<Sample> {
        let state = self.state.lock();
        let now = self.now();
        let left = state.validity.valid_until().map(|until| until.since(now));
        self.times.samples(
            &self.parts.site,
            left.unwrap_or_default(),
            state.validity.applied_to(),
        )
    }
}

/// An order's id: 64 random bits in hexadecimal.
fn draw_id(random: &dyn Random) -> String {
    format!("inv-{:016x}", random.next_u64())
}
