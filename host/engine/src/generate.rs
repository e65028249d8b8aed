//! One answer, token by token: the part of decode that knows nothing of instances.

use crate::BLOCK_TOKENS;
use crate::kernel::Rows;
use crate::load::LoadedModel;
use crate::network::state::{LayerState, SequenceState};
use crate::network::{ForwardError, Network, Observer};
use crate::sampling::{Drawn, Sampler};
use portolan_ports::{EngineError, FinishReason, Sampling};
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

/// The tokens that the next piece of prefill covers: up to the next multiple of [`BLOCK_TOKENS`], or to the end.
pub(crate) fn next_piece(done: usize, total: usize) -> Range<usize> {
    let block = BLOCK_TOKENS as usize;
    done..((done / block + 1) * block).min(total)
}

/// What the sampler made of one step's logits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Chosen {
    /// One more token.
    Token(Drawn),
    /// One more token, the last that was asked for.
    LastToken(Drawn),
    /// A token that ends the answer.
    Stop,
    /// Not one logit was a number.
    Nothing,
}

/// An answer in the making.
#[derive(Debug)]
pub(crate) struct Generation {
    state: SequenceState,
    /// What `state` is of, or will be once it is computed again.
    done: Vec<u32>,
    /// The token to run next.
    input: u32,
    sampler: Sampler,
    left: u32,
    stop_ids: Vec<u32>,
}

/// How an answer is to be drawn.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) sampling: Sampling,
    /// At least 1.
    pub(crate) max_tokens: u32,
    pub(crate) stop_ids: Vec<u32>,
}

impl Generation {
    /// Begins after the tokens in `state`: all of `prompt` but `last`.
    pub(crate) fn new(state: SequenceState, (prompt, last): (&[u32], u32), wanted: Wanted) -> Self {
        let sampler = Sampler::new(wanted.sampling, prompt);
        Self {
            done: prompt[..state.tokens.min(prompt.len())].to_vec(),
            state,
            input: last,
            sampler,
            left: wanted.max_tokens,
            stop_ids: wanted.stop_ids,
        }
    }

    /// The next input as the first layer takes it.
    pub(crate) fn embedded(&self, network: &Network) -> Rows {
        network.embed(&[self.input])
    }

    /// What the next input is run on.
    pub(crate) fn state(&mut self) -> &mut SequenceState {
        &mut self.state
    }

    /// Gives the KV up; it is computed again before the next step.
    pub(crate) fn set_aside(&mut self, network: &Network) {
        self.state = network.fresh_state();
    }

    /// The tokens that the KV is of.
    pub(crate) fn done(&self) -> &[u32] {
        &self.done
    }

    /// Whether KV is to be computed again.
    pub(crate) fn is_aside(&self) -> bool {
        self.state.tokens < self.done.len()
    }

    /// Computes the next piece of what was given up. The products are those of the first time, bit for bit, whether a
    /// token came from the prompt or was drawn.
    pub(crate) fn compute_again(
        &mut self,
        network: &Network,
        observe: &mut Observer<'_>,
    ) -> Result<(), ForwardError> {
        let piece = next_piece(self.state.tokens, self.done.len());
        network.run(&self.done[piece], &mut self.state, observe).map(drop)
    }

    /// Draws from the logits after the input.
    pub(crate) fn choose(&mut self, logits: &[f32]) -> Chosen {
        self.done.push(self.input);
        let Some(drawn) = self.sampler.draw(logits, &self.stop_ids) else {
            return Chosen::Nothing;
        };
        if self.stop_ids.contains(&drawn.token) {
            return Chosen::Stop;
        }
        self.input = drawn.token;
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            Chosen::LastToken(drawn)
        } else {
            Chosen::Token(drawn)
        }
    }
}

/// A complete answer and the time it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// The answer's tokens, without the one that ended it.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: FinishReason,
    /// Time for the KV of all prompt tokens but the last.
    pub prefill: Duration,
    /// Time from then to the end.
    pub decode: Duration,
}

/// Answers one prompt greedily on the calling thread, without an instance. Each token is handed to `on_token` as soon
/// as it is drawn. The tokens are those that instances would generate, however prefill and decode were split.
///
/// # Errors
/// [`EngineError::BadJob`] when the prompt is empty, holds unknown tokens, or does not fit the context with
/// `max_tokens`; [`EngineError::Broken`] when the model computes no numbers.
pub fn generate(
    model: &LoadedModel,
    prompt: &[u32],
    max_tokens: u32,
    on_token: &mut dyn FnMut(u32),
) -> Result<Generated, EngineError> {
    crate::instance::check_prompt(model, prompt, max_tokens)?;
    let started = Instant::now();
    let (last, before) = prompt
        .split_last()
        .ok_or_else(|| EngineError::BadJob("the prompt is empty".to_owned()))?;
    let state = prefilled(&model.network, before)?;
    let prefill = started.elapsed();
    let stop_ids = model.text().stop_ids().to_vec();
    let mut generation = Generation::new(
        state,
        (prompt, *last),
        Wanted {
            sampling: Sampling::GREEDY,
            max_tokens,
            stop_ids,
        },
    );
    let mut tokens = Vec::new();
    let finish = loop {
        let input = generation.embedded(&model.network);
        let logits = model
            .network
            .step(input, vec![generation.state()], &mut never_stop)?;
        let chosen = generation.choose(logits.row(0));
        if let Chosen::Token(drawn) | Chosen::LastToken(drawn) = &chosen {
            tokens.push(drawn.token);
            on_token(drawn.token);
        }
        match chosen {
            Chosen::Token(_) => {}
            Chosen::LastToken(_) => break FinishReason::Length,
            Chosen::Stop => break FinishReason::Stop,
            Chosen::Nothing => return Err(no_numbers()),
        }
    };
    Ok(Generated {
        tokens,
        finish,
        prefill,
        decode: started.elapsed() - prefill,
    })
}

fn prefilled(network: &Network, tokens: &[u32]) -> Result<SequenceState, EngineError> {
    let mut state = network.fresh_state();
    while state.tokens < tokens.len() {
        let piece = next_piece(state.tokens, tokens.len());
        network.run(&tokens[piece], &mut state, &mut never_stop)?;
    }
    Ok(state)
}

/// The observer of a pass that nobody cancels.
pub(crate) fn never_stop(_layer: usize, _state: &LayerState) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// What to say when a model computes no numbers.
pub(crate) fn no_numbers() -> EngineError {
    EngineError::Broken("the model computed no logit that is a number; its weights are damaged".to_owned())
}

impl From<ForwardError> for EngineError {
    fn from(error: ForwardError) -> Self {
        match error {
            ForwardError::Cancelled => Self::Cancelled,
            ForwardError::State(_) | ForwardError::Device(_) => Self::Broken(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_at_multiples_of_a_block_wherever_they_begin() {
        assert_eq!(next_piece(0, 200), 0..64);
        assert_eq!(next_piece(64, 200), 64..128);
        assert_eq!(next_piece(192, 200), 192..200);
        assert_eq!(next_piece(0, 64), 0..64);
    }
}
