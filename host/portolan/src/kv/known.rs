//! Models that can be asked about by name, with sizes and prefill times as published.
//!
//! Sizes follow from the public configurations (layers × 2 × key/value heads × head width × 2 bytes). The hybrid of
//! a trillion parameters and the prefill times, all of one instance of eight H200, are those of
//! Prefill-as-a-Service (arXiv 2604.15039), tables 3 and 5.

use portolan_base::kv::KvSize;
use portolan_base::{Bytes, Tokens};

/// A model by name.
#[derive(Debug)]
pub(super) struct KnownModel {
    pub(super) name: &'static str,
    /// Bytes at the published number format.
    pub(super) size: KvSize,
    /// Measured (uncached length, seconds) pairs by length; empty where none is published.
    pub(super) prefill: &'static [(u32, f64)],
}

/// Where the prefill times were measured.
pub(super) const MEASURED_ON: &str = "eight H200";

const fn dense(name: &'static str, layers: u64, kv_heads: u64, head_dim: u64) -> KnownModel {
    KnownModel {
        name,
        size: KvSize {
            fixed: Bytes(0),
            per_token: Bytes(2 * layers * kv_heads * head_dim * 2),
        },
        prefill: &[],
    }
}

pub(super) const MODELS: &[KnownModel] = &[
    KnownModel {
        name: "hybrid-1t",
        // 173.92 MiB, the one constant that gives all four published sizes to their last digit.
        size: KvSize {
            fixed: Bytes(182_368_338),
            per_token: Bytes(17_280),
        },
        prefill: &[(1_024, 0.44), (8_192, 0.72), (32_000, 1.84), (130_000, 7.40)],
    },
    KnownModel {
        prefill: &[(1_024, 0.383), (8_192, 0.563), (32_768, 1.513), (131_072, 9.389)],
        ..dense("qwen3-235b-a22b", 94, 4, 128)
    },
    KnownModel {
        prefill: &[(1_024, 0.421), (8_192, 0.506), (32_768, 1.111), (131_072, 5.569)],
        ..dense("minimax-m2.5", 62, 8, 128)
    },
    dense("qwen3-0.6b", 28, 8, 128),
    dense("qwen3-8b", 36, 8, 128),
    dense("qwen3-32b", 64, 8, 128),
    dense("llama-3.1-8b", 32, 8, 128),
    dense("llama-3.1-70b", 80, 8, 128),
    dense("llama-3.1-405b", 126, 8, 128),
];

impl KnownModel {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        MODELS.iter().find(|model| model.name.eq_ignore_ascii_case(name))
    }

    /// Seconds of a prefill of `tokens`: on the line between the neighbouring measurements, and on the first or last
    /// line beyond them.
    pub(super) fn prefill_seconds(&self, tokens: Tokens) -> Option<f64> {
        let after = self.prefill.partition_point(|(length, _)| *length <= tokens.0);
        let second = after.clamp(1, self.prefill.len().checked_sub(1)?);
        let [(from, start), (to, end)] = [self.prefill[second - 1], self.prefill[second]];
        let slope = (end - start) / f64::from(to - from);
        Some((start + slope * (f64::from(tokens.0) - f64::from(from))).max(0.0))
    }
}
