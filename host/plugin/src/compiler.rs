//! Compiles components: two at once at most, each within the budget of its class.
//!
//! Cranelift recurses deeply and may panic on hostile input, and its running time has no bound that a component's size
//! would tell. So a host compiles in a process of its own, which can be killed; a tool or a test on a thread.

mod child;
mod thread;

use crate::check::Remark;
use crate::limits::{CompileBudget, CompileBudgets, SizeClass};
use parking_lot::{Condvar, Mutex};
use portolan_ports::{COMPILE_TIME, COMPILER_BUSY};
use sha2::{Digest as _, Sha256};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wasmtime::Engine;
use wasmtime::component::Component;

/// Components compiled at once: one that takes its whole time must not stop the others.
const AT_ONCE: usize = 2;

/// Seconds by the clock for each second of processor time: a worker steps back behind everything else on the machine.
const PATIENCE: u64 = 3;

/// The longest a component waits for its turn. Whoever sent it waits as long, and the compilation comes on top: the command line
/// gives up after two minutes.
const QUEUE_MAX: Duration = Duration::from_secs(60);

/// Compiled components that are remembered. An upload is compiled to be checked, then kept, then loaded: the second and
/// third find the first's. Eight, so that uploads of several tenants at once do not push each other out.
const REMEMBERED: usize = 8;

/// Where components are compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compilation {
    /// On a thread of this process. A component that takes too long is given up, and its thread runs on: for tools that
    /// end soon, and for tests.
    InProcess,
    /// In a process of its own: this program with the argument `compile-worker`, which must call
    /// [`compile_worker`](crate::compile_worker).
    Child(PathBuf),
}

impl Compilation {
    /// A child of the program that is running, even when its file was replaced meanwhile.
    pub fn child_of_this_program() -> std::io::Result<Self> {
        #[cfg(target_os = "linux")]
        return Ok(Self::Child(PathBuf::from("/proc/self/exe")));
        #[cfg(not(target_os = "linux"))]
        std::env::current_exe().map(Self::Child)
    }
}

/// A compiled component and how long that took.
#[derive(Clone)]
pub(crate) struct Compiled {
    pub(crate) component: Component,
    pub(crate) took: Duration,
}

pub(crate) struct Compiler {
    engine: Engine,
    compilation: Compilation,
    budgets: CompileBudgets,
    gate: Arc<Gate>,
    queue_max: Duration,
    compiled: AtomicU64,
    recent: Mutex<VecDeque<(Digest, Compiled)>>,
}

/// SHA-256 of a component.
type Digest = [u8; 32];

#[derive(Default)]
struct Gate {
    running: Mutex<Running>,
    one_less: Condvar,
}

#[derive(Default)]
struct Running {
    all: usize,
    /// Of the medium and large class.
    sizeable: usize,
    /// Who waits, in the order they came, and whether it is of those classes.
    waiting: VecDeque<(u64, bool)>,
    tickets: u64,
}

impl Running {
    /// The first in the queue for whom there is a place. One is always left to compact components, which are compiled
    /// in a moment.
    fn next(&self) -> Option<u64> {
        let fits = |sizeable: bool| self.all < AT_ONCE && self.sizeable + usize::from(sizeable) < AT_ONCE;
        let mut waiting = self.waiting.iter();
        waiting
            .find(|(_, sizeable)| fits(*sizeable))
            .map(|(ticket, _)| *ticket)
    }
}

/// The right to compile.
struct Pass {
    gate: Arc<Gate>,
    class: SizeClass,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut running = self.gate.running.lock();
        running.all -= 1;
        running.sizeable -= usize::from(self.class != SizeClass::Compact);
        drop(running);
        self.gate.one_less.notify_all();
    }
}

impl Gate {
    /// Waits for a place. First come, first served: however many components one tenant sends (the admin API takes a few
    /// at once from each), another's waits for those before it only.
    fn enter(self: &Arc<Self>, class: SizeClass, until: Instant) -> Option<Pass> {
        let sizeable = class != SizeClass::Compact;
        let mut running = self.running.lock();
        running.tickets += 1;
        let mine = running.tickets;
        running.waiting.push_back((mine, sizeable));
        let mut in_time = true;
        while in_time && running.next() != Some(mine) {
            in_time = !self.one_less.wait_until(&mut running, until).timed_out();
        }
        let admitted = running.next() == Some(mine);
        running.waiting.retain(|(ticket, _)| *ticket != mine);
        if admitted {
            running.all += 1;
            running.sizeable += usize::from(sizeable);
        }
        drop(running);
        // There may be a place for the next as well.
        self.one_less.notify_all();
        admitted.then(|| Pass {
            gate: self.clone(),
            class,
        })
    }
}

impl Compiler {
    pub(crate) fn new(engine: Engine, compilation: Compilation, budgets: CompileBudgets) -> Self {
        Self {
            engine,
            compilation,
            budgets,
            gate: Arc::default(),
            queue_max: QUEUE_MAX,
            compiled: AtomicU64::new(0),
            recent: Mutex::default(),
        }
    }

    pub(crate) fn compiled(&self) -> u64 {
        self.compiled.load(Ordering::Relaxed)
    }

    pub(crate) fn compile(&self, component: &[u8]) -> Result<Compiled, Remark> {
        let digest: Digest = Sha256::digest(component).into();
        if let Some(compiled) = self.remembered(&digest) {
            return Ok(compiled);
        }
        let compiled = self.compile_anew(component)?;
        let mut recent = self.recent.lock();
        recent.truncate(REMEMBERED - 1);
        recent.push_front((digest, compiled.clone()));
        Ok(compiled)
    }

    fn remembered(&self, digest: &Digest) -> Option<Compiled> {
        let mut recent = self.recent.lock();
        let position = recent.iter().position(|(known, _)| known == digest)?;
        let found = recent.remove(position)?;
        let compiled = found.1.clone();
        recent.push_front(found);
        Some(compiled)
    }

    fn compile_anew(&self, component: &[u8]) -> Result<Compiled, Remark> {
        let class = SizeClass::of(component.len());
        let budget = self.budgets.of(class);
        let until = Instant::now() + self.queue_max;
        let pass = self.gate.enter(class, until).ok_or_else(|| self.busy())?;
        let compiled = match &self.compilation {
            Compilation::InProcess => thread::compile(&self.engine, component, budget, pass),
            Compilation::Child(program) => {
                let _pass = pass;
                child::compile(&self.engine, program, component, budget)
            }
        }?;
        self.compiled.fetch_add(1, Ordering::Relaxed);
        Ok(compiled)
    }
}

impl Compiler {
    /// Nothing is known of the component: others were before it.
    fn busy(&self) -> Remark {
        Remark::new(
            COMPILER_BUSY,
            format!(
                "the component waited {} s for a compiler, and was not compiled",
                self.queue_max.as_secs()
            ),
            "other components are being compiled; send it again later, it says nothing about this one",
        )
    }
}

/// How long a compilation may take by the clock.
fn patience(budget: CompileBudget) -> Duration {
    Duration::from_secs(budget.cpu_seconds.saturating_mul(PATIENCE))
}

fn too_slow(budget: CompileBudget) -> Remark {
    let most = budget.cpu_seconds;
    Remark::new(
        COMPILE_TIME,
        format!(
            "compiling the component takes more than {most} s of processor time, the most there is for its size"
        ),
        "make it smaller: strip what is not used, lower the inlining",
    )
}

/// The clock ran out before the processor time did: nothing is known of the component.
fn no_processor(budget: CompileBudget) -> Remark {
    Remark::new(
        COMPILER_BUSY,
        format!(
            "the compiler got less than {} s of processor time in {} s, and was ended",
            budget.cpu_seconds,
            patience(budget).as_secs()
        ),
        "the machine is busy with other things; send it again later, it says nothing about this component",
    )
}

fn not_compiled(message: String) -> Remark {
    Remark::new(
        "not-compiled",
        message,
        "rebuild it with a stable toolchain and without experimental features",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizeable_components_leave_a_place_to_a_compact_one() {
        let gate = Arc::new(Gate::default());
        let at_once = Instant::now();
        let large = gate.enter(SizeClass::Large, at_once).unwrap();
        assert!(gate.enter(SizeClass::Medium, at_once).is_none());
        let compact = gate.enter(SizeClass::Compact, at_once).unwrap();
        assert!(gate.enter(SizeClass::Compact, at_once).is_none());
        drop(large);
        let second = gate.enter(SizeClass::Compact, at_once).unwrap();
        drop((compact, second));
        assert!(gate.enter(SizeClass::Large, at_once).is_some());
    }

    #[test]
    fn a_component_that_waited_in_vain_is_told_that_the_compiler_is_busy() {
        let engine = Engine::default();
        let mut compiler = Compiler::new(engine, Compilation::InProcess, CompileBudgets::default());
        compiler.queue_max = Duration::from_millis(10);
        let now = Instant::now();
        let held = [SizeClass::Compact; AT_ONCE].map(|class| compiler.gate.enter(class, now).unwrap());
        let said = |compiler: &Compiler| match compiler.compile(b"no component") {
            Err(remark) => remark.code,
            Ok(_) => unreachable!("it is no component"),
        };
        assert_eq!(said(&compiler), COMPILER_BUSY);
        drop(held);
        assert_ne!(
            said(&compiler),
            COMPILER_BUSY,
            "its turn came, and it is at fault"
        );
    }

    #[test]
    fn who_came_first_is_compiled_first() {
        let gate = Arc::new(Gate::default());
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        let held = [SizeClass::Compact; AT_ONCE].map(|class| gate.enter(class, now).unwrap());
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for n in 0..5 {
                let (gate, order) = (&gate, &order);
                scope.spawn(move || {
                    let pass = gate.enter(SizeClass::Compact, later).unwrap();
                    order.lock().push(n);
                    drop(pass);
                });
                while gate.running.lock().waiting.len() <= n {
                    std::thread::yield_now();
                }
            }
            // One place, so that each is through before the next.
            let [first, second] = held;
            drop(first);
            while order.lock().len() < 5 {
                std::thread::yield_now();
            }
            drop(second);
        });
        assert_eq!(order.into_inner(), [0, 1, 2, 3, 4]);
    }
}
