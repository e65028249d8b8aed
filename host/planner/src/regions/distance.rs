//! From what length on a prefix that is cached elsewhere is worth the way.

use crate::profile::PrefillProfile;
use crate::quadratic::Quadratic;
use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Tokens};
use std::time::Duration;

/// The number of cached tokens whose prefill takes as long as the round trips, to the nearest token: with more of them
/// a request gains by going where they are cached, queues aside. [`None`] when no length is enough.
pub fn break_even(prefill: &PrefillProfile, rtt: Duration, round_trips: u32) -> Option<Tokens> {
    equal(
        prefill,
        Quadratic([rtt.as_secs_f64() * f64::from(round_trips), 0.0, 0.0]),
    )
}

/// The number of tokens whose KV arrives over a link as fast as they are computed, to the nearest token: with more of
/// them it is fetched rather than computed. [`None`] when no length is enough: the link is slower than prefill.
pub fn fetch_break_even(
    prefill: &PrefillProfile,
    rtt: Duration,
    kv: KvSize,
    link: BitsPerSecond,
) -> Option<Tokens> {
    let bits = Quadratic([kv.fixed.0 as f64, kv.per_token.0 as f64, 0.0]).times(8.0 / link.0.max(1) as f64);
    equal(prefill, bits.plus(Quadratic([rtt.as_secs_f64(), 0.0, 0.0])))
}

/// The length from which on computing takes longer than `other`; what prefill takes whatever the length is not saved.
fn equal(prefill: &PrefillProfile, other: Quadratic) -> Option<Tokens> {
    let [_, per_token, per_square] = Quadratic::from(*prefill).0;
    let gain = Quadratic([0.0, per_token, per_square]).plus(other.times(-1.0));
    let from = gain
        .roots()
        .into_iter()
        .flatten()
        .filter(|root| *root >= 0.0)
        .fold(0.0, f64::max);
    let longest = f64::from(u32::MAX);
    // Beyond its last root the gain has one sign.
    (from < longest && gain.at(from * 2.0 + 1.0) > 0.0).then_some(Tokens(from.round() as u32))
}
