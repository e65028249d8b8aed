//! Replays the corpus, and random changes of it: what a fuzzer does, in a second.

use super::*;
use crate::frame::{ChunkHead, DialerHello, ListenerHello, OrderBody, Welcome};
use portolan_base::kv::{KvDtype, KvLayout, KvManifest, LayerKv, PieceId};
use portolan_base::{SiteName, TransferId};
use portolan_kv::quant::PieceShape;
use std::path::{Path, PathBuf};

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fuzz/corpus")
        .join(target);
    let files = std::fs::read_dir(&folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    files
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect()
}

/// Each input, and changes of it: a byte replaced, removed, doubled, or the end cut.
fn replay(target: &str, run: fn(&[u8])) {
    let inputs = corpus(target);
    assert!(
        inputs.len() >= 8,
        "the corpus of {target} has {} inputs",
        inputs.len()
    );
    let mut state = 1u64;
    let mut draw = |end: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % end.max(1)
    };
    for (path, bytes) in inputs {
        println!("{}", path.display());
        run(&bytes);
        for _ in 0..500 {
            let mut changed = bytes.clone();
            let at = draw(changed.len());
            match draw(4) {
                0 if !changed.is_empty() => changed[at] = draw(256) as u8,
                1 if !changed.is_empty() => drop(changed.remove(at)),
                2 if !changed.is_empty() => changed.insert(at, changed[at]),
                _ => changed.truncate(at),
            }
            run(&changed);
        }
    }
}

#[test]
fn the_corpus_of_frames_is_read_without_harm() {
    replay("frame", frame);
}

#[test]
fn the_corpus_of_manifests_is_taken_without_harm() {
    replay("manifest", manifest);
}

/// Writes one input a kind of frame, and manifests with the chunks they call for: where a fuzzer begins.
#[test]
#[ignore = "writes into the source tree; run it when frames change"]
fn seeds_are_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus");
    let write = |target: &str, name: String, bytes: &[u8]| {
        std::fs::write(folder.join(target).join(name), bytes).unwrap();
    };
    for (place, frame) in crate::frame::samples().into_iter().chain(openings()).enumerate() {
        let bytes = frame.encode();
        let mut input = vec![bytes[0]];
        input.extend_from_slice(&bytes[HEAD_BYTES..]);
        write("frame", format!("seed-{place:02}"), &input);
    }
    let codings = [Coding::Plain, Coding::Lz4, Coding::Int8, Coding::Int4];
    for (place, coding) in codings.into_iter().enumerate() {
        for (held, name) in [(0, "whole"), (64, "held")] {
            let input = manifest_with_chunks(coding, held);
            write("manifest", format!("seed-{place}-{name}"), &input);
        }
    }
}

/// What a connection and a transfer begin with.
fn openings() -> Vec<Frame> {
    let site = |name| SiteName::new(name).unwrap();
    let dialer = DialerHello {
        from: site("paris"),
        to: site("virginia"),
        session: 5,
        nonce: [3; 32],
        chunk: CHUNK,
    };
    let listener = ListenerHello {
        site: site("virginia"),
        nonce: [4; 32],
        chunk: CHUNK,
    };
    let json = manifest_with_chunks(Coding::Plain, 0);
    let json = json.split(|byte| *byte == 0).next().unwrap_or_default();
    let order = OrderBody {
        transfer: TransferId(9),
        priority: 1,
        credit: 1 << 20,
        landed: Vec::new(),
        beside: None,
        accepts: Coding::READ.to_vec(),
        order: order(&serde_json::from_slice(json).unwrap()).unwrap(),
    };
    vec![
        Frame::DialerHello(dialer),
        Frame::ListenerHello(listener, [1; 32]),
        Frame::DialerProof([2; 32]),
        Frame::Welcome(Welcome::Open(1)),
        Frame::Welcome(Welcome::Refused("no".into())),
        Frame::Order(Box::new(order)),
    ]
}

fn manifest_with_chunks(coding: Coding, held: u32) -> Vec<u8> {
    let (attention, recurrent) = (
        LayerKv::FullAttention {
            kv_heads: 2,
            head_dim: 32,
        },
        LayerKv::Recurrent {
            conv_channels: 8,
            conv_width: 4,
            heads: 2,
            key_dim: 8,
            value_dim: 8,
        },
    );
    let layout = KvLayout {
        model: ModelName::new("m").unwrap(),
        model_version: 1,
        dtype: KvDtype::F32,
        block_tokens: 64,
        window: None,
        layers: vec![attention, recurrent],
    };
    let manifest = KvManifest {
        layout: layout.clone(),
        tokens: TOKENS as u32,
        held,
    };
    let mut out = serde_json::to_vec(&Announcement { coding, manifest }).unwrap();
    out.push(0);
    let pieces = [
        PieceId {
            layer: 0,
            tokens: held..TOKENS as u32,
        },
        PieceId {
            layer: 1,
            tokens: TOKENS as u32..TOKENS as u32,
        },
    ];
    for (no, piece) in (0..).zip(pieces) {
        let plain = layout.piece_bytes(piece.layer, piece.len()).unwrap().0;
        let shape = PieceShape::of(&layout, &piece);
        let coded = coding
            .quant()
            .zip(shape)
            .and_then(|(quant, shape)| shape.coded_len(quant));
        let meta = ChunkMeta {
            head: ChunkHead {
                transfer: TransferId(1),
                no,
                piece,
                offset: 0,
                piece_len: coded.map_or(plain, |len| len as u64),
            },
            attempt: 0,
            carriage: crate::frame::Carriage::Plain,
            checksum: 7,
        };
        out.extend(postcard::to_stdvec(&meta).unwrap());
    }
    out
}
