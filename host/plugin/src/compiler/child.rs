//! Compiles in a process of its own, and kills it when it overruns.

use super::{Compiled, no_processor, not_compiled, patience, too_slow};
use crate::artefact::{self, Authentic};
use crate::check::Remark;
use crate::compile_worker::{ARGUMENT, Reply, header};
use crate::limits::CompileBudget;
use rustix::process::Signal;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Instant;
use wasmtime::Engine;

/// Longest reply in bytes: eight times the code of CPython, the largest guest known.
const REPLY_MAX_BYTES: u64 = 1 << 30;

/// A running worker. Dropping it kills it and waits, so that none is left behind.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        // Both fail only when it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn compile(
    engine: &Engine,
    program: &Path,
    component: &[u8],
    budget: CompileBudget,
) -> Result<Compiled, Remark> {
    let begun = Instant::now();
    match ask(program, component, budget)? {
        Reply::Refused(why) => Err(not_compiled(format!(
            "the component could not be compiled: {why}"
        ))),
        Reply::Code(code) => {
            let component = artefact::deserialize(engine, Authentic::from_worker(&code))
                .map_err(|e| host_fault(&format!("its code could not be loaded: {e:#}")))?;
            let took = begun.elapsed();
            Ok(Compiled { component, took })
        }
    }
}

/// Runs a worker to its end. One that used up its processor time is ended by the system: where the clock runs out first, it did
/// not get that much.
fn ask(program: &Path, component: &[u8], budget: CompileBudget) -> Result<Reply, Remark> {
    let (mut worker, stdin, stdout) = start(program)?;
    let input = [&header(budget)[..], component].concat();
    let feed = move |mut stdin: ChildStdin| {
        // A worker that ends early breaks the pipe, and its missing reply tells so.
        let _ = stdin.write_all(&input);
    };
    let (sender, replied) = sync_channel(1);
    let listen = move |mut stdout: ChildStdout| {
        // Nobody listens when the worker's time was over.
        let _ = sender.send(Reply::read(&mut stdout, REPLY_MAX_BYTES));
    };
    spawn("policy-compile-feed", move || feed(stdin))?;
    spawn("policy-compile-reply", move || listen(stdout))?;
    match replied.recv_timeout(patience(budget)) {
        Ok(Some(reply)) => Ok(reply),
        Err(RecvTimeoutError::Timeout) => Err(no_processor(budget)),
        Ok(None) | Err(RecvTimeoutError::Disconnected) => {
            // Its end of the pipe is closed: it is dead, or about to be. What killed it tells why.
            let ended = worker.0.wait();
            Err(ended.map_or_else(
                |e| host_fault(&format!("the compiler's end was not seen: {e}")),
                |ended| cause_of(ended, budget),
            ))
        }
    }
}

fn start(program: &Path) -> Result<(Worker, ChildStdin, ChildStdout), Remark> {
    let failed = |why: &str| {
        host_fault(&format!(
            "{} {ARGUMENT} could not be started: {why}",
            program.display()
        ))
    };
    let mut worker = Command::new(program)
        .arg(ARGUMENT)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map(Worker)
        .map_err(|e| failed(&e.to_string()))?;
    match (worker.0.stdin.take(), worker.0.stdout.take()) {
        (Some(stdin), Some(stdout)) => Ok((worker, stdin, stdout)),
        _ => Err(failed("it has no pipes")),
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Remark> {
    let started = std::thread::Builder::new().name(name.into()).spawn(work);
    started
        .map(drop)
        .map_err(|e| host_fault(&format!("a thread could not be started: {e}")))
}

fn cause_of(ended: ExitStatus, budget: CompileBudget) -> Remark {
    let is = |signal: Signal| ended.signal() == Some(signal.as_raw());
    if is(Signal::XCPU) || is(Signal::KILL) {
        return too_slow(budget);
    }
    let mib = budget.address_space_bytes >> 20;
    if is(Signal::ABORT) {
        return not_compiled(format!(
            "the compiler ran out of its {mib} MiB of memory, or out of its stack, on this component"
        ));
    }
    not_compiled(format!("the compiler failed on this component ({ended})"))
}

/// Something that is not the component's fault.
fn host_fault(message: &str) -> Remark {
    tracing::error!(message, "a policy could not be compiled");
    Remark::new(
        "not-compiled",
        message,
        "this is the host's fault; try again, and tell the operator",
    )
}
