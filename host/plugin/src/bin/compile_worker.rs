//! The compile worker by itself, for this crate's tests: what `portolan compile-worker` runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    match portolan_plugin::compile_worker() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
