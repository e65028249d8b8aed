//! Which chunk goes out on which lane, and what becomes of it.

use super::*;
use portolan_base::ModelName;
use portolan_base::kv::{KvDtype, KvLayout, LayerKv, PieceId};
use std::time::Duration;

const A: TransferId = TransferId(1);
const B: TransferId = TransferId(2);

fn session() -> Arc<Session> {
    let timing = Timing {
        stall: Duration::from_secs(1),
    };
    Arc::new(Session::new(
        SiteName::new("asker").unwrap(),
        1,
        16,
        timing,
        Arc::default(),
    ))
}

fn transfer(session: &Arc<Session>, id: TransferId, priority: u8) -> SessionSink {
    let cancelled = session.begin(id, priority).unwrap();
    let mut sink = SessionSink {
        session: Arc::clone(session),
        transfer: id,
        cancelled,
    };
    let layout = KvLayout {
        model: ModelName::new("m").unwrap(),
        model_version: 1,
        dtype: KvDtype::F32,
        block_tokens: 16,
        layers: vec![LayerKv::FullAttention {
            kv_heads: 1,
            head_dim: 1,
        }],
    };
    sink.manifest(KvManifest {
        layout,
        tokens: 8,
        held: 0,
    });
    sink
}

fn chunks(sink: &mut SessionSink, count: usize) {
    let id = PieceId {
        layer: 0,
        tokens: 0..8,
    };
    sink.piece(KvPiece {
        id,
        bytes: Bytes::from(vec![0; count * 16]),
    });
}

fn taken(session: &Session, lane: u64) -> Option<(TransferId, Part, u32)> {
    session
        .take(lane)
        .map(|out| (out.transfer, out.item.part, out.item.attempt))
}

#[test]
fn a_broken_lane_gives_back_exactly_what_was_not_acknowledged() {
    let session = session();
    let (one, two) = (session.attach().unwrap(), session.attach().unwrap());
    chunks(&mut transfer(&session, A, 0), 5);
    assert_eq!(taken(&session, one), Some((A, Part::Manifest, 0)));
    session.ack(A, Part::Manifest);
    for no in 0..4 {
        assert_eq!(taken(&session, one), Some((A, Part::Chunk(no), 0)));
    }
    session.ack(A, Part::Chunk(0));
    session.ack(A, Part::Chunk(2));
    assert_eq!(session.detach(one), None, "another lane is left");
    let mut rest = Vec::new();
    while let Some((_, part, attempt)) = taken(&session, two) {
        rest.push((part, attempt));
    }
    assert_eq!(
        rest,
        [(Part::Chunk(1), 1), (Part::Chunk(3), 1), (Part::Chunk(4), 0)]
    );
    let then = session.detach(two).expect("that was the last lane");
    let three = session.attach().unwrap();
    session.detach(three);
    assert!(!session.close_if_unused_since(then), "it was used again");
}

#[test]
fn every_lane_carries_the_manifest_first_and_once() {
    let session = session();
    let (one, two) = (session.attach().unwrap(), session.attach().unwrap());
    chunks(&mut transfer(&session, A, 0), 4);
    let carried: Vec<_> = [one, one, two, two]
        .map(|lane| session.take(lane).unwrap().manifest.is_some())
        .into();
    assert_eq!(carried, [true, false, true, false]);
}

#[test]
fn classes_go_in_strict_order_and_transfers_of_a_class_in_turn() {
    let session = session();
    let lane = session.attach().unwrap();
    let urgent = TransferId(3);
    chunks(&mut transfer(&session, A, 1), 2);
    chunks(&mut transfer(&session, B, 1), 2);
    chunks(&mut transfer(&session, urgent, 0), 1);
    let order: Vec<_> = std::iter::from_fn(|| taken(&session, lane))
        .map(|(id, ..)| id)
        .collect();
    assert_eq!(
        order,
        [urgent, urgent, A, B, A, B, A, B],
        "each its manifest, then its chunks"
    );
}

#[test]
fn a_transfer_is_forgotten_once_all_of_it_is_acknowledged() {
    let session = session();
    let lane = session.attach().unwrap();
    let mut sink = transfer(&session, A, 0);
    chunks(&mut sink, 1);
    session.end(A, Ok(PrefillReport::default()));
    assert_eq!(taken(&session, lane), Some((A, Part::Manifest, 0)));
    session.ack(A, Part::Manifest);
    assert_eq!(taken(&session, lane), Some((A, Part::Chunk(0), 0)));
    assert_eq!(taken(&session, lane), Some((A, Part::Final, 0)));
    session.ack(A, Part::Final);
    session.nack(A, Part::Chunk(0));
    assert_eq!(taken(&session, lane), Some((A, Part::Chunk(0), 1)));
    session.ack(A, Part::Chunk(0));
    session.ack(A, Part::Chunk(0));
    assert_eq!(session.transfers(), 0);
    assert!(
        session.begin(A, 0).is_none(),
        "a late copy of the order begins nothing"
    );
}

#[test]
fn a_cancelled_transfer_tells_its_source_and_sends_nothing_more() {
    let session = session();
    let lane = session.attach().unwrap();
    let mut sink = transfer(&session, A, 0);
    chunks(&mut sink, 3);
    session.cancel(A);
    assert!(sink.is_cancelled());
    chunks(&mut sink, 3);
    assert_eq!(taken(&session, lane), None);
    session.cancel(B);
    assert!(
        session.begin(B, 0).is_none(),
        "an order overtaken by its cancellation begins nothing"
    );
}
