//! `portolan compile-worker`: the process in which a host compiles a component. It speaks over its standard input and
//! output and prints nothing.

use super::output::Failure;

pub(super) fn run() -> Result<(), Failure> {
    // A host that is gone reads no message either; the exit status is all there is to tell.
    portolan_plugin::compile_worker().map_err(|_| Failure::silent())
}
