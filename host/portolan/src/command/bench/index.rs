//! `portolan bench index`: the prefix index and its summary for other sites.

use crate::bench::{index, summary, together};
use crate::command::output::{Failure, json, line};
use serde::Serialize;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    index: index::IndexFigures,
    summary: summary::SummaryFigures,
    together: together::TogetherFigures,
}

pub(super) fn run(blocks: u64, as_json: bool) -> Result<(), Failure> {
    let report = Report {
        index: index::measure(blocks),
        summary: summary::measure(blocks),
        together: together::measure(blocks),
    };
    if as_json {
        return json(&report);
    }
    line(table(&report));
    Ok(())
}

fn table(report: &Report) -> String {
    let Report {
        index,
        summary,
        together,
    } = report;
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
        ("threads together", together.threads as f64, ""),
        ("lookups, one thread", together.alone_per_s, "/s"),
        ("lookups, all threads", together.all_per_s, "/s"),
        ("lookups beside a stream", together.beside_stream_per_s, "/s"),
        ("lookups beside a flood", together.beside_flood_per_s, "/s"),
        ("events of the flood", together.flood_per_s, "/s"),
    ];
    let lines = rows.map(|(name, figure, unit)| format!("{name:<24}{figure:>16.2}{unit}"));
    lines.join("\n")
}
