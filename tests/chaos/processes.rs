//! Schedules with real processes: one of the real binary a site, a real `nats-server`, real sockets, disks and kills.

mod fleet;
mod work;

pub(crate) use fleet::Fleet;

use super::dice::Dice;
use super::history::History;
use std::thread;
use std::time::{Duration, Instant};

/// How long work goes on while things break.
const LENGTH: Duration = Duration::from_secs(9);
/// No request may take longer: 5 s for a site to be missed and the patience of each stage, many times over, so that only
/// what hangs is found on a machine with other things to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What breaks, for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server is killed and started again.
    BusRestarts,
    /// A site's connections to the server carry nothing.
    BusCut(usize),
    /// The same one way: what the site says is lost, and it hears.
    BusDeaf(usize),
    /// It hears nothing, and is heard.
    BusMute(usize),
    /// A site reads what the server sends far more slowly than it comes.
    SlowReader(usize),
    /// A site's process is killed; what it wrote lies there when it comes back.
    Killed(usize),
    /// The same, and its folder is an older copy when it comes back.
    OldData(usize),
    /// The same, and the end of what it wrote last is torn.
    Torn(usize),
    /// The disk of a site has no room.
    DiskFull(usize),
    /// KV and orders of one site do not reach another.
    LinkCut(usize, usize),
}

/// All faults, one after the other, so that a few schedules hold each.
pub(crate) fn fault(number: u64, dice: &Dice, sites: usize) -> Fault {
    let (one, other) = (dice.pick(sites), dice.pick(sites));
    match number % 10 {
        0 => Fault::Killed(one),
        1 => Fault::BusRestarts,
        2 => Fault::BusDeaf(one),
        3 => Fault::OldData(one),
        4 => Fault::SlowReader(one),
        5 => Fault::DiskFull(one),
        6 => Fault::BusMute(one),
        7 => Fault::Torn(one),
        8 => Fault::LinkCut(one, other),
        _ => Fault::BusCut(one),
    }
}

/// What a schedule was, and what came of it.
pub(crate) struct Played {
    pub(crate) faults: Vec<Fault>,
    pub(crate) history: History,
    /// What the processes logged as errors.
    pub(crate) errors: Vec<String>,
}

/// Runs the schedule of a seed; none where there is no server on this machine.
pub(crate) fn run(seed: u64) -> Option<Played> {
    let dice = Dice::new(seed);
    let mut fleet = Fleet::start()?;
    let mut faults = Vec::new();
    let mut work = work::Work::begin(&fleet, &dice);
    let began = Instant::now();
    thread::sleep(dice.millis(500, 1500));
    // Two faults one after the other, the second sometimes while the first lasts.
    let plan = [
        fault(seed, &dice, fleet.sites()),
        fault(dice.roll(10), &dice, fleet.sites()),
    ];
    for (at, fault) in plan.into_iter().enumerate() {
        faults.push(fault);
        fleet.breaks(fault);
        thread::sleep(dice.millis(400, 2500));
        if matches!(fault, Fault::DiskFull(_)) {
            // Orders are given at every site in turn: some have to meet it.
            thread::sleep(Duration::from_secs(3));
        }
        if at == 1 || dice.chance(70) {
            fleet.mends();
        }
    }
    fleet.mends();
    thread::sleep(LENGTH.saturating_sub(began.elapsed()));
    work.stop();
    fleet.settles();
    work.probe();
    Some(Played {
        faults,
        errors: fleet.errors(),
        history: fleet.history(work.seen()),
    })
}
