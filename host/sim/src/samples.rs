//! Times of many requests in bounded memory: each of them while they are few, then how many fell into which bin.

use serde::Serialize;
use std::time::Duration;

/// A distribution of times, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// Nine of ten are at most this.
    pub p90: f64,
    /// 99 of 100 are at most this.
    pub p99: f64,
}

/// Most samples that are kept one by one.
const EXACT: usize = 1 << 16;

/// Bins in each doubling: a bin is at most 0.1 % wide.
const BINS_PER_DOUBLING: u32 = 1 << 10;

/// Times, added one by one. Means are exact; quantiles are too up to 65,536 samples, and within 0.1 % beyond.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    count: u64,
    sum_us: u128,
    exact: Vec<u64>,
    bins: Vec<u32>,
}

impl Samples {
    pub(crate) fn add(&mut self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.count += 1;
        self.sum_us += u128::from(us);
        if self.bins.is_empty() && self.exact.len() < EXACT {
            self.exact.push(us);
            return;
        }
        for us in std::mem::take(&mut self.exact).into_iter().chain([us]) {
            let bin = bin_of(us);
            if bin >= self.bins.len() {
                self.bins.resize(bin + 1, 0);
            }
            self.bins[bin] += 1;
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Mean in seconds; 0 without a sample.
    pub(crate) fn mean(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        self.sum_us as f64 / self.count as f64 / 1e6
    }

    pub(crate) fn latency(&self) -> Latency {
        if self.count == 0 {
            return Latency::default();
        }
        let at = self.quantiles();
        Latency {
            mean: self.mean(),
            p50: at(0.50),
            p90: at(0.90),
            p99: at(0.99),
        }
    }

    /// Percentiles with their times in seconds, for a curve: every one from 1 to 99, then 99.5 and 99.9. Empty without a
    /// sample.
    pub(crate) fn curve(&self) -> Vec<(f64, f64)> {
        if self.count == 0 {
            return Vec::new();
        }
        let at = self.quantiles();
        let percentiles = (1..100).map(f64::from).chain([99.5, 99.9]);
        percentiles.map(|p| (p, at(p / 100.0))).collect()
    }

    /// From a share of the samples to the time, in seconds, that it takes at most. There has to be a sample.
    fn quantiles(&self) -> impl Fn(f64) -> f64 + '_ {
        let mut sorted = self.exact.clone();
        sorted.sort_unstable();
        move |share| {
            let rank = (self.count as f64 * share).ceil().max(1.0) as u64;
            let us = sorted.get(rank as usize - 1).copied();
            us.unwrap_or_else(|| self.binned(rank)) as f64 / 1e6
        }
    }

    /// The sample of a rank, counted from 1, as the middle of its bin.
    fn binned(&self, rank: u64) -> u64 {
        let mut below = 0;
        let bin = self.bins.iter().position(|&count| {
            below += u64::from(count);
            below >= rank
        });
        bin.map_or(0, middle_of)
    }
}

/// Small values have a bin each; from `BINS_PER_DOUBLING` on, each doubling is divided evenly.
fn bin_of(us: u64) -> usize {
    let exponent = us.max(1).ilog2().saturating_sub(BINS_PER_DOUBLING.ilog2());
    let mantissa = (us >> exponent) as u32;
    (exponent * BINS_PER_DOUBLING + mantissa) as usize
}

fn middle_of(bin: usize) -> u64 {
    let bin = u32::try_from(bin).unwrap_or(u32::MAX);
    if bin < 2 * BINS_PER_DOUBLING {
        return u64::from(bin);
    }
    let exponent = bin / BINS_PER_DOUBLING - 1;
    let mantissa = u64::from(bin - exponent * BINS_PER_DOUBLING);
    (mantissa << exponent) + (1u64 << exponent) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_narrow_and_in_order() {
        let mut last = 0;
        for us in (0..3000).chain((12..60).map(|shift| (1u64 << shift) + (1 << (shift - 3)))) {
            let bin = bin_of(us);
            assert!(bin >= last, "{us}");
            last = bin;
            let off = middle_of(bin).abs_diff(us) as f64;
            assert!(off <= us as f64 * 0.001, "{us} is binned as {}", middle_of(bin));
        }
    }

    #[test]
    fn many_samples_have_the_quantiles_of_few() {
        let mut samples = Samples::default();
        for i in 0..200_000u64 {
            samples.add(Duration::from_micros(i * 7_919 % 200_000 * 50));
        }
        let Latency { mean, p50, p90, p99 } = samples.latency();
        for (got, expected) in [(mean, 4.999_975), (p50, 5.0), (p90, 9.0), (p99, 9.9)] {
            assert!((got / expected - 1.0).abs() < 1e-3, "{got} for {expected}");
        }
        assert_eq!(Samples::default().latency(), Latency::default());
        let curve = samples.curve();
        assert_eq!((curve.len(), curve[49].0), (101, 50.0));
        assert!((curve[49].1 / p50 - 1.0).abs() < 1e-9 && curve.is_sorted_by(|a, b| a.1 <= b.1));
        assert!(Samples::default().curve().is_empty());
    }
}
