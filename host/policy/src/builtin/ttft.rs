//! Cost `ttft`: the expected time to first token, plus a share of the decode time that follows.
//!
//! total = queue + prefill + transfer beyond overlap + round trips + decode, all in µs:
//!
//! - queue and prefill are the host's own estimates; prefill covers the uncached tokens only, fetched from another site
//!   where that is quicker than computing them, so what caches save is already out of it (and shown in
//!   `cache-benefit-us`);
//! - KV streams layer by layer while the prompt is computed, which begins when what is fetched is there, so only
//!   `transfer − overlap × min(transfer, prefill − fetch)` is waited for;
//! - a remote route pays the link's round-trip time: the request goes over and the KV comes back;
//! - decode is one step for the first token, the wait for a slot where all are taken, and a share of the remaining
//!   steps of the answer.

use super::arithmetic::{finite, scaled};
use super::config::{self, ConfigError};
use super::contract::Cost;
use crate::column::{CostRow, NEVER, RequestView, RouteView};
use crate::names::NameTables;
use serde::Deserialize;

/// What `ttft` can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TtftConfig {
    /// Share of a transfer that hides behind prefill while both run, in thousandths. 930: what layer-wise streaming
    /// was measured to hide at 100 Gbit/s; one layer of a few dozen cannot overlap with anything.
    pub overlap_permille: u32,
    /// Round trips a remote route pays. 1: request over, KV back.
    pub round_trips: u32,
    /// Share of the decode time after the first token that counts, in thousandths. 100: of two routes with like times
    /// to first token the one that decodes faster wins, and a long answer does not drown the first token. 0 asks for
    /// time to first token alone, 1000 for end-to-end latency.
    pub decode_permille: u32,
}

impl Default for TtftConfig {
    fn default() -> Self {
        Self {
            overlap_permille: 930,
            round_trips: 1,
            decode_permille: 100,
        }
    }
}

/// Expected time to first token.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ttft {
    config: TtftConfig,
}

impl Ttft {
    /// With this configuration.
    pub fn new(config: TtftConfig) -> Result<Self, ConfigError> {
        if config.overlap_permille > 1000 {
            return Err(ConfigError::invalid(
                "overlap_permille",
                "at most 1000, which is the whole transfer",
            ));
        }
        Ok(Self { config })
    }

    fn transfer_us(&self, route: RouteView<'_>) -> u64 {
        if route.is_local() {
            return 0;
        }
        let transfer = u64::from(route.transfer_us());
        let hidden = scaled(
            transfer.min(u64::from(computing_us(route))),
            self.config.overlap_permille,
        );
        let round_trips = u64::from(self.config.round_trips) * u64::from(route.link_rtt_us());
        (transfer - hidden).saturating_add(round_trips)
    }

    fn decode_us(&self, request: RequestView<'_>, route: RouteView<'_>) -> u64 {
        let step = u64::from(route.decode_us());
        let answer = step.saturating_mul(u64::from(output_tokens(request)));
        let rest = scaled(answer.saturating_sub(step), self.config.decode_permille);
        step.saturating_add(slot_wait_us(route, answer))
            .saturating_add(rest)
    }
}

impl Cost for Ttft {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        Self::new(config::parse(text)?)
    }

    fn estimate(&self, request: RequestView<'_>, route: RouteView<'_>) -> CostRow {
        let parts = [
            route.queue_us(),
            route.prefill_us(),
            route.transfer_us(),
            route.decode_us(),
        ];
        if parts.contains(&NEVER) {
            return CostRow {
                total_us: NEVER,
                ..CostRow::default()
            };
        }
        let (queue, prefill) = (u64::from(route.queue_us()), u64::from(route.prefill_us()));
        let (transfer, decode) = (self.transfer_us(route), self.decode_us(request, route));
        CostRow {
            total_us: finite((queue + prefill).saturating_add(transfer).saturating_add(decode)),
            queue_us: finite(queue),
            prefill_us: finite(prefill),
            transfer_us: finite(transfer),
            decode_us: finite(decode),
            cache_benefit_us: cache_benefit_us(request, route),
        }
    }
}

/// How long the answer will be: the tenant's mean, or the client's limit where there is no mean yet.
fn output_tokens(request: RequestView<'_>) -> u32 {
    match request.expected_output_tokens() {
        0 => request.max_output_tokens(),
        expected => expected,
    }
}

/// With every slot taken, sequences end at `slots / answer` a µs; this request waits for as many ends as it has
/// sequences before it beyond the slots. Zero where the instance names no slots.
fn slot_wait_us(route: RouteView<'_>, answer_us: u64) -> u64 {
    let (running, slots) = (u64::from(route.decode_running()), u64::from(route.decode_slots()));
    if slots == 0 || running < slots {
        return 0;
    }
    (running - slots + 1).saturating_mul(answer_us / slots)
}

/// The part of prefill that is computed.
fn computing_us(route: RouteView<'_>) -> u32 {
    route.prefill_us().saturating_sub(route.fetch_us())
}

/// What computing the cached and fetched tokens would have cost at the rate of the others, less the time of the fetch.
fn cache_benefit_us(request: RequestView<'_>, route: RouteView<'_>) -> u32 {
    let there = u64::from(route.cached_tokens()) + u64::from(route.fetch_tokens());
    let there = there.min(u64::from(request.prompt_tokens()));
    let computed = u64::from(request.prompt_tokens()) - there;
    let saved = (u64::from(computing_us(route)) * there).checked_div(computed);
    finite(saved.unwrap_or(0).saturating_sub(u64::from(route.fetch_us())))
}
