//! What every control stream has to do, whatever it is made of. Each check gets a stream of its own, which nobody else
//! uses.

use portolan_base::{Dependency, ModelName, Moment, Sequence, SiteName};
use portolan_ports::{
    Beat, ControlEntries, ControlEntry, ControlEvent, ControlStream, Cursor, Invalidated, Invalidation,
    Running,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Far above what any stream needs, so that a test ends that would hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// An order that can be told from others.
pub(crate) fn order(n: u64) -> ControlEvent {
    ControlEvent::Invalidation(Invalidation {
        id: format!("inv-{n}"),
        what: Invalidated::Dependency {
            by: Dependency {
                kind: "document".to_owned(),
                name: format!("d{n}"),
                version: "2".to_owned(),
            },
            of: None,
        },
        from: SiteName::new("here").unwrap(),
        actor: "operator".to_owned(),
        reason: String::new(),
        sent_at: Moment(n),
        running: Running::Finish,
    })
}

/// An order about a model.
pub(crate) fn model(name: &str) -> ControlEvent {
    let ControlEvent::Invalidation(order) = order(0) else {
        unreachable!("orders are invalidations")
    };
    let model = ModelName::new(name).unwrap();
    ControlEvent::Invalidation(Invalidation {
        what: Invalidated::Model { model },
        ..order
    })
}

/// A site's beat.
pub(crate) fn beat(site: &str, number: u64) -> ControlEvent {
    ControlEvent::Beat(Beat {
        site: SiteName::new(site).unwrap(),
        incarnation: 1,
        number,
    })
}

/// The next entry, or a failed test.
pub(crate) async fn next(entries: &mut Box<dyn ControlEntries>) -> ControlEntry {
    tokio::time::timeout(PATIENCE, entries.next())
        .await
        .expect("an entry comes")
        .unwrap()
}

/// Follows until an event comes.
pub(crate) async fn until(entries: &mut Box<dyn ControlEntries>, event: &ControlEvent) -> Vec<ControlEntry> {
    let mut met = Vec::new();
    loop {
        met.push(next(entries).await);
        if met.last().unwrap().event == *event {
            return met;
        }
    }
}

/// Order, from the beginning and from anywhere.
pub(crate) async fn entries_come_in_order_without_gaps(stream: Arc<dyn ControlStream>) {
    let mut early = stream.follow(None).await.unwrap();
    let mut given = Vec::new();
    for n in 0..50 {
        given.push(stream.append(order(n)).await.unwrap());
    }
    assert!(given.is_sorted() && given[0] > Sequence::NONE, "{given:?}");
    let met = until(&mut early, &order(49)).await;
    let sequences: Vec<_> = met.iter().map(|entry| entry.sequence).collect();
    assert_eq!(sequences, given);
    let cursor = Cursor {
        stream: early.stream().clone(),
        sequence: given[19],
    };
    let mut late = stream.follow(Some(&cursor)).await.unwrap();
    assert_eq!(next(&mut late).await, met[20]);
}

/// An acknowledged order lies before every beat that is asked for afterwards, for whoever follows.
pub(crate) async fn a_beat_proves_what_was_acknowledged(stream: Arc<dyn ControlStream>) {
    let mut entries = stream.follow(None).await.unwrap();
    for n in 0..20 {
        let acknowledged = stream.append(order(n)).await.unwrap();
        let proof = stream.append(beat("paris", n)).await.unwrap();
        assert!(proof > acknowledged);
        let met = until(&mut entries, &beat("paris", n)).await;
        assert!(met.iter().any(|entry| entry.event == order(n)));
        assert_eq!(met.last().unwrap().sequence, proof);
    }
}

/// Whoever follows slowly misses nothing.
pub(crate) async fn a_slow_follower_misses_nothing(stream: Arc<dyn ControlStream>) {
    let mut slow = stream.follow(None).await.unwrap();
    let mut writers = JoinSet::new();
    for writer in 0..8 {
        let stream = Arc::clone(&stream);
        writers.spawn(async move {
            for n in 0..100 {
                stream.append(order(writer * 1000 + n)).await.unwrap();
            }
        });
    }
    writers.join_all().await;
    stream.append(order(9999)).await.unwrap();
    let met = until(&mut slow, &order(9999)).await;
    let sequences: Vec<_> = met.iter().map(|entry| entry.sequence).collect();
    assert!(
        sequences.is_sorted_by(|a, b| a < b),
        "each comes once and in order"
    );
    assert_eq!(met.len(), 801);
}

/// A cursor of another stream, or one that is ahead, is refused.
pub(crate) async fn a_cursor_of_another_stream_is_lost(stream: Arc<dyn ControlStream>) {
    let at = stream.append(order(1)).await.unwrap();
    let id = stream.follow(None).await.unwrap().stream().clone();
    let other = Cursor {
        stream: portolan_ports::StreamId(format!("not-{}", id.0)),
        sequence: at,
    };
    assert!(stream.follow(Some(&other)).await.is_err());
    let ahead = Cursor {
        stream: id,
        sequence: Sequence(u64::MAX / 2),
    };
    assert!(stream.follow(Some(&ahead)).await.is_err());
}

/// Waiting for an entry may be given up.
pub(crate) async fn an_entry_is_not_lost_when_nobody_waits(stream: Arc<dyn ControlStream>) {
    let mut entries = stream.follow(None).await.unwrap();
    let given_up = tokio::time::timeout(Duration::from_millis(20), entries.next()).await;
    assert!(given_up.is_err());
    stream.append(order(1)).await.unwrap();
    assert_eq!(next(&mut entries).await.event, order(1));
}

/// What is here is taken without waiting, in the same order as what is waited for.
pub(crate) async fn entries_that_are_here_are_taken_without_waiting(stream: Arc<dyn ControlStream>) {
    let mut entries = stream.follow(None).await.unwrap();
    assert!(entries.next_ready().is_none(), "nothing is here");
    let mut given = Vec::new();
    for n in 0..50 {
        given.push(stream.append(order(n)).await.unwrap());
    }
    let mut met = Vec::new();
    let mut waits = 0;
    while met.len() < given.len() {
        met.push(next(&mut entries).await.sequence);
        waits += 1;
        met.extend(std::iter::from_fn(|| entries.next_ready()).map(|entry| entry.sequence));
    }
    assert_eq!(met, given);
    assert!(waits < given.len(), "all {waits} were waited for");
    assert!(entries.next_ready().is_none(), "each comes once");
}

/// All checks, each on a stream that `fresh` makes.
pub(crate) async fn holds(mut fresh: impl AsyncFnMut() -> Arc<dyn ControlStream>) {
    entries_come_in_order_without_gaps(fresh().await).await;
    a_beat_proves_what_was_acknowledged(fresh().await).await;
    a_slow_follower_misses_nothing(fresh().await).await;
    a_cursor_of_another_stream_is_lost(fresh().await).await;
    an_entry_is_not_lost_when_nobody_waits(fresh().await).await;
    entries_that_are_here_are_taken_without_waiting(fresh().await).await;
}
