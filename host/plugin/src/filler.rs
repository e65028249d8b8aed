//! Makes instances ahead of demand, off the request path.
//!
//! Two threads: one for versions that start quickly, one for those that do not (interpreters). On each, versions take
//! turns, one instance a turn, so that no version's start keeps another waiting for longer than one start.

use std::collections::VecDeque;
use std::sync::Weak;
use std::sync::mpsc::{Receiver, Sender, channel};

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

/// Where to ask for instances. The threads end when the last of these is dropped.
#[derive(Clone)]
pub(crate) struct Filler {
    quick: Sender<Weak<dyn Refill>>,
    heavy: Sender<Weak<dyn Refill>>,
}

impl Filler {
    pub(crate) fn start() -> std::io::Result<Self> {
        Ok(Self {
            quick: thread("policy-filler")?,
            heavy: thread("policy-filler-heavy")?,
        })
    }

    /// Asks for `wanting` to be refilled soon.
    pub(crate) fn ask(&self, pace: Pace, wanting: Weak<dyn Refill>) {
        let thread = match pace {
            Pace::Quick => &self.quick,
            Pace::Heavy => &self.heavy,
        };
        // A thread that is gone means the process ends: calls make their own instances then.
        let _ = thread.send(wanting);
    }
}

fn thread(name: &str) -> std::io::Result<Sender<Weak<dyn Refill>>> {
    let (sender, asked) = channel();
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || run(&asked))?;
    Ok(sender)
}

fn run(asked: &Receiver<Weak<dyn Refill>>) {
    let mut turns = VecDeque::new();
    loop {
        if turns.is_empty() {
            match asked.recv() {
                Ok(wanting) => turns.push_back(wanting),
                Err(_) => return,
            }
        }
        turns.extend(asked.try_iter());
        let Some(turn) = turns.pop_front() else { continue };
        if turn.upgrade().is_some_and(|wanting| wanting.refill()) {
            turns.push_back(turn);
        }
    }
}
