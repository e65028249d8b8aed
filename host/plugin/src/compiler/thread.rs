//! Compiles on a thread of this process.

use super::{Compiled, Pass, not_compiled, patience, too_slow};
use crate::check::Remark;
use crate::compile_worker::STACK_BYTES;
use crate::limits::CompileBudget;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Instant;
use wasmtime::Engine;
use wasmtime::component::Component;

/// The large stack keeps deep recursion from harming the process, the time limit frees the caller; the thread itself
/// runs on and holds its pass until it is done.
pub(super) fn compile(
    engine: &Engine,
    component: &[u8],
    budget: CompileBudget,
    pass: Pass,
) -> Result<Compiled, Remark> {
    let (reply, answer) = sync_channel(1);
    let (engine, bytes) = (engine.clone(), component.to_vec());
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
        .map_err(|e| not_compiled(format!("no thread to compile on could be started: {e}")))?;
    match answer.recv_timeout(patience(budget)) {
        Ok(Ok(compiled)) => Ok(compiled),
        Ok(Err(error)) => Err(not_compiled(format!(
            "the component could not be compiled: {error:#}"
        ))),
        Err(RecvTimeoutError::Timeout) => Err(too_slow(budget)),
        Err(RecvTimeoutError::Disconnected) => {
            Err(not_compiled("the compiler failed on this component".into()))
        }
    }
}
