//! How fast a modelled engine is, and how much it holds.

use super::faults::Faults;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thiserror::Error;

/// The profiles that ship with the program. Each says where its figures are from, and which are assumed.
const SHIPPED: [(&str, &str); 6] = [
    ("quick", include_str!("../../profiles/quick.json")),
    ("prfaas-h200x8", include_str!("../../profiles/prfaas-h200x8.json")),
    ("prfaas-h20x8", include_str!("../../profiles/prfaas-h20x8.json")),
    (
        "kimi-linear-48b-h100x8",
        include_str!("../../profiles/kimi-linear-48b-h100x8.json"),
    ),
    ("gorgo-h100", include_str!("../../profiles/gorgo-h100.json")),
    (
        "prfaas-h20x8-model-g",
        include_str!("../../profiles/prfaas-h20x8-model-g.json"),
    ),
];

/// What a modelled engine is like.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Where the figures are from, and which are assumed.
    #[serde(default)]
    pub source: String,
    /// Prefill time by the number of tokens to compute, in ms, both ascending; straight lines between and beyond. What
    /// the first line leaves at zero tokens is paid by every prompt.
    pub prefill_ms: Vec<(u32, f64)>,
    /// Time of a decode step.
    pub decode: DecodeTime,
    /// Room for KV.
    pub kv: KvRoom,
    /// Sequences that run at once.
    pub sequences: u32,
    /// Prompt tokens computed in one step; decoding waits no longer than that.
    #[serde(default = "step_tokens")]
    pub step_tokens: u32,
    /// Longest prompt and answer together.
    pub context_tokens: u32,
    /// Length of an answer unless `ignore_eos` is sent: between these two, inclusive. None: as long as it may be.
    #[serde(default)]
    pub answer_tokens: Option<(u32, u32)>,
    /// What goes wrong.
    #[serde(default)]
    pub faults: Faults,
}

/// Time of a decode step.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeTime {
    /// However many sequences.
    pub base_ms: f64,
    /// More for each.
    pub per_sequence_ms: f64,
}

/// Room for KV.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KvRoom {
    /// Blocks.
    pub blocks: u32,
    /// Tokens in one.
    pub block_tokens: u32,
    /// Bytes of one token.
    #[serde(default)]
    pub bytes_per_token: u64,
    /// Bytes of a sequence whatever its length.
    #[serde(default)]
    pub fixed_bytes: u64,
    /// How fast KV comes from another instance, in Gbit/s.
    #[serde(default = "transfer_gbps")]
    pub transfer_gbps: f64,
}

/// Why a profile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProfileError {
    /// No profile of this name ships.
    #[error("there is no profile {name:?}; shipped are {known}, and a file may be named instead")]
    Unknown {
        /// Which was asked for.
        name: String,
        /// Which there are.
        known: String,
    },
    /// It is not readable.
    #[error("the profile cannot be read: {0}")]
    Form(String),
    /// A value makes no sense.
    #[error("{key} of the profile {problem}")]
    Value {
        /// Which.
        key: &'static str,
        /// What is wrong.
        problem: String,
    },
}

impl Profile {
    /// A profile that ships with the program.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn shipped(name: &str) -> Result<Self, ProfileError> {
        let found = SHIPPED.iter().find(|(shipped, _)| *shipped == name);
        let (_, text) = found.ok_or_else(|| ProfileError::Unknown {
            name: name.to_owned(),
            known: Self::names().collect::<Vec<_>>().join(", "),
        })?;
        let profile: Self = serde_json::from_str(text).map_err(|e| ProfileError::Form(e.to_string()))?;
        profile.check()?;
        Ok(profile)
    }

    /// The names of those that ship.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// Whether it makes sense.
    ///
    /// # Errors
    /// When a value does not.
    pub fn check(&self) -> Result<(), ProfileError> {
        let wrong = |key, problem: &str| {
            Err(ProfileError::Value {
                key,
                problem: problem.to_owned(),
            })
        };
        if self.prefill_ms.is_empty()
            || self
                .prefill_ms
                .iter()
                .any(|(tokens, ms)| *tokens == 0 || !ms.is_finite())
        {
            return wrong("prefill_ms", "needs at least one length above 0 with its time");
        }
        if self
            .prefill_ms
            .windows(2)
            .any(|pair| pair[0].0 >= pair[1].0 || pair[0].1 > pair[1].1)
        {
            return wrong("prefill_ms", "must ascend in both length and time");
        }
        let times = [
            self.decode.base_ms,
            self.decode.per_sequence_ms,
            self.prefill_ms[0].1,
        ];
        if times.iter().any(|ms| !ms.is_finite() || *ms < 0.0) {
            return wrong("decode", "has a time that is no number of at least 0");
        }
        if self.kv.block_tokens == 0 || self.kv.blocks == 0 {
            return wrong("kv", "needs at least one block of at least one token");
        }
        if u64::from(self.kv.blocks) * u64::from(self.kv.block_tokens) < u64::from(self.context_tokens) {
            return wrong("kv", "holds less than one sequence of context_tokens");
        }
        if !(self.kv.transfer_gbps.is_finite() && self.kv.transfer_gbps > 0.0) {
            return wrong("kv.transfer_gbps", "must be above 0");
        }
        if self.sequences == 0 || self.step_tokens == 0 || self.context_tokens < 2 {
            return wrong(
                "sequences",
                "and step_tokens must be at least 1, context_tokens at least 2",
            );
        }
        match self.answer_tokens {
            Some((least, most)) if least == 0 || least > most => {
                wrong("answer_tokens", "must be [least, most], from 1")
            }
            _ => Ok(()),
        }
    }

    /// Time to compute so many tokens of a prompt.
    pub fn prefill(&self, tokens: u32) -> Duration {
        if tokens == 0 {
            return Duration::ZERO;
        }
        let points = &self.prefill_ms;
        let tokens = f64::from(tokens);
        let (first, rest) = (points[0], &points[1..]);
        let line = |from: (u32, f64), to: (u32, f64)| {
            let slope = (to.1 - from.1) / (f64::from(to.0) - f64::from(from.0));
            from.1 + slope * (tokens - f64::from(from.0))
        };
        let ms = match rest.iter().position(|(length, _)| tokens <= f64::from(*length)) {
            // One point says a time for each token.
            None if rest.is_empty() => first.1 / f64::from(first.0) * tokens,
            Some(0) => line(first, rest[0]),
            Some(at) => line(rest[at - 1], rest[at]),
            None => line(points[points.len() - 2], points[points.len() - 1]),
        };
        Duration::from_secs_f64(ms.max(0.0) / 1000.0)
    }

    /// Time of a decode step of so many sequences.
    pub fn decode_step(&self, sequences: u32) -> Duration {
        match sequences {
            0 => Duration::ZERO,
            n => Duration::from_secs_f64(
                (self.decode.base_ms + self.decode.per_sequence_ms * f64::from(n)) / 1000.0,
            ),
        }
    }

    /// Time for the KV of so many tokens to come from another instance.
    pub fn transfer(&self, tokens: u32) -> Duration {
        let bytes = self.kv.fixed_bytes + self.kv.bytes_per_token * u64::from(tokens);
        Duration::from_secs_f64(bytes as f64 * 8.0 / (self.kv.transfer_gbps * 1e9))
    }
}

/// What vLLM computes in one step unless told otherwise.
fn step_tokens() -> u32 {
    2048
}

fn transfer_gbps() -> f64 {
    100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_profile_can_be_used_and_says_where_it_is_from() {
        for name in Profile::names() {
            let profile = Profile::shipped(name).unwrap();
            assert!(!profile.source.is_empty(), "{name}");
        }
        let error = Profile::shipped("h9000").unwrap_err().to_string();
        assert!(error.contains("h9000") && error.contains("quick"), "{error}");
    }

    #[test]
    fn the_source_tables_come_out_as_printed() {
        let ms = |name: &str, tokens| Profile::shipped(name).unwrap().prefill(tokens).as_millis();
        assert_eq!(ms("prfaas-h200x8", 1024), 440);
        assert_eq!(ms("prfaas-h200x8", 131_072), 7400);
        assert_eq!(ms("kimi-linear-48b-h100x8", 16_384), 182);
        let half = Profile::shipped("prfaas-h200x8")
            .unwrap()
            .prefill(512)
            .as_secs_f64();
        assert!(
            (0.40..0.44).contains(&half),
            "a short prompt pays the fixed part: {half}"
        );
    }

    #[test]
    fn one_point_is_a_time_for_each_token_and_nonsense_is_named() {
        let mut profile = Profile::shipped("quick").unwrap();
        profile.prefill_ms = vec![(100, 5.0)];
        assert_eq!(profile.prefill(1000), Duration::from_millis(50));
        profile.prefill_ms = vec![(100, 5.0), (50, 6.0)];
        assert!(profile.check().unwrap_err().to_string().contains("prefill_ms"));
        profile = Profile::shipped("quick").unwrap();
        profile.kv.blocks = 1;
        assert!(
            profile
                .check()
                .unwrap_err()
                .to_string()
                .contains("context_tokens")
        );
    }
}
