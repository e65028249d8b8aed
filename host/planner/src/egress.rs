//! How much KV a prefill cluster makes.
//!
//! An instance that prefills prompts of l tokens one after the other makes Φ_kv(l) = S_kv(l) / T_prefill(l); a cluster
//! of N accelerators, P to an instance, sends N / P · Φ_kv of the mean length (arXiv 2604.15039, section 3).

use portolan_base::{BitsPerSecond, Bytes};
use std::num::NonZeroU32;
use std::time::Duration;

/// Φ_kv: the rate at which one instance makes KV while it prefills prompts whose KV has this size and takes this long.
/// [`None`] when the time is zero.
pub fn kv_throughput(kv: Bytes, prefill: Duration) -> Option<BitsPerSecond> {
    let rate = kv.0 as f64 * 8.0 / prefill.as_secs_f64();
    rate.is_finite().then_some(BitsPerSecond(rate as u64))
}

/// What a cluster of so many accelerators sends when every instance makes KV at `throughput`.
pub fn cluster_egress(
    accelerators: u32,
    accelerators_an_instance: NonZeroU32,
    throughput: BitsPerSecond,
) -> BitsPerSecond {
    let instances = u64::from(accelerators / accelerators_an_instance);
    BitsPerSecond(instances.saturating_mul(throughput.0))
}
