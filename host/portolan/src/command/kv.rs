//! `portolan kv`: KV caches, how large they are, and what a running host says of them.

mod decisions;
mod estimate;
mod pool;
mod quality;
mod quarantine;

pub use estimate::EstimateArgs;
use pool::{EvictArgs, ListArgs};
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
    /// What each pool and tier of a site holds, by tenant.
    Stats {
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List blocks, used last or largest first.
    Ls(ListArgs),
    /// What is known of a block: never its tokens.
    Show {
        /// Its id, as `kv ls` prints it.
        block: String,
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Forget blocks at a site, at once and for good.
    Evict(EvictArgs),
    /// What invalidation policies were asked lately, and what they let go; a tenant's key shows its own policy's.
    Decisions {
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
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
        KvCommand::Stats { server } => pool::stats(&server, as_json),
        KvCommand::Ls(args) => pool::list(&args, as_json),
        KvCommand::Show { block, server } => pool::show(&server, &block, as_json),
        KvCommand::Evict(args) => pool::evict(&args, as_json),
        KvCommand::Decisions { server } => decisions::list(&server, as_json),
        KvCommand::Quarantine { server } => quarantine::list(&server, as_json),
    }
}
