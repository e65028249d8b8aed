//! Compiles components on threads of their own.
//!
//! Cranelift recurses deeply and may panic on hostile input, and its running time has no bound that a component's size
//! would tell. A thread with a large stack keeps the first two from harming the process, a time limit frees the caller
//! from the third; the thread itself runs on, and two such threads are the most there are.

use crate::check::Remark;
use parking_lot::{Condvar, Mutex};
use sha2::{Digest as _, Sha256};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};
use wasmtime::Engine;
use wasmtime::component::Component;

/// Cranelift overflowed the usual 2 MiB in the field; 16 MiB of address space cost nothing until used.
const STACK_BYTES: usize = 16 << 20;
/// Components compiled at once: one that takes its whole time must not stop the others.
const AT_ONCE: usize = 2;

/// Compiled components that are remembered. An upload is compiled to be checked, then kept, then loaded: the second and
/// third find the first's. Eight, so that uploads of several tenants at once do not push each other out.
const REMEMBERED: usize = 8;

/// A compiled component and how long that took.
#[derive(Clone)]
pub(crate) struct Compiled {
    pub(crate) component: Component,
    pub(crate) took: Duration,
}

pub(crate) struct Compiler {
    engine: Engine,
    limit: Duration,
    gate: Arc<Gate>,
    compiled: AtomicU64,
    recent: Mutex<VecDeque<(Digest, Compiled)>>,
}

/// SHA-256 of a component.
type Digest = [u8; 32];

#[derive(Default)]
struct Gate {
    running: Mutex<usize>,
    one_less: Condvar,
}

struct Pass(Arc<Gate>);

impl Drop for Pass {
    fn drop(&mut self) {
        *self.0.running.lock() -= 1;
        self.0.one_less.notify_one();
    }
}

impl Gate {
    fn enter(self: &Arc<Self>, until: Instant) -> Option<Pass> {
        let mut running = self.running.lock();
        while *running >= AT_ONCE {
            if self.one_less.wait_until(&mut running, until).timed_out() {
                return None;
            }
        }
        *running += 1;
        Some(Pass(self.clone()))
    }
}

impl Compiler {
    pub(crate) fn new(engine: Engine, limit: Duration) -> Self {
        Self {
            engine,
            limit,
            gate: Arc::default(),
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
        let begun = Instant::now();
        let pass = self
            .gate
            .enter(begun + self.limit)
            .ok_or_else(|| self.too_slow("waited to be compiled"))?;
        let (reply, answer) = sync_channel(1);
        let (engine, bytes) = (self.engine.clone(), component.to_vec());
        let work = move || {
            let _pass = pass;
            let begun = Instant::now();
            let compiled = Component::from_binary(&engine, &bytes);
            // Nobody listens when the caller's time was over.
            let _ = reply.send(compiled.map(|component| Compiled {
                component,
                took: begun.elapsed(),
            }));
        };
        std::thread::Builder::new()
            .name("policy-compiler".into())
            .stack_size(STACK_BYTES)
            .spawn(work)
            .map_err(|e| remark(format!("no thread to compile on could be started: {e}")))?;
        match answer.recv_timeout(self.limit) {
            Ok(Ok(compiled)) => {
                self.compiled.fetch_add(1, Ordering::Relaxed);
                Ok(compiled)
            }
            Ok(Err(error)) => Err(remark(format!("the component could not be compiled: {error:#}"))),
            Err(RecvTimeoutError::Timeout) => Err(self.too_slow("was still being compiled")),
            Err(RecvTimeoutError::Disconnected) => {
                Err(remark("the compiler failed on this component".into()))
            }
        }
    }

    fn too_slow(&self, what: &str) -> Remark {
        Remark::new(
            "compile-time",
            format!(
                "the component {what} after {} s, the most there is",
                self.limit.as_secs()
            ),
            "make it smaller: strip what is not used, lower the inlining",
        )
    }
}

fn remark(message: String) -> Remark {
    Remark::new(
        "not-compiled",
        message,
        "rebuild it with a stable toolchain and without experimental features",
    )
}
