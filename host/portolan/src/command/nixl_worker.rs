//! `portolan nixl-worker`: the process in which a host uses NIXL. It speaks over its standard input, which is a socket.

use super::output::Failure;
use clap::Args;
use std::path::PathBuf;

/// Options of `nixl-worker`.
#[derive(Clone, Debug, Args)]
pub struct NixlWorkerArgs {
    /// The memory that it shares with its host.
    memory: PathBuf,
    /// Its agent's name.
    name: String,
}

pub(super) fn run(args: &NixlWorkerArgs) -> Result<(), Failure> {
    portolan_transport::nixl_worker(&args.memory, &args.name).map_err(Failure::new)
}
