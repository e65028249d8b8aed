//! Prints what a request's decisions cost: `make bench`.

use portolan_bench::{Decision, Figures, Inputs, Readiness, Unprepared, each, in_a_row};
use std::path::PathBuf;

const RUNS: usize = 20_000;
/// Fewer where each run waits for instances that another thread makes.
const RUNS_AHEAD: usize = 2_000;

fn main() -> Result<(), Unprepared> {
    let folder = std::env::var_os("PORTOLAN_PLUGINS").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist"),
        PathBuf::from,
    );
    say("| what | routes | median | p99 | a second | of native |");
    say("|---|---|---|---|---|---|");
    for routes in [16, 64] {
        decisions(&folder, routes)?;
    }
    Ok(())
}

fn decisions(folder: &std::path::Path, routes: u32) -> Result<(), Unprepared> {
    let inputs = Inputs::new(routes);
    let native = Decision::native()?;
    let base = in_a_row(RUNS, || native.decide(&inputs));
    row("decision, built-in functions", routes, base, base);
    let base_route = in_a_row(RUNS, || native.route(&inputs));

    let ahead = Decision::components(folder, Readiness::Ahead)?;
    let figures = each(RUNS_AHEAD, || ahead.settle(), || ahead.decide(&inputs));
    row("decision, instances made ahead", routes, figures, base);

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
        "| {what} | {routes} | {} | {} | {:.0} | {:.1} × |",
        us(figures.median),
        us(figures.p99),
        figures.per_second,
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
