//! How long a prompt of a length takes on one instance, as it was measured.

use core::time::Duration;
use serde::{Deserialize, Serialize};

/// Prefill time as a quadratic in the uncached length: launch and scheduling, the weights, attention.
///
/// Whole numbers, so that what is known of a fleet compares and a decision is the same on every machine. All zero
/// where nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PrefillCurve {
    /// Whatever the length, in µs.
    pub fixed_us: u64,
    /// A token, in picoseconds.
    pub ps_per_token: u64,
    /// A token squared, in femtoseconds.
    pub fs_per_token_squared: u64,
}

impl PrefillCurve {
    /// Whether something was measured.
    pub const fn is_measured(&self) -> bool {
        self.fixed_us != 0 || self.ps_per_token != 0 || self.fs_per_token_squared != 0
    }

    /// Time for one prompt with `tokens` to compute, in µs; zero for none.
    pub const fn time_us(&self, tokens: u32) -> u64 {
        self.work_us(1, tokens)
    }

    /// Time for `requests` prompts that have `tokens` to compute together, in µs, as if they were alike: what a queue
    /// takes of which only the two numbers are known. Zero for no tokens.
    pub const fn work_us(&self, requests: u32, tokens: u32) -> u64 {
        if tokens == 0 {
            return 0;
        }
        let (requests, tokens) = (if requests == 0 { 1 } else { requests as u64 }, tokens as u64);
        let fixed = self.fixed_us.saturating_mul(requests);
        let linear = self.ps_per_token.saturating_mul(tokens) / 1_000_000;
        let squares = tokens * tokens / requests;
        // Dividing first where the product would overflow loses under one part in a million.
        let quadratic = match squares.checked_mul(self.fs_per_token_squared) {
            Some(product) => product / 1_000_000_000,
            None => (squares / 1_000_000_000).saturating_mul(self.fs_per_token_squared),
        };
        fixed.saturating_add(linear).saturating_add(quadratic)
    }
}

/// Weight that the past keeps with each new measurement: the last two hundred or so count, which spread over lengths,
/// and an instance that was slowed down shows within a few minutes of load.
const KEPT: f64 = 0.995;

/// Lengths are taken in units of this, so that the sums of the powers stay of one order.
const UNIT: f64 = 8192.0;

/// Fits a curve to (length, time) pairs as they come: least squares, the past fading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CurveMeter {
    /// Σ w·xᵏ for k = 0…4.
    powers: [f64; 5],
    /// Σ w·xᵏ·seconds for k = 0…2.
    times: [f64; 3],
}

/// How much of a part must be left once the parts before it are taken out, for its own share of the time to be told
/// from theirs. Lengths spread evenly from nothing leave 0.028 of the square; a hundredth keeps lengths that hardly
/// differ from being read as a curve that holds nowhere else.
const TOLD_APART: f64 = 0.01;

impl CurveMeter {
    /// A prompt with `tokens` to compute took `time`.
    pub fn note(&mut self, tokens: u32, time: Duration) {
        let (x, seconds) = (f64::from(tokens) / UNIT, time.as_secs_f64());
        let mut power = 1.0;
        for k in 0..5 {
            self.powers[k] = self.powers[k] * KEPT + power;
            if let Some(sum) = self.times.get_mut(k) {
                *sum = *sum * KEPT + power * seconds;
            }
            power *= x;
        }
    }

    /// The curve through what was noted: as many of the three parts as the lengths noted tell apart, none negative;
    /// all zero before anything was noted.
    pub fn curve(&self) -> PrefillCurve {
        const PARTS: [&[usize]; 5] = [&[0, 1, 2], &[0, 1], &[1, 2], &[1], &[0]];
        let fit = PARTS.iter().find_map(|parts| self.fit(parts)).unwrap_or([0.0; 3]);
        PrefillCurve {
            fixed_us: (fit[0] * 1e6) as u64,
            ps_per_token: (fit[1] / UNIT * 1e12) as u64,
            fs_per_token_squared: (fit[2] / (UNIT * UNIT) * 1e15) as u64,
        }
    }

    /// Solves the normal equations for the parts named by their powers; `None` where they do not determine them, or a
    /// part would be negative.
    fn fit(&self, parts: &[usize]) -> Option<[f64; 3]> {
        let n = parts.len();
        let mut rows = [[0.0; 4]; 3];
        for (row, &i) in rows.iter_mut().zip(parts) {
            for (cell, &j) in row.iter_mut().zip(parts) {
                *cell = self.powers[i + j];
            }
            row[3] = self.times[i];
        }
        for pivot in 0..n {
            let by = rows[pivot];
            if by[pivot] <= TOLD_APART * self.powers[2 * parts[pivot]] {
                return None;
            }
            for (_, row) in rows[..n].iter_mut().enumerate().filter(|(i, _)| *i != pivot) {
                let factor = row[pivot] / by[pivot];
                row.iter_mut()
                    .zip(by)
                    .for_each(|(cell, other)| *cell -= factor * other);
            }
        }
        let mut fit = [0.0; 3];
        for (i, &part) in parts.iter().enumerate() {
            fit[part] = rows[i][3] / rows[i][i];
        }
        fit.iter()
            .all(|part| *part >= -1e-12)
            .then(|| fit.map(|part| part.max(0.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(lengths: &[u32], time: impl Fn(f64) -> f64) -> PrefillCurve {
        let mut meter = CurveMeter::default();
        for &length in lengths {
            meter.note(length, Duration::from_secs_f64(time(f64::from(length))));
        }
        meter.curve()
    }

    #[test]
    fn a_quadratic_is_found_again() {
        let lengths: Vec<u32> = (1..200).map(|i| i * 613 % 90_000 + 200).collect();
        let curve = measured(&lengths, |l| 0.3983 + 4.206e-5 * l + 9.86e-11 * l * l);
        assert!(curve.fixed_us.abs_diff(398_300) < 50, "{curve:?}");
        for length in [500, 20_000, 120_000] {
            let l = f64::from(length);
            let true_us = (0.3983 + 4.206e-5 * l + 9.86e-11 * l * l) * 1e6;
            let off = (curve.time_us(length) as f64 / true_us - 1.0).abs();
            assert!(off < 1e-3, "{length}: {curve:?}");
        }
    }

    #[test]
    fn one_length_gives_a_proportion_and_no_length_nothing() {
        assert!(!measured(&[], |_| 1.0).is_measured());
        let curve = measured(&[1000; 5], |_| 0.5);
        assert_eq!((curve.fixed_us, curve.fs_per_token_squared), (0, 0));
        assert!(curve.time_us(1000).abs_diff(500_000) < 5, "{curve:?}");
        // Falling times would mean a negative part: it is left out.
        let falling = measured(&[1000, 2000, 3000], |l| 1.0 - l / 1e5);
        assert!(falling.is_measured() && falling.time_us(2000) > 0, "{falling:?}");
    }

    #[test]
    fn an_instance_that_slowed_down_shows() {
        let mut meter = CurveMeter::default();
        for i in 0..2000u32 {
            let slow = if i < 1000 { 1.0 } else { 3.0 };
            let tokens = 100 + i * 37 % 5000;
            meter.note(tokens, Duration::from_secs_f64(slow * f64::from(tokens) * 1e-4));
        }
        let us = meter.curve().time_us(3000);
        assert!(us.abs_diff(900_000) < 20_000, "{us}");
    }

    #[test]
    fn a_queue_of_two_like_prompts_takes_twice_one() {
        let curve = PrefillCurve {
            fixed_us: 1000,
            ps_per_token: 50_000_000,
            fs_per_token_squared: 100_000,
        };
        assert_eq!(curve.work_us(2, 20_000), 2 * curve.time_us(10_000));
        assert_eq!((curve.work_us(3, 0), curve.time_us(0)), (0, 0));
        let longest = PrefillCurve {
            fs_per_token_squared: u64::MAX,
            ..curve
        };
        assert_eq!(longest.time_us(u32::MAX), u64::MAX);
    }
}
