//! The throughput model: what a fleet serves at a given threshold and split.
//!
//! Symbols as in arXiv 2604.15039. With p the share of requests longer than the threshold:
//!
//! - Θ_prfaas = min(N_prfaas / T_remote(l_long), B_out / S_kv(l_long))
//! - Θ_pd-p = N_p / T_local(l_short)
//! - Θ_pd-d = N_d · BS_max / (T_decode · L_out)
//! - Λ_max = min(Θ_prfaas / p, Θ_pd-p / (1 − p), Θ_pd-d)

use crate::lengths::{LengthDistribution, Slice};
use crate::profile::{DecodeProfile, PrefillProfile};
use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Tokens};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How the mean prefill time of a set of requests is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Averaging {
    /// E\[T(L)\]: what a queue really sees. Long prompts weigh more than their length, so this is the lower figure.
    #[default]
    MeanOfTimes,
    /// T(E\[L\]), as the paper writes it.
    TimeOfMean,
}

/// Everything about the fleet that threshold and split do not change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fleet {
    /// Speed of a remote prefill instance.
    pub remote: PrefillProfile,
    /// How many of them there are.
    pub remote_instances: u32,
    /// Speed of a local instance when it prefills.
    pub local: PrefillProfile,
    /// Speed of a local instance when it decodes.
    pub decode: DecodeProfile,
    /// Size of the KV that is sent.
    pub kv: KvSize,
    /// What the remote cluster can send to the local one.
    pub egress: BitsPerSecond,
    /// How prefill times are averaged.
    pub averaging: Averaging,
}

/// How the local instances are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// Instances that prefill.
    pub prefill: u32,
    /// Instances that decode.
    pub decode: u32,
}

/// What holds throughput down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bottleneck {
    /// The remote prefill instances.
    RemotePrefill,
    /// The link from the remote cluster.
    Egress,
    /// The local prefill instances.
    LocalPrefill,
    /// The decode instances.
    Decode,
}

/// A threshold, a split, and what they give. Rates are requests a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Requests with a longer uncached prompt are prefilled remotely.
    pub threshold: Tokens,
    /// How the local instances are divided.
    pub split: Split,
    /// Θ_prfaas: long requests a second that the remote pool and its link can take; 0 when there are none.
    pub remote_rate: f64,
    /// Θ_pd-p: short requests a second that the local prefill instances can take; 0 when there are none.
    pub local_rate: f64,
    /// Θ_pd-d: requests a second that the decode instances can take.
    pub decode_rate: f64,
    /// Λ_max: requests a second that the whole can take.
    pub lambda_max: f64,
    /// What holds Λ_max down.
    pub bottleneck: Bottleneck,
    /// The share of requests that is offloaded, 0 to 1.
    pub offloaded_share: f64,
    /// Their mean length in tokens; 0 when there are none.
    pub offloaded_mean_tokens: f64,
    /// Traffic from the remote cluster at Λ_max.
    pub egress: BitsPerSecond,
    /// Mean time to first token on an idle fleet: prefill, and for the offloaded the transfer after it.
    pub unloaded_ttft: Duration,
}

/// Computes what `threshold` and `split` give. A threshold of 0 offloads everything, one above the longest length
/// nothing. A part of the fleet that is needed but has no instance makes the rates 0.
pub fn evaluate(fleet: &Fleet, lengths: &dyn LengthDistribution, threshold: Tokens, split: Split) -> Plan {
    let long = lengths.slice(threshold, Tokens(u32::MAX));
    let short = lengths.slice(Tokens(0), threshold);
    let link = fleet.egress.0 as f64 / kv_bits(fleet, long);
    let computed = rate(fleet.remote_instances, fleet.mean_prefill(&fleet.remote, long));
    let remote_rate = if long.share > 0.0 { computed.min(link) } else { 0.0 };
    let local_rate = rate(split.prefill, fleet.mean_prefill(&fleet.local, short));
    let local_rate = if short.share > 0.0 { local_rate } else { 0.0 };
    let decode_rate = f64::from(split.decode) * fleet.decode.rate();
    let remote_limit = if link < computed {
        Bottleneck::Egress
    } else {
        Bottleneck::RemotePrefill
    };
    let limits = [
        (admitted(remote_rate, long.share), remote_limit),
        (admitted(local_rate, short.share), Bottleneck::LocalPrefill),
        (decode_rate, Bottleneck::Decode),
    ];
    let (lambda_max, bottleneck) = limits
        .into_iter()
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .unwrap_or((0.0, Bottleneck::Decode));
    Plan {
        threshold,
        split,
        remote_rate,
        local_rate,
        decode_rate,
        lambda_max,
        bottleneck,
        offloaded_share: long.share,
        offloaded_mean_tokens: long.mean,
        egress: BitsPerSecond((lambda_max * long.share * kv_bits(fleet, long)) as u64),
        unloaded_ttft: unloaded_ttft(fleet, long, short),
    }
}

impl Fleet {
    fn mean_prefill(&self, profile: &PrefillProfile, requests: Slice) -> f64 {
        match self.averaging {
            Averaging::MeanOfTimes => profile.mean_seconds(requests.mean, requests.mean_square),
            Averaging::TimeOfMean => profile.seconds(requests.mean),
        }
    }
}

/// Λ that a part of the fleet admits when `share` of the requests needs it at `rate`.
fn admitted(rate: f64, share: f64) -> f64 {
    if share > 0.0 { rate / share } else { f64::INFINITY }
}

fn rate(instances: u32, seconds: f64) -> f64 {
    f64::from(instances) / seconds.max(f64::MIN_POSITIVE)
}

/// Mean bits of the KV of these requests.
fn kv_bits(fleet: &Fleet, requests: Slice) -> f64 {
    8.0 * (fleet.kv.fixed.0 as f64 + fleet.kv.per_token.0 as f64 * requests.mean)
}

fn unloaded_ttft(fleet: &Fleet, long: Slice, short: Slice) -> Duration {
    let remote = fleet.remote.mean_seconds(long.mean, long.mean_square);
    let transfer = kv_bits(fleet, long) / fleet.egress.0 as f64;
    let far = if long.share > 0.0 {
        long.share * (remote + transfer)
    } else {
        0.0
    };
    let near = short.share * fleet.local.mean_seconds(short.mean, short.mean_square);
    Duration::try_from_secs_f64((far + near).max(0.0)).unwrap_or(Duration::MAX)
}
