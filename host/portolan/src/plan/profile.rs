//! The file that says what a fleet is and how fast.

use super::error::PlanError;
use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Bytes, Tokens};
use portolan_planner::{Averaging, DecodeProfile, Fleet, PrefillProfile};
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

/// A remote prefill pool, the local instances, and the link between them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileText {
    /// The remote pool, which only prefills.
    pub remote: RemoteText,
    /// The local instances.
    pub local: LocalText,
    /// Local instances of the fleet without a remote pool that the plan is compared with; as many as both pools have
    /// together when left out.
    pub homogeneous_instances: Option<u32>,
    /// Size of the KV that is sent.
    pub kv: KvText,
    /// What the link from the remote pool carries, in Gbit/s.
    pub egress_gbps: f64,
    /// `mean-of-times`, what a queue sees, or `time-of-mean`, as the paper writes it.
    #[serde(default)]
    pub averaging: Averaging,
}

/// The remote pool.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteText {
    /// How many instances.
    pub instances: u32,
    /// How fast one computes a prompt.
    pub prefill: CurveText,
}

/// The local instances.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalText {
    /// How many, to be divided between prefill and decode.
    pub instances: u32,
    /// How fast one computes a prompt.
    pub prefill: CurveText,
    /// How fast one generates.
    pub decode: DecodeText,
}

/// Time to compute a prompt: a quadratic in its uncached length, by its coefficients or through measurements.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CurveText {
    /// Whatever the length.
    pub fixed_ms: f64,
    /// A token.
    pub us_per_token: f64,
    /// A token squared.
    pub ns_per_token_squared: f64,
    /// Measured prompts; the least-squares quadratic through them is taken.
    pub measured: Vec<MeasuredText>,
}

/// One measured prefill.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredText {
    /// Uncached length.
    pub tokens: u32,
    /// What it took.
    pub ms: f64,
}

/// Decode speed of one instance.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeText {
    /// Sequences decoded at once.
    pub slots: u32,
    /// One step of all of them together.
    pub step_ms: f64,
}

/// Size of KV.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvText {
    /// Bytes whatever the length: recurrent states.
    #[serde(default)]
    pub fixed_bytes: u64,
    /// Bytes of a token.
    pub bytes_per_token: u64,
}

impl ProfileText {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let text = std::fs::read_to_string(path).map_err(|source| PlanError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|wrong| wrong.of_file(path))
    }

    /// Reads a document.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        serde_saphyr::from_str(text).map_err(|e| PlanError::value("profile", e.to_string()))
    }

    /// Instances of the fleet without a remote pool.
    pub fn homogeneous(&self) -> u32 {
        let both = self.local.instances.saturating_add(self.remote.instances);
        self.homogeneous_instances.unwrap_or(both)
    }

    /// The fleet, for answers of so many tokens.
    pub fn fleet(&self, output_tokens: f64) -> Result<Fleet, PlanError> {
        if self.local.instances < 2 {
            return Err(PlanError::TooSmall);
        }
        let decode = self.local.decode;
        if decode.slots == 0 {
            return Err(PlanError::value("local.decode.slots", "at least 1 is needed"));
        }
        Ok(Fleet {
            remote: self.remote.prefill.profile("remote.prefill")?,
            remote_instances: self.remote.instances,
            local: self.local.prefill.profile("local.prefill")?,
            decode: DecodeProfile {
                batch: decode.slots,
                step_s: positive("local.decode.step_ms", decode.step_ms)? / 1e3,
                output_tokens,
            },
            kv: KvSize {
                fixed: Bytes(self.kv.fixed_bytes),
                per_token: Bytes(self.kv.bytes_per_token),
            },
            egress: gbps("egress_gbps", self.egress_gbps)?,
            averaging: self.averaging,
        })
    }
}

impl CurveText {
    /// The curve; `key` is its place in the file.
    pub fn profile(&self, key: &str) -> Result<PrefillProfile, PlanError> {
        let given = [self.fixed_ms, self.us_per_token, self.ns_per_token_squared];
        let profile = if self.measured.is_empty() {
            PrefillProfile {
                fixed_s: self.fixed_ms / 1e3,
                per_token_s: self.us_per_token / 1e6,
                per_token_squared_s: self.ns_per_token_squared / 1e9,
            }
        } else if given == [0.0; 3] {
            let samples = self.measured.iter().map(|m| {
                let seconds = positive(format!("{key}.measured"), m.ms)? / 1e3;
                Ok((Tokens(m.tokens), Duration::from_secs_f64(seconds)))
            });
            let samples = samples.collect::<Result<Vec<_>, PlanError>>()?;
            PrefillProfile::fit(&samples)
                .map_err(|wrong| PlanError::value(format!("{key}.measured"), wrong.to_string()))?
        } else {
            let problem = "give either `measured` or coefficients, not both";
            return Err(PlanError::value(format!("{key}.measured"), problem));
        };
        // Up to the longest prompt of any model in use: a curve through few points may fall at its end.
        let rises =
            [0.0, f64::from(1 << 20)].map(|l| profile.per_token_s + 2.0 * l * profile.per_token_squared_s);
        if !(profile.seconds(1.0) > 0.0 && rises.iter().all(|slope| (0.0..1.0).contains(slope))) {
            let problem = "prefill must take some time, and longer for longer prompts: check the units, or measure \
                           more lengths";
            return Err(PlanError::value(key, problem));
        }
        Ok(profile)
    }
}

/// A positive number of milliseconds, at most an hour of them.
fn positive(key: impl Into<String>, ms: f64) -> Result<f64, PlanError> {
    if ms > 0.0 && ms <= 3.6e6 {
        return Ok(ms);
    }
    Err(PlanError::value(
        key,
        format!("{ms} is no time above 0 and up to an hour, in ms"),
    ))
}

/// A bandwidth in Gbit/s.
pub fn gbps(key: &str, value: f64) -> Result<BitsPerSecond, PlanError> {
    if value > 0.0 && value <= 1e6 {
        return Ok(BitsPerSecond((value * 1e9).round() as u64));
    }
    Err(PlanError::value(
        key,
        format!("{value} is no bandwidth above 0 and up to 1000000 Gbit/s"),
    ))
}
