//! When a prefix goes to the site that is likely to be asked next, ahead of the request; and, at that site, whether what
//! came ahead was of use and how much of what moved was foreseen.

use crate::allowance::{Allowance, Bounds, OtherTenants};
use crate::fleet::SiteIndex;
use crate::patterns::Likely;
use portolan_base::kv::KvSize;
use portolan_base::{BlockHash, Bytes, Moment, Permille, TenantName, Tokens};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Prefixes that were sent, of which it is remembered when.
const REMEMBERED: usize = 1024;

/// How long a prefix that came ahead may wait for its request. A conversation's next turn comes within minutes, and what
/// waits longer takes room from what is asked for.
const LIFE: Duration = Duration::from_secs(600);

/// Who else wants something is told from orders of the last minute.
const LATELY: Duration = Duration::from_secs(60);

/// What a site sends ahead by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrewarmRules {
    /// The smallest share of a pattern's steps that makes a site likely.
    pub likely: Permille,
    /// Fewer tokens are not worth an order.
    pub min_tokens: Tokens,
    /// Bytes in a minute, and orders under way.
    pub bounds: Bounds,
    /// How long the same prefix is not sent again to the same site.
    pub pause: Duration,
}

/// A prefix whose next request is likely to go elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct PrewarmAsk<'a> {
    /// Whose it is.
    pub tenant: &'a TenantName,
    /// The names of the prompt's pool blocks, from its beginning.
    pub blocks: &'a [BlockHash],
    /// Where it is likely to be asked for, and how much of it.
    pub likely: Likely,
    /// Blocks that site holds.
    pub there: usize,
    /// Tokens in a block.
    pub block: Tokens,
    /// How large the model's KV is.
    pub kv: KvSize,
}

/// A prefix to be sent ahead. It counts as under way until [`Prewarms::ended`] is told how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrewarmDue {
    /// Where to.
    pub site: SiteIndex,
    /// The name of its last block.
    pub last: BlockHash,
    /// Its blocks.
    pub blocks: usize,
    /// What is thought to cross.
    pub bytes: Bytes,
}

/// How an order ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrewarmEnd {
    /// The residency answer forbids it: nothing was ordered.
    Forbidden,
    /// The other site did not take it.
    Failed(Bytes),
    /// The other site holds it; so much crossed.
    Made(Bytes),
}

/// What became of all orders since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrewarmCounts {
    /// Prefixes that another site then held.
    pub made: u64,
    /// Orders that the other site refused or that broke.
    pub failed: u64,
    /// Orders that the residency answer forbade.
    pub forbidden: u64,
    /// Prefixes that had to stay for the budget.
    pub held_back: u64,
    /// Bytes that crossed.
    pub bytes: u64,
}

/// What a site sends ahead.
#[derive(Clone, Debug)]
pub struct Prewarms {
    rules: PrewarmRules,
    orders: Allowance<(SiteIndex, BlockHash)>,
    sent: HashMap<(SiteIndex, BlockHash), Moment>,
    asked: HashMap<TenantName, Moment>,
    counts: PrewarmCounts,
}

impl Prewarms {
    /// Nothing sent.
    pub fn new(rules: PrewarmRules) -> Self {
        Self {
            rules,
            orders: Allowance::new(rules.bounds),
            sent: HashMap::new(),
            asked: HashMap::new(),
            counts: PrewarmCounts::default(),
        }
    }

    /// What became of all orders.
    pub fn counts(&self) -> PrewarmCounts {
        self.counts
    }

    /// Orders under way.
    pub fn under_way(&self) -> usize {
        self.orders.under_way()
    }

    /// Says whether the prefix is to be sent.
    pub fn asked(&mut self, now: Moment, ask: &PrewarmAsk<'_>) -> Option<PrewarmDue> {
        let blocks = ask.likely.blocks.min(ask.blocks.len());
        let last = *ask.blocks.get(blocks.checked_sub(1)?)?;
        let order = (ask.likely.site, last);
        let missing = (blocks.saturating_sub(ask.there) as u64).saturating_mul(u64::from(ask.block.0));
        let worth =
            missing >= u64::from(self.rules.min_tokens.0.max(1)) && ask.likely.share >= self.rules.likely;
        if !worth || self.orders.has(&order) || self.rests(now, &order) {
            return None;
        }
        let bytes = ask.kv.fixed + Bytes(ask.kv.per_token.0.saturating_mul(missing));
        let waiting = self.others(now, ask.tenant);
        self.asked.insert(ask.tenant.clone(), now);
        if !self.orders.begin(now, order, (ask.tenant, bytes), waiting) {
            self.counts.held_back += 1;
            return None;
        }
        self.sent.insert(order, now);
        Some(PrewarmDue {
            site: ask.likely.site,
            last,
            blocks,
            bytes,
        })
    }

    /// Takes how an order ended.
    pub fn ended(&mut self, due: &PrewarmDue, end: PrewarmEnd) {
        let (count, crossed) = match end {
            PrewarmEnd::Forbidden => (&mut self.counts.forbidden, Bytes(0)),
            PrewarmEnd::Failed(bytes) => (&mut self.counts.failed, bytes),
            PrewarmEnd::Made(bytes) => (&mut self.counts.made, bytes),
        };
        if self.orders.end(&(due.site, due.last), crossed) {
            *count += 1;
            self.counts.bytes += crossed.0;
        }
    }

    fn rests(&mut self, now: Moment, order: &(SiteIndex, BlockHash)) -> bool {
        if self.sent.len() >= REMEMBERED {
            let pause = self.rules.pause;
            self.sent.retain(|_, at| now.since(*at) < pause);
        }
        let lately = |at: &Moment| now.since(*at) < self.rules.pause;
        // Too many to remember: more are not sent.
        self.sent.get(order).is_some_and(lately) || self.sent.len() >= REMEMBERED
    }

    fn others(&mut self, now: Moment, tenant: &TenantName) -> OtherTenants {
        self.asked.retain(|_, at| now.since(*at) < LATELY);
        match self.asked.keys().any(|other| other != tenant) {
            true => OtherTenants::Waiting,
            false => OtherTenants::Idle,
        }
    }
}

/// What came ahead, at the site it came to.
#[derive(Clone, Debug, Default)]
pub struct Foreseen {
    waiting: VecDeque<Arrived>,
    counts: ForeseenCounts,
}

#[derive(Clone, Copy, Debug)]
struct Arrived {
    last: BlockHash,
    blocks: usize,
    at: Moment,
}

/// How good the forecasts were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForeseenCounts {
    /// Prefixes that came ahead and that a request then asked for.
    pub used: u64,
    /// Those that nobody asked for in time.
    pub unused: u64,
    /// Requests whose pattern was at another site before.
    pub moved: u64,
    /// Of them, those whose prefix had come ahead.
    pub foreseen: u64,
}

impl ForeseenCounts {
    /// Of what came ahead, the share that was asked for; none before any was or was not.
    pub fn precision(&self) -> Option<Permille> {
        share(self.used, self.used + self.unused)
    }

    /// Of the requests that moved here, the share whose prefix had come ahead; none before any moved.
    pub fn recall(&self) -> Option<Permille> {
        share(self.foreseen, self.moved)
    }
}

/// Where a request's pattern was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// At another site.
    Here,
    /// Here, or nowhere.
    Not,
}

impl Foreseen {
    /// How good the forecasts were.
    pub fn counts(&self) -> ForeseenCounts {
        self.counts
    }

    /// A prefix came ahead: its last block's name, and its number of blocks.
    pub fn arrived(&mut self, now: Moment, last: BlockHash, blocks: usize) {
        self.expire(now);
        if let Some(known) = self.waiting.iter_mut().find(|known| known.last == last) {
            known.at = now;
            return;
        }
        if self.waiting.len() >= REMEMBERED {
            self.waiting.pop_front();
            self.counts.unused += 1;
        }
        self.waiting.push_back(Arrived {
            last,
            blocks,
            at: now,
        });
    }

    /// A request came with these blocks.
    pub fn request(&mut self, now: Moment, blocks: &[BlockHash], moved: Moved) {
        self.expire(now);
        let asked_for = |arrived: &Arrived| {
            let end = arrived.blocks.checked_sub(1).and_then(|end| blocks.get(end));
            end == Some(&arrived.last)
        };
        let before = self.waiting.len();
        self.waiting.retain(|arrived| !asked_for(arrived));
        let used = (before - self.waiting.len()) as u64;
        self.counts.used += used;
        if moved == Moved::Here {
            self.counts.moved += 1;
            self.counts.foreseen += used.min(1);
        }
    }

    fn expire(&mut self, now: Moment) {
        let before = self.waiting.len();
        self.waiting.retain(|arrived| now.since(arrived.at) < LIFE);
        self.counts.unused += (before - self.waiting.len()) as u64;
    }
}

fn share(part: u64, whole: u64) -> Option<Permille> {
    let share = (part * 1000).checked_div(whole)?;
    Some(Permille(u32::try_from(share).unwrap_or(1000)))
}

#[cfg(test)]
mod tests;
