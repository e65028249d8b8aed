//! Numbers: gaps, replays, repeats, restarts, and frames.

use super::*;

/// The captured answer to a replay: its frames.
fn replay_frames() -> Vec<Vec<Vec<u8>>> {
    let frames = |line: Value| line.as_array().unwrap().iter().map(bytes_of).collect();
    lines("life.replay.jsonl").into_iter().map(frames).collect()
}

fn borrowed(frames: &[Vec<u8>]) -> Vec<&[u8]> {
    frames.iter().map(Vec::as_slice).collect()
}

#[test]
fn a_feed_that_begins_late_is_complete_after_the_replay() {
    let (mut fed, mut only_live) = (Fed::new(), Fed::new());
    let messages = captured("life.jsonl");
    assert_eq!(fed.live(messages[0].live()), Ok(Wanted::Replay { from: 0 }));
    assert!(!fed.feed.is_complete());
    // The stream goes on while the replay comes; what both bring counts once.
    assert_eq!(fed.live(messages[1].live()), Ok(Wanted::Nothing));
    let (mut batches, mut ended) = (0, false);
    for frames in replay_frames() {
        match replay(&borrowed(&frames)).unwrap() {
            Replayed::Batch(past) => {
                batches += 1;
                fed.replayed(past);
            }
            Replayed::End => ended = true,
        }
    }
    assert!(ended && batches == 17);
    fed.replay_ended();
    assert!(fed.feed.is_complete());
    assert_eq!(fed.feed.refused().resets, 0);
    for message in &messages {
        only_live.live(message.live()).unwrap();
    }
    only_live.replay_ended();
    assert_eq!(fed.index.blocks(), only_live.index.blocks());
}

#[test]
fn a_gap_is_filled_by_a_replay_or_forgets() {
    let messages = captured("smoke.jsonl");
    for filled in [true, false] {
        let mut fed = Fed::new();
        fed.live(messages[0].live()).unwrap();
        fed.live(messages[1].live()).unwrap();
        let before = fed.index.blocks();
        assert_eq!(fed.live(messages[3].live()), Ok(Wanted::Replay { from: 2 }));
        assert_eq!(fed.index.blocks(), before, "it waits");
        if filled {
            fed.replayed(messages[2].live());
        }
        fed.replay_ended();
        assert_eq!(fed.feed.is_complete(), filled);
        assert_eq!(fed.feed.refused().resets, u64::from(!filled));
        assert_eq!(fed.live(messages[4].live()), Ok(Wanted::Nothing));
    }
}

#[test]
fn a_message_again_does_nothing_and_a_number_back_is_a_restart() {
    let messages = captured("smoke.jsonl");
    let mut fed = Fed::new();
    for message in &messages[..3] {
        fed.live(message.live()).unwrap();
    }
    let before = fed.index.blocks();
    assert_eq!(fed.live(messages[2].live()), Ok(Wanted::Nothing));
    assert_eq!((fed.index.blocks(), fed.feed.refused().resets), (before, 0));
    // Another process says something else under number 0.
    let restarted = Live {
        sequence: 0,
        payload: &messages[3].payload,
    };
    assert_eq!(fed.live(restarted), Ok(Wanted::Nothing));
    assert_eq!(fed.feed.refused().resets, 1);
    assert_eq!(
        fed.index.blocks(),
        8,
        "four blocks of 32 tokens, and nothing from before"
    );
    assert!(fed.feed.is_complete());
    fed.feed.restarted();
    let later = Live {
        sequence: 1,
        payload: &messages[4].payload,
    };
    assert_eq!(
        fed.live(later),
        Ok(Wanted::Replay { from: 0 }),
        "the owner saw another restart"
    );
}

#[test]
fn without_an_answer_to_a_replay_waiting_ends() {
    let mut fed = Fed::new();
    let payload = |n: u32| {
        let mut out = vec![0x93, 0xcb];
        out.extend(f64::from(n).to_be_bytes());
        out.extend([0x90, 0xc0]);
        out
    };
    for n in 1..=1024 {
        let live = Live {
            sequence: n,
            payload: &payload(n as u32),
        };
        let expected = if n == 1 {
            Wanted::Replay { from: 0 }
        } else {
            Wanted::Nothing
        };
        assert_eq!(fed.live(live), Ok(expected));
    }
    let last = Live {
        sequence: 1025,
        payload: &payload(1025),
    };
    assert_eq!(fed.live(last), Ok(Wanted::Nothing));
    let next = Live {
        sequence: 1026,
        payload: &payload(1026),
    };
    assert_eq!(fed.live(next), Ok(Wanted::Nothing), "it follows what waited");
    assert!(!fed.feed.is_complete());
}

#[test]
fn another_ranks_events_and_unreadable_ones_are_refused() {
    let messages = captured("smoke.jsonl");
    let mut feed = EventFeed::new(3, Bytes(1 << 20));
    let refused = feed.live(messages[0].live(), &salts, &mut |_| panic!("nothing is told"));
    assert_eq!(refused, Err(FeedError::Rank { expected: 3, got: 0 }));
    let mut only = EventFeed::new(3, Bytes(1 << 20)).by_any_name();
    let mut told = 0;
    assert_eq!(
        only.live(messages[0].live(), &salts, &mut |_| told += 1),
        Ok(Wanted::Nothing),
        "one of several that each have a server of their own"
    );
    assert!(told > 0);
    let mut fed = Fed::new();
    let cut = Live {
        sequence: 0,
        payload: &messages[0].payload[..50],
    };
    assert_eq!(fed.live(cut), Err(FeedError::Event(EventError::Cut)));
    assert_eq!(
        fed.live(messages[1].live()),
        Ok(Wanted::Replay { from: 0 }),
        "its number stays missing"
    );
}

#[test]
fn frames_of_both_releases_are_read() {
    let number = 7u64.to_be_bytes();
    let end = u64::MAX.to_be_bytes();
    let batch = Live {
        sequence: 7,
        payload: b"p",
    };
    assert_eq!(live(&[b"topic", &number, b"p"]), Ok(batch));
    assert_eq!(
        replay(&[b"", b"topic", &number, b"p"]),
        Ok(Replayed::Batch(batch))
    );
    assert_eq!(replay(&[b"", &number, b"p"]), Ok(Replayed::Batch(batch)));
    assert_eq!(replay(&[b"", b"", &end, b""]), Ok(Replayed::End));
    assert_eq!(replay(&[b"", &end, b""]), Ok(Replayed::End));
    let others: [Vec<&[u8]>; 4] = [
        vec![],
        vec![b"a"],
        vec![b"t", b"short", b"p"],
        vec![b"t", b"a", b"b", b"c"],
    ];
    for frames in others {
        assert_eq!(live(&frames), Err(FrameError { frames: frames.len() }));
        assert!(replay(&frames).is_err());
    }
}
