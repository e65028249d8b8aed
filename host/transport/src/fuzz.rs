//! Everything that a peer's bytes reach before anything is known of them, as functions of bytes: for the fuzz targets
//! in `tests/fuzz`, and for the tests that replay what fuzzing found.
//!
//! Nothing may panic, reserve memory that was not granted, or read something else than what it writes.

use crate::codec::Coding;
use crate::frame::{Announcement, ChunkMeta, Frame, HEAD_BYTES, Head, Stage, put_raw};
use crate::inbound::{Inbound, Place};
use crate::memory::{Ledger, Memory};
use portolan_base::kv::KvQuant;
use portolan_base::{Bytes, InstanceName, ModelName, RequestId, TenantName};
use portolan_ports::KvOrder;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Chunk size of the lane that the bytes come on.
const CHUNK: u32 = 64 << 10;

/// Tokens of the order that a manifest answers.
const TOKENS: usize = 100;

/// Most memory one input may make the receiver reserve.
const MEMORY: Bytes = Bytes(1 << 20);

/// Reads `bytes` as they are, as a frame; then their first byte as a kind and the rest as its fields, with the checksums
/// that a fuzzer cannot guess.
pub fn frame(bytes: &[u8]) {
    for stage in [Stage::Hello, Stage::Open { chunk: CHUNK }] {
        if let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>()
            && let Ok(head) = Head::decode(head, stage)
        {
            let len = rest.len().min(head.meta_len as usize);
            let _ = head.decode_meta(&rest[..len]);
        }
        let Some((kind, meta)) = bytes.split_first() else {
            return;
        };
        let whole = put_raw(*kind, 0, meta);
        if let Some(read) = read(&whole, stage) {
            let written = read.encode();
            assert_eq!(
                self::read(&written, stage).as_ref(),
                Some(&read),
                "it reads what it writes"
            );
        }
    }
}

fn read(bytes: &[u8], stage: Stage) -> Option<Frame> {
    let (head, meta) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    Head::decode(head, stage).ok()?.decode_meta(meta).ok()
}

/// Takes `bytes` as a manifest, up to the first zero byte, and the heads of the chunks that follow it.
pub fn manifest(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let (json, mut chunks) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let Ok(announcement) = serde_json::from_slice::<Announcement>(json) else {
        return;
    };
    let Some(order) = order(&announcement) else { return };
    let (events, _kept) = mpsc::unbounded_channel();
    let ledger = Ledger::open(&Memory::new(MEMORY), MEMORY);
    let guard = CancellationToken::new().drop_guard();
    let lossy = announcement.coding.quant().or(Some(KvQuant::Int8));
    let mut inbound = Inbound::new(order, 0, 1, ledger, (events, guard)).accepting(lossy);
    let coding = announcement.coding;
    if inbound.manifest(announcement).is_err() {
        return;
    }
    assert!(coding == Coding::Plain || inbound.accepts().contains(&coding));
    while let Ok((meta, rest)) = postcard::take_from_bytes::<ChunkMeta>(chunks) {
        chunks = rest;
        // What a lane reads into is as long as the chunk; more than this is for machines with more memory.
        if meta.head.piece_len > MEMORY.0 {
            continue;
        }
        let len = meta
            .head
            .piece_len
            .saturating_sub(meta.head.offset)
            .min(u64::from(CHUNK));
        let Ok(len) = u32::try_from(len) else { continue };
        if let Ok(Place::Fresh(mut buffer)) = inbound.place(&meta, len, CHUNK) {
            assert!(buffer.is_empty() && buffer.capacity() >= len as usize);
            buffer.resize(len as usize, 0);
            let _ = inbound.fill(&meta, CHUNK, buffer);
            let _ = inbound.complete();
        }
        assert!(inbound.is_within_credit());
    }
}

/// An order that the manifest could answer.
fn order(announcement: &Announcement) -> Option<KvOrder> {
    let layout = &announcement.manifest.layout;
    let tokens = (announcement.manifest.tokens as usize).min(TOKENS);
    Some(KvOrder {
        as_of: portolan_ports::AsOf::default(),
        request: RequestId::from_client("fuzz")?,
        tenant: TenantName::new("fuzz").ok()?,
        jurisdiction: String::new(),
        user_class: String::new(),
        model: ModelName::new(layout.model.as_str()).ok()?,
        model_version: layout.model_version,
        instance: InstanceName::new("fuzz").ok()?,
        tokens: vec![0; tokens].into(),
        held: announcement.manifest.held,
        retention: portolan_ports::Retention::Keep,
        draw: Default::default(),
        fidelity: Default::default(),
        dependencies: Default::default(),
        fetch_from: Default::default(),
        purpose: Default::default(),
    })
}

#[cfg(test)]
mod tests;
