//! Expected time to first token, with the route's price added as time.

use portolan_sdk::{ConfigError, Cost, CostRow, NEVER, NameTables, RequestView, RouteView, config};

/// The binding's text, such as `{"us_per_price_micro": 5}`.
#[derive(serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TimeAndPrice {
    /// How many microseconds of waiting a millionth of the operator's unit is worth.
    us_per_price_micro: u32,
}

impl Default for TimeAndPrice {
    fn default() -> Self {
        Self {
            us_per_price_micro: 100,
        }
    }
}

impl Cost for TimeAndPrice {
    /// `names` holds the tables of sites, models and user classes, for policies that need names.
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        config::parse(text)
    }

    fn estimate(&self, _request: RequestView<'_>, route: RouteView<'_>) -> CostRow {
        // The host's own estimates; prefill covers the uncached tokens only.
        let queue = u64::from(route.queue_us());
        let prefill = u64::from(route.prefill_us());
        let decode = u64::from(route.decode_us());
        // KV streams while prefill runs: only what is longer than prefill is waited for, and one round trip.
        let transfer = if route.is_local() {
            0
        } else {
            u64::from(route.transfer_us()).saturating_sub(prefill) + u64::from(route.link_rtt_us())
        };
        let price = u64::from(route.price_micros()) * u64::from(self.us_per_price_micro);
        CostRow {
            total_us: finite((queue + prefill + transfer + decode).saturating_add(price)),
            queue_us: finite(queue),
            prefill_us: finite(prefill),
            transfer_us: finite(transfer),
            decode_us: finite(decode),
            ..CostRow::default()
        }
    }
}

/// A sum as a cost that is not `NEVER`, however large.
fn finite(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(NEVER).min(NEVER - 1)
}

portolan_sdk::cost!(TimeAndPrice);
