//! The offload threshold of a live fleet.

use crate::profile::PrefillProfile;
use crate::quadratic::Quadratic;
use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Permille, Tokens};
use std::time::Duration;

/// A local and a remote way to prefill, at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OffloadCase {
    /// Speed of the local prefill instances.
    pub local: PrefillProfile,
    /// What a request waits before the first free one.
    pub local_wait: Duration,
    /// Speed of the remote ones.
    pub remote: PrefillProfile,
    /// What a request waits before the first free one.
    pub remote_wait: Duration,
    /// Free bandwidth from the remote to the local site.
    pub link: BitsPerSecond,
    /// Round-trip time between them.
    pub rtt: Duration,
    /// Size of the KV that is sent.
    pub kv: KvSize,
    /// How much of the transfer runs while prefill does; 0 when KV is sent after it.
    pub overlap: Permille,
}

impl OffloadCase {
    /// What offloading gains: local minus remote seconds.
    fn gain(&self) -> Quadratic {
        let exposed = f64::from(1000u32.saturating_sub(self.overlap.0)) / 1000.0;
        let seconds_per_byte = exposed * 8.0 / self.link.0 as f64;
        let waits = self.local_wait.as_secs_f64() - self.remote_wait.as_secs_f64() - self.rtt.as_secs_f64();
        Quadratic([
            self.local.fixed_s - self.remote.fixed_s + waits - seconds_per_byte * self.kv.fixed.0 as f64,
            self.local.per_token_s - self.remote.per_token_s - seconds_per_byte * self.kv.per_token.0 as f64,
            self.local.per_token_squared_s - self.remote.per_token_squared_s,
        ])
    }
}

/// The uncached length above which a remote prefill delivers the first token sooner than a local one, for every
/// length up to `longest`; `None` when it does not even for the longest.
///
/// This is the break-even of one request's latency, from what is known at the moment: waits, free bandwidth, both
/// speeds. It is not the threshold that serves most requests: that is [`crate::best_plan`]'s, which needs the
/// distribution of lengths and is as a rule higher, since at full load a short request takes more from the remote pool
/// than it gains. A loaded fleet shows the same in its waits, which raise this threshold too.
pub fn offload_threshold(case: &OffloadCase, longest: Tokens) -> Option<Tokens> {
    if case.link.0 == 0 {
        return None;
    }
    let gain = case.gain();
    let end = f64::from(longest.0);
    if gain.at(end) <= 0.0 || gain.at(end).is_nan() {
        return None;
    }
    // The gain is positive at the end and from the last root before it on.
    let last_loss = gain
        .roots()
        .into_iter()
        .flatten()
        .filter(|root| (0.0..end).contains(root))
        .fold(0.0, f64::max);
    Some(Tokens(last_loss as u32))
}
