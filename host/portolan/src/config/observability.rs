//! What a host tells of itself, as the file says it.

use super::{Config, ConfigError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a host tells of itself.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ObservabilityConfig {
    /// `/metrics` answers.
    pub metrics_enabled: bool,
    /// The path of each request is kept for `portolan request show` and `portolan residency explain`.
    pub tracing_enabled: bool,
    /// Which log lines are written, as in `RUST_LOG`, which goes before it: `info`, or `warn,portolan_gateway=debug`.
    pub log_level: String,
}

impl Default for ObservabilityConfig {
    fn default() -> Self {
        Self {
            metrics_enabled: true,
            tracing_enabled: true,
            log_level: "info".to_owned(),
        }
    }
}

impl Config {
    pub(super) fn check_observability(&self) -> Result<(), ConfigError> {
        let level = &self.observability.log_level;
        let bad = |problem: String| ConfigError::value("observability.log_level", problem);
        if level.trim().is_empty() {
            return Err(bad("one of error, warn, info, debug, trace, off".to_owned()));
        }
        // A word alone that is no level is read as the name of a part of the program, and switches all else off.
        let mut alone = level
            .split(',')
            .map(str::trim)
            .filter(|word| !word.contains(['=', '[']));
        if let Some(word) =
            alone.find(|word| word.parse::<tracing_subscriber::filter::LevelFilter>().is_err())
        {
            return Err(bad(format!(
                "{word:?} is no level: one of error, warn, info, debug, trace, off; for one part of the program alone, \
                 portolan_gateway=debug"
            )));
        }
        tracing_subscriber::EnvFilter::try_new(level)
            .map(drop)
            .map_err(|error| bad(format!("{level:?} cannot be read: {error}; try info")))
    }
}
