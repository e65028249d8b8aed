//! One instance: its prefill queue, its decode slots, its cache.

use crate::pipe::Busy;
use crate::scenario::{Scenario, SimInstance};
use portolan_base::{BlockHash, BlockId, Bytes, ModelName, Moment, Permille, Provenance};
use portolan_decide::{InstanceView, Route};
use portolan_kv::{BlockKv, Held, Holder, PoolBlock, PoolConfig, PrefixIndex, PrefixPool};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A prompt of this length gives the prefill speed before any was measured.
const TYPICAL_TOKENS: u32 = 8_192;

/// A request on its way.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    /// Its position in the traffic.
    pub(crate) request: usize,
    /// The route it takes.
    pub(crate) route: Route,
    /// Tokens it was expected to compute when it was decided.
    pub(crate) expected_tokens: u32,
}

/// Simulated blocks do not age: they stay until their room is needed.
const NO_TIME: Moment = Moment(0);

/// State of one instance.
pub(crate) struct Machine {
    pub(crate) config: SimInstance,
    holder: u32,
    pool: PrefixPool,
    about: Arc<Provenance>,
    pub(crate) queue: VecDeque<Job>,
    /// What is being prefilled, if anything: the lease on the cached part, and how long it takes.
    pub(crate) prefilling: Option<(Held, Duration)>,
    /// Requests decided for prefill here and not prefilled yet: also those still on their way, since a router counts
    /// what it has in flight. Without them a burst would all go to the same instance.
    pub(crate) assigned_requests: u32,
    /// Tokens those were expected to compute.
    pub(crate) assigned_tokens: u64,
    pub(crate) waiting: VecDeque<Job>,
    pub(crate) decoding: u32,
    pub(crate) busy: Busy,
    measured: (Duration, u64),
}

impl Machine {
    pub(crate) fn new(holder: u32, config: &SimInstance, scenario: &Scenario) -> Self {
        let blocks = u64::from(config.cache.0 / scenario.block_tokens.0);
        // Simulated traffic names prompts, not tenants: everyone shares what is the same.
        let model = ModelName::new("simulated").expect("a valid name");
        let about = Arc::new(Provenance::public(model, 1));
        let typical = config.prefill.time(portolan_base::Tokens(TYPICAL_TOKENS));
        Self {
            config: config.clone(),
            holder,
            pool: PrefixPool::new(PoolConfig::of(Bytes(blocks * block(0, None, &about).size().0))),
            about,
            queue: VecDeque::new(),
            prefilling: None,
            assigned_requests: 0,
            assigned_tokens: 0,
            waiting: VecDeque::new(),
            decoding: 0,
            busy: Busy::default(),
            measured: (typical, u64::from(TYPICAL_TOKENS)),
        }
    }

    /// The cached beginning of a prompt.
    pub(crate) fn lookup(&mut self, blocks: &[u64]) -> Held {
        let chain: Vec<_> = blocks.iter().copied().map(id).collect();
        self.pool.lookup(&chain, &self.about, NO_TIME)
    }

    /// Keeps a prompt's blocks and tells the index what came and went.
    pub(crate) fn keep(&mut self, blocks: &[u64], index: &mut PrefixIndex) {
        let holder = Holder::instance(self.holder);
        let mut before = None;
        for &name in blocks {
            let done = self
                .pool
                .insert(block(name, before.map(id), &self.about), NO_TIME);
            let gone: Vec<BlockHash> = done
                .evicted
                .iter()
                .flat_map(|block| block.hashes.clone())
                .collect();
            index.removed(holder, &gone);
            if done.added {
                index.stored(holder, before.map(BlockHash), &[BlockHash(name)]);
            }
            before = Some(name);
        }
    }

    /// Notes how long a prefill took, for the speed that decisions see.
    pub(crate) fn measure(&mut self, time: Duration, tokens: u32) {
        self.measured.0 += time;
        self.measured.1 += u64::from(tokens);
    }

    /// What decisions see of it.
    pub(crate) fn view(&mut self, now: Moment) -> InstanceView {
        let sequences = self.decoding + count(self.waiting.len());
        let share =
            |part: u64, whole: u64| Permille((part * 1000).checked_div(whole).unwrap_or(0).min(1000) as u32);
        InstanceView {
            name: self.config.name.clone(),
            site: self.config.site,
            model: 0,
            role: self.config.role,
            standing: portolan_decide::Standing::Ready,
            prefill_queued_requests: self.assigned_requests,
            prefill_queued_tokens: u32::try_from(self.assigned_tokens).unwrap_or(u32::MAX),
            decode_running: sequences,
            decode_slots: self.config.decode_slots,
            kv_used: share(self.pool.used().0, self.pool.budget().0),
            prefill_busy: self.busy.share(now),
            decode_busy: share(u64::from(self.decoding), u64::from(self.config.decode_slots)),
            prefill_ns_per_token: u64::try_from(self.measured.0.as_nanos()).unwrap_or(u64::MAX)
                / self.measured.1,
            decode_step_us: u32::try_from(self.config.decode_step.as_micros()).unwrap_or(u32::MAX),
            price_micros_per_kilotoken: self.config.price_micros_per_kilotoken,
        }
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn id(name: u64) -> BlockId {
    BlockId(u128::from(name).to_le_bytes())
}

/// A block without bytes: every block counts the same, so the pool's budget is a number of blocks.
fn block(name: u64, parent: Option<BlockId>, about: &Arc<Provenance>) -> PoolBlock {
    PoolBlock {
        id: id(name),
        parent,
        hashes: vec![BlockHash(name)],
        about: Arc::clone(about),
        rebuild: Duration::ZERO,
        kv: BlockKv::default(),
    }
}
