//! `portolan bench`: how fast parts of this program are on this machine.

mod index;
mod transport;

pub use transport::{Compress, TransportArgs};

use super::output::Failure;
use clap::Subcommand;

/// `bench` commands.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure the prefix index and its summary for other sites.
    Index {
        /// Blocks to index; each takes some 30 bytes of memory.
        #[arg(long, default_value_t = 10_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1_000..=1_000_000_000))]
        blocks: u64,
    },
    /// Move KV between two processes over loopback.
    Transport(TransportArgs),
}

pub(super) fn run(command: &BenchCommand, as_json: bool) -> Result<(), Failure> {
    match command {
        BenchCommand::Index { blocks } => index::run(*blocks, as_json),
        BenchCommand::Transport(args) => transport::run(args, as_json).map_err(|e| e.as_json(as_json)),
    }
}
