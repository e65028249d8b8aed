//! What the operator rules about where prompts are computed, as the file says it.

use super::{Config, ConfigError, LinkConfig};
use portolan_base::Tokens;
use portolan_gateway::live::{Failover, PrefillRule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether KV crosses between sites at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Along the links.
    #[default]
    CrossSite,
    /// Never: each site serves its requests alone, and links are as if they were not there.
    Local,
}

/// Bounds of what policies choose between, for requests that leave `prefill_policy` at `auto`.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RoutingConfig {
    /// Shorter prompts are computed at the site that they came in at, where it has an instance for that; none: the
    /// policies and the [threshold that the planner keeps](scheduling.md) decide.
    pub long_context_threshold_tokens: Option<u32>,
    /// Prompts that are not shorter, all without a threshold, are computed at another site where one can.
    pub prefer_remote_prefill: bool,
    /// When another site fails a prompt, this one may compute it; without, the request then fails.
    pub fallback_to_local_on_failure: bool,
}

impl Default for RoutingConfig {
    fn default() -> Self {
        Self {
            long_context_threshold_tokens: None,
            prefer_remote_prefill: false,
            fallback_to_local_on_failure: true,
        }
    }
}

impl RoutingConfig {
    /// As the gateway takes it.
    pub fn rule(&self) -> PrefillRule {
        PrefillRule {
            long_context: self.long_context_threshold_tokens.map(Tokens),
            prefer_remote: self.prefer_remote_prefill,
            failover: match self.fallback_to_local_on_failure {
                true => Failover::Home,
                false => Failover::Never,
            },
        }
    }
}

impl Config {
    /// The links that are used.
    pub fn links_in_use(&self) -> &[LinkConfig] {
        match self.mode {
            Mode::CrossSite => &self.links,
            Mode::Local => &[],
        }
    }

    pub(super) fn check_routing(&self) -> Result<(), ConfigError> {
        if self.mode == Mode::Local && self.routing.prefer_remote_prefill {
            let problem = "with `mode: local` nothing is computed at another site: take one of the two out";
            return Err(ConfigError::value("routing.prefer_remote_prefill", problem));
        }
        if self.routing.long_context_threshold_tokens == Some(0) {
            let problem = "at least 1 is needed; leave it out to let the policies decide";
            return Err(ConfigError::value(
                "routing.long_context_threshold_tokens",
                problem,
            ));
        }
        Ok(())
    }
}
