//! What a network, a bug or an enemy makes of a message is refused or read, and never panics.

use super::*;
use proptest::prelude::*;

fn every_payload() -> Vec<Vec<u8>> {
    let files = ["smoke.jsonl", "life.jsonl", "hybrid.jsonl"];
    let payloads = files.into_iter().flat_map(captured);
    payloads.map(|message| message.payload).collect()
}

#[test]
fn a_message_cut_anywhere_is_refused() {
    for payload in every_payload() {
        for length in 0..payload.len() {
            assert!(
                decode(&payload[..length]).is_err(),
                "{length} of {}",
                payload.len()
            );
        }
        let longer = [payload.as_slice(), &[0xc0]].concat();
        assert_eq!(decode(&longer), Err(EventError::Trailing));
    }
}

#[test]
fn a_message_with_any_bit_flipped_does_no_harm() {
    let mut fed = Fed::new();
    for payload in every_payload() {
        // All bits of what is not token ids, which make up most of the long ones.
        let step = if payload.len() > 1_000 { 13 } else { 1 };
        for bit in (0..payload.len() * 8).step_by(step) {
            let mut damaged = payload.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            if decode(&damaged).is_ok() {
                let live = Live {
                    sequence: bit as u64,
                    payload: &damaged,
                };
                let _ = fed.live(live);
                fed.replay_ended();
            }
        }
    }
}

#[test]
fn claims_that_the_bytes_do_not_pay_for_are_refused() {
    // A batch of four billion events; an array of as many hashes; arrays within arrays.
    let timestamp = [0xcb, 0, 0, 0, 0, 0, 0, 0, 0];
    let batch = |events: &[u8]| [&[0x92][..], &timestamp, events].concat();
    assert_eq!(
        decode(&batch(&[0xdd, 0xff, 0xff, 0xff, 0xff])),
        Err(EventError::Cut)
    );
    let hashes = [
        &[0x91, 0x92, 0xac][..],
        b"BlockRemoved",
        &[0xdd, 0xff, 0xff, 0xff, 0xff],
    ]
    .concat();
    assert_eq!(decode(&batch(&hashes)), Err(EventError::Cut));
    let deep = batch(&[0x91; 10_000]);
    assert_eq!(decode(&deep), Err(EventError::TooDeep));
    assert_eq!(decode(&batch(&[0x91, 0xc1])), Err(EventError::Damaged));
    assert_eq!(decode(b""), Err(EventError::Cut));
    assert_eq!(decode(&[0x80]), Err(EventError::NoBatch));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        drop(decode(&bytes));
        let framed = [&[0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91][..], &bytes].concat();
        drop(decode(&framed));
    }
}
