//! Fingerprints, messages, and a writer and reader with a bad line between them.

use super::*;
use portolan_base::Moment;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn key() -> SummaryKey {
    SummaryKey::derive(&[3; 32], "eu")
}

fn blocks(range: std::ops::Range<u64>) -> Vec<BlockHash> {
    range
        .map(|n| BlockHash(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
        .collect()
}

fn hashes(range: std::ops::Range<u64>) -> Vec<KeyedHash> {
    blocks(range).into_iter().map(|block| key().hash(block)).collect()
}

#[test]
fn a_snapshot_takes_under_2_3_bytes_a_block_and_is_wrong_under_one_in_200() {
    for held in [1_000u64, 100_000] {
        let mut writer = SummaryWriter::new(key(), 1);
        let bytes = writer.snapshot(blocks(0..held)).encode();
        let per_block = bytes.len() as f64 / held as f64;
        assert!(per_block <= 2.3, "{per_block} bytes a block for {held}");
        let Body::Snapshot(found) = SummaryMessage::decode(&bytes).unwrap().body else {
            panic!("a snapshot");
        };
        assert!(
            hashes(0..held).into_iter().all(|hash| found.contains(hash)),
            "what is held is found"
        );
        let false_hits = hashes(held..held + 200_000)
            .into_iter()
            .filter(|hash| found.contains(*hash))
            .count();
        // 2⁻¹⁶ of 200,000 is 3; the promise is 1,000.
        assert!(false_hits < 30, "{false_hits} false hits of 200,000 for {held}");
    }
}

#[test]
fn a_hundred_changes_take_at_most_9_bytes_each() {
    let mut writer = SummaryWriter::new(key(), 1);
    writer.note(blocks(0..60), true);
    writer.note(blocks(60..100), false);
    assert!(writer.changes().encode().len() <= 900);
}

#[test]
fn keys_of_receivers_and_fleets_do_not_meet() {
    let keys = [
        key(),
        SummaryKey::derive(&[3; 32], "us"),
        SummaryKey::derive(&[4; 32], "eu"),
    ];
    let names: BTreeSet<_> = keys.iter().map(|key| key.hash(BlockHash(5))).collect();
    assert_eq!(names.len(), 3);
    let mut reader = SummaryReader::new(keys[1]);
    let told = SummaryWriter::new(keys[0], 1).snapshot(blocks(0..10));
    assert_eq!(reader.hear(told, Moment(0)), Heard::OtherKey);
    assert_eq!(format!("{:?}", keys[0]), "SummaryKey(..)");
}

#[test]
fn a_reader_follows_and_believes_no_longer_than_the_lease() {
    let (mut writer, mut reader) = (SummaryWriter::new(key(), 1), SummaryReader::new(key()));
    let chain = blocks(0..100);
    assert_eq!(
        reader.hear(writer.snapshot(chain[..40].to_vec()), Moment(0)),
        Heard::Applied
    );
    assert_eq!(reader.prefix(&chain, Moment(1)), 40);
    writer.note(chain[40..50].iter().copied(), true);
    assert_eq!(reader.hear(writer.changes(), Moment(1_000_000)), Heard::Applied);
    assert_eq!(reader.prefix(&chain, Moment(2_999_999)), 50);
    assert_eq!(reader.prefix(&chain, Moment(3_000_000)), 0, "the lease is over");
    writer.note(chain[30..50].iter().copied(), false);
    assert_eq!(reader.hear(writer.changes(), Moment(4_000_000)), Heard::Applied);
    assert_eq!(
        reader.prefix(&chain, Moment(4_000_000)),
        30,
        "renewed: nothing was missed"
    );
    assert_eq!(reader.prefix(&[], Moment(4_000_000)), 0);
    assert!(reader.bytes() < 4_000, "{}", reader.bytes());
}

#[test]
fn a_gap_costs_one_snapshot_and_a_restart_another() {
    let (mut writer, mut reader) = (SummaryWriter::new(key(), 1), SummaryReader::new(key()));
    let chain = blocks(0..20);
    let now = Moment(5);
    assert_eq!(
        reader.hear(writer.changes(), now),
        Heard::WantsSnapshot,
        "changes of nothing known"
    );
    reader.hear(writer.snapshot(chain[..10].to_vec()), now);
    drop(writer.changes());
    writer.note(chain[10..12].iter().copied(), true);
    let late = writer.changes();
    assert_eq!(reader.hear(late.clone(), now), Heard::WantsSnapshot);
    assert_eq!(
        reader.prefix(&chain, now),
        0,
        "what was missed may have been a removal"
    );
    assert_eq!(reader.hear(writer.changes(), now), Heard::WantsSnapshot);
    assert_eq!(
        reader.hear(writer.snapshot(chain[..12].to_vec()), now),
        Heard::Applied
    );
    assert_eq!(reader.hear(late, now), Heard::Ignored);
    assert_eq!(reader.prefix(&chain, now), 12);
    let mut restarted = SummaryWriter::new(key(), 2);
    assert!(restarted.wants_snapshot());
    assert_eq!(reader.hear(restarted.snapshot(Vec::new()), now), Heard::Applied);
    assert_eq!(reader.prefix(&chain, now), 0);
    assert_eq!(
        reader.hear(writer.changes(), now),
        Heard::Ignored,
        "of an incarnation that has ended"
    );
    assert!(!restarted.wants_snapshot());
    restarted.note(blocks(0..5_000), true);
    assert!(restarted.wants_snapshot());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn messages_come_back_as_they_were(
        held in prop::collection::btree_set(any::<u64>(), 0..300),
        removed in prop::collection::vec(any::<u64>(), 0..50),
        sequence in any::<u64>(),
    ) {
        let held: Vec<_> = held.into_iter().map(KeyedHash).collect();
        let removed = removed.into_iter().map(KeyedHash).collect();
        for body in [Body::Snapshot(Fingerprints::new(held.clone())), Body::Changes { added: held.clone(), removed }] {
            let told = SummaryMessage { mark: 1, incarnation: 2, sequence, lease: LEASE, body };
            prop_assert_eq!(SummaryMessage::decode(&told.encode()), Ok(told.clone()));
        }
        let found = Fingerprints::new(held.clone());
        prop_assert!(held.iter().all(|hash| found.contains(*hash)));
    }

    #[test]
    fn hostile_bytes_are_refused_or_harmless(
        mut bytes in prop::collection::vec(any::<u8>(), 0..400),
        kind in 1u8..3,
        count in 0u32..80,
        whole in any::<bool>(),
    ) {
        if whole && bytes.len() >= 40 {
            bytes[..4].copy_from_slice(&[b'P', b'S', 1, kind]);
            bytes[32..36].copy_from_slice(&count.to_le_bytes());
        }
        if let Ok(told) = SummaryMessage::decode(&bytes) {
            prop_assert!(told.lease <= LONGEST_LEASE);
            if let Body::Snapshot(found) = told.body {
                hashes(0..50).into_iter().for_each(|hash| { found.contains(hash); });
            }
        }
    }

    #[test]
    fn a_flipped_or_cut_message_never_panics(at in 0usize..2_000, bit in 0u8..8, cut in 0usize..2_000) {
        let mut bytes = SummaryWriter::new(key(), 1).snapshot(blocks(0..500)).encode();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        if let Ok(SummaryMessage { body: Body::Snapshot(found), .. }) = SummaryMessage::decode(&bytes) {
            hashes(0..100).into_iter().for_each(|hash| { found.contains(hash); });
        }
        bytes.truncate(cut % bytes.len());
        prop_assert!(SummaryMessage::decode(&bytes).is_err());
    }
}

#[test]
fn a_claim_of_too_many_blocks_is_refused_before_anything_is_allocated() {
    let mut bytes = SummaryWriter::new(key(), 1).changes().encode();
    bytes[32..36].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(
        SummaryMessage::decode(&bytes),
        Err(SummaryError::TooLarge(u32::MAX))
    );
    bytes[3] = 1;
    assert_eq!(
        SummaryMessage::decode(&bytes),
        Err(SummaryError::TooLarge(u32::MAX))
    );
    bytes[2] = 2;
    assert_eq!(SummaryMessage::decode(&bytes), Err(SummaryError::Format));
}
