//! What is to happen in a schedule, and when: all of it follows from the seed.

use super::weather::Cut;
use crate::chaos::dice::Dice;
use portolan_ports::ControlFault;
use std::time::Duration;

/// Tenants, families of prompts, and the documents that these are made of: few, so that requests meet.
pub(crate) const TENANTS: [&str; 3] = ["acme", "globex", "initech"];
pub(crate) const FAMILIES: u32 = 3;
pub(crate) const DOCUMENTS: u32 = 2;

/// How long things happen before everything is mended.
pub(crate) const LENGTH_MS: u64 = 1400;

/// Data that a site comes back with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    /// What it had when it was killed.
    Same,
    /// A copy made earlier.
    Old,
    /// The file that says how far it was is torn.
    Torn,
    /// That file is lost.
    Lost,
}

/// What an order is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    Model,
    Document(u32),
    Prefix,
    Tenant(usize),
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    pub(crate) site: usize,
    pub(crate) tenant: usize,
    pub(crate) family: u32,
    /// Tokens beyond what all prompts of the family share.
    pub(crate) more: u32,
    pub(crate) max_tokens: u32,
    pub(crate) mode: &'static str,
    pub(crate) streams: bool,
    /// When its client leaves.
    pub(crate) leaves: Option<Duration>,
}

/// An invalidation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ordering {
    pub(crate) site: usize,
    pub(crate) about: About,
    /// By a tenant of its own; none: the operator.
    pub(crate) tenant: Option<usize>,
    pub(crate) waits: bool,
    pub(crate) aborts: bool,
    /// So long before it is given clients name the version that it tells; none: once it is acknowledged.
    pub(crate) named_before: Option<Duration>,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Happening {
    Ask(Asking),
    Order(Ordering),
    Cut(Cut),
    Mend(Cut),
    Stream(Option<ControlFault>),
    /// The stream is another one from here on, which holds nothing.
    FoundAnew,
    Kill(usize),
    Return(usize, Data),
    /// A copy of the site's folder is made.
    Copy(usize),
    /// Nothing can be written down at the site any more, or it can again.
    DiskFull(usize, bool),
}

/// When what happens, in order.
pub(crate) struct Plan(pub Vec<(Duration, Happening)>);

impl Plan {
    pub(crate) fn draw(dice: &Dice, sites: usize) -> Self {
        let mut plan = Self(Vec::new());
        for _ in 0..14 + dice.roll(12) {
            plan.at(dice.millis(0, LENGTH_MS), Happening::Ask(asking(dice, sites)));
        }
        for _ in 0..1 + dice.roll(4) {
            plan.order(dice, sites);
        }
        for _ in 0..dice.roll(6) {
            plan.fault(dice, sites);
        }
        for _ in 0..dice.roll(3) {
            plan.death(dice, sites);
        }
        if dice.chance(4) {
            plan.at(dice.millis(200, LENGTH_MS), Happening::FoundAnew);
        }
        plan.0.sort_by_key(|(at, _)| *at);
        plan
    }

    fn at(&mut self, at: Duration, happening: Happening) {
        self.0.push((at, happening));
    }

    /// An order, and requests about the same shortly before and after it: most of what can go wrong is there.
    fn order(&mut self, dice: &Dice, sites: usize) {
        let at = dice.millis(150, LENGTH_MS - 100);
        let family = dice.roll(u64::from(FAMILIES)) as u32;
        let tenant = dice.pick(TENANTS.len());
        let about = match dice.roll(4) {
            0 => About::Model,
            1 => About::Prefix,
            2 => About::Tenant(tenant),
            _ => About::Document(family % DOCUMENTS),
        };
        let own = matches!(about, About::Document(_) | About::Tenant(_)) && dice.chance(40);
        self.at(
            at,
            Happening::Order(Ordering {
                site: dice.pick(sites),
                about,
                tenant: own.then_some(tenant),
                waits: dice.chance(75),
                aborts: dice.chance(15),
                named_before: dice.chance(50).then(|| dice.millis(0, 120)),
            }),
        );
        for _ in 0..3 + dice.roll(6) {
            let ask = Asking {
                tenant,
                family,
                ..asking(dice, sites)
            };
            let when = (at + dice.millis(0, 500)).saturating_sub(dice.millis(0, 250));
            self.at(when, Happening::Ask(ask));
        }
    }

    fn fault(&mut self, dice: &Dice, sites: usize) {
        let from = dice.millis(0, LENGTH_MS - 200);
        let until = from + dice.millis(20, 700);
        let (one, other) = (dice.pick(sites), dice.pick(sites));
        let cuts: Vec<Cut> = match dice.roll(8) {
            0 => vec![Cut::Bus(one, other)],
            1 => vec![Cut::ToStream(one)],
            2 => vec![Cut::FromStream(one)],
            3 => vec![Cut::Order(one, other)],
            4 => vec![Cut::Kv(one, other)],
            5 => vec![Cut::Slow(one)],
            // One site hears nobody, or is heard by nobody.
            6 if dice.chance(50) => (0..sites)
                .map(|of| Cut::Bus(of, one))
                .chain([Cut::FromStream(one)])
                .collect(),
            6 => (0..sites)
                .map(|of| Cut::Bus(one, of))
                .chain([Cut::ToStream(one)])
                .collect(),
            _ => return self.common_fault(dice, (from, until), one),
        };
        for cut in cuts {
            self.at(from, Happening::Cut(cut));
            self.at(until, Happening::Mend(cut));
        }
    }

    fn common_fault(&mut self, dice: &Dice, (from, until): (Duration, Duration), site: usize) {
        let faults = [
            ControlFault::NoQuorum,
            ControlFault::LostAcknowledgements,
            ControlFault::Silent,
            ControlFault::Cut,
            ControlFault::Doubles,
        ];
        let (begin, end) = match dice.chance(30) {
            true => (Happening::DiskFull(site, true), Happening::DiskFull(site, false)),
            false => (
                Happening::Stream(Some(faults[dice.pick(faults.len())])),
                Happening::Stream(None),
            ),
        };
        self.at(from, begin);
        self.at(until, end);
    }

    fn death(&mut self, dice: &Dice, sites: usize) {
        let site = dice.pick(sites);
        let at = dice.millis(100, LENGTH_MS - 300);
        let data = [Data::Same, Data::Old, Data::Torn, Data::Lost][dice.pick(4)];
        let copied = at.saturating_sub(dice.millis(20, 400));
        self.at(copied, Happening::Copy(site));
        self.at(at, Happening::Kill(site));
        self.at(at + dice.millis(1, 400), Happening::Return(site, data));
    }
}

fn asking(dice: &Dice, sites: usize) -> Asking {
    let modes = [
        "auto",
        "auto",
        "local_only",
        "remote_preferred",
        "remote_required",
    ];
    Asking {
        site: dice.pick(sites),
        tenant: [0, 0, 0, 1, 1, 2][dice.pick(6)],
        family: dice.roll(u64::from(FAMILIES)) as u32,
        more: [0, 16, 40, 59][dice.pick(4)],
        max_tokens: 1 + dice.roll(8) as u32,
        mode: modes[dice.pick(modes.len())],
        streams: dice.chance(30),
        leaves: dice.chance(8).then(|| dice.millis(0, 120)),
    }
}
