//! A decode job on its way through the worker, one token a turn.

use super::Shared;
use super::cache::{Computed, Names};
use super::meter::{CountedDecode, Meter};
use crate::BLOCK_TOKENS;
use crate::generate::{Chosen, Generation, Wanted, no_numbers};
use crate::network::state::{LayerState, SequenceState};
use portolan_base::TenantKey;
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
            logits_due,
            _counted: CountedDecode::new(meter),
        }
    }

    /// Whose turn it is when the job runs.
    pub(crate) fn tenant(&self) -> TenantKey {
        self.job.key
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

    /// Takes a turn: one token.
    pub(crate) fn turn(&mut self, shared: &Shared) -> Result<Progress, EngineError> {
        let mut generation = match self.generation.take() {
            Some(generation) => generation,
            None => self.begin(shared)?,
        };
        let began = Instant::now();
        let mut observe = |_: usize, _: &LayerState| {
            if self.is_cancelled() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let logits = generation.step(&shared.model.network, &mut observe)?;
        shared.meter.decoded(began.elapsed());
        let chosen = generation.choose(&logits);
        if std::mem::take(&mut self.logits_due) {
            self.send(DecodeEvent::Logits(logits))?;
        }
        match chosen {
            Chosen::Token(token) => {
                self.send(DecodeEvent::Token(token))?;
                self.generation = Some(generation);
                return Ok(Progress::Unfinished);
            }
            Chosen::LastToken(token) => {
                self.send(DecodeEvent::Token(token))?;
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
            keep_blocks(shared, &names, &state);
        }
        let wanted = Wanted {
            sampling: self.job.sampling,
            max_tokens: self.job.max_tokens,
            stop_ids: self.job.stop_ids.clone(),
        };
        Ok(Generation::new(state, *last, wanted))
    }

    fn send(&self, event: DecodeEvent) -> Result<(), EngineError> {
        self.events.send(event).map_err(|_| EngineError::Cancelled)
    }
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
pub(super) fn keep_blocks(shared: &Shared, names: &Names, state: &SequenceState) {
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
        let attention: Vec<_> = state.layers.iter().filter_map(piece).collect();
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
}
