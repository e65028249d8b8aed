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

/// The innermost cause and, for a trap, where it happened.
fn text(error: &Error) -> String {
    let cause = error.root_cause().to_string();
    let cause = cause.strip_prefix("wasm trap: ").unwrap_or(&cause);
    let trace = error.downcast_ref::<WasmBacktrace>();
    let names = trace.into_iter().flat_map(|trace| trace.frames());
    let names: Vec<String> = names
        .filter_map(|frame| frame.func_name())
        .map(readable)
        .collect();
    tame(&format!("{cause}{}", place(&names)), TEXT_MAX_BYTES)
}

/// The function that trapped, and the one of the author's that led there, where the first is the language's own: Rust
/// traps within its panics. Names come innermost first.
fn place(names: &[String]) -> String {
    let innermost = names.iter().find(|name| !is_machinery(name)).or(names.first());
    let authors = names.iter().find(|name| !is_library(name));
    match (innermost, authors) {
        (None, _) => String::new(),
        (Some(trapped), Some(author)) if trapped != author => format!(" in {trapped}, called by {author}"),
        (Some(trapped), _) => format!(" in {trapped}"),
    }
}

/// A name as it was written, without the hash that compilers append.
fn readable(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}

/// What a panic goes through before it traps: the same for every panic.
fn is_machinery(name: &str) -> bool {
    let begins = [
        "std::",
        "__",
        "rust_",
        "panic_abort::",
        "core::panicking::panic_fmt",
        "core::panicking::panic_nounwind",
    ];
    begins.iter().any(|begin| name.starts_with(begin))
}

/// Whether a function is the language's own, and no author's.
fn is_library(name: &str) -> bool {
    let path = name.trim_start_matches('<');
    is_machinery(path) || ["core::", "alloc::"].iter().any(|begin| path.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(names: &[&str]) -> String {
        place(&names.iter().map(|name| readable(name)).collect::<Vec<_>>())
    }

    #[test]
    fn a_panic_is_placed_by_its_kind_and_the_authors_function() {
        let panic = [
            "__rust_start_panic",
            "_ZN3std9panicking10rust_panic17h0123456789abcdefE",
            "_ZN4core9panicking9panic_fmt17h0123456789abcdefE",
            "_ZN4core9panicking18panic_bounds_check17h0123456789abcdefE",
            "_ZN71_$LT$near_first..NearFirst$u20$as$u20$portolan_sdk..worlds..Routing$GT$6decide17h0123456789abcdefE",
            "_ZN10near_first5outer17h0123456789abcdefE",
        ];
        assert_eq!(
            placed(&panic),
            " in core::panicking::panic_bounds_check, called by <near_first::NearFirst as \
             portolan_sdk::worlds::Routing>::decide"
        );
        assert_eq!(placed(&panic[5..]), " in near_first::outer");
        assert_eq!(placed(&panic[..1]), " in __rust_start_panic", "all that is known");
        assert_eq!(
            placed(&["boom", "portolan_decide"]),
            " in boom",
            "C needs no reading"
        );
        assert_eq!(placed(&[]), "");
    }
}
