//! Makes instances ahead of demand and drops used ones, off the request path.
//!
//! Two threads: one for versions that start quickly, one for those that do not (interpreters). On each, versions take
//! turns, one instance a turn, so that no version's start keeps another waiting for longer than one start.

use crate::guest::Guest;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

/// The part of the pool that used instances may hold while they wait to be dropped, on each thread. Beyond it the
/// thread does not keep up, and calls drop their own.
const SPENT_SHARE: usize = 8;

/// Used instances that wait before the thread is woken for them alone, at most: waking it costs a call as much as
/// dropping one would.
const SPENT_BEFORE_WAKING: usize = 32;

/// Something that wants instances.
pub(crate) trait Refill: Send + Sync {
    /// Makes one instance. Returns whether another is wanted.
    fn refill(&self) -> bool;
}

/// How long a version takes to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Quick,
    Heavy,
}

/// Where to ask for instances and to leave used ones. The threads end when the last of these is dropped.
#[derive(Clone)]
pub(crate) struct Filler {
    quick: Helper,
    heavy: Helper,
}

#[derive(Clone)]
struct Helper {
    jobs: Sender<Job>,
    spent: Arc<Mutex<Vec<Guest>>>,
    spent_most: usize,
}

enum Job {
    Refill(Weak<dyn Refill>),
    /// Used instances are waiting.
    Clear,
}

impl Filler {
    /// Starts the threads of a pool of this size.
    pub(crate) fn start(pool_instances: u32) -> std::io::Result<Self> {
        let spent_most = pool_instances as usize / SPENT_SHARE;
        Ok(Self {
            quick: Helper::start("policy-filler", spent_most)?,
            heavy: Helper::start("policy-filler-heavy", spent_most)?,
        })
    }

    /// Asks for `wanting` to be refilled soon.
    pub(crate) fn ask(&self, pace: Pace, wanting: Weak<dyn Refill>) {
        self.of(pace).send(Job::Refill(wanting));
    }

    /// Takes an instance that was used. Resetting its memory takes longer than a call, so the thread does it.
    pub(crate) fn retire(&self, pace: Pace, guest: Guest) {
        let helper = self.of(pace);
        let waiting = {
            let mut spent = helper.spent.lock();
            if spent.len() < helper.spent_most {
                spent.push(guest);
                spent.len()
            } else {
                drop(spent);
                return drop(guest);
            }
        };
        if waiting == SPENT_BEFORE_WAKING.min(helper.spent_most.div_ceil(2)) {
            helper.send(Job::Clear);
        }
    }

    /// Takes the instances of a version that is unloaded, and clears what else is waiting.
    pub(crate) fn unload(&self, pace: Pace, guests: impl Iterator<Item = Guest>) {
        let helper = self.of(pace);
        helper.spent.lock().extend(guests);
        helper.send(Job::Clear);
    }

    /// Drops what is waiting, here and now: a call found the pool full.
    pub(crate) fn clear(&self) {
        for helper in [&self.quick, &self.heavy] {
            let used = std::mem::take(&mut *helper.spent.lock());
            drop(used);
        }
    }

    fn of(&self, pace: Pace) -> &Helper {
        match pace {
            Pace::Quick => &self.quick,
            Pace::Heavy => &self.heavy,
        }
    }
}

impl Helper {
    fn start(name: &str, spent_most: usize) -> std::io::Result<Self> {
        let (jobs, asked) = channel();
        let spent = Arc::<Mutex<Vec<Guest>>>::default();
        let waiting = spent.clone();
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || run(&asked, &waiting))?;
        Ok(Self {
            jobs,
            spent,
            spent_most,
        })
    }

    fn send(&self, job: Job) {
        // A thread that is gone means the process ends: calls make their own instances then.
        let _ = self.jobs.send(job);
    }
}

fn run(asked: &Receiver<Job>, spent: &Mutex<Vec<Guest>>) {
    let mut turns = VecDeque::new();
    let queue = |turns: &mut VecDeque<_>, job| {
        if let Job::Refill(wanting) = job {
            turns.push_back(wanting);
        }
    };
    loop {
        if turns.is_empty() {
            match asked.recv() {
                Ok(job) => queue(&mut turns, job),
                Err(_) => return,
            }
        }
        asked.try_iter().for_each(|job| queue(&mut turns, job));
        // First, so that what is made next finds their places, still warm, in the pool.
        let used = std::mem::take(&mut *spent.lock());
        drop(used);
        let Some(turn): Option<Weak<dyn Refill>> = turns.pop_front() else {
            continue;
        };
        if turn.upgrade().is_some_and(|wanting| wanting.refill()) {
            turns.push_back(turn);
        }
    }
}
