//! What came of a simulation.

use portolan_base::{Bytes, Moment};
use portolan_decide::DecisionRecord;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// A distribution of times, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// Nine of ten are at most this.
    pub p90: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
}

impl Latency {
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let Some(last) = times.len().checked_sub(1) else {
            return Self::default();
        };
        let at = |share: f64| {
            times[((times.len() as f64 * share).ceil() as usize)
                .saturating_sub(1)
                .min(last)]
        };
        Self {
            mean: times.iter().map(Duration::as_secs_f64).sum::<f64>() / times.len() as f64,
            p50: at(0.50).as_secs_f64(),
            p90: at(0.90).as_secs_f64(),
            p99: at(0.99).as_secs_f64(),
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Requests answered to the end.
    pub completed: u64,
    /// Requests refused, by the reason given.
    pub refused: BTreeMap<String, u64>,
    /// Time to first token.
    pub ttft: Latency,
    /// Time to last token.
    pub end_to_end: Latency,
    /// Blocks of all prompts that were prefilled.
    pub blocks: u64,
    /// Those found in the prefilling instance's cache.
    pub hit_blocks: u64,
    /// KV sent between sites.
    pub cross_site_bytes: Bytes,
    /// Price of all requests by the routes taken, in millionths of the operator's unit.
    pub price_micros: u64,
    /// When the last answer ended.
    pub ended: Moment,
    /// Requests by (prefill site → decode site).
    pub routes: BTreeMap<String, u64>,
    /// Policy calls by `question name: outcome`.
    pub policy_calls: BTreeMap<String, u64>,
}

impl Report {
    /// The share of blocks that did not have to be computed, 0 to 1.
    pub fn hit_rate(&self) -> f64 {
        if self.blocks == 0 {
            0.0
        } else {
            self.hit_blocks as f64 / self.blocks as f64
        }
    }

    pub(crate) fn note_decision(&mut self, record: &DecisionRecord) {
        for call in &record.policies {
            *self
                .policy_calls
                .entry(format!("{} {}: {}", call.question, call.name, call.outcome))
                .or_default() += 1;
        }
        if let Some(taken) = record.taken() {
            let sites = format!("{} → {}", taken.route.prefill_site, taken.route.decode_site);
            *self.routes.entry(sites).or_default() += 1;
            self.price_micros += u64::from(taken.facts.price_micros);
        }
    }
}
