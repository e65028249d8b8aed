//! The two processes of a measurement: one starts the other, and reads the processor time of both.

use super::{SpeedError, SpeedHolder, SpeedInvitation, SpeedPlan, SpeedSample, measure};
use portolan_base::Random;
use serde::Serialize;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Clock ticks a second in `/proc`: the same on every Linux.
const TICKS: u64 = 100;

/// What was measured: medians over the runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SpeedReport {
    /// Speed from the order to the last verified byte.
    pub gib_per_s: f64,
    /// Processor time of both ends.
    pub cpu_s_per_gib: f64,
    /// From the order to the first whole layer.
    pub first_layer_ms: f64,
    /// Every byte of every run was right.
    pub verified: bool,
}

/// The holding process: says on standard output where it listens, and ends when standard input does.
pub async fn hold(plan: &SpeedPlan, random: Arc<dyn Random>, year: i32) -> Result<(), SpeedError> {
    let holder = SpeedHolder::start(plan, random, year).await?;
    let mut text = serde_json::to_string(holder.invitation())?;
    text.push('\n');
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    // Standard input says nothing until it ends: the thread that waits for it is not one of the runtime's.
    let (ended, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = ended.send(());
    });
    let _ = end.await;
    Ok(())
}

/// Starts `holder`, a command that calls [`hold`] with the same plan, and moves the set.
pub async fn compare(
    plan: &SpeedPlan,
    mut holder: Command,
    random: Arc<dyn Random>,
) -> Result<SpeedReport, SpeedError> {
    let mut child = Killed(holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    let said = child.0.stdout.take().ok_or(SpeedError::Early)?;
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line)?;
    let invitation: SpeedInvitation = serde_json::from_str(&line)?;
    let other = child.0.id().to_string();
    let cpu = move || cpu_of("self") + cpu_of(&other);
    // Where a host's requests run, and not on the thread that waits for the runtime.
    let plan = plan.clone();
    let measured = tokio::spawn(async move { measure(&plan, &invitation, random, &cpu).await });
    let samples = measured.await.map_err(|_| SpeedError::Early)??;
    Ok(report(&samples))
}

/// Ends with whoever started it, on every way out.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn report(samples: &[SpeedSample]) -> SpeedReport {
    let gib = |sample: &SpeedSample| sample.bytes.0 as f64 / f64::from(1 << 30);
    let total: f64 = samples.iter().map(gib).sum();
    let cpu: f64 = samples.iter().map(|sample| sample.cpu.as_secs_f64()).sum();
    SpeedReport {
        gib_per_s: median(
            samples
                .iter()
                .map(|sample| gib(sample) / sample.took.as_secs_f64()),
        ),
        // Ticks are coarse: their sum is exact where single runs are not.
        cpu_s_per_gib: cpu / total,
        first_layer_ms: median(
            samples
                .iter()
                .map(|sample| sample.first_layer.as_secs_f64() * 1000.0),
        ),
        verified: !samples.is_empty() && samples.iter().all(|sample| sample.verified),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Processor time of a process, in user and kernel.
fn cpu_of(process: &str) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name stands in brackets and may hold anything; the figures follow the last of them.
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace();
    let ticks: u64 = fields
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 1000 / TICKS)
}
