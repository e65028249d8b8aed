//! Short prompts stay where the request came in; long ones go wherever the cost policy says it is cheapest.

use portolan_sdk::{
    Candidates, ConfigError, NameTables, Rank, RequestView, Routing, RoutingDecision, Tier, config,
};

/// The binding's text, such as `{"near_below_tokens": 512}`.
#[derive(serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct NearFirst {
    /// A prompt with fewer uncached tokens counts as short.
    near_below_tokens: u32,
}

impl Default for NearFirst {
    fn default() -> Self {
        Self {
            near_below_tokens: 2048,
        }
    }
}

impl Routing for NearFirst {
    /// `names` holds the tables of sites, models and user classes, for policies that need names.
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        config::parse(text)
    }

    fn decide(&self, request: RequestView<'_>, candidates: Candidates<'_>) -> RoutingDecision {
        candidates.ranks(request, |candidate| {
            let near = candidate.route.prefill_site() == request.origin_site();
            let is_short = candidate.uncached_tokens(request) < self.near_below_tokens;
            // Routes of the second tier remain as fallbacks when a site fails.
            let tier = if is_short && !near {
                Tier::Second
            } else {
                Tier::Preferred
            };
            Rank::new(tier, candidate.cost.total_us())
        })
    }
}

portolan_sdk::routing!(NearFirst);
