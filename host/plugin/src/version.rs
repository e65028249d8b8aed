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
use crate::stock::{Shelf, Stock};
use portolan_policy::{Answered, Call, Policy, PolicyDescriptor, PolicyFault, Scope};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// What all versions share.
pub(crate) struct Services {
    pub(crate) lane: Lane,
    pub(crate) filler: Filler,
    /// Room for instances that wait for a call, over all versions.
    pub(crate) shelf: Arc<Shelf>,
}

/// What a version is made of.
pub(crate) struct Parts {
    pub(crate) descriptor: PolicyDescriptor,
    pub(crate) scope: Scope,
    /// The scope's own.
    pub(crate) limits: Limits,
    pub(crate) class: SizeClass,
    pub(crate) blueprint: Blueprint,
    pub(crate) tenancy: Arc<Tenancy>,
    pub(crate) setup: Setup,
    pub(crate) counters: Counters,
    pub(crate) slots: Arc<Slots>,
    /// Whether an instance that answered is kept for further calls.
    pub(crate) keeps_warm: bool,
}

pub(crate) struct Version {
    parts: Parts,
    services: Arc<Services>,
    me: Weak<Version>,
    pace: Pace,
    stock: Arc<Stock>,
    refilling: AtomicBool,
    slow: AtomicBool,
}

impl Version {
    /// Makes the first instance, which shows that the configuration is accepted and how dear starting is.
    pub(crate) fn start(parts: Parts, services: Arc<Services>) -> Result<Arc<Self>, SetupFault> {
        let limits = &parts.limits;
        let budget = Budget {
            fuel: limits.setup_fuel,
            deadline_ms: limits.setup_deadline_ms,
            memory_bytes: usize::MAX,
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
        let stock = Stock::new(&services.shelf, ready_wanted(parts.class, limits));
        let version = Arc::new_cyclic(|me| Self {
            parts,
            services,
            me: me.clone(),
            pace,
            stock,
            refilling: AtomicBool::new(false),
            slow: AtomicBool::new(slow),
        });
        version.keep(first.guest);
        Ok(version)
    }

    fn limits(&self) -> &Limits {
        &self.parts.limits
    }

    fn answer(&self, call: &Call<'_>) -> Answered {
        let crossing = cells(&call.question);
        let most = self.limits().input_cells;
        if crossing > most {
            let why = format!("the question has {crossing} values, at most {most} are handed to a component");
            return failed(PolicyFault::Unavailable(why));
        }
        let Some(_call) = self.parts.slots.begin_call() else {
            return failed(PolicyFault::Saturated);
        };
        let rows = call.question.rows();
        let inline = !self.is_slow() && !self.limits().inline_call.is_capped(rows);
        let slot = if inline { self.parts.slots.take() } else { None };
        if slot.is_some()
            && let Some(guest) = self.quick_guest()
        {
            let budget = Budget {
                memory_bytes: self.limits().inline_memory_bytes,
                ..self.budget(rows, self.limits().inline_deadline_ms)
            };
            match guest.map(|guest| self.run(guest, call, budget)) {
                Ok(Some(answered)) => return answered,
                Err(fault) => return failed(fault),
                Ok(None) => {}
            }
        }
        drop(slot);
        self.answer_in_slow_lane(call)
    }

    fn budget(&self, rows: usize, deadline_ms: u64) -> Budget {
        Budget {
            fuel: self.limits().call_fuel(self.parts.class, rows),
            deadline_ms,
            memory_bytes: usize::MAX,
        }
    }

    /// An instance at once: a ready one, or one made here when that is known to be quick.
    fn quick_guest(&self) -> Option<Result<Guest, PolicyFault>> {
        if let Some(guest) = self.stock.take() {
            return Some(Ok(guest));
        }
        if self.pace == Pace::Heavy {
            return None;
        }
        let limits = self.limits();
        let budget = Budget {
            fuel: limits.setup_inline_fuel,
            deadline_ms: limits.inline_deadline_ms,
            memory_bytes: limits.inline_memory_bytes,
        };
        match self.make_for_call(budget) {
            Err(SetupFault::NotHere) => {
                self.slow.store(true, Ordering::Relaxed);
                None
            }
            made => Some(made.map_err(|refused| self.noted(refused))),
        }
    }

    fn make_for_call(&self, budget: Budget) -> Result<Guest, SetupFault> {
        bump(&self.parts.counters.made_inline);
        let mut made = self.make(budget);
        if made.as_ref().is_err_and(SetupFault::is_for_want_of_room) {
            self.services.filler.clear();
            made = self.make(budget);
        }
        made.map(|made| made.guest)
    }

    fn noted(&self, refused: SetupFault) -> PolicyFault {
        let fault = refused.into_fault();
        self.note(&fault);
        fault
    }

    fn make(&self, budget: Budget) -> Result<Made, SetupFault> {
        let parts = &self.parts;
        parts
            .blueprint
            .make(&parts.tenancy, &parts.counters.live, &parts.setup, budget)
    }

    /// Asks an instance. `None` when it was stopped because it needs more memory than it may take on this thread: then
    /// the version belongs in the slow lane.
    fn run(&self, mut guest: Guest, call: &Call<'_>, budget: Budget) -> Option<Answered> {
        let Told {
            result,
            fuel,
            memory,
            stopped_here,
        } = guest.ask(call, budget);
        if stopped_here {
            self.slow.store(true, Ordering::Relaxed);
            self.settle(Some(guest));
            return None;
        }
        let counters = &self.parts.counters;
        counters.memory_high.fetch_max(memory as u64, Ordering::Relaxed);
        if let Err(fault) = &result {
            self.note(fault);
        }
        if memory > self.limits().inline_memory_bytes {
            self.slow.store(true, Ordering::Relaxed);
        }
        let spent = if self.parts.keeps_warm && result.is_ok() && guest.is_reusable() {
            self.stock.keep_warm(guest)
        } else {
            Some(guest)
        };
        self.settle(spent);
        Some(Answered {
            result,
            fuel: Some(fuel),
        })
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
        let guest = self.stock.take().map_or_else(
            || {
                let budget = Budget {
                    fuel: self.limits().setup_fuel,
                    deadline_ms,
                    memory_bytes: usize::MAX,
                };
                self.make_for_call(budget).map_err(|refused| self.noted(refused))
            },
            Ok,
        );
        let budget = self.budget(call.question.rows(), deadline_ms);
        match guest {
            Ok(guest) => self.run(guest, call, budget).unwrap_or_else(|| {
                failed(PolicyFault::OutOfMemory(
                    self.limits().memory_for(self.parts.class) as u64,
                ))
            }),
            Err(fault) => failed(fault),
        }
    }

    /// Leaves what a call left behind to another thread.
    fn settle(&self, spent: Option<Guest>) {
        if let Some(guest) = spent {
            self.services.filler.retire(self.pace, guest);
        }
        if self.stock.is_low() {
            self.ask_for_refill();
        }
    }

    fn ask_for_refill(&self) {
        if !self.refilling.swap(true, Ordering::AcqRel) {
            self.services.filler.ask(self.pace, self.me.clone());
        }
    }

    fn keep(&self, guest: Guest) -> bool {
        match self.stock.keep(guest) {
            Ok(()) => !self.stock.is_full(),
            Err(guest) => {
                drop(guest);
                false
            }
        }
    }

    fn make_ahead(&self) -> bool {
        if self.stock.is_full() {
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
            memory_bytes: usize::MAX,
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
        let begun = Instant::now();
        let answered = self.answer(call);
        self.parts.counters.count(&answered, begun.elapsed());
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

    fn ready(&self) -> usize {
        self.stock.len()
    }

    fn log_lines(&self) -> (u64, u64) {
        self.parts.tenancy.log.lines()
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        // The last call may be what drops it.
        self.services.filler.unload(self.pace, self.stock.empty());
    }
}

fn ready_wanted(class: SizeClass, limits: &Limits) -> usize {
    match class {
        SizeClass::Compact => limits.ready_instances,
        SizeClass::Medium | SizeClass::Large => limits.ready_instances.min(1),
    }
}

fn failed(fault: PolicyFault) -> Answered {
    Answered {
        result: Err(fault),
        fuel: None,
    }
}
