//! Prints what a request's decisions cost: `make bench`. With the argument `reloads=N`, only what N reloads leave behind.

use portolan_bench::{Decision, Figures, Inputs, Readiness, Unprepared, each, in_a_row, reloads};
use std::path::{Path, PathBuf};

/// The host's own: with the C library's, threads that make and drop instances wait for each other.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const RUNS: usize = 20_000;
/// Fewer where each run waits for instances that another thread makes.
const RUNS_AHEAD: usize = 4_000;
const RELOADS: usize = 10_000;

fn main() -> Result<(), Unprepared> {
    let folder = std::env::var_os("PORTOLAN_PLUGINS").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist"),
        PathBuf::from,
    );
    if let Some(count) = std::env::args().find_map(|given| given.strip_prefix("reloads=")?.parse().ok()) {
        return reloading(&folder, count);
    }
    say("| what | routes | median | p99 | p99, processor time | a second of processor time | of native |");
    say("|---|---|---|---|---|---|---|");
    for routes in [16, 64] {
        decisions(&folder, routes)?;
    }
    reloading(&folder, RELOADS)
}

/// Reloads of eight versions in turn while another thread asks.
fn reloading(folder: &Path, count: usize) -> Result<(), Unprepared> {
    let done = reloads(folder, count)?;
    say(&format!(
        "\n{count} reloads under {} calls: median {:?}, of the swap itself {:?}; resident KiB at each tenth: {:?}",
        done.calls, done.median, done.swap_median, done.resident_kib
    ));
    Ok(())
}

fn decisions(folder: &Path, routes: u32) -> Result<(), Unprepared> {
    let inputs = Inputs::new(routes);
    let native = Decision::native()?;
    let base = in_a_row(RUNS, || native.decide(&inputs));
    row("decision, built-in functions", routes, base, base);
    let base_route = in_a_row(RUNS, || native.route(&inputs));

    let ahead = Decision::components(folder, Readiness::Ahead)?;
    // Each keeps its instances ready once it was asked.
    ahead.decide(&inputs);
    let figures = each(RUNS_AHEAD, || ahead.settle(), || ahead.decide(&inputs));
    row("decision, instances made ahead", routes, figures, base);

    row(
        "decision, one after another",
        routes,
        in_a_row(RUNS, || ahead.decide(&inputs)),
        base,
    );

    let inline = Decision::components(folder, Readiness::Inline)?;
    row(
        "decision, instances made within it",
        routes,
        in_a_row(RUNS, || inline.decide(&inputs)),
        base,
    );

    let warm = Decision::components(folder, Readiness::Warm)?;
    warm.settle();
    row(
        "decision, warm",
        routes,
        in_a_row(RUNS, || warm.decide(&inputs)),
        base,
    );
    row("routing call, built-in function", routes, base_route, base_route);
    row(
        "routing call, warm",
        routes,
        in_a_row(RUNS, || warm.route(&inputs)),
        base_route,
    );
    // Those of "ahead" are of the decisions one after another, which outrun what is made ahead.
    for (name, subject) in [("ahead", &ahead), ("inline", &inline), ("warm", &warm)] {
        let (slow, made) = subject.detours();
        say(&format!(
            "<!-- {name}: {slow} calls in the slow lane, {made} instances made within a call -->"
        ));
    }
    Ok(())
}

fn row(what: &str, routes: u32, figures: Figures, native: Figures) {
    let us = |duration: std::time::Duration| format!("{:.2} µs", duration.as_secs_f64() * 1e6);
    say(&format!(
        "| {what} | {routes} | {} | {} | {} | {:.0} | {:.1} × |",
        us(figures.median),
        us(figures.p99),
        us(figures.p99_cpu),
        figures.per_cpu_second,
        figures.median.as_secs_f64() / native.median.as_secs_f64().max(1e-9)
    ));
}

#[allow(
    clippy::print_stdout,
    reason = "printing the table is what this program is for"
)]
fn say(line: &str) {
    println!("{line}");
}
