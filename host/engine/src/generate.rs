//! One answer, token by token: the part of decode that knows nothing of instances.

use crate::BLOCK_TOKENS;
use crate::load::LoadedModel;
use crate::network::state::{LayerState, SequenceState};
use crate::network::{ForwardError, Network};
use crate::sampling::Sampler;
use portolan_ports::{EngineError, FinishReason, Sampling};
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

/// The tokens that the next piece of prefill covers: up to the next multiple of [`BLOCK_TOKENS`], or to the end.
pub(crate) fn next_piece(done: usize, total: usize) -> Range<usize> {
    let block = BLOCK_TOKENS as usize;
    done..((done / block + 1) * block).min(total)
}

/// What the sampler made of one step's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// One more token.
    Token(u32),
    /// One more token, the last that was asked for.
    LastToken(u32),
    /// A token that ends the answer.
    Stop,
    /// Not one logit was a number.
    Nothing,
}

/// An answer in the making.
#[derive(Debug)]
pub(crate) struct Generation {
    state: SequenceState,
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
    /// Begins after the tokens in `state`, with `input` the prompt's last token.
    pub(crate) fn new(state: SequenceState, input: u32, wanted: Wanted) -> Self {
        let sampler = Sampler::new(wanted.sampling);
        Self {
            state,
            input,
            sampler,
            left: wanted.max_tokens,
            stop_ids: wanted.stop_ids,
        }
    }

    /// Runs the next input and returns the logits after it. `observe` may stop it between layers.
    pub(crate) fn step(
        &mut self,
        network: &Network,
        observe: &mut dyn FnMut(usize, &LayerState) -> ControlFlow<()>,
    ) -> Result<Vec<f32>, ForwardError> {
        let stream = network.run(&[self.input], &mut self.state, observe)?;
        network.logits(stream.row(0))
    }

    /// Draws from the logits of the last step.
    pub(crate) fn choose(&mut self, logits: &[f32]) -> Chosen {
        let Some(token) = self.sampler.draw(logits) else {
            return Chosen::Nothing;
        };
        if self.stop_ids.contains(&token) {
            return Chosen::Stop;
        }
        self.input = token;
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            Chosen::LastToken(token)
        } else {
            Chosen::Token(token)
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
        *last,
        Wanted {
            sampling: Sampling::GREEDY,
            max_tokens,
            stop_ids,
        },
    );
    let mut tokens = Vec::new();
    let finish = loop {
        let logits = generation.step(&model.network, &mut never_stop)?;
        let chosen = generation.choose(&logits);
        if let Chosen::Token(token) | Chosen::LastToken(token) = chosen {
            tokens.push(token);
            on_token(token);
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
            ForwardError::Tensor(cause) => Self::Broken(format!("the tensor library failed: {cause}")),
            ForwardError::State(_) => Self::Broken(error.to_string()),
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
