//! The offload threshold in force: the part of Prefill-as-a-Service that the host does for every policy.
//!
//! A request whose uncached prompt is longer than the threshold is better prefilled at another site. The threshold is
//! that length at which both ways cost the same, counting
//!
//! - what the request itself waits, computes and sends, at the moment's queues and the measured speeds;
//! - what it takes from those after it: each pool's time has a price, so set that at the planner's balance (both pools
//!   filled alike) both ways are equally dear; the price grows with load, so that an idle fleet serves each request as
//!   fast as it can and a full one serves as many as it can;
//! - the link: what waits for it, and beyond the congestion mark a price on each byte, so that traffic returns home
//!   smoothly, the shortest prompts first, and comes back as the link empties.
//!
//! Loss and round-trip time of the link drive a share (additive increase, multiplicative decrease) of what would be
//! offloaded: the network's own word, whatever the utilisation says.
//!
//! Pure: it is told the time and what is known of the fleet every 500 ms, and is asked at every decision.

mod link;
mod recent;
#[cfg(test)]
mod tests;

use crate::fleet::{Bandwidth, FleetView, InstanceView, LinkView, SiteIndex};
use link::LinkState;
use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Moment, Permille, Tokens};
use portolan_planner::{
    Averaging, DecodeProfile, Fleet, OffloadCase, PrefillProfile, Split, balanced_threshold,
    offload_threshold,
};
use recent::RecentLengths;
use std::collections::BTreeMap;
use std::time::Duration;

/// The longest prompt looked at: beyond every context in use.
const LONGEST: Tokens = Tokens(1 << 20);

/// No length is worth sending: no prompt is longer than this.
pub const NO_LENGTH: Tokens = Tokens(u32::MAX);

/// How the control behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OffloadControlConfig {
    /// Link utilisation, 30 s mean, from which bandwidth is scarce and bytes have a price.
    pub congested: Permille,
    /// Link utilisation under which it is ample again. A tenth below the mark: a single long prompt's KV moves the mean
    /// of a link of 10 Gbit/s by less.
    pub relieved: Permille,
    /// Share of a transfer that hides behind prefill.
    pub overlap: Permille,
    /// What a full link adds to the cost of sending, as a multiple of the sending time: a gigabyte on a link of
    /// 10 Gbit/s then counts as 17 s, which only a home that waits longer still is worth.
    pub full_link_price: f64,
    /// What load adds to the price of a request at the balance: this times the mean of its two prefill times, times
    /// ρ/(1 − ρ) at a utilisation of ρ. 0.9: tried from 0 to 3.6 on the case study, where half of it costs a hundredth of
    /// the 90th percentile and four times of it a hundredth of the mean.
    pub load_price: f64,
    /// What waits already adds to it, a second of waiting this many seconds. 2: from 1 on a saturated fleet stays at the
    /// balance; with 0 it swings between offloading everything and nothing.
    pub wait_price: f64,
    /// What the wait for the last quarter of the remote pool counts for prompts under the balance, as a multiple. They
    /// gain little there, and those over it have nowhere as good to go. 1.4: under 1.3, or with half of the pool in the
    /// quarter's place, the longest prompts of a fleet at 20 % load wait longer than under a fixed threshold; with 2 the
    /// mean at 80 % is 3 % higher.
    pub spare_price: f64,
    /// Loss, or retransmits, beyond twice the usual, from which the share is cut.
    pub lossy: Permille,
}

impl Default for OffloadControlConfig {
    fn default() -> Self {
        Self {
            congested: Permille(700),
            relieved: Permille(600),
            // What layer-wise streaming was measured to hide at 100 Gbit/s.
            overlap: Permille(930),
            full_link_price: 20.0,
            load_price: 0.9,
            wait_price: 2.0,
            spare_price: 1.4,
            lossy: Permille(10),
        }
    }
}

/// How often the planner's balance is found anew: lengths and speeds do not change faster.
const REBALANCED: Duration = Duration::from_secs(10);

/// Weight of a sample in the moving mean of load: 60 samples of 500 ms, the window of the link monitor.
const LOAD_WEIGHT: f64 = 1.0 / 60.0;

/// Keeps the offload threshold of one site, or in a simulation of all.
#[derive(Clone, Debug, Default)]
pub struct OffloadControl {
    config: OffloadControlConfig,
    links: BTreeMap<(SiteIndex, SiteIndex), LinkState>,
    /// Mean share of time that the prefill instances of a site compute, by site.
    loads: Vec<f64>,
    lengths: RecentLengths,
    /// The planner's balance by (remote, home), and when it was found.
    balance: BTreeMap<(SiteIndex, SiteIndex), Tokens>,
    balanced_at: Option<Moment>,
}

impl OffloadControl {
    /// With this configuration.
    pub fn new(config: OffloadControlConfig) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// A request was decided whose prompt leaves so much to compute wherever it is computed.
    pub fn decided(&mut self, uncached: Tokens) {
        self.lengths.add(uncached.0);
    }

    /// Takes a sample of loads and links; every 500 ms.
    pub fn observe(&mut self, now: Moment, fleet: &FleetView, kv: KvSize) {
        for (ends, link) in &fleet.links {
            self.links
                .entry(*ends)
                .or_default()
                .observe(now, link, &self.config);
        }
        self.loads.resize(fleet.sites.len(), 0.0);
        for (site, load) in (0..).map(SiteIndex).zip(&mut self.loads) {
            let (busy, count) = prefillers(fleet, site).fold((0, 0u32), |(busy, count), instance| {
                (busy + instance.prefill_busy.0, count + 1)
            });
            let busy = f64::from(busy) / f64::from(count.max(1)) / 1000.0;
            *load += (busy - *load) * LOAD_WEIGHT;
        }
        let due = self.balanced_at.is_none_or(|at| now.since(at) >= REBALANCED);
        if due && self.lengths.settle() {
            self.balanced_at = Some(now);
            self.rebalance(fleet, kv);
        }
    }

    fn rebalance(&mut self, fleet: &FleetView, kv: KvSize) {
        let Some(lengths) = self.lengths.measured() else {
            return;
        };
        for (&(from, to), link) in &fleet.links {
            let (Some(local), Some(remote)) = (pool(fleet, to), pool(fleet, from)) else {
                continue;
            };
            let case = Fleet {
                remote: remote.profile,
                remote_instances: remote.instances,
                local: local.profile,
                // Decode takes no part in the balance.
                decode: DecodeProfile {
                    batch: 1,
                    step_s: 1.0,
                    output_tokens: 1.0,
                },
                kv,
                egress: self.usable((from, to), link),
                averaging: Averaging::MeanOfTimes,
            };
            let split = Split {
                prefill: local.instances,
                decode: 1,
            };
            self.balance
                .insert((from, to), balanced_threshold(&case, lengths, split));
        }
    }

    /// The uncached length from which on some other site is better than `here`; [`NO_LENGTH`] when none is, zero when
    /// nothing at `here` can prefill.
    pub fn threshold(&self, fleet: &FleetView, here: SiteIndex, kv: KvSize) -> Tokens {
        let Some(local) = pool(fleet, here) else {
            return Tokens(0);
        };
        let arriving = fleet
            .links
            .iter()
            .filter(|((_, to), link)| *to == here && link.up);
        let thresholds = arriving.filter_map(|(&(from, to), link)| {
            let remote = pool(fleet, from)?;
            let threshold = self.sparing((from, to), (&local, &remote), link, kv)?;
            let share = self.links.get(&(from, to)).map_or(1000, |state| state.share);
            Some(self.lengths.longest_share(threshold, share))
        });
        // Zero would read as "no threshold planned".
        thresholds
            .min()
            .map_or(NO_LENGTH, |tokens| Tokens(tokens.0.max(1)))
    }

    /// What a link can carry: what was configured, or what it delivered when last something waited for it.
    fn usable(&self, ends: (SiteIndex, SiteIndex), link: &LinkView) -> BitsPerSecond {
        let seen = self.links.get(&ends).and_then(|state| state.delivered);
        seen.map_or(link.capacity, |seen| link.capacity.min(seen))
    }

    /// The threshold of one link. Under the balance it is that of a pool most of which is free still, so that the longest
    /// prompts find an instance.
    fn sparing(
        &self,
        ends: (SiteIndex, SiteIndex),
        (local, remote): (&Pool, &Pool),
        link: &LinkView,
        kv: KvSize,
    ) -> Option<Tokens> {
        let threshold = self.between(ends, (local, remote), link, kv)?;
        let Some(balance) = self.balance.get(&ends).filter(|balance| threshold < **balance) else {
            return Some(threshold);
        };
        let spared = Pool {
            wait: remote.wait_for_last.mul_f64(self.config.spare_price),
            ..*remote
        };
        let stricter = self.between(ends, (local, &spared), link, kv);
        Some(threshold.max(stricter.unwrap_or(NO_LENGTH).min(*balance)))
    }

    fn between(
        &self,
        ends: (SiteIndex, SiteIndex),
        (local, remote): (&Pool, &Pool),
        link: &LinkView,
        kv: KvSize,
    ) -> Option<Tokens> {
        let usable = self.usable(ends, link);
        // Prompts ahead are computed while the KV of those before them is sent.
        let backlog = link.measured.backlog.time_at(usable);
        let remote_wait = remote.wait.max(backlog);
        let waits = (local.wait + remote_wait) / 2;
        let (local_price, remote_price) = self.prices(ends, (local, remote), waits);
        let link_price = self
            .links
            .get(&ends)
            .map_or(0.0, |state| state.price(link, &self.config));
        // What sending costs others is no time of this request's own, and so hides behind nothing.
        let seconds_per_byte = link_price * 8.0 / usable.0.max(1) as f64;
        let mut far = remote.profile.scaled(1.0 + remote_price, 0.0);
        far.fixed_s += seconds_per_byte * kv.fixed.0 as f64;
        far.per_token_s += seconds_per_byte * kv.per_token.0 as f64;
        let case = OffloadCase {
            local: local.profile.scaled(1.0 + local_price, 0.0),
            local_wait: local.wait,
            remote: far,
            remote_wait,
            link: usable,
            rtt: link.rtt,
            kv,
            overlap: self.config.overlap,
        };
        offload_threshold(&case, LONGEST)
    }

    /// What a second of each pool's time costs those after this request, in seconds: local, remote. Whoever comes within
    /// the busy time that the request makes longer waits longer, which grows with the load and with what waits already. At
    /// the balance both ways of a request are equally dear. `wait` is what waits before both, on average.
    fn prices(
        &self,
        ends: (SiteIndex, SiteIndex),
        (local, remote): (&Pool, &Pool),
        wait: Duration,
    ) -> (f64, f64) {
        let Some(balance) = self.balance.get(&ends) else {
            return (0.0, 0.0);
        };
        let tokens = f64::from(balance.0);
        let times = (local.profile.seconds(tokens), remote.profile.seconds(tokens));
        if times.0 <= 0.0 || times.1 <= 0.0 {
            return (0.0, 0.0);
        }
        let load = |site: SiteIndex| self.loads.get(site.0 as usize).copied().unwrap_or(0.0);
        let (near, far) = (f64::from(local.instances), f64::from(remote.instances));
        let busy = (load(ends.1) * near + load(ends.0) * far) / (near + far);
        let busy = busy.clamp(0.0, 0.98);
        let loaded = self.config.load_price * (times.0 + times.1) / 2.0 * busy / (1.0 - busy);
        let price = loaded + self.config.wait_price * wait.as_secs_f64();
        (price / times.0, price / times.1)
    }

    /// Whether the links into a site have bandwidth to spare.
    pub fn bandwidth(&self, here: SiteIndex) -> Bandwidth {
        let mut arriving = self.links.iter().filter(|((_, to), _)| *to == here);
        if arriving.any(|(_, state)| state.scarce) {
            Bandwidth::Scarce
        } else {
            Bandwidth::Ample
        }
    }
}

/// The prefill instances of a site.
struct Pool {
    profile: PrefillProfile,
    instances: u32,
    /// What the next request would wait if this one took the instance that is free first: what has the last free
    /// instance taken from it waits, though the one that took it did not.
    wait: Duration,
    /// What a request would wait for the instances of their last quarter to be free.
    wait_for_last: Duration,
}

fn prefillers(fleet: &FleetView, site: SiteIndex) -> impl Iterator<Item = &InstanceView> {
    let able = move |i: &&InstanceView| {
        i.site == site
            && i.standing.is_ready()
            && i.role.prefills()
            && (i.prefill_ns_per_token > 0 || i.prefill_curve.is_measured())
    };
    fleet.instances.iter().filter(able)
}

fn pool(fleet: &FleetView, site: SiteIndex) -> Option<Pool> {
    let soonest = prefillers(fleet, site).min_by_key(|i| (i.queue_us(), i.prefill_ns_per_token))?;
    let mut waits: Vec<u64> = prefillers(fleet, site).map(InstanceView::queue_us).collect();
    let instances = waits.len();
    // Asked at every decision: no more is put in order than is looked at.
    let mut wait = |rank: usize| {
        let (_, wait, _) = waits.select_nth_unstable(rank.min(instances - 1));
        Duration::from_micros(*wait)
    };
    Some(Pool {
        profile: profile(soonest),
        instances: u32::try_from(instances).unwrap_or(u32::MAX),
        wait: wait(1),
        wait_for_last: wait(instances * 3 / 4),
    })
}

fn profile(instance: &InstanceView) -> PrefillProfile {
    if instance.prefill_curve.is_measured() {
        return instance.prefill_curve.into();
    }
    PrefillProfile {
        fixed_s: 0.0,
        per_token_s: instance.prefill_ns_per_token as f64 / 1e9,
        per_token_squared_s: 0.0,
    }
}
