//! How fast KV moves between two processes over loopback, with checksums:
//! `cargo run --release -p portolan-transport --example loopback_speed -- [MIB] [CONNECTIONS] [RUNS] [tls] [lz4|zstd|int8|int4]`.

use portolan_base::{Bytes, Random};
use portolan_transport::Coding;
use portolan_transport::speed::{SpeedPlan, compare, hold};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Distinct numbers are all a demonstration on one machine needs.
struct Counting(AtomicU64);

impl Random for Counting {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the example's output")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or: u64| args.get(at).and_then(|arg| arg.parse().ok()).unwrap_or(or);
    let says = |word: &str| args.iter().any(|arg| arg == word);
    let plan = SpeedPlan {
        size: Bytes(number(0, 256) << 20),
        lanes: u16::try_from(number(1, 4))?,
        tls: says("tls"),
        compression: [
            ("lz4", Coding::Lz4),
            ("zstd", Coding::Zstd),
            ("int8", Coding::Int8),
            ("int4", Coding::Int4),
        ]
        .into_iter()
        .find(|(word, _)| says(word))
        .map(|(_, coding)| coding),
        runs: usize::try_from(number(2, 7))?,
    };
    let from = 1 << (if says("hold") { 20 } else { 40 });
    let random = Arc::new(Counting(AtomicU64::new(from)));
    if says("hold") {
        // The certificates of this example are made for this year.
        hold(&plan, random, 2026).await?;
        return Ok(());
    }
    let mut holder = std::process::Command::new(std::env::current_exe()?);
    holder.args(&args).arg("hold");
    println!(
        "{}",
        serde_json::to_string(&compare(&plan, holder, random).await?)?
    );
    Ok(())
}
