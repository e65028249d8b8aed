//! When a second copy of a prefix is worth its bandwidth: when requests ask for it often at a site that does not hold it
//! while another one does. What is ordered is bounded, and what turned out useless is left alone for longer each time.

use crate::allowance::{Allowance, Bounds, OtherTenants};
use portolan_base::kv::KvSize;
use portolan_base::{BlockHash, Bytes, Moment, TenantName, Tokens};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Prefixes that are watched at once. Each remembers the names of its blocks, 16 KiB for a prompt of 128,000 tokens.
const WATCHED: usize = 256;

/// Asks remembered of a prefix; [`ReplicaRules::asks`] is no more than this.
pub const ASKS_KEPT: usize = 64;

/// Copies of which it is remembered whether they were of use.
const REMEMBERED: usize = 256;

/// How often the pause doubles at most: 32 times five minutes are nearly three hours.
const MOST_DOUBLINGS: u32 = 5;

/// What a site may order by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaRules {
    /// How many requests have to ask for a prefix within the window.
    pub asks: u32,
    /// The window, which moves.
    pub window: Duration,
    /// Copies of fewer tokens are not worth an order.
    pub min_tokens: Tokens,
    /// Bytes in a minute, and orders under way.
    pub bounds: Bounds,
    /// How long a prefix that was ordered is left alone; twice as long after each copy that nobody used.
    pub pause: Duration,
}

/// A request that asked for a prefix which another site holds further than this one.
#[derive(Clone, Copy, Debug)]
pub struct PrefixAsk<'a> {
    /// Whose it is.
    pub tenant: &'a TenantName,
    /// The name of each pool block that the other site holds, from the prompt's beginning. A name stands for everything
    /// up to its block.
    pub blocks: &'a [BlockHash],
    /// Of them, held here.
    pub here: usize,
    /// Tokens in a block.
    pub block: Tokens,
    /// How large the model's KV is.
    pub kv: KvSize,
}

/// A copy to be ordered. It counts as under way until [`Replicas::ended`] is told how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaDue {
    /// Which prefix, for [`Replicas::ended`].
    pub prefix: PrefixId,
    /// Blocks of the prompt that are to be here afterwards.
    pub blocks: usize,
    /// What is thought to cross.
    pub bytes: Bytes,
}

/// A watched prefix: its first block that is not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixId(BlockHash);

/// How an order ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaEnd {
    /// The residency answer forbids it: nothing was ordered.
    Forbidden,
    /// Nothing was missing when it was looked at closely: nothing was ordered.
    NothingMissing,
    /// It was ordered, and nothing of it is kept; so much crossed.
    Failed(Bytes),
    /// It came, at least the beginning; so much crossed, and so many blocks of the prompt are here.
    Made {
        /// What crossed.
        bytes: Bytes,
        /// Name of the last block that is here.
        last: BlockHash,
        /// Its number in the prompt, from 1.
        blocks: usize,
    },
}

/// What became of all orders since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaCounts {
    /// Orders that went out.
    pub ordered: u64,
    /// Of them, copies that came and were kept.
    pub made: u64,
    /// Of them, copies that a later request used; each counts once.
    pub useful: u64,
    /// Orders that brought nothing.
    pub failed: u64,
    /// Copies that the residency answer forbade before anything was ordered.
    pub forbidden: u64,
    /// Copies that had to wait for the budget; each ask for one counts.
    pub held_back: u64,
    /// Bytes that crossed.
    pub bytes: u64,
}

/// The prefixes a site watches, and what it ordered.
#[derive(Clone, Debug)]
pub struct Replicas {
    rules: ReplicaRules,
    watched: HashMap<PrefixId, Watched>,
    orders: Allowance<PrefixId>,
    made: VecDeque<Made>,
    counts: ReplicaCounts,
}

#[derive(Clone, Debug)]
struct Watched {
    tenant: TenantName,
    /// Names of the blocks of one of its prompts.
    blocks: Vec<BlockHash>,
    /// When it was asked for, and how many of `blocks` were in the prompt.
    asks: VecDeque<(Moment, usize)>,
    rests_until: Moment,
    /// Copies in a row that were of no use.
    useless: u32,
    last: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Made {
    prefix: PrefixId,
    last: BlockHash,
    blocks: usize,
    used: bool,
}

impl Replicas {
    /// Nothing watched.
    pub fn new(rules: ReplicaRules) -> Self {
        Self {
            rules,
            watched: HashMap::new(),
            orders: Allowance::new(rules.bounds),
            made: VecDeque::new(),
            counts: ReplicaCounts::default(),
        }
    }

    /// What became of all orders.
    pub fn counts(&self) -> ReplicaCounts {
        self.counts
    }

    /// Orders under way.
    pub fn under_way(&self) -> usize {
        self.orders.under_way()
    }

    /// Takes a request's ask; says when a copy is due. It is of the beginning of that request's own prompt.
    pub fn asked(&mut self, now: Moment, ask: &PrefixAsk<'_>) -> Option<ReplicaDue> {
        let prefix = PrefixId(*ask.blocks.get(ask.here)?);
        let rules = self.rules;
        let covered = self.watch(prefix, now, ask);
        let watched = self.watched.get(&prefix)?;
        let wanted = watched.wanted(rules.asks)?.min(covered);
        let tokens = (wanted.saturating_sub(ask.here) as u64).saturating_mul(u64::from(ask.block.0));
        let rests = now < watched.rests_until || self.orders.has(&prefix);
        if tokens < u64::from(rules.min_tokens.0.max(1)) || rests {
            return None;
        }
        let bytes = ask.kv.fixed + Bytes(ask.kv.per_token.0.saturating_mul(tokens));
        let waiting = self.others(now, ask.tenant);
        if !self.orders.begin(now, prefix, (ask.tenant, bytes), waiting) {
            self.counts.held_back += 1;
            return None;
        }
        self.leave_alone(now, prefix);
        Some(ReplicaDue {
            prefix,
            blocks: wanted,
            bytes,
        })
    }

    /// Takes how an order ended.
    pub fn ended(&mut self, now: Moment, due: &ReplicaDue, end: ReplicaEnd) {
        let crossed = match end {
            ReplicaEnd::Forbidden | ReplicaEnd::NothingMissing => Bytes(0),
            ReplicaEnd::Failed(bytes) | ReplicaEnd::Made { bytes, .. } => bytes,
        };
        if !self.orders.end(&due.prefix, crossed) {
            return;
        }
        self.counts.bytes += crossed.0;
        match end {
            ReplicaEnd::NothingMissing => {}
            ReplicaEnd::Forbidden => {
                self.counts.forbidden += 1;
                self.rest(now, due.prefix, MOST_DOUBLINGS);
            }
            ReplicaEnd::Failed(_) => {
                self.counts.ordered += 1;
                self.counts.failed += 1;
                self.useless(now, due.prefix);
            }
            ReplicaEnd::Made { last, blocks, .. } => {
                self.counts.ordered += 1;
                self.counts.made += 1;
                self.remember(now, due.prefix, (last, blocks));
            }
        }
    }

    /// Says that a request found the first `found` of these blocks at this site.
    pub fn found(&mut self, blocks: &[BlockHash], found: usize) {
        for made in self
            .made
            .iter_mut()
            .filter(|made| !made.used && made.blocks <= found)
        {
            let within = made.blocks.checked_sub(1).and_then(|last| blocks.get(last));
            if within == Some(&made.last) {
                made.used = true;
                self.counts.useful += 1;
                if let Some(watched) = self.watched.get_mut(&made.prefix) {
                    watched.useless = 0;
                }
            }
        }
    }

    /// Notes an ask; says how much of the watched prompt it shares, in blocks.
    fn watch(&mut self, prefix: PrefixId, now: Moment, ask: &PrefixAsk<'_>) -> usize {
        if !self.watched.contains_key(&prefix) && self.watched.len() >= WATCHED {
            // What rests is remembered longest: forgotten, it would be ordered again.
            let oldest = self
                .watched
                .iter()
                .min_by_key(|(id, w)| (w.rests_until.max(w.last), id.0));
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.watched.remove(&oldest);
            }
        }
        let watched = self.watched.entry(prefix).or_insert_with(|| Watched {
            tenant: ask.tenant.clone(),
            blocks: Vec::new(),
            asks: VecDeque::new(),
            rests_until: Moment(0),
            useless: 0,
            last: now,
        });
        watched.last = now;
        watched.forget_before(now, self.rules.window);
        let covered = watched.follow(ask.blocks);
        watched.asks.push_back((now, covered));
        if watched.asks.len() > ASKS_KEPT {
            watched.asks.pop_front();
        }
        covered
    }

    /// Whether another tenant asked for something within the window.
    fn others(&self, now: Moment, tenant: &TenantName) -> OtherTenants {
        let lately = |watched: &Watched| now.since(watched.last) < self.rules.window;
        let mut others = self.watched.values();
        match others.any(|watched| watched.tenant != *tenant && lately(watched)) {
            true => OtherTenants::Waiting,
            false => OtherTenants::Idle,
        }
    }

    fn leave_alone(&mut self, now: Moment, prefix: PrefixId) {
        let doublings = self.watched.get(&prefix).map_or(0, |watched| watched.useless);
        self.rest(now, prefix, doublings);
        if let Some(watched) = self.watched.get_mut(&prefix) {
            watched.asks.clear();
        }
    }

    fn rest(&mut self, now: Moment, prefix: PrefixId, doublings: u32) {
        let pause = self
            .rules
            .pause
            .saturating_mul(1 << doublings.min(MOST_DOUBLINGS));
        if let Some(watched) = self.watched.get_mut(&prefix) {
            watched.rests_until = now + pause;
        }
    }

    fn useless(&mut self, now: Moment, prefix: PrefixId) {
        let Some(watched) = self.watched.get_mut(&prefix) else {
            return;
        };
        watched.useless = watched.useless.saturating_add(1);
        let doublings = watched.useless;
        self.rest(now, prefix, doublings);
    }

    /// Remembers a copy that was made. One before it for the same prefix that nobody used shows that it does not pay.
    fn remember(&mut self, now: Moment, prefix: PrefixId, (last, blocks): (BlockHash, usize)) {
        let unused = |made: &Made| made.prefix == prefix && !made.used;
        if self.made.iter().any(unused) {
            self.made.retain(|made| !unused(made));
            self.useless(now, prefix);
        }
        if self.made.len() >= REMEMBERED {
            self.made.pop_front();
        }
        self.made.push_back(Made {
            prefix,
            last,
            blocks,
            used: false,
        });
    }
}

impl Watched {
    fn forget_before(&mut self, now: Moment, window: Duration) {
        while self.asks.front().is_some_and(|(at, _)| now.since(*at) >= window) {
            self.asks.pop_front();
        }
    }

    /// How much of the watched prompt these blocks share. A prompt that at most one ask stands behind gives way to a new
    /// one that goes on otherwise or further.
    fn follow(&mut self, blocks: &[BlockHash]) -> usize {
        let common = self.blocks.iter().zip(blocks).take_while(|(a, b)| a == b).count();
        let behind = self.asks.iter().filter(|(_, covered)| *covered > common).count();
        if blocks.len() == common || behind > 1 {
            return common;
        }
        self.asks
            .iter_mut()
            .for_each(|(_, covered)| *covered = (*covered).min(common));
        self.blocks = blocks.to_vec();
        blocks.len()
    }

    /// The most blocks that at least so many asks share.
    fn wanted(&self, asks: u32) -> Option<usize> {
        let mut covered: Vec<usize> = self.asks.iter().map(|(_, covered)| *covered).collect();
        covered.sort_unstable_by(|a, b| b.cmp(a));
        covered.get((asks.max(1) - 1) as usize).copied()
    }
}

#[cfg(test)]
mod tests;
