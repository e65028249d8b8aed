//! The index against a naive model of it, and the cases worth telling by themselves.

use super::*;
use portolan_base::Moment;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

mod budget;
mod soak;

/// Room for everything these tests store.
const AMPLE: Bytes = Bytes(64 << 20);

/// The chain of a prompt whose blocks are `symbols`: equal beginnings have equal hashes.
fn chain(symbols: &[u8]) -> Vec<BlockHash> {
    let mut hash = BlockHash(1);
    let next = |symbol: &u8| {
        hash = hash.with_extra(&[*symbol]);
        hash
    };
    symbols.iter().map(next).collect()
}

fn on(instance: u32) -> Place {
    Place::of(instance)
}

fn state_of(instance: u32) -> Holder {
    Holder {
        group: Group {
            number: 1,
            kind: GroupKind::State,
        },
        ..Holder::instance(instance)
    }
}

/// What each instance holds, as (instance, blocks).
fn held(index: &PrefixIndex, chain: &[BlockHash]) -> Vec<(u32, u32)> {
    let matches = index.matches(chain);
    matches
        .iter()
        .map(|found| (found.place.instance, found.blocks))
        .collect()
}

/// Checks what must hold between the parts of an index after any change.
fn check(index: &PrefixIndex) {
    let mut carried: BTreeMap<u32, u32> = BTreeMap::new();
    let mut live = 0;
    for page in 0..index.slab.pages() {
        for (slot, set) in index.slab.slots(page) {
            live += 1;
            *carried.entry(set.0).or_default() += 1;
            let hash = index.slab.hash(slot).unwrap();
            assert_eq!(
                index.find(hash),
                Some(slot),
                "each block with holders is found, at one place"
            );
        }
    }
    assert_eq!(live, index.blocks());
    index.sets.check(&carried);
    assert!(
        index.used() <= index.budget(),
        "{:?} over {:?}",
        index.used(),
        index.budget()
    );
}

#[derive(Clone, Debug)]
enum Op {
    Stored {
        holder: Holder,
        prompt: Vec<u8>,
        from: usize,
        told_parent: bool,
    },
    Removed {
        holder: Holder,
        prompt: Vec<u8>,
        blocks: Vec<usize>,
    },
    Clear(Place),
    Matches(Vec<u8>),
}

fn holder() -> impl Strategy<Value = Holder> {
    let tier = prop_oneof![Just(Tier::Device), Just(Tier::Host), Just(Tier::Disk)];
    (0u32..3, 0u16..2, 0u8..3, tier).prop_map(|(instance, rank, number, tier)| Holder {
        place: Place { instance, rank },
        // Instance 2 is a hybrid model with two groups of states.
        group: Group {
            number: if instance == 2 { number } else { 0 },
            kind: if instance == 2 && number > 0 {
                GroupKind::State
            } else {
                GroupKind::Attention
            },
        },
        tier,
    })
}

/// Prompts that mostly share long beginnings.
fn prompt() -> impl Strategy<Value = Vec<u8>> {
    let branch = prop_oneof![3 => Just(99usize), 2 => 0usize..30];
    (0usize..30, branch, 1u8..3).prop_map(|(length, branch, symbol)| {
        (0..length)
            .map(|at| if at >= branch { symbol } else { 0 })
            .collect()
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (holder(), prompt(), 0usize..20, any::<bool>())
            .prop_map(|(holder, prompt, from, told_parent)| Op::Stored { holder, prompt, from, told_parent }),
        4 => (holder(), prompt(), prop::collection::vec(0usize..40, 0..8))
            .prop_map(|(holder, prompt, blocks)| Op::Removed { holder, prompt, blocks }),
        1 => (0u32..3, 0u16..2).prop_map(|(instance, rank)| Op::Clear(Place { instance, rank })),
        4 => prompt().prop_map(Op::Matches),
    ]
}

/// The index' contract, written for obviousness.
#[derive(Default)]
struct Model {
    counts: BTreeMap<(BlockHash, Holder), u32>,
    groups: BTreeMap<Place, BTreeSet<Group>>,
}

impl Model {
    fn stored(&mut self, holder: Holder, blocks: &[BlockHash]) {
        self.groups.entry(holder.place).or_default().insert(holder.group);
        for hash in blocks {
            *self.counts.entry((*hash, holder)).or_default() += 1;
        }
    }

    fn removed(&mut self, holder: Holder, hash: BlockHash) {
        if let Some(count) = self.counts.get_mut(&(hash, holder)) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&(hash, holder));
            }
        }
    }

    fn clear(&mut self, place: Place) {
        self.counts.retain(|(_, holder), _| holder.place != place);
        self.groups.remove(&place);
    }

    fn has_all(&self, place: Place, kind: GroupKind, hash: BlockHash) -> bool {
        let has = |group| {
            let tiers = [Tier::Device, Tier::Host, Tier::Disk];
            tiers
                .into_iter()
                .any(|tier| self.counts.contains_key(&(hash, Holder { place, group, tier })))
        };
        self.groups[&place]
            .iter()
            .filter(|group| group.kind == kind)
            .all(|group| has(*group))
    }

    fn matches(&self, chain: &[BlockHash]) -> Vec<Match> {
        let mut found: Vec<Match> = self
            .groups
            .keys()
            .map(|place| self.matched(*place, chain))
            .collect();
        found.retain(|found| found.blocks > 0);
        found.sort_by_key(|found| (std::cmp::Reverse(found.blocks), found.place));
        found
    }

    fn matched(&self, place: Place, chain: &[BlockHash]) -> Match {
        let attends = self.groups[&place]
            .iter()
            .any(|group| group.kind == GroupKind::Attention);
        let goes_on = |hash: &&BlockHash| attends && self.has_all(place, GroupKind::Attention, **hash);
        let attended = chain.iter().take_while(goes_on).count();
        let states = |at: &usize| self.has_all(place, GroupKind::State, chain[*at - 1]);
        let blocks = (1..=attended).rev().find(states).unwrap_or(0) as u32;
        Match { place, blocks }
    }

    fn blocks(&self) -> usize {
        self.counts
            .keys()
            .map(|(hash, _)| hash)
            .collect::<BTreeSet<_>>()
            .len()
    }
}

fn apply(index: &mut PrefixIndex, model: &mut Model, op: Op) -> Result<(), TestCaseError> {
    match op {
        Op::Stored {
            holder,
            prompt,
            from,
            told_parent,
        } => {
            let chain = chain(&prompt);
            let from = from.min(chain.len());
            let parent = from.checked_sub(1).map(|at| chain[at]).filter(|_| told_parent);
            prop_assert!(index.stored(holder, parent, &chain[from..]) <= chain.len() - from);
            model.stored(holder, &chain[from..]);
        }
        Op::Removed {
            holder,
            prompt,
            blocks,
        } => {
            let chain = chain(&prompt);
            let gone: Vec<_> = blocks.iter().filter_map(|at| chain.get(*at)).copied().collect();
            index.removed(holder, &gone);
            gone.iter().for_each(|hash| model.removed(holder, *hash));
        }
        Op::Clear(place) => {
            index.clear(place);
            model.clear(place);
        }
        Op::Matches(prompt) => {
            let chain = chain(&prompt);
            let (told, true_ones) = (index.matches(&chain), model.matches(&chain));
            if index.budget() == AMPLE {
                prop_assert_eq!(told, true_ones);
            } else {
                for found in told {
                    let most = true_ones.iter().find(|other| other.place == found.place);
                    prop_assert!(
                        most.is_some_and(|most| found.blocks <= most.blocks),
                        "{found:?} of {most:?}"
                    );
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_index_does_what_the_model_does(ops in prop::collection::vec(op(), 1..120)) {
        let (mut index, mut model) = (PrefixIndex::new(AMPLE), Model::default());
        for op in ops {
            apply(&mut index, &mut model, op)?;
            check(&index);
        }
        // What cleared places left behind is swept by the next changes.
        for _ in 0..2 {
            index.removed(Holder::instance(0), &[]);
            index.sweep_some();
        }
        prop_assert_eq!(index.blocks(), model.blocks());
    }

    #[test]
    fn a_tight_budget_only_forgets(budget in 0u64..200_000, ops in prop::collection::vec(op(), 1..120)) {
        let empty = PrefixIndex::new(AMPLE).used();
        let (mut index, mut model) = (PrefixIndex::new(Bytes(empty.0 + budget)), Model::default());
        for op in ops {
            // An index that forgot a block stored twice counts it once when it comes again: counts are compared
            // only where nothing is forgotten.
            if let Op::Stored { holder, prompt, .. } = &op
                && chain(prompt).iter().any(|hash| model.counts.contains_key(&(*hash, *holder)))
            {
                continue;
            }
            apply(&mut index, &mut model, op)?;
            // Names of places and steps between sets stay; they are bounded by the fleet.
            prop_assert!(index.slab.bytes() as u64 <= budget.max(1));
        }
    }
}

#[test]
fn a_prefix_with_a_gap_counts_up_to_the_gap() {
    let mut index = PrefixIndex::new(AMPLE);
    let blocks = chain(&[1, 2, 3, 4]);
    index.stored(Holder::instance(0), None, &blocks);
    index.stored(Holder::instance(1), None, &blocks[..3]);
    index.stored(Holder::instance(2), None, &blocks[1..]);
    assert_eq!(held(&index, &blocks), [(0, 4), (1, 3)]);
    index.removed(Holder::instance(0), &blocks[1..2]);
    assert_eq!(held(&index, &blocks), [(1, 3), (0, 1)]);
    assert_eq!(held(&index, &[]), []);
    check(&index);
}

#[test]
fn stored_twice_is_held_until_removed_twice_in_each_group_and_tier_apart() {
    let mut index = PrefixIndex::new(AMPLE);
    let blocks = chain(&[1]);
    let (device, host) = (
        Holder::instance(0),
        Holder {
            tier: Tier::Host,
            ..Holder::instance(0)
        },
    );
    for holder in [device, device, host] {
        index.stored(holder, None, &blocks);
    }
    for (holder, left) in [(device, 1), (device, 1), (device, 1), (host, 0), (host, 0)] {
        index.removed(holder, &blocks);
        assert_eq!(held(&index, &blocks).len(), left);
    }
    index.removed(Holder::instance(9), &blocks);
    check(&index);
}

#[test]
fn a_hybrid_prefix_ends_where_every_state_is_kept() {
    let mut index = PrefixIndex::new(AMPLE);
    let blocks = chain(&[1, 2, 3, 4, 5]);
    index.stored(Holder::instance(0), None, &blocks);
    assert_eq!(
        held(&index, &blocks),
        [(0, 5)],
        "full attention alone, as far as was heard"
    );
    index.stored(state_of(0), None, &blocks[1..2]);
    index.stored(state_of(0), None, &blocks[3..4]);
    assert_eq!(held(&index, &blocks), [(0, 4)]);
    assert_eq!(held(&index, &blocks[..3]), [(0, 2)]);
    index.removed(Holder::instance(0), &blocks[2..3]);
    assert_eq!(
        held(&index, &blocks),
        [(0, 2)],
        "the state at 4 is of no use without the KV before it"
    );
    index.removed(state_of(0), &blocks[1..2]);
    assert_eq!(held(&index, &blocks), []);
}

#[test]
fn a_cleared_place_is_gone_at_once_and_its_memory_soon() {
    let mut index = PrefixIndex::new(AMPLE);
    let prompts: Vec<_> = (0..200u8).map(|first| chain(&vec![first; 300])).collect();
    for blocks in &prompts {
        index.stored(Holder::instance(0), None, blocks);
    }
    index.stored(Holder::instance(1), None, &prompts[0]);
    let full = index.used();
    index.clear(on(0));
    assert_eq!(held(&index, &prompts[1]), []);
    index.stored(Holder::instance(0), None, &prompts[1][..2]);
    assert_eq!(
        held(&index, &prompts[1]),
        [(0, 2)],
        "what comes after is a new beginning"
    );
    for _ in 0..60 {
        index.removed(Holder::instance(1), &[]);
    }
    check(&index);
    assert_eq!(index.blocks(), 302);
    assert!(index.used().0 * 2 < full.0, "{:?} of {full:?}", index.used());
}

#[test]
fn a_busy_prefix_outlives_younger_blocks_nobody_asks_for() {
    let mut index = PrefixIndex::new(Bytes(200_000));
    let busy = chain(&[1, 2]);
    index.stored(Holder::instance(0), None, &busy);
    for other in 0..20_000u32 {
        index.stored(
            Holder::instance(0),
            None,
            &[BlockHash(u64::from(other) << 32 | 7)],
        );
        assert_eq!(held(&index, &busy), [(0, 2)], "after {other}");
    }
    assert!(index.blocks() > 1_000, "{}", index.blocks());
    assert!(index.blocks() < 10_000);
    check(&index);
}

#[test]
fn a_chain_too_long_for_the_budget_keeps_its_beginning() {
    let mut index = PrefixIndex::new(Bytes(120_000));
    let blocks = chain(&[3; 20_000]);
    let taken = index.stored(Holder::instance(0), None, &blocks);
    assert!((1_000..10_000).contains(&taken), "{taken}");
    assert_eq!(held(&index, &blocks), [(0, taken as u32)]);
    check(&index);
}

#[test]
fn blocks_that_come_one_by_one_lie_side_by_side() {
    let mut index = PrefixIndex::new(AMPLE);
    let blocks = chain(&[5; 2_000]);
    let mut parent = None;
    for hash in &blocks {
        index.stored(Holder::instance(0), parent, &[*hash]);
        parent = Some(*hash);
    }
    let segments: usize = (0..index.slab.pages())
        .map(|page| index.slab.segments(page).count())
        .sum();
    assert!(segments <= 16, "{segments}");
    assert_eq!(held(&index, &blocks), [(0, 2_000)]);
}

#[test]
fn a_prediction_is_believed_until_it_ends_and_what_is_told_stays() {
    let mut index = PrefixIndex::new(AMPLE);
    let blocks = chain(&[1, 2, 3, 4]);
    index.stored(state_of(0), None, &blocks[1..2]);
    index.stored(Holder::instance(0), None, &blocks[..2]);
    index.predict(on(0), &blocks, Moment(10));
    index.predict(on(1), &blocks[..3], Moment(20));
    assert_eq!(held(&index, &blocks), [(0, 4), (1, 3)]);
    index.stored(Holder::instance(1), None, &blocks[..1]);
    index.expire(Moment(10));
    assert_eq!(held(&index, &blocks), [(1, 3), (0, 2)]);
    index.expire(Moment(20));
    assert_eq!(held(&index, &blocks), [(0, 2), (1, 1)]);
    index.predict(on(1), &blocks, Moment(30));
    index.clear(on(1));
    index.stored(Holder::instance(1), None, &blocks[..1]);
    index.expire(Moment(30));
    assert_eq!(
        held(&index, &blocks),
        [(0, 2), (1, 1)],
        "a cleared place's predictions are gone with it"
    );
    check(&index);
}

#[test]
fn more_groups_than_there_are_bits_for_are_refused() {
    let mut index = PrefixIndex::new(AMPLE);
    let blocks = chain(&[1]);
    let group = |number| Group {
        number,
        kind: GroupKind::Attention,
    };
    let holder = |number| Holder {
        group: group(number),
        ..Holder::instance(0)
    };
    assert_eq!(index.stored(holder(MAX_GROUPS - 1), None, &blocks), 1);
    assert_eq!(index.stored(holder(MAX_GROUPS), None, &blocks), 0);
    assert_eq!(held(&index, &blocks), [(0, 1)]);
}
