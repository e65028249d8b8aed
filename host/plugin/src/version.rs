//! A loaded version: a [`Policy`] over instances made ahead of demand.
//!
//! A compact version runs on the calling thread while its scope has a slot free there. Everything else runs in the
//! slow lane: interpreted components, calls with so many rows that they earn a larger budget, a scope's calls beyond
//! its slots, and any version that once used up its fuel, its time or an unreasonable amount of memory.

use crate::filler::{Filler, Pace, Refill};
use crate::guest::{Blueprint, Budget, Guest, Made, SetupFault, Told};
use crate::host::Tenancy;
use crate::lane::Lane;
use crate::limits::{Limits, SizeClass};
use crate::question::{OwnedCall, Setup, cells};
use crate::slots::Slots;
use crate::stats::{Counted, Counters, VersionKey, bump};
use parking_lot::Mutex;
use portolan_policy::{Answered, Call, Policy, PolicyDescriptor, PolicyFault, Scope};
use portolan_ports::Reuse;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What all versions share.
pub(crate) struct Services {
    pub(crate) limits: Limits,
    pub(crate) lane: Lane,
    pub(crate) filler: Filler,
    /// Instances that wait for a call, over all versions.
    pub(crate) ready: Arc<AtomicUsize>,
}

/// What a version is made of.
pub(crate) struct Parts {
    pub(crate) descriptor: PolicyDescriptor,
    pub(crate) scope: Scope,
    pub(crate) class: SizeClass,
    pub(crate) blueprint: Blueprint,
    pub(crate) tenancy: Arc<Tenancy>,
    pub(crate) setup: Setup,
    pub(crate) counters: Counters,
    pub(crate) slots: Arc<Slots>,
    pub(crate) reuse: Reuse,
}

pub(crate) struct Version {
    parts: Parts,
    services: Arc<Services>,
    me: Weak<Version>,
    pace: Pace,
    ready: Mutex<VecDeque<Ready>>,
    refilling: AtomicBool,
    slow: AtomicBool,
}

/// An instance in the queue, counted against what may be kept ready altogether.
struct Ready {
    guest: Guest,
    _counted: ReadyCount,
}

struct ReadyCount(Arc<AtomicUsize>);

impl ReadyCount {
    /// At most half of the pool is kept ready, so that calls always find room for one more instance.
    fn take(services: &Services) -> Option<Self> {
        let most = services.limits.pool_instances as usize / 2;
        let before = services.ready.fetch_add(1, Ordering::Relaxed);
        let taken = Self(services.ready.clone());
        (before < most).then_some(taken)
    }
}

impl Drop for ReadyCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Version {
    /// Makes the first instance, which shows that the configuration is accepted and how dear starting is.
    pub(crate) fn start(parts: Parts, services: Arc<Services>) -> Result<Arc<Self>, SetupFault> {
        let limits = &services.limits;
        let budget = Budget {
            fuel: limits.setup_fuel,
            deadline_ms: limits.setup_deadline_ms,
        };
        let first = parts
            .blueprint
            .make(&parts.tenancy, &parts.counters.live, &parts.setup, budget)?;
        let pace = if first.fuel <= limits.setup_inline_fuel {
            Pace::Quick
        } else {
            Pace::Heavy
        };
        let slow = parts.class != SizeClass::Compact || first.guest.memory() > limits.inline_memory_bytes;
        let version = Arc::new_cyclic(|me| Self {
            parts,
            services,
            me: me.clone(),
            pace,
            ready: Mutex::default(),
            refilling: AtomicBool::new(false),
            slow: AtomicBool::new(slow),
        });
        version.keep(first.guest);
        version.ask_for_refill();
        Ok(version)
    }

    fn limits(&self) -> &Limits {
        &self.services.limits
    }

    fn answer(&self, call: &Call<'_>) -> Answered {
        let crossing = cells(&call.question);
        let most = self.limits().input_cells;
        if crossing > most {
            let why = format!("the question has {crossing} values, at most {most} are handed to a component");
            return failed(PolicyFault::Unavailable(why));
        }
        let rows = call.question.rows();
        let inline = !self.is_slow() && !self.limits().inline_call.is_capped(rows);
        let slot = if inline { self.parts.slots.take() } else { None };
        if slot.is_some()
            && let Some(guest) = self.quick_guest()
        {
            let budget = self.budget(rows, self.limits().inline_deadline_ms);
            return guest.map_or_else(failed, |guest| self.run(guest, call, budget));
        }
        drop(slot);
        self.answer_in_slow_lane(call)
    }

    fn budget(&self, rows: usize, deadline_ms: u64) -> Budget {
        Budget {
            fuel: self.limits().call_fuel(self.parts.class, rows),
            deadline_ms,
        }
    }

    /// An instance at once: a ready one, or one made here when that is known to be quick.
    fn quick_guest(&self) -> Option<Result<Guest, PolicyFault>> {
        if let Some(guest) = self.take_ready() {
            return Some(Ok(guest));
        }
        if self.pace == Pace::Heavy {
            return None;
        }
        let limits = self.limits();
        let budget = Budget {
            fuel: limits.setup_inline_fuel,
            deadline_ms: limits.inline_deadline_ms,
        };
        Some(self.make_for_call(budget))
    }

    fn make_for_call(&self, budget: Budget) -> Result<Guest, PolicyFault> {
        bump(&self.parts.counters.made_inline);
        self.make(budget).map(|made| made.guest).map_err(|refused| {
            let fault = refused.into_fault();
            self.note(&fault);
            fault
        })
    }

    fn make(&self, budget: Budget) -> Result<Made, SetupFault> {
        let parts = &self.parts;
        parts
            .blueprint
            .make(&parts.tenancy, &parts.counters.live, &parts.setup, budget)
    }

    fn run(&self, mut guest: Guest, call: &Call<'_>, budget: Budget) -> Answered {
        let Told { result, fuel, memory } = guest.ask(call, budget);
        if let Err(fault) = &result {
            self.note(fault);
        }
        if memory > self.limits().inline_memory_bytes {
            self.slow.store(true, Ordering::Relaxed);
        }
        if self.parts.reuse == Reuse::Warm && result.is_ok() && guest.is_reusable() {
            self.keep_warm(guest);
        }
        Answered {
            result,
            fuel: Some(fuel),
        }
    }

    /// A version that ran into its budget once is kept off the calling threads from then on.
    fn note(&self, fault: &PolicyFault) {
        if matches!(fault, PolicyFault::OutOfFuel(_) | PolicyFault::TimedOut(_)) {
            self.slow.store(true, Ordering::Relaxed);
        }
    }

    fn answer_in_slow_lane(&self, call: &Call<'_>) -> Answered {
        let Some(me) = self.me.upgrade() else {
            return failed(PolicyFault::Unavailable("the version is being unloaded".into()));
        };
        bump(&self.parts.counters.slow_calls);
        let deadline_ms = self.limits().slow_deadline_ms;
        let (reply, answer) = sync_channel(1);
        let given_up = Arc::new(AtomicBool::new(false));
        let (owned, gone) = (OwnedCall::copy(call), given_up.clone());
        let job = Box::new(move || {
            if !gone.load(Ordering::Relaxed) {
                // Nobody listens when the caller gave up meanwhile.
                let _ = reply.send(me.answer_here(&owned.view(), deadline_ms));
            }
        });
        if self.services.lane.submit(&self.parts.scope, job).is_err() {
            return failed(PolicyFault::Saturated);
        }
        match answer.recv_timeout(Duration::from_millis(deadline_ms)) {
            Ok(answered) => answered,
            Err(RecvTimeoutError::Timeout) => {
                given_up.store(true, Ordering::Relaxed);
                failed(PolicyFault::TimedOut(deadline_ms))
            }
            Err(RecvTimeoutError::Disconnected) => failed(PolicyFault::Unavailable(
                "the thread that ran the policy failed".into(),
            )),
        }
    }

    fn answer_here(&self, call: &Call<'_>, deadline_ms: u64) -> Answered {
        let guest = self.take_ready().map_or_else(
            || {
                self.make_for_call(Budget {
                    fuel: self.limits().setup_fuel,
                    deadline_ms,
                })
            },
            Ok,
        );
        let budget = self.budget(call.question.rows(), deadline_ms);
        guest.map_or_else(failed, |guest| self.run(guest, call, budget))
    }

    fn take_ready(&self) -> Option<Guest> {
        let (taken, left) = {
            let mut ready = self.ready.lock();
            (ready.pop_front(), ready.len())
        };
        // Half-empty is early enough, and asking wakes a thread: not for every call.
        if left <= self.ready_wanted() / 2 {
            self.ask_for_refill();
        }
        taken.map(|ready| ready.guest)
    }

    fn ready_wanted(&self) -> usize {
        match self.parts.class {
            SizeClass::Compact => self.limits().ready_instances,
            SizeClass::Medium | SizeClass::Large => self.limits().ready_instances.min(1),
        }
    }

    fn ask_for_refill(&self) {
        if self.ready_wanted() > 0 && !self.refilling.swap(true, Ordering::AcqRel) {
            self.services.filler.ask(self.pace, self.me.clone());
        }
    }

    /// Queues an instance unless enough are ready. Returns whether another is wanted.
    fn keep(&self, guest: Guest) -> bool {
        let Some(counted) = ReadyCount::take(&self.services) else {
            return false;
        };
        let mut ready = self.ready.lock();
        if ready.len() < self.ready_wanted() {
            ready.push_back(Ready {
                guest,
                _counted: counted,
            });
        }
        ready.len() < self.ready_wanted()
    }

    /// Puts an instance that answered in front, so that the same few answer and the others stay fresh.
    fn keep_warm(&self, guest: Guest) {
        let Some(counted) = ReadyCount::take(&self.services) else {
            return;
        };
        let surplus = {
            let mut ready = self.ready.lock();
            ready.push_front(Ready {
                guest,
                _counted: counted,
            });
            // Others may have been made while this one was out.
            if ready.len() > self.ready_wanted().max(1) {
                ready.pop_back()
            } else {
                None
            }
        };
        drop(surplus);
    }

    fn make_ahead(&self) -> bool {
        if self.ready.lock().len() >= self.ready_wanted() {
            return false;
        }
        let limits = self.limits();
        let fuel = match self.pace {
            Pace::Quick => limits.setup_inline_fuel,
            Pace::Heavy => limits.setup_fuel,
        };
        match self.make(Budget {
            fuel,
            deadline_ms: limits.setup_deadline_ms,
        }) {
            Ok(made) => {
                bump(&self.parts.counters.made_ahead);
                self.keep(made.guest)
            }
            // The next call makes its own instance and reports what is wrong.
            Err(_) => false,
        }
    }
}

impl Refill for Version {
    fn refill(&self) -> bool {
        let more = self.make_ahead();
        if !more {
            self.refilling.store(false, Ordering::Release);
        }
        more
    }
}

impl Policy for Version {
    fn descriptor(&self) -> &PolicyDescriptor {
        &self.parts.descriptor
    }

    fn ask(&self, call: &Call<'_>) -> Answered {
        let answered = self.answer(call);
        self.parts.counters.count(&answered);
        answered
    }
}

impl Counted for Version {
    fn key(&self) -> VersionKey {
        let descriptor = &self.parts.descriptor;
        VersionKey {
            scope: self.parts.scope.clone(),
            question: descriptor.question,
            policy: descriptor.name.clone(),
            version: descriptor.version.clone(),
        }
    }

    fn counters(&self) -> &Counters {
        &self.parts.counters
    }

    fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }
}

fn failed(fault: PolicyFault) -> Answered {
    Answered {
        result: Err(fault),
        fuel: None,
    }
}
