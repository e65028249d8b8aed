//! What a peer that keeps to no rule can do to a receiver.

use super::*;
use crate::memory::Memory;
use portolan_base::kv::{KvDtype, KvLayout, LayerKv};
use portolan_base::{InstanceName, ModelName, RequestId, TenantName, TransferId};
use proptest::prelude::*;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

const CHUNK: u32 = 64;
const TOKENS: u32 = 16;

fn inbound(window: u64) -> (Inbound, mpsc::UnboundedReceiver<Result<Arrived, TransferError>>) {
    let order = KvOrder {
        as_of: portolan_ports::AsOf::default(),
        request: RequestId::from_client("r").unwrap(),
        tenant: TenantName::new("t").unwrap(),
        jurisdiction: String::new(),
        user_class: String::new(),
        model: ModelName::new("m").unwrap(),
        model_version: 1,
        instance: InstanceName::new("i").unwrap(),
        tokens: vec![1; TOKENS as usize].into(),
        held: 0,
        retention: portolan_ports::Retention::Keep,
        draw: Default::default(),
        fidelity: Default::default(),
        dependencies: Arc::default(),
        fetch_from: Default::default(),
        purpose: Default::default(),
    };
    let ledger = Ledger::open(&Memory::new(ByteCount(1 << 20)), ByteCount(window));
    let (events, arrived) = mpsc::unbounded_channel();
    let guard = CancellationToken::new().drop_guard();
    (Inbound::new(order, 0, 1, ledger, (events, guard)), arrived)
}

fn announcement() -> Announcement {
    let attention = LayerKv::FullAttention {
        kv_heads: 1,
        head_dim: 2,
    };
    let recurrent = LayerKv::Recurrent {
        conv_channels: 1,
        conv_width: 1,
        heads: 1,
        key_dim: 5,
        value_dim: 5,
    };
    Announcement {
        coding: Coding::Plain,
        manifest: KvManifest {
            layout: KvLayout {
                model: ModelName::new("m").unwrap(),
                model_version: 1,
                dtype: KvDtype::F32,
                block_tokens: 16,
                window: None,
                layers: vec![attention, recurrent],
            },
            tokens: TOKENS,
            held: 0,
        },
    }
}

fn meta(no: u32, layer: u16, tokens: std::ops::Range<u32>, offset: u64, piece_len: u64) -> ChunkMeta {
    ChunkMeta {
        head: ChunkHead {
            transfer: TransferId(1),
            no,
            piece: PieceId { layer, tokens },
            offset,
            piece_len,
        },
        attempt: 0,
        carriage: Carriage::Plain,
        checksum: u64::from(no),
    }
}

#[test]
fn only_an_order_for_what_is_held_may_bring_less_than_it_asked_for() {
    use portolan_ports::OrderPurpose::{Fetch, HandOver, Prewarm, Replica, Serve};
    let of = |purpose, tokens| {
        let (mut transfer, _events) = inbound(1000);
        transfer.order.purpose = purpose;
        let mut announced = announcement();
        announced.manifest.tokens = tokens;
        transfer.manifest(announced).is_ok()
    };
    for (purpose, fewer) in [
        (Serve, false),
        (Prewarm, false),
        (HandOver, false),
        (Fetch, true),
        (Replica, true),
    ] {
        assert!(of(purpose, TOKENS), "{purpose:?}");
        assert_eq!(of(purpose, TOKENS - 1), fewer, "{purpose:?}");
        assert!(!of(purpose, TOKENS + 1), "{purpose:?}");
    }
}

#[test]
fn a_manifest_names_its_coding_and_one_that_is_not_read_here_is_refused() {
    let (mut transfer, _events) = inbound(1000);
    let named = Announcement {
        coding: Coding::Int8,
        ..announcement()
    };
    assert_eq!(transfer.manifest(named), Err(Breach::ForeignCoding));
    assert!(transfer.manifest(announcement()).is_ok());
    let mut coded = meta(0, 0, 0..4, 0, 64);
    coded.carriage = Carriage::Coded;
    assert_eq!(
        transfer.place(&coded, 10, CHUNK).unwrap_err(),
        Breach::ForeignCoding
    );
    let text = serde_json::to_string(&announcement()).unwrap();
    assert!(text.starts_with(r#"{"coding":"plain","layout":"#), "{text}");
}

#[test]
fn a_holder_overruns_its_grant_by_one_piece_at_most() {
    let (mut transfer, _events) = inbound(64);
    transfer.manifest(announcement()).unwrap();
    for (no, start) in [(0, 0), (1, 4)] {
        transfer
            .place(&meta(no, 0, start..start + 4, 0, 64), 64, CHUNK)
            .unwrap();
    }
    let third = transfer.place(&meta(2, 0, 8..12, 0, 64), 64, CHUNK);
    assert_eq!(third.unwrap_err(), Breach::NoCredit);
}

#[test]
fn other_chunks_than_the_holder_sent_are_not_the_same_set() {
    let (mut transfer, mut events) = inbound(1000);
    transfer.manifest(announcement()).unwrap();
    let first = meta(0, 0, 0..4, 0, 64);
    let Place::Fresh(mut buffer) = transfer.place(&first, 64, CHUNK).unwrap() else {
        panic!("the place is taken")
    };
    buffer.resize(64, 3);
    transfer.fill(&first, CHUNK, buffer).unwrap();
    let totals = Totals {
        report: Default::default(),
        chunks: 1,
        pieces: 1,
        bytes: 64,
        digest: 1,
    };
    transfer.finish(Outcome::Whole(totals.clone())).unwrap();
    assert_eq!(
        transfer.complete(),
        Err(Breach::OtherTotals),
        "the digest is another"
    );
    transfer
        .finish(Outcome::Whole(Totals { digest: 0, ..totals }))
        .unwrap();
    assert_eq!(transfer.complete(), Ok(true));
    let mut kinds = Vec::new();
    while let Ok(event) = events.try_recv() {
        kinds.push(event.unwrap());
    }
    assert!(matches!(
        &kinds[..],
        [
            Arrived::Event(PullEvent::Manifest(_)),
            Arrived::Event(PullEvent::Piece(_)),
            Arrived::Event(PullEvent::Done(_))
        ]
    ));
}

#[test]
fn quantised_kv_is_taken_where_it_was_asked_for_and_known_by_its_size() {
    let announced = |coding| Announcement {
        coding,
        ..announcement()
    };
    let (transfer, _events) = inbound(1000);
    let mut transfer = transfer.accepting(Some(KvQuant::Int4));
    assert_eq!(transfer.accepts(), [Coding::Lz4, Coding::Zstd, Coding::Int4]);
    assert_eq!(
        transfer.manifest(announced(Coding::Int8)),
        Err(Breach::ForeignCoding),
        "another one than was asked for"
    );
    transfer.manifest(announced(Coding::Int4)).unwrap();
    let layout = announcement().manifest.layout;
    let (piece, tokens) = (
        PieceId {
            layer: 0,
            tokens: 0..8,
        },
        0..8,
    );
    let coded = PieceShape::of(&layout, &piece)
        .unwrap()
        .coded_len(KvQuant::Int4)
        .unwrap() as u64;
    let place = |transfer: &mut Inbound, no, tokens, len| {
        transfer
            .place(&meta(no, 0, tokens, 0, len), len as u32, CHUNK)
            .map(drop)
    };
    assert_eq!(
        place(&mut transfer, 0, tokens.clone(), coded + 1),
        Err(Breach::ForeignPiece)
    );
    assert_eq!(place(&mut transfer, 0, tokens, coded), Ok(()));
    assert_eq!(
        place(&mut transfer, 1, 8..12, 64),
        Ok(()),
        "one that stayed plain"
    );
    let mut twice = meta(2, 0, 12..16, 0, 64);
    twice.carriage = Carriage::Coded;
    assert_eq!(
        transfer.place(&twice, 10, CHUNK).unwrap_err(),
        Breach::ForeignCoding
    );
    let state = |len| meta(3, 1, 16..16, 0, len);
    assert_eq!(
        transfer.place(&state(60), 60, CHUNK).unwrap_err(),
        Breach::ForeignPiece,
        "a state"
    );
}

proptest! {
    #[test]
    fn whatever_chunks_come_no_more_is_kept_than_was_announced(
        chunks in proptest::collection::vec(
            (0u32..6, 0u16..4, 0u32..20, 0u32..20, 0u64..5, 0u64..300, 0u32..80, any::<bool>()),
            0..40,
        ),
    ) {
        let (mut transfer, _events) = inbound(1 << 20);
        transfer.manifest(announcement()).unwrap();
        let total = announcement().manifest.total_bytes().0;
        for (no, layer, start, len, index, piece_len, payload, fitting) in chunks {
            let tokens = start..start.saturating_add(len);
            let layout = announcement().manifest.layout;
            let right = layout.piece_bytes(layer, portolan_base::Tokens(len)).map_or(0, |bytes| bytes.0);
            let piece_len = if fitting { right } else { piece_len };
            let offset = index * u64::from(CHUNK);
            let meta = meta(no, layer, tokens, offset, piece_len);
            let rest = piece_len.saturating_sub(offset).min(u64::from(CHUNK));
            let payload = if fitting { u32::try_from(rest).unwrap() } else { payload };
            if let Ok(Place::Fresh(mut buffer)) = transfer.place(&meta, payload, CHUNK) {
                prop_assert!(buffer.is_empty() && buffer.capacity() >= payload as usize);
                buffer.resize(payload as usize, 3);
                let _ = transfer.fill(&meta, CHUNK, buffer);
            }
            prop_assert!(transfer.begun <= total);
        }
    }
}
