//! Names what went wrong in a guest.

use crate::guest::Budget;
use crate::host::GuestState;
use crate::log::tame;
use portolan_policy::PolicyFault;
use wasmtime::{Error, PoolConcurrencyLimitError, Store, Trap, WasmBacktrace};

/// Longest description of a trap, in bytes: it goes into path records and metrics exemplars.
const TEXT_MAX_BYTES: usize = 200;

/// A call, or `configure`, did not return.
pub(crate) fn of_call(error: &Error, store: &Store<GuestState>, budget: Budget) -> PolicyFault {
    known(error, store, budget).unwrap_or_else(|| PolicyFault::BadAnswer(text(error)))
}

/// An instance could not be started.
pub(crate) fn of_start(error: &Error, store: &Store<GuestState>, budget: Budget) -> PolicyFault {
    known(error, store, budget).unwrap_or_else(|| PolicyFault::Unavailable(text(error)))
}

fn known(error: &Error, store: &Store<GuestState>, budget: Budget) -> Option<PolicyFault> {
    if error.downcast_ref::<PoolConcurrencyLimitError>().is_some() {
        return Some(PolicyFault::Saturated);
    }
    let limiter = &store.data().limiter;
    let out_of_memory = || PolicyFault::OutOfMemory(limiter.memory_limit());
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => Some(PolicyFault::OutOfFuel(budget.fuel)),
        Some(Trap::Interrupt) => Some(PolicyFault::TimedOut(budget.deadline_ms)),
        Some(trap) if is_of_the_answer(*trap) => None,
        // A guest that is refused memory aborts itself, by a trap of its own.
        _ if limiter.refused() => Some(out_of_memory()),
        Some(_) => Some(PolicyFault::Trap(text(error))),
        None => None,
    }
}

/// Whether the host raised this trap when it read what the guest handed over.
fn is_of_the_answer(trap: Trap) -> bool {
    matches!(
        trap,
        Trap::StringOutOfBounds
            | Trap::ListOutOfBounds
            | Trap::InvalidDiscriminant
            | Trap::UnalignedPointer
            | Trap::InvalidChar
    )
}

/// The innermost cause and, for a trap, the function it happened in.
fn text(error: &Error) -> String {
    let cause = error.root_cause().to_string();
    let cause = cause.strip_prefix("wasm trap: ").unwrap_or(&cause);
    let place = error
        .downcast_ref::<WasmBacktrace>()
        .and_then(|trace| trace.frames().first())
        .and_then(|frame| frame.func_name())
        .map_or_else(String::new, |name| format!(" in {name}"));
    tame(&format!("{cause}{place}"), TEXT_MAX_BYTES)
}
