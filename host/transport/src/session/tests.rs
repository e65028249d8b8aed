//! Which chunk goes out on which lane, and what becomes of it.

use super::*;
use bytes::Bytes;
use portolan_base::ModelName;
use portolan_base::kv::{KvDtype, KvLayout, LayerKv, PieceId};
use std::time::Duration;

const A: TransferId = TransferId(1);
const B: TransferId = TransferId(2);

fn session() -> Arc<Session> {
    let timing = Timing {
        stall: Duration::from_secs(1),
    };
    Arc::new(Session::new(SessionSpec {
        peer: SiteName::new("asker").unwrap(),
        number: 1,
        chunk: 16,
        timing,
        memory: 1 << 20,
        counters: Arc::default(),
        pacer: Arc::new(Pacer::new(None)),
    }))
}

fn begin(session: &Session, id: TransferId, priority: u8) -> Option<Arc<AtomicBool>> {
    let terms = Terms {
        priority,
        credit: u64::MAX,
        judge: Arc::new(Judge::new(Compression::Off, &[])),
        claims: Arc::default(),
        slots: None,
    };
    session.begin(id, terms)
}

fn transfer(session: &Arc<Session>, id: TransferId, priority: u8) -> SessionSink {
    let cancelled = begin(session, id, priority).unwrap();
    let mut sink = SessionSink {
        session: Arc::clone(session),
        transfer: id,
        cancelled,
        packer: Packer::new(Coding::Plain),
    };
    let layout = KvLayout {
        model: ModelName::new("m").unwrap(),
        model_version: 1,
        dtype: KvDtype::F32,
        block_tokens: 16,
        window: None,
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
    assert_eq!(taken(&session, lane), None, "the digest is not known yet");
    session.hashed(A, 7);
    assert_eq!(taken(&session, lane), Some((A, Part::Final, 0)));
    session.ack(A, Part::Final);
    session.nack(A, Part::Chunk(0));
    assert_eq!(taken(&session, lane), Some((A, Part::Chunk(0), 1)));
    session.ack(A, Part::Chunk(0));
    session.ack(A, Part::Chunk(0));
    assert_eq!(session.transfers(), 0);
    assert!(
        begin(&session, A, 0).is_none(),
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
        begin(&session, B, 0).is_none(),
        "an order overtaken by its cancellation begins nothing"
    );
}

fn hybrid(session: &Arc<Session>, id: TransferId, priority: u8, credit: u64) -> SessionSink {
    let judge = Arc::new(Judge::new(Compression::Off, &[]));
    let claims = Arc::default();
    let cancelled = session
        .begin(
            id,
            Terms {
                priority,
                credit,
                judge,
                claims,
                slots: None,
            },
        )
        .unwrap();
    let mut sink = SessionSink {
        session: Arc::clone(session),
        transfer: id,
        cancelled,
        packer: Packer::new(Coding::Plain),
    };
    let attention = LayerKv::FullAttention {
        kv_heads: 1,
        head_dim: 1,
    };
    let recurrent = LayerKv::Recurrent {
        conv_channels: 1,
        conv_width: 1,
        heads: 1,
        key_dim: 1,
        value_dim: 1,
    };
    sink.manifest(KvManifest {
        layout: KvLayout {
            model: ModelName::new("m").unwrap(),
            model_version: 1,
            dtype: KvDtype::F32,
            block_tokens: 16,
            window: None,
            layers: vec![attention, recurrent],
        },
        tokens: 8,
        held: 0,
    });
    sink
}

fn state(sink: &mut SessionSink) {
    let id = PieceId {
        layer: 1,
        tokens: 8..8,
    };
    sink.piece(KvPiece {
        id,
        bytes: Bytes::from_static(&[7; 8]),
    });
}

fn layer_of(outgoing: &Outgoing) -> Option<u16> {
    match &outgoing.item.body {
        Body::Chunk { head, .. } => Some(head.piece.layer),
        _ => None,
    }
}

#[test]
fn a_recurrent_state_goes_before_the_rest_of_its_class_and_behind_a_more_urgent_one() {
    let session = session();
    let lane = session.attach().unwrap();
    let (mut replica, mut other) = (hybrid(&session, A, 3, u64::MAX), hybrid(&session, B, 3, u64::MAX));
    let mut live = hybrid(&session, TransferId(3), 0, u64::MAX);
    chunks(&mut replica, 2);
    chunks(&mut other, 2);
    state(&mut other);
    chunks(&mut live, 1);
    let sent: Vec<_> = std::iter::from_fn(|| session.take(lane))
        .filter_map(|out| Some((out.transfer.0, layer_of(&out)?)))
        .collect();
    assert_eq!(sent, [(3, 0), (2, 1), (1, 0), (2, 0), (1, 0), (2, 0)]);
}

#[test]
fn a_new_piece_waits_for_room_and_a_begun_one_does_not() {
    let session = session();
    let lane = session.attach().unwrap();
    let mut sink = hybrid(&session, A, 0, 1);
    chunks(&mut sink, 3);
    chunks(&mut sink, 1);
    assert_eq!(taken(&session, lane), Some((A, Part::Manifest, 0)));
    for no in 0..3 {
        assert_eq!(
            taken(&session, lane),
            Some((A, Part::Chunk(no), 0)),
            "one byte of room lets a piece in"
        );
    }
    assert_eq!(taken(&session, lane), None);
    session.nack(A, Part::Chunk(1));
    assert_eq!(
        taken(&session, lane),
        Some((A, Part::Chunk(1), 1)),
        "what has its place comes again"
    );
    session.credit(A, 48);
    assert_eq!(taken(&session, lane), None, "48 bytes have begun");
    session.credit(A, 49);
    session.credit(A, 10);
    assert_eq!(taken(&session, lane), Some((A, Part::Chunk(3), 0)));
}

#[test]
fn a_peer_with_too_much_waiting_is_full_until_it_acknowledges() {
    let session = session();
    let lane = session.attach().unwrap();
    let mut sink = transfer(&session, A, 0);
    sink.piece(KvPiece {
        id: PieceId {
            layer: 0,
            tokens: 0..8,
        },
        bytes: vec![0; (1 << 20) + 1].into(),
    });
    assert!(session.is_full());
    taken(&session, lane);
    taken(&session, lane);
    session.ack(A, Part::Chunk(0));
    assert!(!session.is_full());
    session.cancel(A);
    assert!(!session.is_full());
}

#[test]
fn on_a_short_path_the_first_piece_arrives_before_much_else_is_sent() {
    let spec = || SessionSpec {
        peer: SiteName::new("asker").unwrap(),
        number: 1,
        chunk: 1 << 20,
        timing: Timing {
            stall: Duration::from_secs(1),
        },
        memory: 1 << 30,
        counters: Arc::default(),
        pacer: Arc::new(Pacer::new(None)),
    };
    let all = |quickest: u64| {
        let session = Arc::new(Session::new(spec()));
        session.quickest.store(quickest, Ordering::Relaxed);
        let lane = session.attach().unwrap();
        let mut sink = transfer(&session, A, 0);
        // Two pieces of three chunks.
        for tokens in [0..4, 4..8] {
            let bytes = Bytes::from(vec![0; 3 << 20]);
            let id = PieceId { layer: 0, tokens };
            sink.piece(KvPiece { id, bytes });
        }
        assert_eq!(taken(&session, lane), Some((A, Part::Manifest, 0)));
        std::iter::from_fn(|| taken(&session, lane)).count()
    };
    assert_eq!(all(u64::MAX), 6, "nothing is known of the path");
    assert_eq!(all(50_000), 6, "a long path");

    let session = Arc::new(Session::new(spec()));
    session.quickest.store(300, Ordering::Relaxed);
    let (one, two) = (session.attach().unwrap(), session.attach().unwrap());
    let mut sink = transfer(&session, A, 0);
    for tokens in [0..4, 4..8] {
        let bytes = Bytes::from(vec![0; 3 << 20]);
        let id = PieceId { layer: 0, tokens };
        sink.piece(KvPiece { id, bytes });
    }
    let rest = |lane| -> Vec<Part> {
        std::iter::from_fn(|| taken(&session, lane))
            .map(|(_, part, _)| part)
            .collect()
    };
    assert_eq!(
        rest(one),
        [Part::Manifest, Part::Chunk(0), Part::Chunk(1)],
        "two chunks"
    );
    session.ack(A, Part::Chunk(0));
    assert_eq!(rest(two), [Part::Chunk(2)]);
    session.detach(one);
    assert_eq!(
        rest(two),
        [Part::Manifest, Part::Chunk(1)],
        "what was lost is not under way"
    );
    session.ack(A, Part::Chunk(2));
    assert_eq!(rest(two), [Part::Chunk(3)]);
    session.ack(A, Part::Chunk(1));
    assert_eq!(
        rest(two),
        [Part::Chunk(4), Part::Chunk(5)],
        "the first piece is there"
    );
}
