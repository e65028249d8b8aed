//! A thousand random fleets under random residency policies, each of whose sites is emptied in the end: no byte of a request
//! reaches a site that the answers deny, and nothing of it stays where it may only pass. Every order and every piece between sites, every prompt an engine is
//! given and everything it is told to keep is written down, and judged by an oracle that knows the policies' tables and
//! none of the code under test.

mod cast;
mod oracle;
mod policy;

use cast::{Seen, World};
use oracle::Verdicts;
use portolan_policy::{Placement, Purpose};
use portolan_ports::{OrderPurpose, Retention};

/// Each has two to five sites, three tenants and six requests.
const WORLDS: u64 = 1000;

/// The first world's seed; the others follow.
const SEED: u64 = 0x9047_0145;

/// A source of random choices: splitmix64.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0) % sides.max(1)
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What the worlds had in them, so that an empty proof is noticed.
#[derive(Debug, Default)]
struct Tally {
    served: usize,
    refused: usize,
    orders: usize,
    copies: usize,
    kv_bytes: u64,
    kept: usize,
    handed_over: usize,
    closed: usize,
    /// Orders that would have been wrong under other policies: the judge is not blind.
    noticed: usize,
}

#[tokio::test]
async fn no_byte_reaches_a_site_that_the_answers_deny() {
    let mut tally = Tally::default();
    for number in 0..WORLDS {
        let seed = SEED + number;
        let world = World::draw(seed).await;
        world.play().await;
        judge(&world, seed, &mut tally);
    }
    assert!(tally.served > 1000 && tally.refused > 500, "{tally:?}");
    assert!(
        tally.orders > 500 && tally.copies > 60 && tally.kv_bytes > 1 << 20,
        "{tally:?}"
    );
    assert!(tally.handed_over > 20, "{tally:?}");
    assert!(
        tally.kept > 500 && tally.closed > 100 && tally.noticed > 100,
        "{tally:?}"
    );
}

/// Holds everything that was seen against the oracle.
fn judge(world: &World, seed: u64, tally: &mut Tally) {
    for seen in world.seen() {
        let (request, verdicts) = world.verdicts_of(&seen);
        let may_see = |site: usize| verdicts.serve[site] != Placement::Denied;
        let what = || format!("world {seed:#x}, {request:?}: {seen:?} under {verdicts:?}");
        match &seen {
            Seen::Order {
                asks,
                holds,
                purpose,
                bytes,
                ..
            } => {
                assert!(may_see(*asks) && may_see(*holds), "{}", what());
                if *purpose == OrderPurpose::HandOver {
                    let (from, to) = (verdicts.replicate[*asks], verdicts.replicate[*holds]);
                    assert!(
                        from != Placement::Denied && to == Placement::Resident,
                        "{}",
                        what()
                    );
                }
                if let Some(copy) = verdicts.of_copy(*purpose) {
                    assert!(
                        copy[*holds] != Placement::Denied && copy[*asks] == Placement::Resident,
                        "{}",
                        what()
                    );
                    tally.copies += 1;
                }
                let other = world.other_verdicts_of(&request).serve;
                tally.noticed += usize::from(other[*asks].min(other[*holds]) == Placement::Denied);
                tally.orders += 1;
                tally.kv_bytes += bytes;
            }
            Seen::Worked { at, retention, .. } => {
                assert!(may_see(*at), "{}", what());
                if *retention == Retention::Keep {
                    assert_eq!(verdicts.serve[*at], Placement::Resident, "{}", what());
                    tally.kept += 1;
                }
            }
            Seen::Kept { at, .. } => {
                let stays = [&verdicts.fetch, &verdicts.replicate].map(|copy| copy[*at]);
                assert!(stays.contains(&Placement::Resident), "{}", what());
                tally.kept += 1;
            }
        }
    }
    let outcomes = world.outcomes();
    tally.served += outcomes.iter().filter(|status| **status == 200).count();
    tally.refused += outcomes.iter().filter(|status| **status == 403).count();
    tally.closed += world.closed_answers();
    tally.handed_over += world.handed_over();
    world.check_explanations(seed);
}

impl Verdicts {
    /// What the answers say of copies; none: the order is for work.
    fn of_copy(&self, purpose: OrderPurpose) -> Option<&Vec<Placement>> {
        match purpose {
            OrderPurpose::Serve | OrderPurpose::Prewarm | OrderPurpose::HandOver => None,
            OrderPurpose::Fetch => Some(&self.fetch),
            OrderPurpose::Replica => Some(&self.replicate),
        }
    }
}

/// What a request is asked about when it is served.
fn purpose_of(prewarm: bool) -> Purpose {
    if prewarm { Purpose::Prewarm } else { Purpose::Serve }
}
