//! Integer arithmetic that saturates instead of wrapping, and one mixing function.

use crate::NEVER;

/// The largest value that still means "take it": one below [`NEVER`].
const LARGEST: u32 = NEVER - 1;

/// `value` as a cost or score that is not [`NEVER`], however large.
pub(super) fn finite(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(LARGEST).min(LARGEST)
}

/// `value` × `permille` / 1000, rounded down.
pub(super) fn scaled(value: u64, permille: u32) -> u64 {
    // Dividing first where the product would overflow loses under one part in 10^13.
    match value.checked_mul(u64::from(permille)) {
        Some(product) => product / 1000,
        None => (value / 1000).saturating_mul(u64::from(permille)),
    }
}

/// The finalizer of SplitMix64: every input bit reaches every output bit.
pub(super) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_saturate_below_never() {
        assert_eq!(finite(u64::from(NEVER)), LARGEST);
        assert_eq!(finite(u64::MAX), LARGEST);
        assert_eq!(finite(5), 5);
    }

    #[test]
    fn scaling_is_exact_until_it_would_overflow() {
        assert_eq!(scaled(999, 276), 275);
        assert_eq!(scaled(u64::MAX, 1000), u64::MAX / 1000 * 1000);
    }
}
