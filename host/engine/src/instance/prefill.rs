//! A prefill job on its way through the worker, one piece a turn.

use super::Shared;
use super::cache::{Computed, Names};
use super::meter::{Meter, QueuedPrefill};
use crate::BLOCK_TOKENS;
use crate::generate::next_piece;
use crate::network::ForwardError;
use crate::network::state::{LayerState, SequenceState};
use bytes::Bytes;
use portolan_base::{Scope, Tokens};
use portolan_kv::{BlockKv, PoolBlock};
use portolan_ports::kvset::piece_id;
use portolan_ports::{EngineError, KvPiece, PrefillJob, PrefillReport, Retention};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// A job, waiting until its first turn and running from then on.
#[derive(Debug)]
pub(crate) struct PrefillRun {
    job: PrefillJob,
    pieces: mpsc::UnboundedSender<KvPiece>,
    reply: oneshot::Sender<Result<PrefillReport, EngineError>>,
    queued: QueuedPrefill,
    arrived: Instant,
    prepared: Option<Prepared>,
    running: Option<Running>,
}

/// What was done for a job before its turn.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The names of its blocks.
    pub(crate) names: Names,
    /// What was brought up from lower tiers for it, held so that it is still there.
    pub(crate) lease: Vec<Arc<PoolBlock>>,
}

#[derive(Debug)]
struct Running {
    state: SequenceState,
    names: Names,
    cached: usize,
    started: Instant,
    /// Time spent on its own pieces.
    computing: Duration,
}

/// Whether a job needs another turn.
#[derive(Debug)]
pub(crate) enum Progress {
    /// It does.
    Unfinished,
    /// It is complete.
    Done(PrefillReport),
}

impl PrefillRun {
    pub(crate) fn new(
        job: PrefillJob,
        prepared: Prepared,
        pieces: mpsc::UnboundedSender<KvPiece>,
        reply: oneshot::Sender<Result<PrefillReport, EngineError>>,
        meter: &Arc<Meter>,
    ) -> Self {
        let queued = QueuedPrefill::new(meter, job.tokens.len() as u32);
        Self {
            job,
            pieces,
            reply,
            queued,
            arrived: Instant::now(),
            prepared: Some(prepared),
            running: None,
        }
    }

    /// Whose turn it is when the job runs.
    pub(crate) fn tenant(&self) -> &Scope {
        &self.job.about.scope
    }

    /// Whether nobody waits for the result.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.job.cancel.is_cancelled() || self.reply.is_closed() || self.pieces.is_closed()
    }

    /// Answers the job. The caller may be gone, which is no error.
    pub(crate) fn finish(self, outcome: Result<PrefillReport, EngineError>) {
        drop(self.pieces);
        drop(self.queued);
        let _ = self.reply.send(outcome);
    }

    /// Takes a turn: what the cache holds first, then one piece.
    pub(crate) fn turn(&mut self, shared: &Shared) -> Result<Progress, EngineError> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => self.begin(shared)?,
        };
        if running.state.tokens < self.job.tokens.len() {
            self.compute_piece(shared, &mut running)?;
        }
        if running.state.tokens < self.job.tokens.len() {
            self.running = Some(running);
            return Ok(Progress::Unfinished);
        }
        self.send_recurrent(&running.state)?;
        let computed = self.job.tokens.len() - running.cached;
        if computed > 0 {
            shared.meter.computed(computed, running.computing);
        }
        Ok(Progress::Done(PrefillReport {
            cached: running.cached as u32,
            computed: computed as u32,
            queue_us: micros(running.started - self.arrived),
            compute_us: micros(running.started.elapsed()),
            fetches: Vec::new(),
        }))
    }

    /// Takes what the cache holds, and sends on what of it the receiver lacks.
    fn begin(&mut self, shared: &Shared) -> Result<Running, EngineError> {
        let started = Instant::now();
        let prepared = self.prepared.take();
        let Prepared { names, lease } =
            prepared.ok_or_else(|| EngineError::Broken("the job was begun twice".to_owned()))?;
        let held = shared.cache.lookup(&names);
        drop(lease);
        let mut state = shared.model.network.fresh_state();
        shared.cache.restore(&held, &mut state);
        let lacking = held.blocks.iter().filter(|(index, _)| {
            let start = *index as u32 * BLOCK_TOKENS;
            self.is_wanted(shared, start..start + BLOCK_TOKENS)
        });
        for piece in shared.cache.attention_pieces(lacking) {
            self.pieces.send(piece).map_err(|_| EngineError::Cancelled)?;
        }
        self.queued.done(state.tokens);
        Ok(Running {
            cached: state.tokens,
            state,
            names,
            started,
            computing: Duration::ZERO,
        })
    }

    fn compute_piece(&mut self, shared: &Shared, running: &mut Running) -> Result<(), EngineError> {
        let range = next_piece(running.state.tokens, self.job.tokens.len());
        let began = Instant::now();
        let mut attention = Vec::new();
        let mut lost = None;
        let mut observe = |layer: usize, state: &LayerState| {
            if let LayerState::Attention(state) = state {
                let bytes = match state.piece(range.clone()) {
                    Ok(bytes) => bytes,
                    Err(error) => {
                        lost = Some(error);
                        return ControlFlow::Break(());
                    }
                };
                attention.push(bytes.clone());
                self.send_attention(shared, layer, &range, bytes)?;
            }
            if self.is_cancelled() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let tokens = &self.job.tokens[range.clone()];
        let network = &shared.model.network;
        let ran = network.run(tokens, &mut running.state, &mut observe);
        if let Some(error) = lost {
            return Err(error.into());
        }
        ran?;
        let took = began.elapsed();
        shared.meter.prefilled(tokens.len(), took);
        running.computing += took;
        self.queued.done(range.len());
        if range.len() == BLOCK_TOKENS as usize && self.job.retention == Retention::Keep {
            let index = range.start / BLOCK_TOKENS as usize;
            let wanted = shared.cache.wants_snapshot(&running.names, index);
            let snapshot = wanted.then(|| recurrent_pieces(&running.state)).transpose()?;
            let computed = Computed {
                kv: BlockKv { attention, snapshot },
                rebuild: took,
            };
            shared.cache.store(&running.names, index, computed);
        }
        Ok(())
    }

    /// Whether the receiver lacks the keys and values of these tokens, and will look at them.
    fn is_wanted(&self, shared: &Shared, tokens: Range<u32>) -> bool {
        let all = self.job.tokens.len() as u32;
        tokens.end > self.job.held && shared.description.layout.needs(all, &tokens)
    }

    /// Sends keys and values if the receiver wants them.
    fn send_attention(
        &self,
        shared: &Shared,
        layer: usize,
        range: &Range<usize>,
        bytes: Bytes,
    ) -> ControlFlow<()> {
        if !self.is_wanted(shared, range.start as u32..range.end as u32) {
            return ControlFlow::Continue(());
        }
        let id = piece_id(layer as u16, range.start as u32, Tokens(range.len() as u32));
        match self.pieces.send(KvPiece { id, bytes }) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn send_recurrent(&self, state: &SequenceState) -> Result<(), EngineError> {
        for (layer, kept) in (0u16..).zip(&state.layers) {
            if let LayerState::Recurrent(kept) = kept {
                let id = piece_id(layer, state.tokens as u32, Tokens(0));
                let bytes = kept.piece()?;
                self.pieces
                    .send(KvPiece { id, bytes })
                    .map_err(|_| EngineError::Cancelled)?;
            }
        }
        Ok(())
    }
}

pub(super) fn recurrent_pieces(state: &SequenceState) -> Result<Vec<Bytes>, ForwardError> {
    let piece = |layer: &LayerState| match layer {
        LayerState::Recurrent(state) => Some(state.piece()),
        LayerState::Attention(_) => None,
    };
    state.layers.iter().filter_map(piece).collect()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
