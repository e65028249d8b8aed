//! Sum, mean and percentiles of many numbers, in bounded memory.

use serde::Serialize;
use std::collections::BTreeMap;

/// Digits of a number that count, in bits: a percentile is at most a thousandth too small.
const KEPT_BITS: u32 = 11;

/// How numbers are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// All together.
    pub sum: f64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// What 99 of 100 do not exceed.
    pub p99: f64,
}

/// Numbers as they come, counted by their leading digits: a million of them take no more room than a thousand.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    counts: BTreeMap<u64, u64>,
    total: u64,
    sum: f64,
}

impl Gathered {
    /// One more number.
    pub fn add(&mut self, value: u64) {
        *self.counts.entry(leading(value)).or_default() += 1;
        self.total += 1;
        self.sum += value as f64;
    }

    /// How they are spread; all zero when there is none. Percentiles are nearest-rank.
    pub fn spread(&self) -> Spread {
        let mean = if self.total == 0 {
            0.0
        } else {
            self.sum / self.total as f64
        };
        Spread {
            sum: self.sum,
            mean,
            p50: self.percentile(50),
            p99: self.percentile(99),
        }
    }

    fn percentile(&self, percent: u64) -> f64 {
        let rank = (u128::from(self.total) * u128::from(percent))
            .div_ceil(100)
            .max(1);
        let mut before = 0u128;
        let found = self.counts.iter().find(|(_, count)| {
            before += u128::from(**count);
            before >= rank
        });
        found.map_or(0.0, |(value, _)| *value as f64)
    }
}

/// A number without the digits that do not count.
fn leading(value: u64) -> u64 {
    let digits = u64::BITS - value.leading_zeros();
    let dropped = digits.saturating_sub(KEPT_BITS);
    value >> dropped << dropped
}

/// The nearest-rank percentile of ascending values; zero when there is none.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: impl IntoIterator<Item = u64>) -> Spread {
        let mut gathered = Gathered::default();
        values.into_iter().for_each(|value| gathered.add(value));
        gathered.spread()
    }

    #[test]
    fn nearest_rank() {
        let hundred = spread((1..=100).rev());
        assert_eq!(
            (hundred.sum, hundred.mean, hundred.p50, hundred.p99),
            (5050.0, 50.5, 50.0, 99.0)
        );
        assert_eq!(spread([7]).p99, 7.0);
        assert_eq!(spread([]), Spread::default());
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(&sorted, 50), percentile(&sorted, 99)), (50.0, 99.0));
    }

    #[test]
    fn large_numbers_lose_a_thousandth_at_most_and_many_take_no_more_room() {
        let mut gathered = Gathered::default();
        (0..200_000u64).for_each(|n| gathered.add(n * 1_000_003));
        let found = gathered.spread();
        for (got, exact) in [
            (found.p50, 99_999.0 * 1_000_003.0),
            (found.p99, 197_999.0 * 1_000_003.0),
        ] {
            assert!(got <= exact && got >= exact * 0.999, "{got} of {exact}");
        }
        assert!(gathered.counts.len() < 30_000, "{}", gathered.counts.len());
        assert_eq!(leading(u64::MAX), u64::MAX << 53);
    }
}
