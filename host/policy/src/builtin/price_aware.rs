//! Cost `price-aware`: the price of a route, with waiting time priced too.

use super::arithmetic::{finite, scaled};
use super::config::{self, ConfigError};
use super::contract::Cost;
use super::ttft::Ttft;
use crate::column::{CostRow, NEVER, RequestView, RouteView};
use crate::names::NameTables;
use serde::Deserialize;
use std::num::NonZeroU32;

/// What `price-aware` can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PriceAwareConfig {
    /// What one second of an interactive user's waiting is worth, in millionths of the operator's unit. 10,000, a
    /// hundredth of the unit: sending 0.3 GB across a link at 0.02 a GB then counts as 0.6 s.
    pub second_is_worth_micros: NonZeroU32,
    /// The same for batch and prewarm work, which may wait. 100: a hundredth of the above.
    pub batch_second_is_worth_micros: NonZeroU32,
    /// How much of the time counts on a route that keeps the client's wish for its first token, in thousandths. 100:
    /// faster than asked is worth little, and still breaks ties between like prices.
    pub within_slo_permille: u32,
}

impl Default for PriceAwareConfig {
    fn default() -> Self {
        Self {
            second_is_worth_micros: const { NonZeroU32::new(10_000).unwrap() },
            batch_second_is_worth_micros: const { NonZeroU32::new(100).unwrap() },
            within_slo_permille: 100,
        }
    }
}

/// The price of a route in µs: its `ttft`, weighed, plus its price over what a µs is worth.
#[derive(Clone, Copy, Debug, Default)]
pub struct PriceAware {
    config: PriceAwareConfig,
    time: Ttft,
}

impl PriceAware {
    /// With this configuration.
    pub fn new(config: PriceAwareConfig) -> Result<Self, ConfigError> {
        if config.within_slo_permille > 1000 {
            return Err(ConfigError::invalid(
                "within_slo_permille",
                "at most 1000, which is the whole time",
            ));
        }
        Ok(Self {
            config,
            time: Ttft::default(),
        })
    }

    fn second_is_worth(&self, request: RequestView<'_>) -> NonZeroU32 {
        match request.kind() {
            0 => self.config.second_is_worth_micros,
            _ => self.config.batch_second_is_worth_micros,
        }
    }

    fn weighed_us(&self, request: RequestView<'_>, time_us: u32) -> u64 {
        let wish = u64::from(request.ttft_slo_ms()) * 1000;
        let time = u64::from(time_us);
        if time <= wish {
            scaled(time, self.config.within_slo_permille)
        } else {
            time
        }
    }
}

impl Cost for PriceAware {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        Self::new(config::parse(text)?)
    }

    /// The parts are those of `ttft`; the total is not their sum, since the price has no column of its own.
    fn estimate(&self, request: RequestView<'_>, route: RouteView<'_>) -> CostRow {
        let mut row = self.time.estimate(request, route);
        if row.total_us != NEVER {
            let priced =
                u64::from(route.price_micros()) * 1_000_000 / u64::from(self.second_is_worth(request).get());
            row.total_us = finite(self.weighed_us(request, row.total_us).saturating_add(priced));
        }
        row
    }
}
