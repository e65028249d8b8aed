//! How likely a model found a text, and how often it would have gone on as it does from exact KV.

use super::KvMode;
use crate::sampling::likeliest;
use serde::Serialize;

/// What a model thought at one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Guess {
    /// The token it would have taken.
    top: u32,
    /// The negative logarithm of the probability it gave to the text's own next token.
    surprise: f64,
}

impl Guess {
    pub(super) fn of(logits: &[f32], next: u32) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
        let own = logits.get(next as usize).copied().unwrap_or(f32::NEG_INFINITY);
        Self {
            top: likeliest(logits).unwrap_or(u32::MAX),
            surprise: sum.ln() - f64::from(own - max),
        }
    }
}

/// One mode over all excerpts.
#[derive(Clone, Debug, Default)]
pub(super) struct Score {
    tokens: usize,
    surprise: f64,
    agreed: usize,
    diverged: Option<usize>,
    bytes: u64,
}

/// What one kind of KV makes of a text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QualityRow {
    /// Which kind.
    pub kv: String,
    /// The exponential of the mean surprise: lower is better.
    pub perplexity: f64,
    /// Share of positions at which the likeliest token is the one it is with exact KV.
    pub agreement: f64,
    /// Scored tokens before the first position at which it is another.
    pub first_divergence: Option<usize>,
    /// Bytes of attention KV for each token of the prompts.
    pub bytes_per_token: f64,
}

impl Score {
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Adds an excerpt whose KV took `bytes`.
    pub(super) fn add(&mut self, guesses: &[Guess], reference: &[Guess], bytes: u64) {
        let same = |(guess, exact): (&Guess, &Guess)| guess.top == exact.top;
        let agrees: Vec<bool> = guesses.iter().zip(reference).map(same).collect();
        if self.diverged.is_none() {
            let at = agrees.iter().position(|agrees| !agrees);
            self.diverged = at.map(|at| self.tokens + at);
        }
        self.agreed += agrees.iter().filter(|agrees| **agrees).count();
        self.surprise += guesses.iter().map(|guess| guess.surprise).sum::<f64>();
        self.tokens += guesses.len();
        self.bytes += bytes;
    }

    pub(super) fn row(&self, mode: KvMode, prompt_tokens: usize) -> QualityRow {
        let tokens = self.tokens.max(1) as f64;
        QualityRow {
            kv: mode.to_string(),
            perplexity: (self.surprise / tokens).exp(),
            agreement: self.agreed as f64 / tokens,
            first_divergence: self.diverged,
            bytes_per_token: self.bytes as f64 / prompt_tokens.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_is_as_surprised_as_the_probability_says() {
        let even = Guess::of(&[1.0, 1.0, 1.0, 1.0], 2);
        assert!((even.surprise - 4f64.ln()).abs() < 1e-12);
        let sure = Guess::of(&[-1000.0, 1000.0], 1);
        assert_eq!((sure.top, sure.surprise), (1, 0.0));
        assert_eq!(Guess::of(&[-1000.0, 1000.0], 0).surprise, 2000.0);
    }

    #[test]
    fn agreement_and_the_first_divergence_count_over_excerpts() {
        let guess = |top| Guess { top, surprise: 1.0 };
        let exact = [guess(1), guess(2), guess(3), guess(4)];
        let mut score = Score::default();
        score.add(&exact, &exact, 100);
        score.add(&[guess(1), guess(9), guess(3), guess(9)], &exact, 100);
        let row = score.row(KvMode::Bf16, 50);
        assert_eq!((row.agreement, row.first_divergence), (0.75, Some(5)));
        assert!((row.perplexity - std::f64::consts::E).abs() < 1e-12);
        assert_eq!((row.kv.as_str(), row.bytes_per_token), ("bf16", 4.0));
    }
}
