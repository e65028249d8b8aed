//! Tokens that may be drawn. A vocabulary is large: only as much of it is sorted as a bound asks for.

use std::cmp::Ordering;

/// Tokens sorted at first to find a share of the probability; four times as many at each further try.
const SORTED_FIRST: usize = 256;

/// Tokens with their logits divided by the temperature. The likeliest come first once something was cut off; ties go
/// to the lower token, so that equal logits give equal draws.
#[derive(Debug, Default)]
pub(super) struct Candidates(Vec<(u32, f32)>);

impl Candidates {
    /// All whose logits are finite; `None` when there is none.
    pub(super) fn of(logits: &[f32], temperature: f32) -> Option<Self> {
        let finite = (0u32..).zip(logits).filter(|(_, logit)| logit.is_finite());
        let all: Vec<_> = finite
            .map(|(token, logit)| (token, logit / temperature))
            .collect();
        (!all.is_empty()).then_some(Self(all))
    }

    /// At most so many of the likeliest, in order; 0 keeps all as they are.
    pub(super) fn keep_likeliest(&mut self, most: usize) {
        if most == 0 {
            return;
        }
        self.sort_first(most);
        self.0.truncate(most);
    }

    /// Those at least `share` times as likely as the likeliest; 0 keeps all.
    pub(super) fn keep_share(&mut self, share: f32) {
        if share > 0.0 {
            let least = self.greatest() + share.ln();
            self.0.retain(|(_, logit)| *logit >= least);
        }
    }

    /// The smallest set whose probabilities reach `mass`; 1 keeps all.
    pub(super) fn keep_mass(&mut self, mass: f32) {
        if mass >= 1.0 {
            return;
        }
        let top = self.greatest();
        let all: f32 = self.0.iter().map(|(_, logit)| (logit - top).exp()).sum();
        let mut sorted = SORTED_FIRST;
        loop {
            self.sort_first(sorted);
            let mut reached = 0.0;
            for (index, (_, logit)) in self.0.iter().take(sorted).enumerate() {
                reached += (logit - top).exp();
                if reached >= mass * all {
                    self.0.truncate(index + 1);
                    return;
                }
            }
            if sorted >= self.0.len() {
                return;
            }
            sorted *= 4;
        }
    }

    /// One of them by its probability; `unit` is uniform in `[0, 1)`.
    pub(super) fn draw(&self, unit: f32) -> u32 {
        let top = self.greatest();
        let weight = |logit: f32| (logit - top).exp();
        let all: f32 = self.0.iter().map(|(_, logit)| weight(*logit)).sum();
        let mut left = unit * all;
        let mut last = 0;
        for (token, logit) in &self.0 {
            left -= weight(*logit);
            last = *token;
            if left < 0.0 {
                break;
            }
        }
        last
    }

    /// Those that were kept, with their logits.
    pub(super) fn into_likeliest(self) -> impl Iterator<Item = (u32, f32)> {
        self.0.into_iter()
    }

    fn greatest(&self) -> f32 {
        self.0
            .iter()
            .map(|(_, logit)| *logit)
            .fold(f32::NEG_INFINITY, f32::max)
    }

    /// Puts the `count` likeliest in front, in order.
    fn sort_first(&mut self, count: usize) {
        let by_likelihood =
            |a: &(u32, f32), b: &(u32, f32)| -> Ordering { b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)) };
        if count < self.0.len() {
            self.0.select_nth_unstable_by(count, by_likelihood);
        }
        let sorted = count.min(self.0.len());
        self.0[..sorted].sort_unstable_by(by_likelihood);
    }
}
