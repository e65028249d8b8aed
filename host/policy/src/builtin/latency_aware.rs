//! Cost `latency-aware`: prefill plus network latency, with linear weights.
//!
//! score = w_rtt · RTT + prefill time a token · uncached tokens + queue time a token · queued tokens: the objective
//! of GORGO (arXiv 2602.11688), held to the scores of its authors' own policy in
//! `tests/conformance/latency-aware.json`.

use super::arithmetic::finite;
use super::config::{self, ConfigError};
use super::contract::Cost;
use crate::column::{CostRow, RequestView, RouteView};
use crate::names::NameTables;
use serde::Deserialize;

/// What `latency-aware` can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LatencyAwareConfig {
    /// Weight of the round-trip time in thousandths. 276: the weight GORGO's authors learned.
    pub rtt_weight_permille: u32,
    /// Time to compute one uncached token, in ns. 76,000: the middle of the 69 to 83 µs measured on an H100.
    pub prefill_ns_per_token: u32,
    /// Time that one queued token adds, in ns. 38,000: the rate above at the learned weight of a half. Zero looks
    /// better in time to first token and ruins the tail.
    pub queue_ns_per_token: u32,
}

impl Default for LatencyAwareConfig {
    fn default() -> Self {
        Self {
            rtt_weight_permille: 276,
            prefill_ns_per_token: 76_000,
            queue_ns_per_token: 38_000,
        }
    }
}

/// Prefill plus network latency.
#[derive(Clone, Copy, Debug, Default)]
pub struct LatencyAware {
    config: LatencyAwareConfig,
}

impl LatencyAware {
    /// With this configuration.
    pub fn new(config: LatencyAwareConfig) -> Self {
        Self { config }
    }
}

impl Cost for LatencyAware {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        config::parse(text).map(Self::new)
    }

    fn estimate(&self, request: RequestView<'_>, route: RouteView<'_>) -> CostRow {
        let cached = route.cached_tokens().min(request.prompt_tokens());
        let uncached = request.prompt_tokens() - cached;
        // All in ns: a weight in thousandths times µs is ns as well. Each product fits 64 bits.
        let network = product(self.config.rtt_weight_permille, route.link_rtt_us());
        let prefill = product(self.config.prefill_ns_per_token, uncached);
        let queue = product(self.config.queue_ns_per_token, route.prefill_queued_tokens());
        CostRow {
            total_us: finite(network.saturating_add(prefill).saturating_add(queue) / 1000),
            queue_us: finite(queue / 1000),
            prefill_us: finite(prefill / 1000),
            transfer_us: finite(network / 1000),
            decode_us: 0,
            cache_benefit_us: finite(product(self.config.prefill_ns_per_token, cached) / 1000),
        }
    }
}

fn product(a: u32, b: u32) -> u64 {
    u64::from(a) * u64::from(b)
}
