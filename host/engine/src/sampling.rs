//! Drawing a token from logits.

use crate::kernel::softmax;
use portolan_ports::Sampling;

/// Draws the tokens of one answer. Equal logits and an equal seed give equal tokens.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    random: SplitMix64,
}

impl Sampler {
    pub(crate) fn new(sampling: Sampling) -> Self {
        Self {
            sampling,
            random: SplitMix64(sampling.seed),
        }
    }

    /// The next token, or `None` when no logit is a number.
    pub(crate) fn draw(&mut self, logits: &[f32]) -> Option<u32> {
        if self.sampling.temperature > 0.0 {
            self.draw_at_random(logits)
        } else {
            likeliest(logits)
        }
    }

    fn draw_at_random(&mut self, logits: &[f32]) -> Option<u32> {
        let mut order: Vec<usize> = (0..logits.len()).filter(|i| logits[*i].is_finite()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        if self.sampling.top_k > 0 {
            order.truncate(self.sampling.top_k as usize);
        }
        let mut weights: Vec<f32> = order
            .iter()
            .map(|i| logits[*i] / self.sampling.temperature)
            .collect();
        softmax(&mut weights);
        let kept = nucleus(&weights, self.sampling.top_p);
        let total: f32 = weights[..kept].iter().sum();
        let mut left = self.random.unit() * total;
        for (index, weight) in order[..kept].iter().zip(&weights) {
            left -= weight;
            if left < 0.0 {
                return Some(*index as u32);
            }
        }
        order[..kept].last().map(|index| *index as u32)
    }
}

/// How many of the sorted probabilities make the smallest set that reaches `top_p`.
fn nucleus(sorted: &[f32], top_p: f32) -> usize {
    if top_p >= 1.0 {
        return sorted.len();
    }
    let mut reached = 0.0;
    for (index, probability) in sorted.iter().enumerate() {
        reached += probability;
        if reached >= top_p {
            return index + 1;
        }
    }
    sorted.len()
}

/// The largest logit's index; the first of equals.
pub(crate) fn likeliest(logits: &[f32]) -> Option<u32> {
    let numbers = logits.iter().enumerate().filter(|(_, logit)| !logit.is_nan());
    numbers
        .fold(None, |best: Option<(usize, f32)>, (i, logit)| match best {
            Some((_, top)) if top >= *logit => best,
            _ => Some((i, *logit)),
        })
        .map(|(index, _)| index as u32)
}

/// Steele, Lea and Flood's SplitMix64: 64 bits of state, any seed good.
#[derive(Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    /// Uniform in `[0, 1)`.
    fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        // The 24 bits that an f32 below one holds exactly.
        (z >> 40) as f32 / (1u64 << 24) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [1.0, 3.0, 3.0, f32::NAN];

    fn draws(sampling: Sampling, logits: &[f32]) -> Vec<u32> {
        let mut sampler = Sampler::new(sampling);
        (0..2000).filter_map(|_| sampler.draw(logits)).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_no_nan() {
        assert_eq!(Sampler::new(Sampling::GREEDY).draw(&LOGITS), Some(1));
        assert_eq!(Sampler::new(Sampling::GREEDY).draw(&[f32::NAN]), None);
        assert_eq!(
            Sampler::new(Sampling {
                temperature: 1.0,
                ..Sampling::GREEDY
            })
            .draw(&[f32::NAN]),
            None
        );
    }

    #[test]
    fn draws_follow_the_probabilities_and_repeat_with_the_seed() {
        let sampling = Sampling {
            temperature: 1.0,
            seed: 3,
            ..Sampling::GREEDY
        };
        let logits = [0.0, 4.0f32.ln(), f32::NEG_INFINITY];
        let drawn = draws(sampling, &logits);
        assert_eq!(drawn, draws(sampling, &logits));
        let ones = drawn.iter().filter(|t| **t == 1).count();
        assert!(
            (1500..1700).contains(&ones),
            "4 in 5 expected, {ones} in 2000 drawn"
        );
        assert!(!drawn.contains(&2));
    }

    #[test]
    fn top_k_and_top_p_leave_only_the_likeliest() {
        let logits = [1.0, 3.0, 2.0, 0.0];
        let base = Sampling {
            temperature: 1.0,
            seed: 5,
            ..Sampling::GREEDY
        };
        assert!(
            draws(Sampling { top_k: 1, ..base }, &logits)
                .iter()
                .all(|t| *t == 1)
        );
        assert!(
            draws(Sampling { top_p: 0.1, ..base }, &logits)
                .iter()
                .all(|t| *t == 1)
        );
        let two = draws(Sampling { top_k: 2, ..base }, &logits);
        assert!(two.contains(&1) && two.contains(&2) && two.iter().all(|t| [1, 2].contains(t)));
    }
}
