//! Engine events in the orders and shapes seen in the field.

use super::*;
use crate::index::event::ExtraKey;
use crate::index::{Group, PrefixIndex};

const ROOM: Bytes = Bytes(16 << 20);

fn salts(salt: Option<&str>) -> Option<BlockHash> {
    match salt {
        None => Some(BlockHash(1)),
        Some("a") => Some(BlockHash(2)),
        Some(_) => None,
    }
}

/// A source and the index it feeds, one batch an event.
struct Fed {
    source: EngineSource,
    index: PrefixIndex,
    sequence: u64,
}

impl Fed {
    fn new() -> Self {
        Self {
            source: EngineSource::new(Place::of(0), ROOM),
            index: PrefixIndex::new(Bytes(64 << 20)),
            sequence: 0,
        }
    }

    fn tell(&mut self, events: Vec<CacheEvent>) {
        self.tell_as(7, self.sequence, events);
        self.sequence += 1;
    }

    fn tell_as(&mut self, incarnation: u64, sequence: u64, events: Vec<CacheEvent>) {
        let batch = Batch {
            incarnation,
            sequence,
            events,
        };
        let index = &mut self.index;
        self.source.apply(&batch, &salts, &mut |change| match change {
            Change::Stored {
                holder,
                parent,
                blocks,
            } => {
                index.stored(holder, parent, blocks);
            }
            Change::Removed { holder, blocks } => index.removed(holder, blocks),
            Change::Cleared(place) => index.clear(place),
        });
    }

    /// Index blocks held of a prompt of `tokens` with this root.
    fn held_from(&self, root: u64, tokens: &[u32]) -> u32 {
        let chain: Vec<_> = BlockHash(root).extend(tokens).collect();
        self.index.matches(&chain).first().map_or(0, |found| found.blocks)
    }

    fn held(&self, tokens: &[u32]) -> u32 {
        self.held_from(1, tokens)
    }
}

fn tokens(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

fn stored(parent: Option<u64>, hashes: &[u64], tokens: Vec<u32>, block_tokens: u32) -> Stored {
    Stored {
        parent: parent.map(EngineHash),
        hashes: hashes.iter().copied().map(EngineHash).collect(),
        tokens,
        block_tokens,
        extra: Vec::new(),
        lora: None,
        group: Group::ATTENTION,
        tier: Tier::Device,
    }
}

fn removed(hashes: &[u64]) -> CacheEvent {
    CacheEvent::Removed(Removed {
        hashes: hashes.iter().copied().map(EngineHash).collect(),
        group: Some(0),
        tier: Tier::Device,
    })
}

fn event(stored: Stored) -> CacheEvent {
    CacheEvent::Stored(stored)
}

#[test]
fn blocks_of_every_size_are_cut_into_sixteens_and_removed_whole() {
    for size in [16u32, 32, 64, 384] {
        let mut fed = Fed::new();
        let prompt = tokens(0..size * 3);
        fed.tell(vec![event(stored(
            None,
            &[10, 11],
            prompt[..size as usize * 2].to_vec(),
            size,
        ))]);
        fed.tell(vec![event(stored(
            Some(11),
            &[12],
            prompt[size as usize * 2..].to_vec(),
            size,
        ))]);
        assert_eq!(fed.held(&prompt), size * 3 / 16, "blocks of {size}");
        fed.tell(vec![removed(&[12])]);
        assert_eq!(fed.held(&prompt), size * 2 / 16);
        fed.tell(vec![removed(&[10])]);
        assert_eq!(fed.held(&prompt), 0);
        fed.tell(vec![removed(&[11])]);
        assert_eq!(fed.index.blocks(), 0, "one removal removes all its pieces");
        assert_eq!(fed.source.refused(), Refused::default());
    }
}

#[test]
fn a_block_stored_twice_is_held_until_it_is_removed_twice() {
    let mut fed = Fed::new();
    let block = || event(stored(None, &[10], tokens(0..32), 32));
    fed.tell(vec![block(), block(), removed(&[10])]);
    assert_eq!(fed.held(&tokens(0..32)), 2);
    fed.tell(vec![removed(&[10])]);
    assert_eq!(fed.held(&tokens(0..32)), 0);
    fed.tell(vec![removed(&[10, 99])]);
    assert_eq!(fed.source.refused().unknown_removals, 2);
    assert_eq!(fed.source.used().0 & !0xffff, 0);
}

#[test]
fn two_names_for_one_block_are_counted_apart() {
    let mut fed = Fed::new();
    fed.tell(vec![
        event(stored(None, &[10], tokens(0..16), 16)),
        event(stored(None, &[20], tokens(0..16), 16)),
        removed(&[10]),
    ]);
    assert_eq!(fed.held(&tokens(0..16)), 1);
    fed.tell(vec![removed(&[10]), removed(&[20])]);
    assert_eq!(fed.held(&tokens(0..16)), 0);
}

#[test]
fn children_before_parents_wait_and_cycles_are_pushed_out() {
    let mut fed = Fed::new();
    fed.tell(vec![
        event(stored(Some(11), &[12], tokens(32..48), 16)),
        event(stored(Some(10), &[11], tokens(16..32), 16)),
    ]);
    assert_eq!(fed.index.blocks(), 0);
    fed.tell(vec![event(stored(None, &[10], tokens(0..16), 16))]);
    assert_eq!(fed.held(&tokens(0..48)), 3);
    // 20 → 21 → 20, and one that is its own parent.
    fed.tell(vec![
        event(stored(Some(21), &[20], tokens(0..16), 16)),
        event(stored(Some(20), &[21], tokens(0..16), 16)),
        event(stored(Some(30), &[30], tokens(0..16), 16)),
    ]);
    for n in 0..=(WAITING_TOKENS / 160) as u64 {
        fed.tell(vec![event(stored(
            Some(1_000_000 + n),
            &[1_000 + n],
            tokens(0..160),
            160,
        ))]);
    }
    let refused = fed.source.refused();
    assert_eq!((refused.malformed, fed.index.blocks()), (1, 3));
    assert!(refused.orphans >= 2, "{refused:?}");
    assert!(fed.source.waiting_tokens <= WAITING_TOKENS);
}

#[test]
fn a_removal_reaches_blocks_that_still_wait() {
    let mut fed = Fed::new();
    fed.tell(vec![
        event(stored(Some(10), &[11], tokens(16..32), 16)),
        removed(&[11]),
    ]);
    fed.tell(vec![event(stored(None, &[10], tokens(0..16), 16))]);
    assert_eq!(fed.held(&tokens(0..32)), 1);
}

#[test]
fn salts_adapters_and_media_separate_equal_tokens() {
    let mut fed = Fed::new();
    let with = |extra: Vec<Vec<ExtraKey>>, name| Stored {
        extra,
        ..stored(None, &[name], tokens(0..16), 16)
    };
    let salt = |salt: &str| vec![vec![ExtraKey::Salt(salt.to_owned())]];
    fed.tell(vec![
        event(with(salt("a"), 10)),
        event(with(salt("nobody's"), 11)),
    ]);
    assert_eq!(
        (fed.held(&tokens(0..16)), fed.held_from(2, &tokens(0..16))),
        (0, 1)
    );
    assert_eq!(fed.source.refused().unknown_salts, 1);
    fed.tell(vec![event(stored(Some(10), &[12], tokens(16..32), 16))]);
    assert_eq!(fed.held_from(2, &tokens(0..32)), 2, "children inherit the salt");
    let blocks = fed.index.blocks();
    fed.tell(vec![
        event(with(vec![vec![ExtraKey::Media("cat.png".to_owned(), 3)]], 13)),
        event(with(vec![vec![ExtraKey::Media("cat.png".to_owned(), 4)]], 14)),
        event(with(vec![vec![ExtraKey::Other(vec![1])]], 15)),
        event(Stored {
            lora: Some("law".to_owned()),
            ..stored(None, &[16], tokens(0..16), 16)
        }),
    ]);
    assert_eq!(fed.index.blocks(), blocks + 4);
    assert_eq!(fed.held(&tokens(0..16)), 0);
}

#[test]
fn states_count_at_the_end_of_their_blocks_and_groups_are_removed_apart() {
    let mut fed = Fed::new();
    let prompt = tokens(0..768);
    let state = |parent, names: &[u64], tokens: &[u32]| Stored {
        group: Group {
            number: 1,
            kind: GroupKind::State,
        },
        ..stored(parent, names, tokens.to_vec(), 384)
    };
    // As vLLM tells it: states first, and one name for all tokens since the beginning.
    fed.tell(vec![
        event(state(None, &[11], &prompt)),
        event(stored(None, &[10, 11], prompt.clone(), 384)),
    ]);
    assert_eq!(fed.held(&prompt), 48);
    assert_eq!(fed.held(&prompt[..752]), 0, "no state ends there");
    fed.tell(vec![event(state(None, &[10], &prompt[..384]))]);
    assert_eq!(fed.held(&prompt[..752]), 24);
    let of_states = CacheEvent::Removed(Removed {
        hashes: vec![EngineHash(11)],
        group: Some(1),
        tier: Tier::Device,
    });
    fed.tell(vec![of_states]);
    assert_eq!(fed.held(&prompt), 24, "the attention KV stays");
    fed.tell(vec![CacheEvent::Removed(Removed {
        hashes: vec![EngineHash(10)],
        group: None,
        tier: Tier::Device,
    })]);
    assert_eq!(fed.held(&prompt), 0, "without a group every group is meant");
}

#[test]
fn gaps_restarts_and_clearing_forget_and_repeats_do_nothing() {
    let mut fed = Fed::new();
    let block = |name: u64| event(stored(None, &[name], tokens(0..16), 16));
    let other = || event(stored(None, &[20], tokens(100..116), 16));
    fed.tell_as(7, 0, vec![block(10)]);
    fed.tell_as(7, 0, vec![block(10)]);
    fed.tell_as(7, 1, vec![removed(&[10])]);
    assert_eq!(
        (fed.held(&tokens(0..16)), fed.source.refused().stale),
        (0, 1),
        "a repeat is not counted"
    );
    fed.tell_as(7, 2, vec![block(10)]);
    fed.tell_as(7, 9, vec![other()]);
    assert_eq!((fed.held(&tokens(0..16)), fed.held(&tokens(100..116))), (0, 1));
    assert!(!fed.source.is_complete());
    fed.tell_as(8, 0, vec![block(10)]);
    assert_eq!((fed.held(&tokens(0..16)), fed.held(&tokens(100..116))), (1, 0));
    assert!(fed.source.is_complete());
    fed.tell_as(8, 1, vec![CacheEvent::Cleared]);
    assert_eq!(fed.held(&tokens(0..16)), 0);
    assert_eq!(fed.source.refused().resets, 2);
}

#[test]
fn what_does_not_fit_together_is_refused_and_counted() {
    let mut fed = Fed::new();
    let group = |number| Group {
        number,
        kind: GroupKind::Attention,
    };
    fed.tell(vec![
        event(stored(None, &[10], tokens(0..15), 16)),
        event(stored(None, &[10], tokens(0..24), 24)),
        event(stored(None, &[10, 11], tokens(0..16), 16)),
        event(stored(None, &[10], Vec::new(), 0)),
        event(Stored {
            extra: vec![Vec::new(); 2],
            ..stored(None, &[10], tokens(0..16), 16)
        }),
        event(Stored {
            group: group(MAX_GROUPS),
            ..stored(None, &[10], tokens(0..16), 16)
        }),
    ]);
    assert_eq!((fed.source.refused().malformed, fed.index.blocks()), (7, 0));
    fed.tell(vec![
        event(stored(None, &[10], tokens(0..16), 16)),
        event(stored(None, &[10], tokens(50..66), 16)),
        event(stored(None, &[11], tokens(0..32), 32)),
    ]);
    let refused = fed.source.refused();
    assert_eq!(
        (refused.conflicting, refused.malformed),
        (1, 8),
        "a group's block size does not change"
    );
    assert_eq!(fed.index.blocks(), 1);
}

#[test]
fn an_engine_with_more_names_than_the_budget_is_forgotten() {
    let mut fed = Fed::new();
    fed.source = EngineSource::new(Place::of(0), Bytes(100_000));
    for name in 0..10_000u64 {
        let first = name as u32 * 16;
        fed.tell(vec![event(stored(None, &[name], tokens(first..first + 16), 16))]);
        assert!(fed.source.used() <= Bytes(100_000));
    }
    assert!(fed.source.refused().overflows > 0);
    assert!(!fed.source.is_complete());
}

#[test]
fn blocks_in_a_circle_of_parents_are_never_indexed() {
    let mut fed = Fed::new();
    fed.tell(vec![
        event(stored(Some(22), &[20], tokens(0..16), 16)),
        event(stored(Some(20), &[21], tokens(0..16), 16)),
        event(stored(Some(21), &[22], tokens(0..16), 16)),
        event(stored(Some(31), &[30, 31], tokens(0..32), 16)),
    ]);
    assert_eq!(fed.index.blocks(), 0);
    // What the circle waits for comes from elsewhere: then its blocks are a prompt like any other.
    fed.tell(vec![event(stored(None, &[22], tokens(0..16), 16))]);
    assert_eq!(fed.index.blocks(), 3);
    assert_eq!(
        fed.source.refused().malformed,
        2,
        "the one within itself is refused"
    );
}

#[test]
fn removals_again_and_of_what_nobody_stored_change_nothing() {
    let mut fed = Fed::new();
    fed.tell(vec![event(stored(None, &[10, 11], tokens(0..32), 16))]);
    fed.tell(vec![
        removed(&[99]),
        removed(&[11]),
        removed(&[11]),
        removed(&[11, 98]),
    ]);
    assert_eq!(fed.held(&tokens(0..32)), 1);
    assert_eq!(fed.source.refused().unknown_removals, 4);
    fed.tell(vec![event(stored(Some(10), &[11], tokens(16..32), 16))]);
    assert_eq!(fed.held(&tokens(0..32)), 2, "earlier removals are not owed");
}

#[test]
fn a_replay_of_everything_changes_nothing() {
    let mut fed = Fed::new();
    let batches = [
        vec![event(stored(None, &[10, 11], tokens(0..32), 16))],
        vec![removed(&[11])],
        vec![event(stored(Some(10), &[12], tokens(16..32), 16))],
        vec![removed(&[12]), event(stored(Some(10), &[13], tokens(50..66), 16))],
    ];
    for _ in 0..3 {
        for (sequence, events) in batches.iter().enumerate() {
            fed.tell_as(5, sequence as u64, events.clone());
        }
    }
    assert_eq!((fed.index.blocks(), fed.held(&tokens(0..32))), (2, 1));
    assert_eq!((fed.source.refused().stale, fed.source.refused().resets), (8, 0));
}

#[test]
fn blocks_copied_to_another_tier_by_name_alone_are_held_there() {
    let mut fed = Fed::new();
    let copy = |names: &[u64]| {
        event(Stored {
            tier: Tier::Host,
            ..stored(None, names, Vec::new(), 0)
        })
    };
    fed.tell(vec![
        event(stored(None, &[10, 11], tokens(0..64), 32)),
        copy(&[11, 10, 99]),
        removed(&[10, 11]),
    ]);
    assert_eq!(fed.held(&tokens(0..64)), 4, "in the host's memory");
    assert_eq!(fed.source.refused().malformed, 1, "nobody knows 99's tokens");
    fed.tell(vec![CacheEvent::Removed(Removed {
        hashes: vec![EngineHash(11)],
        group: None,
        tier: Tier::Host,
    })]);
    assert_eq!(fed.held(&tokens(0..64)), 2);
}

#[test]
fn removals_told_one_by_one_are_one_change() {
    let mut source = EngineSource::new(Place::of(0), ROOM);
    let mut batch = Batch {
        incarnation: 1,
        sequence: 0,
        events: vec![event(stored(None, &[10, 11, 12, 13], tokens(0..64), 16))],
    };
    source.apply(&batch, &salts, &mut |_| {});
    let elsewhere = CacheEvent::Removed(Removed {
        hashes: vec![EngineHash(10)],
        group: None,
        tier: Tier::Host,
    });
    batch.sequence = 1;
    batch.events = vec![
        removed(&[13]),
        removed(&[12]),
        elsewhere,
        removed(&[11]),
        CacheEvent::Cleared,
    ];
    let mut told = Vec::new();
    source.apply(&batch, &salts, &mut |change| {
        told.push(match change {
            Change::Removed { blocks, .. } => blocks.len(),
            Change::Cleared(_) => 0,
            Change::Stored { .. } => panic!("nothing was stored"),
        });
    });
    assert_eq!(told, [2, 1, 0]);
    assert_eq!(source.refused().unknown_removals, 1);
}
