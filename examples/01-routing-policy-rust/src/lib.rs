//! Keeps premium users near and sends long batch prompts away.
//!
//! Everything else goes where the cost policy says it is cheapest.

use portolan_sdk::{
    Candidates, ConfigError, NameTables, Rank, RequestView, Routing, RoutingDecision, Tier, config,
};

/// The `kind` of a request that may wait.
const BATCH: u32 = 1;

/// The binding's text, such as `{"premium_class": "gold", "long_tokens": 8192}`.
#[derive(serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    premium_class: String,
    /// From this many uncached tokens a batch prompt counts as long.
    long_tokens: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            premium_class: "premium".to_owned(),
            long_tokens: 4096,
        }
    }
}

struct NearOrFar {
    /// The number of the premium class, if the platform has one of that name.
    premium: Option<u32>,
    long_tokens: u32,
}

impl Routing for NearOrFar {
    fn configure(text: &str, names: &NameTables) -> Result<Self, ConfigError> {
        let settings: Settings = config::parse(text)?;
        let premium = (0..)
            .zip(&names.user_classes)
            .find(|(_, class)| **class == settings.premium_class);
        Ok(Self {
            premium: premium.map(|(number, _)| number),
            long_tokens: settings.long_tokens,
        })
    }

    fn decide(&self, request: RequestView<'_>, candidates: Candidates<'_>) -> RoutingDecision {
        let premium = self.premium == Some(request.user_class());
        candidates.ranks(request, |candidate| {
            let near = candidate.route.prefill_site() == request.origin_site();
            let long_batch =
                request.kind() == BATCH && candidate.uncached_tokens(request) >= self.long_tokens;
            let tier = match (premium, long_batch) {
                (true, _) if !near => Tier::Second,
                (false, true) if near => Tier::Second,
                _ => Tier::Preferred,
            };
            Rank::new(tier, candidate.cost.total_us())
        })
    }
}

portolan_sdk::routing!(NearOrFar);
