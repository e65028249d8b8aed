//! How fast an instance computes.

use portolan_base::{PrefillCurve, Tokens};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Prefill time of one instance: a quadratic in the uncached length.
///
/// The fixed part is launch and scheduling, the linear part the weights, the quadratic part attention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefillProfile {
    /// Seconds whatever the length.
    pub fixed_s: f64,
    /// Seconds a token.
    pub per_token_s: f64,
    /// Seconds a token squared.
    pub per_token_squared_s: f64,
}

impl From<PrefillCurve> for PrefillProfile {
    fn from(curve: PrefillCurve) -> Self {
        Self {
            fixed_s: curve.fixed_us as f64 / 1e6,
            per_token_s: curve.ps_per_token as f64 / 1e12,
            per_token_squared_s: curve.fs_per_token_squared as f64 / 1e15,
        }
    }
}

/// Why no curve could be fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// A quadratic is determined by three different lengths.
    #[error("{0} different lengths were measured, a prefill profile needs at least 3")]
    TooFewLengths(usize),
}

impl PrefillProfile {
    /// Mean seconds of requests with this mean length and mean squared length.
    pub fn mean_seconds(&self, mean: f64, mean_square: f64) -> f64 {
        self.fixed_s + self.per_token_s * mean + self.per_token_squared_s * mean_square
    }

    /// Seconds for `tokens`.
    pub fn seconds(&self, tokens: f64) -> f64 {
        self.mean_seconds(tokens, tokens * tokens)
    }

    /// The time for `tokens`; zero where the curve is negative.
    pub fn time(&self, tokens: Tokens) -> Duration {
        Duration::try_from_secs_f64(self.seconds(f64::from(tokens.0)).max(0.0)).unwrap_or(Duration::MAX)
    }

    /// The curve that is `factor` times this one plus `offset_s` seconds: the same model on other hardware.
    #[must_use]
    pub fn scaled(&self, factor: f64, offset_s: f64) -> Self {
        Self {
            fixed_s: self.fixed_s * factor + offset_s,
            per_token_s: self.per_token_s * factor,
            per_token_squared_s: self.per_token_squared_s * factor,
        }
    }

    /// The least-squares quadratic through measured (uncached length, prefill time) pairs.
    pub fn fit(samples: &[(Tokens, Duration)]) -> Result<Self, FitError> {
        let mut lengths: Vec<u32> = samples.iter().map(|(tokens, _)| tokens.0).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let [.., longest] = lengths[..] else {
            return Err(FitError::TooFewLengths(0));
        };
        if lengths.len() < 3 {
            return Err(FitError::TooFewLengths(lengths.len()));
        }
        // In units of the longest length every sum is of the order of the number of samples.
        let unit = f64::from(longest);
        let mut equations = [[0.0; 4]; 3];
        for (tokens, time) in samples {
            let x = f64::from(tokens.0) / unit;
            let powers = [1.0, x, x * x];
            for (row, factor) in equations.iter_mut().zip(powers) {
                for (cell, power) in row.iter_mut().zip([1.0, x, x * x, time.as_secs_f64()]) {
                    *cell += factor * power;
                }
            }
        }
        let [fixed_s, linear, quadratic] = solve(equations);
        Ok(Self {
            fixed_s,
            per_token_s: linear / unit,
            per_token_squared_s: quadratic / (unit * unit),
        })
    }
}

/// Solves three linear equations whose matrix is symmetric and positive definite, so that no pivoting is needed.
fn solve(mut rows: [[f64; 4]; 3]) -> [f64; 3] {
    for pivot in 0..3 {
        let by = rows[pivot];
        for (_, row) in rows.iter_mut().enumerate().filter(|(i, _)| *i != pivot) {
            let factor = row[pivot] / by[pivot];
            row.iter_mut()
                .zip(by)
                .for_each(|(cell, other)| *cell -= factor * other);
        }
    }
    [0, 1, 2].map(|i| rows[i][3] / rows[i][i])
}

/// Decode speed of one instance at its full batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeProfile {
    /// Sequences decoded at once.
    pub batch: u32,
    /// Seconds for one step of the full batch.
    pub step_s: f64,
    /// Mean tokens of an answer.
    pub output_tokens: f64,
}

impl DecodeProfile {
    /// Answers a second of one instance.
    pub fn rate(&self) -> f64 {
        f64::from(self.batch) / (self.step_s * self.output_tokens)
    }
}
