//! `portolan bench transport`: how fast KV moves between two processes on this machine.

use crate::command::output::{Failure, json, line};
use crate::system::{OsRandom, SystemClock};
use clap::{Args, ValueEnum};
use portolan_base::{Bytes, Clock, Random};
use portolan_transport::Coding;
use portolan_transport::speed::{SpeedPlan, compare, hold};
use std::sync::Arc;

/// Transfers measured; the median counts.
const RUNS: usize = 7;

/// Options of `bench transport`.
#[derive(Clone, Debug, Args)]
pub struct TransportArgs {
    /// Size of the KV set, in MiB.
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub mib: u64,
    /// TCP connections.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub connections: u16,
    /// Under mutual TLS 1.3.
    #[arg(long)]
    pub tls: bool,
    /// Compress every chunk, or quantise every piece.
    #[arg(long, default_value = "none")]
    pub compress: Compress,
    /// Be the holding process.
    #[arg(long, hide = true)]
    pub hold: bool,
}

/// What `--compress` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compress {
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd,
    /// Eight-bit integers: other bytes arrive than were sent.
    Int8,
    /// Four-bit integers, likewise.
    Int4,
    /// Nothing.
    None,
}

pub(super) fn run(args: &TransportArgs, as_json: bool) -> Result<(), Failure> {
    let compression = match args.compress {
        Compress::None => None,
        Compress::Lz4 => Some(Coding::Lz4),
        Compress::Zstd => Some(Coding::Zstd),
        Compress::Int8 => Some(Coding::Int8),
        Compress::Int4 => Some(Coding::Int4),
    };
    let plan = SpeedPlan {
        size: Bytes(args.mib.max(1) << 20),
        lanes: args.connections.max(1),
        tls: args.tls,
        compression,
        runs: RUNS,
    };
    let random: Arc<dyn Random> = Arc::new(OsRandom);
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::new)?;
    if args.hold {
        let year = crate::command::tls::year_of(SystemClock::start().now());
        return runtime.block_on(hold(&plan, random, year)).map_err(Failure::new);
    }
    let program = std::env::current_exe().map_err(Failure::new)?;
    let mut holder = std::process::Command::new(program);
    holder.args(std::env::args_os().skip(1)).arg("--hold");
    let report = runtime
        .block_on(compare(&plan, holder, random))
        .map_err(Failure::new)?;
    if as_json {
        return json(&report);
    }
    line(format!(
        "{} MiB over {} connections, median of {RUNS}: {:.2} GiB/s, {:.2} CPU s/GiB both ends, first layer after {:.1} ms, {}",
        args.mib,
        args.connections,
        report.gib_per_s,
        report.cpu_s_per_gib,
        report.first_layer_ms,
        if report.verified {
            "every byte right"
        } else {
            "BYTES DIFFER"
        }
    ));
    Ok(())
}
