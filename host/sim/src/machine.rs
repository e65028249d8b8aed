//! One instance: its prefill queue, its decode slots, its cache.

use crate::flight::Ticket;
use crate::pipe::BusyTime;
use crate::scenario::{Scenario, SimInstance};
use portolan_base::{
    BlockHash, BlockId, Bytes, CurveMeter, ModelName, Moment, Permille, Provenance, Role, Tokens,
};
use portolan_decide::{InstanceView, Standing};
use portolan_kv::{BlockKv, Held, Holder, PoolBlock, PoolConfig, PrefixIndex, PrefixPool};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Prompts of these lengths give the prefill speed before any was measured, as an instance that warms up measures
/// itself.
const WARM_UP_TOKENS: [u32; 4] = [512, 4_096, 16_384, 65_536];

/// Simulated blocks do not age: they stay until their room is needed.
const NO_TIME: Moment = Moment(0);

/// What is being prefilled.
pub(crate) struct Prefilling {
    pub(crate) began: Moment,
    pub(crate) time: Duration,
    pub(crate) tokens: u32,
    /// Keeps the cached part.
    _lease: Held,
}

/// State of one instance.
pub(crate) struct Machine {
    pub(crate) config: SimInstance,
    /// What it is for at present.
    pub(crate) role: Role,
    /// What it is to become once it has drained.
    pub(crate) becomes: Option<Role>,
    /// Whether its site is there.
    pub(crate) alive: bool,
    holder: Holder,
    pool: PrefixPool,
    about: Arc<Provenance>,
    pub(crate) queue: VecDeque<Ticket>,
    pub(crate) prefilling: Option<Prefilling>,
    /// Requests decided for prefill here and not begun: also those still on their way, since a router counts what it
    /// has in flight. Without them a burst would all go to the same instance.
    pub(crate) assigned_requests: u32,
    /// Tokens those were expected to compute.
    pub(crate) assigned_tokens: u64,
    /// Requests decided for decode here and not done: those on their way too, for the same reason.
    pub(crate) assigned_decodes: u32,
    pub(crate) waiting: VecDeque<Ticket>,
    pub(crate) decoding: u32,
    pub(crate) busy: BusyTime,
    /// Busy time at the last two readings, for the share between them.
    busy_read: [(Moment, u64); 2],
    measured: (Duration, u64),
    curve: CurveMeter,
}

impl Machine {
    pub(crate) fn new(holder: u32, config: &SimInstance, scenario: &Scenario) -> Self {
        let blocks = u64::from(config.cache.0 / scenario.block_tokens.0);
        // Simulated traffic names prompts, not tenants: everyone shares what is the same.
        let model = ModelName::new("simulated").expect("a valid name");
        let about = Arc::new(Provenance::public(model, 1));
        let mut machine = Self {
            config: config.clone(),
            role: config.role,
            becomes: None,
            alive: true,
            holder: Holder::instance(holder),
            pool: PrefixPool::new(PoolConfig::of(Bytes(blocks * block(0, None, &about).size().0))),
            about,
            queue: VecDeque::new(),
            prefilling: None,
            assigned_requests: 0,
            assigned_tokens: 0,
            assigned_decodes: 0,
            waiting: VecDeque::new(),
            decoding: 0,
            busy: BusyTime::default(),
            busy_read: [(Moment(0), 0); 2],
            measured: (Duration::ZERO, 0),
            curve: CurveMeter::default(),
        };
        for tokens in WARM_UP_TOKENS {
            machine.measure(config.prefill.time(Tokens(tokens)), tokens);
        }
        machine
    }

    /// The cached beginning of a prompt.
    pub(crate) fn lookup(&mut self, blocks: &[u64]) -> Held {
        let chain: Vec<_> = blocks.iter().copied().map(id).collect();
        self.pool.lookup(&chain, &self.about, NO_TIME)
    }

    /// Begins to compute `tokens` of a prompt whose cached part is leased; how long that takes.
    pub(crate) fn begin(&mut self, now: Moment, lease: Held, tokens: u32) -> Duration {
        let time = self.config.prefill.time(Tokens(tokens));
        self.busy.begin(now);
        self.prefilling = Some(Prefilling {
            began: now,
            time,
            tokens,
            _lease: lease,
        });
        time
    }

    /// Ends what is being prefilled.
    pub(crate) fn end(&mut self, now: Moment) {
        self.busy.end(now);
        if let Some(done) = self.prefilling.take() {
            self.measure(done.time, done.tokens);
        }
    }

    /// Keeps a prompt's blocks and tells the index what came and went.
    pub(crate) fn keep(&mut self, blocks: &[u64], index: &mut PrefixIndex) {
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
            index.removed(self.holder, &gone);
            if done.added {
                index.stored(self.holder, before.map(BlockHash), &[BlockHash(name)]);
            }
            before = Some(name);
        }
    }

    /// Its site is gone: nothing is left of what it held and did.
    pub(crate) fn lose(&mut self, now: Moment, index: &mut PrefixIndex) {
        self.alive = false;
        self.busy.end(now);
        self.pool = PrefixPool::new(PoolConfig::of(self.pool.budget()));
        index.clear(self.holder.place);
        self.queue.clear();
        self.prefilling = None;
        (self.assigned_requests, self.assigned_tokens) = (0, 0);
        self.waiting.clear();
        (self.assigned_decodes, self.decoding) = (0, 0);
    }

    /// Whether it takes work.
    pub(crate) fn is_ready(&self) -> bool {
        self.alive && self.becomes.is_none()
    }

    /// Whether nothing is left to do.
    pub(crate) fn has_drained(&self) -> bool {
        self.assigned_requests == 0 && self.prefilling.is_none() && self.assigned_decodes == 0
    }

    /// Notes how long a prefill took, for the speed that decisions see.
    fn measure(&mut self, time: Duration, tokens: u32) {
        self.measured.0 += time;
        self.measured.1 += u64::from(tokens);
        self.curve.note(tokens, time);
    }

    /// What of the running prefill was not computed at `now`: requests, and tokens.
    pub(crate) fn running(&self, now: Moment) -> (u32, u64) {
        self.prefilling.as_ref().map_or((0, 0), |running| {
            let left = running.time.saturating_sub(now.since(running.began));
            let time = running.time.as_micros().max(1);
            let tokens = u128::from(running.tokens) * left.as_micros() / time;
            (1, tokens as u64)
        })
    }

    /// Writes the queue, as a router that counts what it sends here knows it. `shared` is this instance's part of its
    /// pool's queue.
    pub(crate) fn show_queue(&self, now: Moment, shared: (u32, u64), view: &mut InstanceView) {
        let (requests, tokens) = self.running(now);
        view.prefill_queued_requests = requests + self.assigned_requests + shared.0;
        let tokens = tokens + self.assigned_tokens + shared.1;
        view.prefill_queued_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        view.decode_running = self.assigned_decodes;
        view.standing = match (self.alive, self.is_ready()) {
            (false, _) => Standing::Silent,
            (true, false) => Standing::Draining,
            (true, true) => Standing::Ready,
        };
        view.role = self.role;
    }

    /// Writes what an instance's load report says.
    pub(crate) fn report(&mut self, now: Moment, view: &mut InstanceView) {
        let share = |part: u64, whole: u64| {
            Permille(
                (part.saturating_mul(1000))
                    .checked_div(whole)
                    .unwrap_or(0)
                    .min(1000) as u32,
            )
        };
        let busy = self.busy.until(now);
        let (then, before) = self.busy_read[0];
        view.prefill_busy = share(busy - before, now.0 - then.0);
        self.busy_read = [self.busy_read[1], (now, busy)];
        view.kv_used = share(self.pool.used().0, self.pool.budget().0);
        view.decode_busy = share(u64::from(self.decoding), u64::from(self.config.decode_slots));
        view.prefill_curve = self.curve.curve();
        view.prefill_ns_per_token = (self.measured.0.as_nanos() / u128::from(self.measured.1.max(1))) as u64;
    }

    /// What decisions see of it before anything happened.
    pub(crate) fn view(&self) -> InstanceView {
        InstanceView {
            name: self.config.name.clone(),
            site: self.config.site,
            model: 0,
            role: self.role,
            serving: Default::default(),
            standing: Standing::Ready,
            prefill_queued_requests: 0,
            prefill_queued_tokens: 0,
            decode_running: 0,
            decode_slots: self.config.decode_slots,
            kv_used: Permille(0),
            prefill_busy: Permille(0),
            decode_busy: Permille(0),
            prefill_ns_per_token: 0,
            prefill_curve: self.curve.curve(),
            decode_step_us: u32::try_from(self.config.decode_step.as_micros()).unwrap_or(u32::MAX),
            price_micros_per_kilotoken: self.config.price_micros_per_kilotoken,
        }
    }
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
