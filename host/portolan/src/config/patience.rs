//! How long stages may take and how much may be tried again, as the file says it.

use super::{Config, ConfigError};
use portolan_decide::{RetryConfig, Timeouts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Floors in milliseconds and the factor: a stage may take its estimate times the factor, and never less than the floor.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TimeoutsConfig {
    /// Floor of prefill at the request's own site.
    pub local_prefill_ms: u64,
    /// Floor of prefill at another site, with the way of its KV.
    pub remote_prefill_ms: u64,
    /// Floor of a token of an answer whose KV was computed at this site.
    pub local_decode_ms: u64,
    /// Floor of a token of an answer whose KV came from another site.
    pub remote_decode_ms: u64,
    /// How often its estimate a stage may take.
    pub factor: u32,
    /// Where nothing was measured, and for a token when nothing is left to try instead; no floor may be above it.
    pub longest_ms: u64,
    /// After how many times its estimate a prefill at another site is begun at this one too; none: never.
    pub hedge_factor: Option<u32>,
}

impl Default for TimeoutsConfig {
    fn default() -> Self {
        let rule = Timeouts::default();
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            local_prefill_ms: ms(rule.local_prefill),
            remote_prefill_ms: ms(rule.remote_prefill),
            local_decode_ms: ms(rule.local_decode),
            remote_decode_ms: ms(rule.remote_decode),
            factor: rule.factor,
            longest_ms: ms(rule.longest),
            hedge_factor: rule.hedge,
        }
    }
}

/// How much may be tried again.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetriesConfig {
    /// Second tries that a hundred requests earn.
    pub percent: u32,
    /// Second tries in hand at first and after ten quiet seconds; the most there can be.
    pub reserve: u32,
}

impl Default for RetriesConfig {
    fn default() -> Self {
        let RetryConfig { percent, reserve, .. } = RetryConfig::default();
        Self { percent, reserve }
    }
}

impl Config {
    /// How long a stage may take.
    pub fn timeouts(&self) -> Timeouts {
        let TimeoutsConfig {
            local_prefill_ms,
            remote_prefill_ms,
            local_decode_ms,
            remote_decode_ms,
            factor,
            longest_ms,
            hedge_factor,
        } = self.timeouts;
        Timeouts {
            local_prefill: Duration::from_millis(local_prefill_ms),
            remote_prefill: Duration::from_millis(remote_prefill_ms),
            local_decode: Duration::from_millis(local_decode_ms),
            remote_decode: Duration::from_millis(remote_decode_ms),
            factor,
            longest: Duration::from_millis(longest_ms),
            hedge: hedge_factor,
        }
    }

    /// How much may be tried again.
    pub fn retry_budget(&self) -> RetryConfig {
        RetryConfig {
            percent: self.retries.percent,
            reserve: self.retries.reserve,
            ..RetryConfig::default()
        }
    }

    pub(super) fn check_patience(&self) -> Result<(), ConfigError> {
        let times = &self.timeouts;
        let floors = [
            ("local_prefill_ms", times.local_prefill_ms),
            ("remote_prefill_ms", times.remote_prefill_ms),
            ("local_decode_ms", times.local_decode_ms),
            ("remote_decode_ms", times.remote_decode_ms),
        ];
        for (key, floor) in floors {
            if floor == 0 || floor > times.longest_ms {
                let problem = format!("1 to `longest_ms`, which is {}, is possible", times.longest_ms);
                return Err(ConfigError::value(format!("timeouts.{key}"), problem));
            }
        }
        if times.factor == 0 {
            let problem = "at least 1 is needed: a stage may take what it is estimated to take";
            return Err(ConfigError::value("timeouts.factor", problem));
        }
        if times
            .hedge_factor
            .is_some_and(|hedge| hedge == 0 || hedge >= times.factor)
        {
            let problem = format!(
                "1 to one less than `factor`, which is {}, is possible",
                times.factor
            );
            return Err(ConfigError::value("timeouts.hedge_factor", problem));
        }
        if self.retries.percent > 100 {
            let problem = "at most 100 is possible: every request tried once more";
            return Err(ConfigError::value("retries.percent", problem));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(more: &str) -> Result<Config, ConfigError> {
        Config::parse(&format!(
            "{{data_dir: data, operator_keys: [op], models: [{{name: m, path: m.gguf}}], {more}
               sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: [{{name: p1, model: m}}]}}]}}"
        ))
    }

    #[test]
    fn what_is_left_out_is_as_usual() {
        assert_eq!(parse("").unwrap().timeouts(), Timeouts::default());
        assert_eq!(parse("").unwrap().retry_budget(), RetryConfig::default());
        let config = parse("timeouts: {remote_prefill_ms: 4000}, retries: {percent: 0},").unwrap();
        let expected = Timeouts {
            remote_prefill: Duration::from_secs(4),
            ..Timeouts::default()
        };
        assert_eq!(config.timeouts(), expected);
        assert_eq!(config.retry_budget().percent, 0);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_key() {
        for (text, key) in [
            ("timeouts: {local_prefill_ms: 0},", "timeouts.local_prefill_ms"),
            (
                "timeouts: {remote_decode_ms: 40000},",
                "timeouts.remote_decode_ms",
            ),
            ("timeouts: {factor: 0},", "timeouts.factor"),
            ("timeouts: {hedge_factor: 0},", "timeouts.hedge_factor"),
            ("timeouts: {hedge_factor: 5},", "timeouts.hedge_factor"),
            ("retries: {percent: 101},", "retries.percent"),
        ] {
            let refused = parse(text).unwrap_err().to_string();
            assert!(refused.starts_with(key), "{refused}");
        }
        assert!(parse("timeouts: {prefill_ms: 1},").is_err());
    }
}
