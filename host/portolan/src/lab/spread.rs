//! Sum and percentiles of many numbers.

use serde::Serialize;

/// How numbers are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// All together.
    pub sum: f64,
    /// The median.
    pub p50: f64,
    /// What 99 of 100 do not exceed.
    pub p99: f64,
}

impl Spread {
    /// Of `values`, in any order; all zero when there is none.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Self {
            sum: sorted.iter().sum(),
            p50: percentile(&sorted, 50),
            p99: percentile(&sorted, 99),
        }
    }
}

/// The nearest-rank percentile of ascending values; zero when there is none.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let spread = Spread::of(&hundred);
        assert_eq!((spread.sum, spread.p50, spread.p99), (5050.0, 50.0, 99.0));
        assert_eq!(
            Spread::of(&[7.0]),
            Spread {
                sum: 7.0,
                p50: 7.0,
                p99: 7.0
            }
        );
        assert_eq!(Spread::of(&[]), Spread::default());
    }
}
