//! A lookup: along the segments of a prompt, from its first block on.

use super::PrefixIndex;
use super::holder::{GroupBits, HolderId, Needs, Place};
use super::sets::SetId;
use super::slab::{Run, Slot};
use portolan_base::BlockHash;

/// How much of a prompt one place holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Whose cache.
    pub place: Place,
    /// Blocks from the prompt's beginning that can be reused there. For a model with recurrent state: up to the last
    /// block within the attention KV at which every state is kept.
    pub blocks: u32,
}

/// The answer to a lookup, and the memory it was made in. Kept and used again, lookups do not allocate.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    going: Vec<Going>,
    /// Where in a run the holders change, and to what.
    turns: Vec<(u32, SetId)>,
    matches: Vec<Match>,
}

impl Lookup {
    /// Each place that holds something, in no particular order.
    pub fn matches(&self) -> &[Match] {
        &self.matches
    }
}

/// A place whose match has not ended.
#[derive(Clone, Copy, Debug)]
struct Going {
    number: u32,
    place: Place,
    needs: Needs,
    /// Where all states were last found; of use only for hybrid models.
    states_at: u32,
}

impl PrefixIndex {
    /// Fills `lookup` with how many blocks of `chain` each place holds from its beginning.
    pub fn look_up(&self, chain: &[BlockHash], lookup: &mut Lookup) {
        lookup.going.clear();
        lookup.matches.clear();
        let Some(first) = chain.first().and_then(|hash| self.find(*hash)) else {
            return;
        };
        let mut walk = Walk {
            index: self,
            lookup,
            set: self.slab.set(first),
            at: 0,
            hybrid: false,
        };
        walk.start();
        walk.along(first, chain);
        walk.finish();
    }

    /// Like [`PrefixIndex::look_up`], the most blocks first, equals by place.
    pub fn matches(&self, chain: &[BlockHash]) -> Vec<Match> {
        let mut lookup = Lookup::default();
        self.look_up(chain, &mut lookup);
        let mut matches = lookup.matches;
        matches.sort_unstable_by_key(|found| (std::cmp::Reverse(found.blocks), found.place));
        matches
    }
}

struct Walk<'a> {
    index: &'a PrefixIndex,
    lookup: &'a mut Lookup,
    /// The set of the blocks walked last.
    set: SetId,
    /// Blocks walked.
    at: u32,
    /// Whether states matter to any place.
    hybrid: bool,
}

impl Walk<'_> {
    fn start(&mut self) {
        let mut holders = self.index.sets.holders(self.set);
        while let Some(holder) = holders.first() {
            let (groups, entries) = GroupBits::of_first(holders);
            holders = &holders[entries..];
            let number = holder.place();
            let needs = self.index.places.needs(number);
            if let Some(place) = self.index.places.live(number).filter(|_| needs.attends(groups)) {
                self.hybrid |= needs.is_hybrid();
                self.lookup.going.push(Going {
                    number,
                    place,
                    needs,
                    states_at: 0,
                });
            }
        }
    }

    fn along(&mut self, first: Slot, mut chain: &[BlockHash]) {
        let index = self.index;
        let Some(mut run) = index.slab.run(first) else {
            return;
        };
        while !self.lookup.going.is_empty() {
            run.touch(index.now);
            let Some(walked) = self.over(&run, agreeing(run.hashes, chain)) else {
                return;
            };
            chain = &chain[walked..];
            let Some(next) = next(index, &run, walked, chain) else {
                return;
            };
            run = next;
        }
    }

    /// Walks the first `same` blocks of a run, or up to a gap among them; none when no place goes on.
    fn over(&mut self, run: &Run<'_>, same: usize) -> Option<usize> {
        let (mut set, mut walked) = (self.set, 0);
        let turns = &mut self.lookup.turns;
        turns.clear();
        let alike = run.alike.min(same);
        if alike > 0 && run.set != SetId::EMPTY {
            if run.set != set {
                turns.push((self.at, run.set));
                set = run.set;
            }
            walked = alike;
        }
        if walked == run.alike {
            // A block that left a gap here may have come back elsewhere: the table knows.
            for next in run.differing(same).iter().take_while(|set| **set != SetId::EMPTY) {
                if *next != set {
                    turns.push((self.at + walked as u32, *next));
                    set = *next;
                }
                walked += 1;
            }
        }
        let end = self.at + walked as u32;
        self.fetch();
        for turn in 0..self.lookup.turns.len() {
            let (at, set) = self.lookup.turns[turn];
            self.at = at;
            if !self.turn(set) {
                return None;
            }
        }
        self.at = end;
        Some(walked)
    }

    /// Reads a word of each set to come. The reads do not depend on each other, so that memory answers them together;
    /// read when their turn comes, each would wait for the one before.
    fn fetch(&self) {
        let sets = self
            .lookup
            .turns
            .iter()
            .map(|(_, set)| self.index.sets.holders(*set));
        let words = sets
            .filter_map(|holders| holders.first())
            .map(|holder| holder.place());
        std::hint::black_box(words.fold(0, |all, word| all ^ word));
    }

    /// Goes on to blocks with other holders; false when no place goes on.
    fn turn(&mut self, to: SetId) -> bool {
        if self.hybrid {
            self.settle();
        }
        self.set = to;
        let (at, matches) = (self.at, &mut self.lookup.matches);
        let mut holders = self.index.sets.holders(to);
        // Sets and the places under way are both in the order of places' numbers.
        self.lookup.going.retain(|going| {
            let goes_on = going.needs.attends(seek(&mut holders, going.number));
            if !goes_on {
                matches.extend(going.ended(at));
            }
            goes_on
        });
        !self.lookup.going.is_empty()
    }

    fn finish(&mut self) {
        if self.hybrid {
            self.settle();
        }
        let ended = self.lookup.going.iter().filter_map(|going| going.ended(self.at));
        self.lookup.matches.extend(ended);
    }

    /// Notes the states kept at the block walked last.
    fn settle(&mut self) {
        let mut holders = self.index.sets.holders(self.set);
        for going in &mut self.lookup.going {
            if going.needs.has_states(seek(&mut holders, going.number)) {
                going.states_at = self.at;
            }
        }
    }
}

impl Going {
    fn ended(&self, at: u32) -> Option<Match> {
        let blocks = if self.needs.is_hybrid() {
            self.states_at
        } else {
            at
        };
        (blocks > 0).then_some(Match {
            place: self.place,
            blocks,
        })
    }
}

/// Where the prompt goes on after a segment, or after a branch within one.
fn next<'a>(index: &'a PrefixIndex, run: &Run<'a>, walked: usize, chain: &[BlockHash]) -> Option<Run<'a>> {
    let hint = run.next.filter(|_| walked == run.hashes.len());
    let hinted = hint.and_then(|slot| index.slab.run(slot));
    let found = hinted.filter(|run| agreeing(run.hashes, chain) > 0);
    found.or_else(|| chain.first().and_then(|hash| index.slab.run(index.find(*hash)?)))
}

/// The groups of a place in the rest of a set, which is left behind it.
fn seek(holders: &mut &[HolderId], place: u32) -> GroupBits {
    while let [first, rest @ ..] = *holders {
        if first.place() >= place {
            break;
        }
        *holders = rest;
    }
    let mut groups = GroupBits::default();
    while let [first, rest @ ..] = *holders {
        if first.place() != place {
            break;
        }
        groups = groups | first.groups();
        *holders = rest;
    }
    groups
}

/// Blocks that both begin with. Hashes are chained, so where two agree all before them do: the last is looked at
/// first, and where it differs, halves.
fn agreeing(run: &[BlockHash], chain: &[BlockHash]) -> usize {
    let most = run.len().min(chain.len());
    let (run, chain) = (&run[..most], &chain[..most]);
    match (run.last(), chain.last()) {
        (Some(a), Some(b)) if a == b => most,
        _ => {
            let (mut same, mut differs) = (0, most);
            while same < differs {
                let middle = usize::midpoint(same, differs);
                if run[middle] == chain[middle] {
                    same = middle + 1;
                } else {
                    differs = middle;
                }
            }
            same
        }
    }
}
