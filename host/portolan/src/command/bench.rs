//! `portolan bench`.

mod transport;

pub use transport::{Compress, TransportArgs};

use super::Failure;
use super::output::line;
use crate::bench::{index, summary};
use clap::Subcommand;
use serde::Serialize;

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

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    index: index::IndexFigures,
    summary: summary::SummaryFigures,
}

pub(super) fn run(command: &BenchCommand, json: bool) -> Result<(), Failure> {
    let blocks = match command {
        BenchCommand::Index { blocks } => blocks,
        BenchCommand::Transport(args) => return transport::run(args, json),
    };
    let report = Report {
        index: index::measure(*blocks),
        summary: summary::measure(*blocks),
    };
    if json {
        let text = serde_json::to_string(&report).map_err(Failure::new)?;
        line(text);
        return Ok(());
    }
    line(table(&report));
    Ok(())
}

fn table(report: &Report) -> String {
    let Report { index, summary } = report;
    let rows = [
        ("blocks indexed", index.blocks as f64, ""),
        ("lookups, one holder", index.lookups_per_s, "/s"),
        ("lookups, 16 holders", index.lookups_16_holders_per_s, "/s"),
        ("events, blocks", index.events_per_s, "/s"),
        ("engine events, blocks", index.engine_blocks_per_s, "/s"),
        ("hashing, tokens", index.hashed_tokens_per_s, "/s"),
        ("memory, first holder", index.bytes_per_block, " B/block"),
        (
            "memory, further holder",
            index.bytes_per_further_holder,
            " B/block",
        ),
        ("memory, engine's name", index.bytes_per_engine_name, " B/block"),
        ("summary, snapshot", summary.snapshot_bytes_per_block, " B/block"),
        ("summary, change", summary.bytes_per_change, " B"),
        (
            "summary, false hits",
            summary.false_hit_rate * 1e6,
            " in a million",
        ),
        ("summary, lookups", summary.lookups_per_s, "/s"),
    ];
    let lines = rows.map(|(name, figure, unit)| format!("{name:<24}{figure:>16.2}{unit}"));
    lines.join("\n")
}
