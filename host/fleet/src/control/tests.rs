//! The embedded stream: the suite, crashes, damage.

use super::held::{Bounds, Held, ORDERS_MAX};
use super::suite::{self, beat, model, next, order, until};
use super::*;
use portolan_base::{Random, Sequence};
use portolan_ports::{
    ControlEntry, ControlError, ControlEvent, ControlFault, ControlStream, Cursor, Invalidation,
    MemoryControl,
};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
struct Counting(AtomicU64);

impl Random for Counting {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

fn open(folder: &Path, random: &Counting) -> EmbeddedControl {
    EmbeddedControl::open(folder, random).unwrap()
}

#[tokio::test]
async fn the_embedded_stream_and_its_fake_hold_the_suite() {
    let (folder, random) = (tempfile::tempdir().unwrap(), Counting::default());
    let mut streams = 0;
    suite::holds(async || {
        streams += 1;
        Arc::new(open(&folder.path().join(format!("{streams}")), &random)) as Arc<dyn ControlStream>
    })
    .await;
    suite::holds(async || Arc::new(MemoryControl::new()) as Arc<dyn ControlStream>).await;
}

/// What a process that is killed now leaves behind: the file as it is.
fn killed(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(folder.join("control.log"), copy.path().join("control.log")).unwrap();
    copy
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill_and_no_position_is_given_twice() {
    let (mut folder, random) = (tempfile::tempdir().unwrap(), Counting::default());
    let (mut given, mut id) = (Vec::new(), None);
    for round in 0..5 {
        let stream = open(folder.path(), &random);
        let mut entries = stream.follow(None).await.unwrap();
        assert_eq!(
            id.get_or_insert_with(|| entries.stream().clone()),
            entries.stream()
        );
        for n in 0..round {
            assert_eq!(next(&mut entries).await.event, order(n), "round {round}");
        }
        for n in 0..10 {
            given.push(stream.append(beat("paris", n)).await.unwrap());
        }
        given.push(stream.append(order(round)).await.unwrap());
        given.push(stream.append(beat("paris", 10)).await.unwrap());
        folder = killed(folder.path());
    }
    assert!(given.is_sorted_by(|a, b| a < b), "{given:?}");
}

#[tokio::test]
async fn a_torn_end_is_cut_off_wherever_it_tore() {
    let (folder, random) = (tempfile::tempdir().unwrap(), Counting::default());
    let stream = open(folder.path(), &random);
    let first = stream.append(order(1)).await.unwrap();
    let whole = std::fs::metadata(folder.path().join("control.log"))
        .unwrap()
        .len();
    stream.append(order(2)).await.unwrap();
    drop(stream);
    let bytes = std::fs::read(folder.path().join("control.log")).unwrap();
    for end in whole as usize..bytes.len() {
        let torn = tempfile::tempdir().unwrap();
        std::fs::write(torn.path().join("control.log"), &bytes[..end]).unwrap();
        let stream = open(torn.path(), &random);
        let third = stream.append(order(3)).await.unwrap();
        assert!(third > first);
        drop(stream);
        let stream = open(torn.path(), &random);
        let met = until(&mut stream.follow(None).await.unwrap(), &order(3)).await;
        let events: Vec<_> = met.into_iter().map(|entry| entry.event).collect();
        assert_eq!(events, [order(1), order(3)], "torn at {end}");
    }
}

#[tokio::test]
async fn a_file_damaged_before_its_end_becomes_another_stream() {
    let (folder, random) = (tempfile::tempdir().unwrap(), Counting::default());
    let stream = open(folder.path(), &random);
    for n in 0..3 {
        stream.append(order(n)).await.unwrap();
    }
    let id = stream.follow(None).await.unwrap().stream().clone();
    drop(stream);
    let bytes = std::fs::read(folder.path().join("control.log")).unwrap();
    for at in (0..bytes.len() - 300).step_by(7) {
        let damaged = tempfile::tempdir().unwrap();
        let mut bytes = bytes.clone();
        bytes[at] ^= 4;
        std::fs::write(damaged.path().join("control.log"), &bytes).unwrap();
        let stream = open(damaged.path(), &random);
        let cursor = Cursor {
            stream: id.clone(),
            sequence: Sequence(1),
        };
        let refused = stream.follow(Some(&cursor)).await.err().expect("another stream");
        assert!(matches!(refused, ControlError::Lost { .. }), "{refused}");
        assert!(damaged.path().join("control.damaged").exists());
    }
}

#[test]
fn old_orders_are_dropped_and_each_models_latest_is_kept() {
    let entry = |n: u64, event| ControlEntry {
        sequence: Sequence(n),
        event,
    };
    let mut held = Held::default();
    held.push(entry(1, model("a")));
    held.push(entry(2, model("a")));
    held.push(entry(3, model("b")));
    for n in 4..ORDERS_MAX as u64 + 10 {
        held.push(entry(n, order(n)));
    }
    assert_eq!(held.dropped(), Sequence(9));
    assert_eq!(held.after(Sequence::NONE), Some(&entry(2, model("a"))));
    assert_eq!(held.after(Sequence(2)), Some(&entry(3, model("b"))));
    assert_eq!(held.after(Sequence(3)), Some(&entry(10, order(10))));
    assert!(held.check(Sequence(8), Sequence(99)).is_err());
    assert!(held.check(Sequence(9), Sequence(99)).is_ok());
    assert!(held.check(Sequence(100), Sequence(99)).is_err());
}

/// An order with a reason of so many bytes.
fn long(n: u64, bytes: usize) -> ControlEvent {
    let ControlEvent::Invalidation(order) = order(n) else {
        unreachable!("orders are invalidations")
    };
    ControlEvent::Invalidation(Invalidation {
        reason: "x".repeat(bytes),
        ..order
    })
}

#[test]
fn long_orders_are_dropped_before_many_short_ones_would_be() {
    let bounds = Bounds {
        orders: 20_000,
        slack: 1000,
    };
    let mut held = Held::new(bounds, Vec::new(), Sequence::NONE);
    let entry = |n: u64, event| ControlEntry {
        sequence: Sequence(n),
        event,
    };
    held.push(entry(1, model("a")));
    for n in 2..102 {
        held.push(entry(n, long(n, 1000)));
    }
    let kept = held.orders().count();
    assert!(
        (15..20).contains(&kept),
        "{kept} of 100 orders of more than 1,000 bytes"
    );
    assert_eq!(
        held.orders().next(),
        Some(&entry(1, model("a"))),
        "the model's latest"
    );
    assert!(held.check(Sequence(101 - kept as u64), Sequence(101)).is_err());
    assert!(held.check(held.dropped(), Sequence(101)).is_ok());
    assert!(held.file_bytes_max() < 2 * 20_000 + 1000 + 1000);
}

#[tokio::test]
async fn a_file_of_long_orders_stays_short_and_beats_do_not_write_it_anew() {
    let (folder, random) = (tempfile::tempdir().unwrap(), Counting::default());
    let bounds = Bounds {
        orders: 20_000,
        slack: 5000,
    };
    let stream = EmbeddedControl::open_within(bounds, folder.path(), &random).unwrap();
    let file = || std::fs::metadata(folder.path().join("control.log")).unwrap();
    let mut written_anew = 0;
    for n in 0..200 {
        let before = file().ino();
        stream.append(long(n, 1000)).await.unwrap();
        // Whatever is done after an order is over when a second one is acknowledged.
        stream.append(beat("paris", n)).await.unwrap();
        written_anew += u64::from(file().ino() != before);
        assert!(file().len() < 2 * 20_000 + 5000 + 2000, "{} bytes", file().len());
    }
    assert!((4..20).contains(&written_anew), "{written_anew} times");
    let before = (file().ino(), file().len());
    for n in 200..400 {
        stream.append(beat("paris", n)).await.unwrap();
    }
    assert_eq!((file().ino(), file().len()), before, "beats are not written");
    drop(stream);
    let stream = EmbeddedControl::open_within(bounds, folder.path(), &random).unwrap();
    let kept = until(&mut stream.follow(None).await.unwrap(), &long(199, 1000)).await;
    assert!((15..20).contains(&kept.len()), "{} orders", kept.len());
}

#[tokio::test]
async fn the_fakes_faults_are_what_they_say() {
    let stream = MemoryControl::new();
    let mut entries = stream.follow(None).await.unwrap();
    stream.set_fault(Some(ControlFault::NoQuorum));
    assert!(stream.append(order(1)).await.is_err());
    stream.set_fault(Some(ControlFault::LostAcknowledgements));
    assert!(stream.append(order(2)).await.is_err());
    stream.set_fault(Some(ControlFault::Doubles));
    let (first, second) = (next(&mut entries).await, next(&mut entries).await);
    assert_eq!((&first.event, &first), (&order(2), &second));
    stream.set_fault(Some(ControlFault::Cut));
    assert!(matches!(entries.next().await, Err(ControlError::Cut(_))));
    stream.set_fault(None);
    stream.append(order(3)).await.unwrap();
    stream.drop_up_to(Sequence(2));
    let cursor = |sequence| Cursor {
        stream: entries.stream().clone(),
        sequence: Sequence(sequence),
    };
    assert!(matches!(
        stream.follow(Some(&cursor(1))).await,
        Err(ControlError::Lost { .. })
    ));
    assert!(stream.follow(Some(&cursor(2))).await.is_ok());
    stream.found_anew();
    assert!(matches!(
        stream.follow(Some(&cursor(2))).await,
        Err(ControlError::Lost { .. })
    ));
}
