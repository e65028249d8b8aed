//! The slow loop: the plan for what is measured while a fleet serves.
//!
//! Lengths, answers and arrivals come from the requests themselves, speeds and bandwidth from the instances and links;
//! nothing is configured. The plan is made anew every few minutes and whenever the fleet changes.

use crate::lengths::MeasuredLengths;
use crate::model::{Averaging, Fleet, Plan, Split, evaluate};
use crate::profile::{DecodeProfile, PrefillProfile};
use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Moment, Tokens};
use std::collections::VecDeque;
use std::time::Duration;

/// Requests that are remembered: their lengths put a threshold within 2 % of its place in the distribution.
const WINDOW: usize = 4096;

/// Fewer requests than this say nothing about a distribution.
const FEWEST: usize = 50;

/// Arrivals are counted over this long: several bursts, and less than a daily rhythm moves.
const RATE_WINDOW: Duration = Duration::from_secs(300);

/// Thresholds that are tried, spread over the lengths seen.
const THRESHOLDS: usize = 256;

/// Load that the wanted instances are counted for, as a share of what they can do: past it queues of a few instances
/// grow faster than load does.
pub const WANTED_LOAD: f64 = 0.8;

/// A request that was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenRequest {
    /// When.
    pub at: Moment,
    /// Prompt tokens that had to be computed.
    pub uncached: Tokens,
    /// Tokens of its answer.
    pub produced: u32,
}

/// The requests that were served last, in bounded memory.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The oldest first.
    requests: VecDeque<SeenRequest>,
}

impl Seen {
    /// One more.
    pub fn note(&mut self, request: SeenRequest) {
        if self.requests.len() == WINDOW {
            self.requests.pop_front();
        }
        self.requests.push_back(request);
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Requests a second over the last five minutes, or since the first one where that is shorter.
    pub fn arrivals(&self, now: Moment) -> f64 {
        let recent = self
            .requests
            .iter()
            .rev()
            .take_while(|r| now.since(r.at) <= RATE_WINDOW);
        let count = recent.count();
        let first = self.requests.front().map_or(Duration::ZERO, |r| now.since(r.at));
        let over = match count {
            // The window was full before the five minutes were over.
            WINDOW => first,
            _ => first.min(RATE_WINDOW),
        };
        // A second at least: two requests at once are no rate.
        count as f64 / over.as_secs_f64().max(1.0)
    }

    fn mean_output(&self) -> f64 {
        let sum: f64 = self.requests.iter().map(|r| f64::from(r.produced)).sum();
        sum / self.requests.len().max(1) as f64
    }

    /// Lengths, the shortest first; none while too few are known.
    fn lengths(&self) -> Option<Vec<u32>> {
        let mut lengths: Vec<u32> = self.requests.iter().map(|r| r.uncached.0).collect();
        lengths.sort_unstable();
        (lengths.len() >= FEWEST).then_some(lengths)
    }
}

/// One site's instances, and the pool at another site that may prefill for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LivePools {
    /// Measured speed of an instance of the remote pool.
    pub remote: PrefillProfile,
    /// How many there are.
    pub remote_instances: u32,
    /// Measured prefill speed of a local instance.
    pub local: PrefillProfile,
    /// The local instances by what they may do.
    pub roles: LocalInstances,
    /// Sequences that a local instance decodes at once.
    pub decode_slots: u32,
    /// Measured seconds of one step of all of them.
    pub decode_step_s: f64,
    /// Size of the KV.
    pub kv: KvSize,
    /// What the link between them carries.
    pub egress: BitsPerSecond,
}

/// Local instances by what they may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalInstances {
    /// Prefill only.
    pub prefill: u32,
    /// Decode only.
    pub decode: u32,
    /// Either, at any time.
    pub both: u32,
}

/// A plan for what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outlook {
    /// The threshold that serves most with the roles as they are.
    pub threshold: Tokens,
    /// Requests a second that it serves.
    pub capacity: f64,
    /// Requests a second that come.
    pub arrivals: f64,
    /// Share of the requests that are longer than the threshold, 0 to 1.
    pub offloaded_share: f64,
    /// Instances that what comes asks for.
    pub wanted: WantedInstances,
}

/// Instances that a load asks for, each pool at [`WANTED_LOAD`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantedInstances {
    /// In the remote pool, for this site's share of its work.
    pub remote_prefill: u32,
    /// Here, to prefill.
    pub prefill: u32,
    /// Here, to decode.
    pub decode: u32,
}

impl Outlook {
    /// Which share of the capacity the arrivals take; 1 when they take all and more.
    pub fn load(&self) -> f64 {
        (self.arrivals / self.capacity.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
    }
}

/// What a request of each pool takes of it at a threshold, averaged over all requests.
struct Work {
    threshold: Tokens,
    /// Instance-seconds of remote prefill.
    remote: f64,
    /// Seconds of the link.
    link: f64,
    /// Instance-seconds of local prefill.
    prefill: f64,
    /// Instance-seconds of decode.
    decode: f64,
    offloaded_share: f64,
}

/// Plans for what was seen: the threshold with the largest throughput, and the instances that the arrivals ask for.
/// [`None`] while too little is known, or when there is no remote instance or nobody to decode.
///
/// Instances that do both share their time without loss, so that prefill, decode and the two together bound what the
/// local site takes: no split of whole instances is assumed.
pub fn look_ahead(pools: &LivePools, seen: &Seen, now: Moment) -> Option<Outlook> {
    let works = works(pools, seen)?;
    let (work, capacity) = most(&works, pools)?;
    let arrivals = seen.arrivals(now);
    let wanted = |work: f64| (arrivals * work / WANTED_LOAD).ceil() as u32;
    Some(Outlook {
        threshold: work.threshold,
        capacity,
        arrivals,
        offloaded_share: work.offloaded_share,
        wanted: WantedInstances {
            remote_prefill: wanted(work.remote),
            prefill: wanted(work.prefill),
            decode: wanted(work.decode),
        },
    })
}

/// How many of the instances that can do either should prefill, the others decoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Division {
    /// So many prefill.
    pub prefill: u32,
    /// Requests a second that it serves.
    pub capacity: f64,
}

/// The division of the instances counted under `both` that serves most, in whole instances. At least one instance of the
/// site prefills and one decodes: a site that is cut off serves on. [`None`] as in [`look_ahead`], or when there is
/// nothing to divide.
pub fn best_division(pools: &LivePools, seen: &Seen) -> Option<Division> {
    let LocalInstances {
        prefill,
        decode,
        both,
    } = pools.roles;
    let works = works(pools, seen)?;
    let fewest = u32::from(prefill == 0);
    let most_prefill = both.checked_sub(u32::from(decode == 0))?;
    let divided = |k: u32| {
        let roles = LocalInstances {
            prefill: prefill + k,
            decode: decode + both - k,
            both: 0,
        };
        let (_, capacity) = most(&works, &LivePools { roles, ..*pools })?;
        Some(Division { prefill: k, capacity })
    };
    (fewest..=most_prefill)
        .filter_map(divided)
        .reduce(|best, next| if next.capacity > best.capacity { next } else { best })
        .filter(|_| both > 0)
}

/// What a request takes of each pool, threshold by threshold; none while too little is known, or when there is no remote
/// instance or nobody to decode.
fn works(pools: &LivePools, seen: &Seen) -> Option<Vec<Work>> {
    let roles = pools.roles;
    let usable = pools.remote_instances > 0 && pools.egress.0 > 0 && roles.decode + roles.both > 0;
    let lengths = seen.lengths().filter(|_| usable)?;
    let fleet = pools.one_of_each(seen.mean_output().max(1.0));
    let candidates = thresholds(&lengths);
    let measured = MeasuredLengths::new(lengths).ok()?;
    let at = |threshold| Work::at(&evaluate(&fleet, &measured, threshold, ONE_EACH));
    Some(candidates.into_iter().map(at).collect())
}

/// The work with the largest capacity, and that.
fn most<'a>(works: &'a [Work], pools: &LivePools) -> Option<(&'a Work, f64)> {
    let each = works.iter().map(|work| (work, pools.capacity(work)));
    each.max_by(|a, b| a.1.total_cmp(&b.1))
}

const ONE_EACH: Split = Split {
    prefill: 1,
    decode: 1,
};

/// Lengths to try as thresholds: nothing stays here, then lengths seen, the last of which leaves everything here.
fn thresholds(sorted: &[u32]) -> Vec<Tokens> {
    let last = sorted.len().saturating_sub(1);
    let seen = (0..THRESHOLDS).filter_map(|i| sorted.get(last * i / (THRESHOLDS - 1)).copied());
    let mut tried: Vec<u32> = seen.chain([0]).collect();
    tried.sort_unstable();
    tried.dedup();
    tried.into_iter().map(Tokens).collect()
}

impl LivePools {
    /// The fleet with one instance in each pool: its rates are what one instance does.
    fn one_of_each(&self, output_tokens: f64) -> Fleet {
        Fleet {
            remote: self.remote,
            remote_instances: 1,
            local: self.local,
            decode: DecodeProfile {
                batch: self.decode_slots.max(1),
                step_s: self.decode_step_s,
                output_tokens,
            },
            kv: self.kv,
            egress: BitsPerSecond(u64::MAX),
            averaging: Averaging::MeanOfTimes,
        }
    }

    /// Λ: the least that any pool, the link, or prefill and decode together let through.
    fn capacity(&self, work: &Work) -> f64 {
        let LocalInstances {
            prefill,
            decode,
            both,
        } = self.roles;
        let link = work.link / self.egress.0 as f64;
        [
            (f64::from(self.remote_instances), work.remote),
            (1.0, link),
            (f64::from(prefill + both), work.prefill),
            (f64::from(decode + both), work.decode),
            (f64::from(prefill + decode + both), work.prefill + work.decode),
        ]
        .into_iter()
        .filter(|(_, work)| *work > 0.0)
        .map(|(instances, work)| instances / work)
        .fold(f64::INFINITY, f64::min)
    }
}

impl Work {
    /// From the rates of one instance in each pool.
    fn at(plan: &Plan) -> Self {
        let share_of = |share: f64, rate: f64| if share > 0.0 { share / rate } else { 0.0 };
        let long = plan.offloaded_share;
        Self {
            threshold: plan.threshold,
            remote: share_of(long, plan.remote_rate),
            link: plan.egress.0 as f64 / plan.lambda_max.max(f64::MIN_POSITIVE),
            prefill: share_of(1.0 - long, plan.local_rate),
            decode: 1.0 / plan.decode_rate,
            offloaded_share: long,
        }
    }
}
