//! The slow lane: a bounded pool of threads for policies that are known to be slow, so that they hold up nobody else.
//!
//! A scope runs on one thread at a time (the platform on half of them) and scopes take turns, so a tenant whose
//! policy loops delays only itself.

use crate::limits::Limits;
use parking_lot::{Condvar, Mutex};
use portolan_policy::Scope;
use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The lane is full for this scope, or altogether.
#[derive(Debug)]
pub(crate) struct Full;

/// Hands jobs to threads. Dropping it lets the threads finish what they run and end.
pub(crate) struct Lane(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    threads: usize,
    per_scope: usize,
    total: usize,
}

#[derive(Default)]
struct State {
    scopes: HashMap<Scope, Waiting>,
    /// Scopes that have a job waiting, the next to be served in front.
    turns: VecDeque<Scope>,
    queued: usize,
    closed: bool,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    running: usize,
}

impl Lane {
    pub(crate) fn start(limits: &Limits) -> std::io::Result<Self> {
        let lane = Self(Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            threads: limits.slow_threads.max(1),
            per_scope: limits.slow_queue_per_scope,
            total: limits.slow_queue,
        }));
        for i in 0..lane.0.threads {
            let shared = lane.0.clone();
            std::thread::Builder::new()
                .name(format!("policy-slow-{i}"))
                .spawn(move || shared.run())?;
        }
        Ok(lane)
    }

    /// Queues a job of a scope.
    pub(crate) fn submit(&self, scope: &Scope, job: Job) -> Result<(), Full> {
        let mut state = self.0.state.lock();
        if state.queued >= self.0.total {
            return Err(Full);
        }
        let waiting = state.scopes.entry(scope.clone()).or_default();
        if waiting.jobs.len() >= self.0.per_scope {
            return Err(Full);
        }
        waiting.jobs.push_back(job);
        if waiting.jobs.len() == 1 {
            state.turns.push_back(scope.clone());
        }
        state.queued += 1;
        drop(state);
        self.0.work.notify_one();
        Ok(())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.work.notify_all();
    }
}

impl Shared {
    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some((scope, job)) = self.next(&mut state) {
                drop(state);
                // A job that panics ends its caller's wait (the reply is dropped), not this thread.
                let _ = std::panic::catch_unwind(AssertUnwindSafe(job));
                state = self.state.lock();
                Self::finished(&mut state, &scope);
                // The scope may have work that no sleeping thread was allowed to take.
                self.work.notify_one();
            } else if state.closed {
                return;
            } else {
                self.work.wait(&mut state);
            }
        }
    }

    fn next(&self, state: &mut State) -> Option<(Scope, Job)> {
        let turn = state.turns.iter().position(|scope| {
            state
                .scopes
                .get(scope)
                .is_some_and(|waiting| waiting.running < self.most_running(scope))
        })?;
        let scope = state.turns.remove(turn)?;
        let waiting = state.scopes.get_mut(&scope)?;
        let job = waiting.jobs.pop_front()?;
        waiting.running += 1;
        state.queued -= 1;
        if !waiting.jobs.is_empty() {
            state.turns.push_back(scope.clone());
        }
        Some((scope, job))
    }

    fn finished(state: &mut State, scope: &Scope) {
        let Some(waiting) = state.scopes.get_mut(scope) else {
            return;
        };
        waiting.running -= 1;
        if waiting.running == 0 && waiting.jobs.is_empty() {
            state.scopes.remove(scope);
        }
    }

    fn most_running(&self, scope: &Scope) -> usize {
        match scope {
            Scope::Platform => (self.threads / 2).max(1),
            Scope::Tenant(_) => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::TenantName;
    use std::sync::mpsc;

    fn tenant(name: &str) -> Scope {
        Scope::Tenant(TenantName::new(name).unwrap())
    }

    fn lane(threads: usize, per_scope: usize, total: usize) -> Lane {
        let limits = Limits {
            slow_threads: threads,
            slow_queue_per_scope: per_scope,
            slow_queue: total,
            ..Limits::default()
        };
        Lane::start(&limits).unwrap()
    }

    /// A job that says when it began and ends when it is told to.
    fn gate() -> (Job, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let (began, begun) = mpsc::channel();
        let (release, released) = mpsc::channel();
        let job: Job = Box::new(move || {
            began.send(()).unwrap();
            let _ = released.recv();
        });
        (job, begun, release)
    }

    #[test]
    fn a_scope_that_holds_its_thread_leaves_the_others_free() {
        let lane = lane(2, 8, 64);
        let (job, begun, release) = gate();
        lane.submit(&tenant("a"), job).unwrap();
        begun.recv().unwrap();
        let (waiting, not_begun, release_second) = gate();
        lane.submit(&tenant("a"), waiting).unwrap();
        let (other, other_begun, release_other) = gate();
        lane.submit(&tenant("b"), other).unwrap();
        other_begun.recv().unwrap();
        assert!(not_begun.try_recv().is_err(), "tenant a ran on two threads");
        drop((release, release_other));
        not_begun.recv().unwrap();
        drop(release_second);
    }

    #[test]
    fn queues_refuse_just_beyond_their_bound() {
        let lane = lane(1, 2, 3);
        let (job, begun, release) = gate();
        lane.submit(&tenant("a"), job).unwrap();
        begun.recv().unwrap();
        let nothing = || -> Job { Box::new(|| ()) };
        assert!(lane.submit(&tenant("a"), nothing()).is_ok());
        assert!(lane.submit(&tenant("a"), nothing()).is_ok());
        assert!(
            lane.submit(&tenant("a"), nothing()).is_err(),
            "more than the scope's queue holds"
        );
        assert!(lane.submit(&tenant("b"), nothing()).is_ok());
        assert!(
            lane.submit(&tenant("b"), nothing()).is_err(),
            "more than the lane holds"
        );
        drop(release);
    }
}
