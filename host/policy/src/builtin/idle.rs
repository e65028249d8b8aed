//! Invalidation `idle`: what nobody used for a while goes, and room is made before it runs out.

use super::arithmetic::scaled;
use super::config::{self, ConfigError};
use super::contract::{Groups, Invalidation};
use super::version::VersionRule;
use crate::answer::Directive;
use crate::names::NameTables;
use crate::question::{Event, Pressure};
use serde::Deserialize;

/// What `idle` can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IdleConfig {
    /// KV unused for longer goes at the next tick, in ms. 1,800,000 (half an hour): a conversation whose user has not
    /// answered by then has most likely ended.
    pub max_idle_ms: u64,
    /// Under pressure, how full a site may stay, in thousandths of its limit. 900: a tenth of headroom, so that the
    /// next request does not bring the next pressure event.
    pub keep_permille: u32,
}

impl Default for IdleConfig {
    fn default() -> Self {
        Self {
            max_idle_ms: 30 * 60 * 1000,
            keep_permille: 900,
        }
    }
}

/// As [`VersionRule`], and age and pressure too.
#[derive(Clone, Copy, Debug, Default)]
pub struct IdleRule {
    config: IdleConfig,
}

impl IdleRule {
    /// With this configuration.
    pub fn new(config: IdleConfig) -> Result<Self, ConfigError> {
        if config.keep_permille > 1000 {
            return Err(ConfigError::invalid(
                "keep_permille",
                "at most 1000, which is the whole limit",
            ));
        }
        Ok(Self { config })
    }

    fn make_room(&self, pressure: &Pressure) -> Vec<Directive> {
        let keep = scaled(u64::from(pressure.limit_mib), self.config.keep_permille);
        let excess = u64::from(pressure.used_mib).saturating_sub(keep);
        u32::try_from(excess)
            .ok()
            .filter(|mib| *mib > 0)
            .map(Directive::FreeMib)
            .into_iter()
            .collect()
    }
}

impl Invalidation for IdleRule {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        Self::new(config::parse(text)?)
    }

    fn react(&self, event: &Event, groups: Groups<'_>) -> Vec<Directive> {
        match event {
            Event::Tick(_) => vec![Directive::IdleLongerThan(self.config.max_idle_ms)],
            Event::CapacityPressure(pressure) => self.make_room(pressure),
            other => VersionRule.react(other, groups),
        }
    }
}
