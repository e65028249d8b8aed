//! The worker thread: continuous batching by turns. Each turn gives one token to every running sequence, then one
//! piece to one prefill, so neither kind of work starves the other; tenants take turns, and one of which nothing runs gets
//! a slot from the one that has the most, so neither does a tenant.

use super::cache::EXPIRE_EVERY;
use super::decode::{self, DecodeRun};
use super::fair::FairQueue;
use super::prefill::{self, PrefillRun};
use super::{Shared, stopped};
use crate::BLOCK_TOKENS;
use portolan_base::Scope;
use portolan_ports::EngineError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};

/// Work for the thread.
#[derive(Debug)]
pub(crate) enum Job {
    /// Compute KV.
    Prefill(PrefillRun),
    /// Generate tokens.
    Decode(DecodeRun),
}

/// The thread's own state.
#[derive(Debug)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    inbox: Receiver<Job>,
    prefills: FairQueue<PrefillRun>,
    waiting: FairQueue<DecodeRun>,
    running: Vec<DecodeRun>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, inbox: Receiver<Job>) -> Self {
        Self {
            shared,
            inbox,
            prefills: FairQueue::new(),
            waiting: FairQueue::new(),
            running: Vec::new(),
        }
    }

    /// Works until the instance is dropped, then fails what is left.
    pub(crate) fn run(mut self) {
        while self.receive() {
            self.shared.cache.expire_when_due();
            self.drop_cancelled();
            self.admit();
            self.decode_turn();
            self.prefill_turn();
        }
        for run in self.prefills {
            run.finish(Err(stopped()));
        }
        for run in self.running.into_iter().chain(self.waiting) {
            run.fail(stopped());
        }
    }

    /// Takes in new jobs, waiting for one when there is nothing to do. False when no more can come.
    fn receive(&mut self) -> bool {
        if self.prefills.is_empty() && self.waiting.is_empty() && self.running.is_empty() {
            match self.inbox.recv_timeout(EXPIRE_EVERY) {
                Ok(job) => self.accept(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        loop {
            match self.inbox.try_recv() {
                Ok(job) => self.accept(job),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn accept(&mut self, job: Job) {
        match job {
            Job::Prefill(run) => self.prefills.push(run.tenant().clone(), run),
            Job::Decode(run) => self.waiting.push(run.tenant().clone(), run),
        }
    }

    fn drop_cancelled(&mut self) {
        for run in self.prefills.take_out(PrefillRun::is_cancelled) {
            run.finish(Err(EngineError::Cancelled));
        }
        self.waiting.take_out(DecodeRun::is_cancelled);
        self.running.retain(|run| !run.is_cancelled());
    }

    /// Lets those run that have a slot and room. A tenant of which nothing runs gets both from the one that has the most.
    fn admit(&mut self) {
        while let Some((tenant, run)) = self.waiting.of_least(|tenant| self.runs_of(tenant)) {
            let has_slot = self.running.len() < self.shared.description.decode_slots as usize;
            if has_slot && self.has_room(run) {
                let next = self.waiting.pop_of_least(|tenant| runs_of(&self.running, tenant));
                self.running.extend(next.map(|(_, run)| run));
            } else if self.runs_of(tenant) > 0 || !self.make_way() {
                return;
            }
        }
    }

    fn runs_of(&self, tenant: &Scope) -> usize {
        runs_of(&self.running, tenant)
    }

    /// Whether a sequence would not be set aside in the next step again: it would be computed for nothing.
    fn has_room(&self, run: &DecodeRun) -> bool {
        let block = self.shared.description.layout.bytes_per_token().0 * u64::from(BLOCK_TOKENS);
        let room = self.shared.running_kv.0.saturating_sub(self.kv_bytes());
        self.running.is_empty() || run.kv_bytes(&self.shared) + block <= room
    }

    /// Sets the latest sequence aside of the tenant that has the most. False when none has two.
    fn make_way(&mut self) -> bool {
        let most = self.running.iter().map(|run| self.runs_of(run.tenant())).max();
        let Some(most) = most.filter(|most| *most > 1) else {
            return false;
        };
        let latest = self
            .running
            .iter()
            .rposition(|run| self.runs_of(run.tenant()) == most);
        if let Some(latest) = latest {
            let run = self.running.remove(latest);
            self.put_aside(run);
        }
        true
    }

    fn put_aside(&mut self, mut run: DecodeRun) {
        tracing::debug!(instance = %self.shared.description.instance, "a sequence waits; its KV is given up");
        run.set_aside(&self.shared);
        self.shared.meter.set_aside();
        self.waiting.put_back(run.tenant().clone(), run);
    }

    fn kv_bytes(&self) -> u64 {
        self.running.iter().map(|run| run.kv_bytes(&self.shared)).sum()
    }

    /// Sets the latest sequences aside when the KV of all outgrows its memory. The oldest always goes on, so that all end.
    fn make_room(&mut self) {
        while self.running.len() > 1 && self.kv_bytes() > self.shared.running_kv.0 {
            let Some(run) = self.running.pop() else { return };
            self.put_aside(run);
        }
    }

    /// One token for every running sequence, in one pass over the weights: what is read of them serves all. A job that
    /// cannot be begun fails alone; a pass that fails, fails all its jobs, since it leaves their states half changed.
    fn decode_turn(&mut self) {
        self.make_room();
        let (mut runs, mut parts) = (Vec::new(), Vec::new());
        for mut run in std::mem::take(&mut self.running) {
            match contained(|| run.take_part(&self.shared)) {
                Ok(Some(part)) => {
                    runs.push(run);
                    parts.push(part);
                }
                Ok(None) => self.running.push(run),
                Err(error) => self.fail(run, error),
            }
        }
        if runs.is_empty() {
            return;
        }
        let outcome = contained(|| decode::step(&self.shared, &runs, &mut parts));
        match outcome {
            Ok(logits) => {
                for ((mut run, (generation, _)), logits) in runs.into_iter().zip(parts).zip(logits.rows()) {
                    match contained(|| run.turn(generation, logits)) {
                        Ok(decode::Progress::Unfinished) => self.running.push(run),
                        Ok(decode::Progress::Done) => {}
                        Err(error) => self.fail(run, error),
                    }
                }
            }
            Err(error) => {
                for run in runs {
                    self.fail(run, error.clone());
                }
            }
        }
        // Those whose KV was computed again come first in the list, and are not the oldest for that.
        self.running.sort_by_key(DecodeRun::arrived);
    }

    fn fail(&self, run: DecodeRun, error: EngineError) {
        self.note(&error);
        run.fail(error);
    }

    fn prefill_turn(&mut self) {
        let Some((tenant, mut run)) = self.prefills.pop() else {
            return;
        };
        match contained(|| run.turn(&self.shared)) {
            Ok(prefill::Progress::Unfinished) => self.prefills.put_back(tenant, run),
            Ok(prefill::Progress::Done(report)) => run.finish(Ok(report)),
            Err(error) => {
                self.note(&error);
                run.finish(Err(error));
            }
        }
    }

    fn note(&self, error: &EngineError) {
        if matches!(error, EngineError::Broken(_)) {
            tracing::error!(instance = %self.shared.description.instance, %error, "a job failed");
        }
    }
}

fn runs_of(running: &[DecodeRun], tenant: &Scope) -> usize {
    running.iter().filter(|run| run.tenant() == tenant).count()
}

/// Runs one turn; a panic in it becomes an error of the job and does not reach the instance. The job's state is dropped
/// with it, and the pool is locked only around its own operations, so nothing half-changed stays behind.
pub(super) fn contained<T>(turn: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(turn)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(EngineError::Broken(format!("the forward pass panicked: {text}")))
    })
}
