//! Distributions of the uncached prompt length.

use libm::{erfc, exp, log};
use portolan_base::Tokens;

/// The requests whose length lies in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slice {
    /// Which share of all requests they are, 0 to 1.
    pub share: f64,
    /// Their mean length in tokens; 0 when there are none.
    pub mean: f64,
    /// The mean of their squared lengths; 0 when there are none.
    pub mean_square: f64,
}

/// How long prompts are.
pub trait LengthDistribution {
    /// The requests longer than `over` and at most `up_to` tokens long.
    fn slice(&self, over: Tokens, up_to: Tokens) -> Slice;
}

/// Why lengths cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum LengthsError {
    /// A parameter is no number, or sigma is not positive.
    #[error("mu {mu} and sigma {sigma} must be finite and sigma positive")]
    Shape {
        /// Mean of the logarithm.
        mu: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// The interval is empty, or holds next to nothing of the distribution.
    #[error("the lengths from {from} to {to} tokens hold no part of the distribution")]
    Interval {
        /// Shortest length.
        from: u32,
        /// Longest length.
        to: u32,
    },
    /// Moments of the distribution are no numbers between those of its ends.
    #[error("a sigma of {sigma} is wider than can be computed with; lengths of prompts have some 0.5 to 2")]
    Wide {
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// There is no sample.
    #[error("no lengths were measured")]
    NoSamples,
}

/// A log-normal length, drawn again whenever it falls outside an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TruncatedLogNormal {
    mu: f64,
    sigma: f64,
    from: f64,
    to: f64,
    /// Probability of the interval before truncation.
    mass: f64,
}

impl TruncatedLogNormal {
    /// `ln(length)` has mean `mu` and standard deviation `sigma` before truncation to `from..=to`.
    pub fn new(mu: f64, sigma: f64, from: Tokens, to: Tokens) -> Result<Self, LengthsError> {
        if !(mu.is_finite() && sigma.is_finite() && sigma > 0.0) {
            return Err(LengthsError::Shape { mu, sigma });
        }
        let mut lengths = Self {
            mu,
            sigma,
            from: f64::from(from.0),
            to: f64::from(to.0),
            mass: 1.0,
        };
        lengths.mass = lengths.partial_moment(0, lengths.from, lengths.to);
        // Below this the differences of the error function are rounding noise.
        if from >= to || lengths.mass < 1e-9 {
            return Err(LengthsError::Interval {
                from: from.0,
                to: to.0,
            });
        }
        let all = lengths.slice(from, to);
        let (least, most) = (lengths.from, lengths.to);
        let sound =
            (least..=most).contains(&all.mean) && (least * least..=most * most).contains(&all.mean_square);
        if !sound {
            return Err(LengthsError::Wide { sigma });
        }
        Ok(lengths)
    }

    /// Share of the log-normal before truncation that lies within the interval, 0 to 1.
    pub fn mass(&self) -> f64 {
        self.mass
    }

    /// E[Lᵏ; a < L ≤ b] of the log-normal before truncation, in closed form:
    /// exp(kμ + k²σ²/2) · [Φ((ln b − μ)/σ − kσ) − Φ((ln a − μ)/σ − kσ)].
    fn partial_moment(&self, k: u8, a: f64, b: f64) -> f64 {
        let k = f64::from(k);
        let shifted = |x: f64| (log(x) - self.mu) / self.sigma - k * self.sigma;
        let scale = exp(k * self.mu + k * k * self.sigma * self.sigma / 2.0);
        scale * (normal_cdf(shifted(b)) - normal_cdf(shifted(a)))
    }
}

impl LengthDistribution for TruncatedLogNormal {
    fn slice(&self, over: Tokens, up_to: Tokens) -> Slice {
        let (a, b) = (f64::from(over.0).max(self.from), f64::from(up_to.0).min(self.to));
        let share = if a < b {
            self.partial_moment(0, a, b) / self.mass
        } else {
            0.0
        };
        if share <= 0.0 {
            return Slice::default();
        }
        let moment = |k| self.partial_moment(k, a, b) / self.mass / share;
        Slice {
            share,
            mean: moment(1),
            mean_square: moment(2),
        }
    }
}

/// Φ, the cumulative distribution of the standard normal.
fn normal_cdf(x: f64) -> f64 {
    erfc(-x / std::f64::consts::SQRT_2) / 2.0
}

/// Lengths as they were measured.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredLengths {
    /// Sorted.
    lengths: Vec<u32>,
    /// Sums of the lengths and of their squares before each position.
    sums: Vec<(f64, f64)>,
}

impl MeasuredLengths {
    /// Each of `lengths` is one request.
    pub fn new(mut lengths: Vec<u32>) -> Result<Self, LengthsError> {
        if lengths.is_empty() {
            return Err(LengthsError::NoSamples);
        }
        lengths.sort_unstable();
        let mut sums = vec![(0.0, 0.0)];
        sums.extend(lengths.iter().scan((0.0, 0.0), |(sum, squares), length| {
            let length = f64::from(*length);
            *sum += length;
            *squares += length * length;
            Some((*sum, *squares))
        }));
        Ok(Self { lengths, sums })
    }
}

impl LengthDistribution for MeasuredLengths {
    fn slice(&self, over: Tokens, up_to: Tokens) -> Slice {
        let rank = |tokens: Tokens| self.lengths.partition_point(|length| *length <= tokens.0);
        let (first, end) = (rank(over), rank(up_to));
        if first >= end {
            return Slice::default();
        }
        let count = (end - first) as f64;
        let (before, after) = (self.sums[first], self.sums[end]);
        Slice {
            share: count / self.lengths.len() as f64,
            mean: (after.0 - before.0) / count,
            mean_square: (after.1 - before.1) / count,
        }
    }
}
