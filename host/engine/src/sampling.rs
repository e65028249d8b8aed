//! Drawing a token from logits.
//!
//! What the client asked for is applied in the order that vLLM applies it: bias, tokens that may not end the answer yet,
//! penalties, temperature, the likeliest `top_k`, `min_p`, `top_p`.

mod candidates;
mod random;
#[cfg(test)]
mod tests;

use candidates::Candidates;
use portolan_ports::{Sampling, TokenLogprobs};
use random::SplitMix64;
use std::collections::{HashMap, HashSet};

/// Draws the tokens of one answer. Equal logits and an equal seed give equal tokens.
#[derive(Debug)]
pub(crate) struct Sampler {
    sampling: Sampling,
    random: SplitMix64,
    /// Tokens of the prompt, where those count.
    prompt: HashSet<u32>,
    /// How often the answer holds a token.
    answer: HashMap<u32, u32>,
    drawn: u32,
}

/// A token, and what the model thought of it where that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Drawn {
    pub(crate) token: u32,
    pub(crate) logprobs: Option<TokenLogprobs>,
}

impl Sampler {
    pub(crate) fn new(sampling: Sampling, prompt: &[u32]) -> Self {
        let counts = sampling.repetition_penalty != 1.0;
        Self {
            random: SplitMix64::new(sampling.seed),
            prompt: if counts {
                prompt.iter().copied().collect()
            } else {
                HashSet::new()
            },
            answer: HashMap::new(),
            drawn: 0,
            sampling,
        }
    }

    /// The next token, or `None` when no logit is a number. Tokens of `stops` would end the answer.
    pub(crate) fn draw(&mut self, logits: &[f32], stops: &[u32]) -> Option<Drawn> {
        let token = if self.changes_logits() {
            let mut changed = logits.to_vec();
            self.change(&mut changed, stops);
            self.pick(&changed)?
        } else {
            self.pick(logits)?
        };
        self.drawn += 1;
        if self.counts_answer() {
            *self.answer.entry(token).or_default() += 1;
        }
        let logprobs = self
            .sampling
            .logprobs
            .map(|top| logprobs(logits, token, top as usize));
        Some(Drawn { token, logprobs })
    }

    fn counts_answer(&self) -> bool {
        let Sampling {
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            ..
        } = self.sampling;
        presence_penalty != 0.0 || frequency_penalty != 0.0 || repetition_penalty != 1.0
    }

    fn changes_logits(&self) -> bool {
        let more = self.drawn < self.sampling.min_tokens;
        more || !self.sampling.logit_bias.is_empty() || self.counts_answer()
    }

    fn change(&self, logits: &mut [f32], stops: &[u32]) {
        for (token, bias) in &self.sampling.logit_bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
        if self.drawn < self.sampling.min_tokens {
            for stop in stops {
                if let Some(logit) = logits.get_mut(*stop as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        let repetition = self.sampling.repetition_penalty;
        if repetition != 1.0 {
            let only_prompt = self
                .prompt
                .iter()
                .filter(|token| !self.answer.contains_key(token));
            for token in only_prompt.chain(self.answer.keys()) {
                if let Some(logit) = logits.get_mut(*token as usize) {
                    *logit = if *logit > 0.0 {
                        *logit / repetition
                    } else {
                        *logit * repetition
                    };
                }
            }
        }
        for (token, count) in &self.answer {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit -= self.sampling.frequency_penalty * *count as f32 + self.sampling.presence_penalty;
            }
        }
    }

    fn pick(&mut self, logits: &[f32]) -> Option<u32> {
        if self.sampling.temperature <= 0.0 {
            return likeliest(logits);
        }
        let mut candidates = Candidates::of(logits, self.sampling.temperature)?;
        candidates.keep_likeliest(self.sampling.top_k as usize);
        candidates.keep_share(self.sampling.min_p);
        candidates.keep_mass(self.sampling.top_p);
        Some(candidates.draw(self.random.unit()))
    }
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

fn logprobs(logits: &[f32], token: u32, top: usize) -> TokenLogprobs {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits
        .iter()
        .filter(|logit| !logit.is_nan())
        .map(|logit| (logit - most).exp())
        .sum();
    let all = most + sum.ln();
    let mut candidates = match Candidates::of(logits, 1.0) {
        Some(candidates) if top > 0 => candidates,
        _ => Candidates::default(),
    };
    candidates.keep_likeliest(top);
    TokenLogprobs {
        drawn: logits.get(token as usize).copied().unwrap_or(f32::NAN) - all,
        likeliest: candidates
            .into_likeliest()
            .map(|(token, logit)| (token, logit - all))
            .collect(),
    }
}
