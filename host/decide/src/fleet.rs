//! What is known about sites, instances and links at the moment of a decision.

use crate::standing::Standing;
use portolan_base::{BitsPerSecond, Bytes, InstanceName, Permille, PrefillCurve, Role, SiteName, Tokens};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Position of a site in [`FleetView::sites`], and in the policies' name table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SiteIndex(pub u32);

/// Position of an instance in [`FleetView::instances`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceIndex(pub u32);

/// A site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteView {
    /// The operator's name.
    pub name: SiteName,
    /// Index into the jurisdictions.
    pub jurisdiction: u32,
}

/// How an instance takes part in requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Serving {
    /// It takes prompts and KV, and hands over both: any two such instances of a model work together, at any distance.
    #[default]
    Pieces,
    /// It answers whole requests and keeps its KV to itself.
    Whole,
    /// It answers whole requests, and within its site hands KV over to the instances with the same number.
    Handing(u16),
    /// It answers whole requests, and blocks of its KV lie with the host, which copies them to other such instances.
    Stored,
    /// The same with blocks out of another engine's memory: whose KV it is not said to be, it cannot go on from.
    Slotted,
}

impl Serving {
    /// Whether the host sees its KV.
    pub const fn is_pieces(self) -> bool {
        matches!(self, Self::Pieces)
    }

    /// Whether the host can copy KV between two such instances.
    pub const fn copies_to(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::Pieces, Self::Pieces) | (Self::Stored, Self::Stored) | (Self::Slotted, Self::Slotted)
        )
    }
}

/// An engine instance with its load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceView {
    /// Its name, unique within its site.
    pub name: InstanceName,
    /// Where it runs.
    pub site: SiteIndex,
    /// Index into the model table.
    pub model: u32,
    /// What it is for.
    pub role: Role,
    /// How it takes part.
    pub serving: Serving,
    /// Whether it may be given work.
    pub standing: Standing,
    /// Requests waiting for prefill.
    pub prefill_queued_requests: u32,
    /// Prompt tokens waiting for prefill.
    pub prefill_queued_tokens: u32,
    /// Sequences decoding.
    pub decode_running: u32,
    /// Sequences it can decode at once.
    pub decode_slots: u32,
    /// KV memory in use.
    pub kv_used: Permille,
    /// How busy prefill was.
    pub prefill_busy: Permille,
    /// How busy decode was.
    pub decode_busy: Permille,
    /// Measured prefill time in nanoseconds for each uncached token.
    pub prefill_ns_per_token: u64,
    /// The same by length, where enough was measured to tell lengths apart.
    pub prefill_curve: PrefillCurve,
    /// Measured decode step in microseconds.
    pub decode_step_us: u32,
    /// Price of a thousand computed tokens, in millionths of the operator's unit.
    pub price_micros_per_kilotoken: u32,
}

impl InstanceView {
    /// Expected time to compute `tokens` of one prompt, in µs.
    pub fn prefill_us(&self, tokens: u32) -> u64 {
        if self.prefill_curve.is_measured() {
            self.prefill_curve.time_us(tokens)
        } else {
            u64::from(tokens).saturating_mul(self.prefill_ns_per_token) / 1000
        }
    }

    /// Expected time to compute what waits for prefill, in µs.
    pub fn queue_us(&self) -> u64 {
        if self.prefill_curve.is_measured() {
            self.prefill_curve
                .work_us(self.prefill_queued_requests, self.prefill_queued_tokens)
        } else {
            self.prefill_us(self.prefill_queued_tokens)
        }
    }
}

/// A directed link between two sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkView {
    /// Whether anything can be sent.
    pub up: bool,
    /// Round-trip time.
    pub rtt: Duration,
    /// What the link can carry.
    pub capacity: BitsPerSecond,
    /// Mean utilisation over the monitor's window.
    pub busy: Permille,
    /// Share of chunks that had to be sent again.
    pub loss: Permille,
    /// Price of a GiB, in millionths of the operator's unit.
    pub price_micros_per_gib: u32,
    /// What was measured besides.
    pub measured: LinkFigures,
}

/// Figures of a link for people and dashboards; zero where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFigures {
    /// What the link carried in the last sample of 500 ms.
    pub throughput: BitsPerSecond,
    /// What it delivered at best within the last ten seconds of sending.
    pub delivery: BitsPerSecond,
    /// Share of TCP segments that had to be sent again, over the monitor's window.
    pub retransmits: Permille,
    /// KV that was ordered over the link and has not arrived.
    pub backlog: Bytes,
    /// Sets of KV that came over it and went into quarantine, since the start.
    pub quarantined: u64,
}

impl LinkView {
    /// Capacity that is not in use. At least one thousandth: a full link is slow, not infinitely slow.
    pub fn free(&self) -> BitsPerSecond {
        let free = u64::from(1000u32.saturating_sub(self.busy.0).max(1));
        BitsPerSecond(self.capacity.0 / 1000 * free)
    }
}

/// Everything a decision looks at beyond the request.
#[derive(Clone, Debug, Default)]
pub struct FleetView {
    /// Every site, in the order of the policies' name table.
    pub sites: Vec<SiteView>,
    /// Every instance of every site.
    pub instances: Vec<InstanceView>,
    /// Links by (from, to): KV flows from the prefill site to the decode site.
    pub links: BTreeMap<(SiteIndex, SiteIndex), LinkView>,
    /// Links that end at other sites than the one that looks, as they were written down: their state is known there.
    pub elsewhere: Arc<BTreeMap<(SiteIndex, SiteIndex), LinkView>>,
    /// Uncached length above which offloading raises throughput, from the planner.
    pub offload_threshold: Tokens,
    /// Utilisation at which a link counts as congested.
    pub congestion_mark: Permille,
    /// Whether KV may be fetched from anywhere, or each site's cache counts alone.
    pub bandwidth: Bandwidth,
}

/// What the links have left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bandwidth {
    /// Nobody keeps watch: the congestion mark alone says.
    #[default]
    Unwatched,
    /// The best cache anywhere counts, with a fetch between sites.
    Ample,
    /// Each site's cache counts alone.
    Scarce,
}

impl FleetView {
    /// A site by index.
    pub fn site(&self, index: SiteIndex) -> Option<&SiteView> {
        self.sites.get(index.0 as usize)
    }

    /// An instance by index.
    pub fn instance(&self, index: InstanceIndex) -> Option<&InstanceView> {
        self.instances.get(index.0 as usize)
    }

    /// The link from one site to another, as it is known.
    pub fn link(&self, from: SiteIndex, to: SiteIndex) -> Option<&LinkView> {
        let ends = (from, to);
        self.links.get(&ends).or_else(|| self.elsewhere.get(&ends))
    }

    /// Instances with their index.
    pub fn indexed(&self) -> impl Iterator<Item = (InstanceIndex, &InstanceView)> {
        (0u32..).map(InstanceIndex).zip(&self.instances)
    }

    /// Whether each site's cache counts alone.
    pub fn bandwidth_is_scarce(&self) -> bool {
        match self.bandwidth {
            Bandwidth::Unwatched => self.congested(),
            Bandwidth::Ample => false,
            Bandwidth::Scarce => true,
        }
    }

    /// Whether some link is past the congestion mark.
    pub fn congested(&self) -> bool {
        self.links
            .values()
            .any(|link| link.up && link.busy >= self.congestion_mark && self.congestion_mark.0 > 0)
    }
}
