//! `portolan kv`: KV caches, how large they are, and what a running host says of them.

mod estimate;
mod quality;
mod quarantine;

pub use estimate::EstimateArgs;
pub use quality::QualityArgs;

use super::ServerArgs;
use super::output::Failure;
use clap::Subcommand;

/// `kv` commands.
#[derive(Debug, Subcommand)]
pub enum KvCommand {
    /// How large the KV of a prompt is, and which link it needs; without a server.
    Estimate(EstimateArgs),
    /// What quantised KV, or attention over a window, costs a model on a text; without a server.
    Quality(QualityArgs),
    /// List the KV sets that came damaged twice, with the evidence.
    Quarantine {
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
}

/// Does what was typed.
pub(super) fn run(command: KvCommand, as_json: bool) -> Result<(), Failure> {
    match command {
        KvCommand::Estimate(args) => estimate::run(args, as_json),
        KvCommand::Quality(args) => quality::run(&args, as_json).map_err(|e| e.as_json(as_json)),
        KvCommand::Quarantine { server } => quarantine::list(&server, as_json),
    }
}
