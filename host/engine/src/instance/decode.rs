//! A decode job on its way through the worker, one token a turn.

use super::Shared;
use super::cache::{Computed, Names};
use super::meter::{CountedDecode, Meter};
use crate::BLOCK_TOKENS;
use crate::generate::{Chosen, Generation, Wanted, no_numbers};
use crate::kernel::Rows;
use crate::network::state::{LayerState, SequenceState};
use crate::sampling::Drawn;
use portolan_base::Scope;
use portolan_kv::BlockKv;
use portolan_ports::{DecodeEvent, DecodeJob, EngineError, FinishReason, KvMade, KvPast, KvSet, Retention};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// A job, waiting until it gets a slot and running from then on.
#[derive(Debug)]
pub(crate) struct DecodeRun {
    /// First, so that it is given back before the receiver learns from the closed channel that the job has ended.
    _counted: CountedDecode,
    job: DecodeJob,
    events: mpsc::UnboundedSender<DecodeEvent>,
    generation: Option<Generation>,
    arrived: Instant,
    /// Whether the logits are still to be sent.
    logits_due: bool,
}

/// Whether a job needs another turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It does.
    Unfinished,
    /// It is complete, and its receiver knows.
    Done,
}

impl DecodeRun {
    pub(crate) fn new(
        job: DecodeJob,
        events: mpsc::UnboundedSender<DecodeEvent>,
        meter: &Arc<Meter>,
    ) -> Self {
        let logits_due = job.logits;
        Self {
            job,
            events,
            generation: None,
            arrived: Instant::now(),
            logits_due,
            _counted: CountedDecode::new(meter),
        }
    }

    /// Whose turn it is when the job runs.
    pub(crate) fn tenant(&self) -> &Scope {
        &self.job.about.scope
    }

    /// When it came.
    pub(crate) fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Whether nobody waits for the answer.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.job.cancel.is_cancelled() || self.events.is_closed()
    }

    /// Ends the job: with an event, unless it was cancelled.
    pub(crate) fn fail(self, error: EngineError) {
        if error != EngineError::Cancelled {
            // A receiver that is gone is no error.
            let _ = self.events.send(DecodeEvent::Failed(error));
        }
    }

    /// The answer in the making and its next input, for a step together with others. `None` while KV that was given up is
    /// computed again; a call computes one piece of it.
    pub(crate) fn take_part(&mut self, shared: &Shared) -> Result<Option<(Generation, Rows)>, EngineError> {
        let mut generation = match self.generation.take() {
            Some(generation) => generation,
            None => self.begin(shared)?,
        };
        if generation.is_aside() {
            self.compute_again(shared, &mut generation)?;
            self.generation = Some(generation);
            return Ok(None);
        }
        let input = generation.embedded(&shared.model.network);
        Ok(Some((generation, input)))
    }

    /// Gives the KV up for others; the tokens stay.
    pub(crate) fn set_aside(&mut self, shared: &Shared) {
        if let Some(generation) = &mut self.generation {
            generation.set_aside(&shared.model.network);
        }
    }

    /// Bytes of KV that it holds, or needs to go on.
    pub(crate) fn kv_bytes(&self, shared: &Shared) -> u64 {
        let layout = &shared.description.layout;
        let tokens = match &self.generation {
            Some(generation) => generation.done().len(),
            None => self.job.prompt.len(),
        };
        layout.fixed_bytes().0 + layout.bytes_per_token().0 * tokens as u64
    }

    /// What the cache holds of it first, then a piece a call.
    fn compute_again(&self, shared: &Shared, generation: &mut Generation) -> Result<(), EngineError> {
        if generation.state().tokens == 0 {
            let names = Names::of(
                &self.job.key,
                generation.done(),
                &self.job.about,
                shared.cache.epoch(),
            );
            let held = shared.cache.lookup(&names);
            shared.cache.restore(&held, generation.state());
        }
        if !generation.is_aside() {
            return Ok(());
        }
        let mut observe = |_: usize, _: &LayerState| match self.is_cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        Ok(generation.compute_again(&shared.model.network, &mut observe)?)
    }

    /// Goes on after a step: one token.
    pub(crate) fn turn(
        &mut self,
        mut generation: Generation,
        logits: &[f32],
    ) -> Result<Progress, EngineError> {
        let chosen = generation.choose(logits);
        if std::mem::take(&mut self.logits_due) {
            self.send(DecodeEvent::Logits(logits.to_vec()))?;
        }
        match chosen {
            Chosen::Token(drawn) => {
                self.send_token(drawn)?;
                self.generation = Some(generation);
                return Ok(Progress::Unfinished);
            }
            Chosen::LastToken(drawn) => {
                self.send_token(drawn)?;
                self.send(DecodeEvent::Finished(FinishReason::Length))?;
            }
            Chosen::Stop => self.send(DecodeEvent::Finished(FinishReason::Stop))?,
            Chosen::Nothing => return Err(no_numbers()),
        }
        Ok(Progress::Done)
    }

    /// Unpacks the prompt's KV; an attention-only model's full blocks are kept for reuse.
    fn begin(&self, shared: &Shared) -> Result<Generation, EngineError> {
        let (last, before) = self
            .job
            .prompt
            .split_last()
            .ok_or_else(|| EngineError::BadJob("the prompt is empty".to_owned()))?;
        let past = self.job.kv.past();
        if let Some(KvPast {
            since,
            made: KvMade::FromCache,
        }) = past
            && !shared.cache.may_begin(since, &self.job.about)
        {
            return Err(EngineError::Stale);
        }
        let state = unpack(shared, &self.job.kv);
        let reusable = !shared.description.layout.is_hybrid();
        if reusable && self.job.retention == Retention::Keep {
            let since = past.map_or_else(|| shared.cache.epoch(), |past| past.since);
            let names = Names::of(&self.job.key, before, &self.job.about, since);
            keep_blocks(shared, &names, &state)?;
        }
        let wanted = Wanted {
            sampling: self.job.sampling.clone(),
            max_tokens: self.job.max_tokens,
            stop_ids: self.job.stop_ids.clone(),
        };
        Ok(Generation::new(state, (&self.job.prompt, *last), wanted))
    }

    fn send_token(&self, drawn: Drawn) -> Result<(), EngineError> {
        if let Some(logprobs) = drawn.logprobs {
            self.send(DecodeEvent::Logprobs(logprobs))?;
        }
        self.send(DecodeEvent::Token(drawn.token))
    }

    fn send(&self, event: DecodeEvent) -> Result<(), EngineError> {
        self.events.send(event).map_err(|_| EngineError::Cancelled)
    }
}

/// Runs the next input of several jobs; the logits after each. Stops between layers when nobody waits for any of them.
pub(super) fn step(
    shared: &Shared,
    runs: &[DecodeRun],
    parts: &mut [(Generation, Rows)],
) -> Result<Rows, EngineError> {
    let began = Instant::now();
    let mut observe = |_: usize, _: &LayerState| match runs.iter().all(DecodeRun::is_cancelled) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let network = &shared.model.network;
    let mut inputs = Rows::zeros(0, network.config.hidden);
    let mut states = Vec::with_capacity(parts.len());
    for (generation, input) in parts {
        inputs.append(input);
        states.push(generation.state());
    }
    let logits = network.step(inputs, states, &mut observe)?;
    shared.meter.decoded(began.elapsed());
    Ok(logits)
}

/// Puts KV into a fresh state.
pub(super) fn unpack(shared: &Shared, kv: &KvSet) -> SequenceState {
    let mut state = shared.model.network.fresh_state();
    let layout = &shared.description.layout;
    let needed = |tokens: &Range<u32>| layout.needs(kv.tokens(), tokens);
    for (index, layer) in (0u16..).zip(&mut state.layers) {
        let recurrent = matches!(layer, LayerState::Recurrent(_));
        for piece in kv.layer(index) {
            if recurrent || needed(&piece.id.tokens) {
                layer.restore(piece.id.tokens.start as usize, &piece.bytes);
            }
        }
    }
    state.tokens = kv.tokens() as usize;
    state
}

/// Keeps the blocks that the pool lacks. They are copied: a received piece may be a slice of a larger buffer, which
/// it would keep alive beyond the pool's budget.
pub(super) fn keep_blocks(shared: &Shared, names: &Names, state: &SequenceState) -> Result<(), EngineError> {
    let block = BLOCK_TOKENS as usize;
    let rebuild = shared.meter.prefill_time(block);
    let held = shared.cache.lease(names);
    let is_held = |index: &usize| held.blocks.iter().any(|(place, _)| place == index);
    for index in (0..names.len()).filter(|index| !is_held(index)) {
        let tokens = index * block..(index + 1) * block;
        let piece = |layer: &LayerState| match layer {
            LayerState::Attention(state) if state.holds(&tokens) => Some(state.piece(tokens.clone())),
            LayerState::Attention(_) | LayerState::Recurrent(_) => None,
        };
        let attention: Vec<_> = state.layers.iter().filter_map(piece).collect::<Result<_, _>>()?;
        // A window leaves the KV of some blocks out.
        if attention.is_empty() {
            continue;
        }
        let computed = Computed {
            kv: BlockKv {
                attention,
                snapshot: None,
            },
            rebuild,
        };
        shared.cache.store(names, index, computed);
    }
    Ok(())
}
