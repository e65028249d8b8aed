//! Frames there and back, and bytes that are no frames.

use super::*;
use crate::wire::FrameReader;
use portolan_base::ModelName;
use portolan_base::kv::{KvDtype, KvLayout, LayerKv};
use proptest::prelude::*;

const OPEN: Stage = Stage::Open { chunk: 1 << 20 };

/// One frame of each kind, as far as the kinds differ in their fields.
pub(crate) fn frames() -> Vec<Frame> {
    let id = TransferId(7);
    let piece = PieceId {
        layer: 3,
        tokens: 4..9,
    };
    let head = ChunkHead {
        transfer: id,
        no: 1,
        piece,
        offset: 4096,
        piece_len: 9999,
    };
    let layers = vec![
        LayerKv::FullAttention {
            kv_heads: 1,
            head_dim: 2,
        },
        LayerKv::Recurrent {
            conv_channels: 1,
            conv_width: 2,
            heads: 3,
            key_dim: 4,
            value_dim: 5,
        },
    ];
    let model = ModelName::new("m").unwrap();
    let layout = KvLayout {
        model,
        model_version: 1,
        dtype: KvDtype::Bf16,
        block_tokens: 4,
        window: None,
        layers,
    };
    vec![
        Frame::Manifest(
            id,
            Box::new(Announcement {
                coding: Coding::Int8,
                manifest: KvManifest {
                    layout,
                    tokens: 9,
                    held: 4,
                },
            }),
        ),
        Frame::Chunk(ChunkMeta {
            head,
            attempt: 2,
            carriage: Carriage::Coded,
            checksum: u64::MAX,
        }),
        Frame::Ack(id, Part::Chunk(u32::MAX)),
        Frame::Nack(id, Part::Final),
        Frame::Final(id, Outcome::Failed("why".into())),
        Frame::Cancel(id),
        Frame::Ping(1),
        Frame::Pong(u64::MAX, HolderReport::default()),
        Frame::Credit(id, u64::MAX),
    ]
}

/// Reads every frame of a stream until it ends or makes no sense; says how many there were.
fn read_all(bytes: &[u8], stage: Stage) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut reader = FrameReader::new(bytes, ());
        let mut count = 0;
        while reader.frame(stage).await.is_ok() {
            count += 1;
        }
        count
    })
}

#[test]
fn frames_are_read_as_they_were_written() {
    for frame in frames() {
        let bytes = frame.encode();
        let head = Head::decode(bytes[..HEAD_BYTES].try_into().unwrap(), OPEN).unwrap();
        assert_eq!(head.decode_meta(&bytes[HEAD_BYTES..]).unwrap(), frame);
    }
}

#[test]
fn any_flipped_bit_is_noticed() {
    for frame in frames() {
        let good = frame.encode();
        for bit in 0..good.len() * 8 {
            let mut bad = good.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read_all(&bad, OPEN), 0, "bit {bit} of {frame:?}");
        }
    }
}

#[test]
fn a_payload_belongs_to_its_head() {
    let piece = PieceId {
        layer: 0,
        tokens: 0..4,
    };
    let head = ChunkHead {
        transfer: TransferId(1),
        no: 0,
        piece,
        offset: 0,
        piece_len: 4,
    };
    let elsewhere = ChunkHead {
        offset: 4,
        ..head.clone()
    };
    assert_ne!(head.checksum(b"kvkv"), elsewhere.checksum(b"kvkv"));
    assert_ne!(head.checksum(b"kvkv"), head.checksum(b"kvkw"));
}

#[test]
fn a_stranger_may_only_say_hello_and_only_briefly() {
    let ping = Frame::Ping(1).encode();
    let head: &[u8; HEAD_BYTES] = ping[..HEAD_BYTES].try_into().unwrap();
    assert_eq!(
        Head::decode(head, Stage::Hello),
        Err(FrameError::UnexpectedKind(17))
    );
    let long = put(Kind::DialerProof, 0, &vec![0u8; SMALL_MAX as usize + 1]);
    let head: &[u8; HEAD_BYTES] = long[..HEAD_BYTES].try_into().unwrap();
    assert!(matches!(
        Head::decode(head, Stage::Hello),
        Err(FrameError::TooLong { .. })
    ));
    let big = encode_chunk_of((1 << 20) + 1);
    let head: &[u8; HEAD_BYTES] = big[..HEAD_BYTES].try_into().unwrap();
    assert!(matches!(
        Head::decode(head, OPEN),
        Err(FrameError::TooLong { .. })
    ));
}

fn encode_chunk_of(len: u32) -> Bytes {
    match &frames()[1] {
        Frame::Chunk(meta) => encode_chunk(meta, len),
        other => panic!("{other:?} is no chunk"),
    }
}

/// A frame with correct checksums around arbitrary fields: what a hostile peer that knows the secret can send.
fn wrap(kind: u8, payload_len: u32, meta: &[u8]) -> Vec<u8> {
    let mut out = vec![kind, 0, 0, 0];
    out.extend((meta.len() as u32).to_le_bytes());
    out.extend(payload_len.to_le_bytes());
    out.extend([0; 4]);
    out.extend(xxh3_64(meta).to_le_bytes());
    let check = xxh3_64(&out);
    out.extend(check.to_le_bytes());
    out.extend(meta);
    out
}

proptest! {
    #[test]
    fn random_bytes_never_panic_and_are_never_a_frame(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert_eq!(read_all(&bytes, OPEN), 0);
        prop_assert_eq!(read_all(&bytes, Stage::Hello), 0);
    }

    #[test]
    fn random_fields_under_true_checksums_never_panic(
        kind in 0u8..20,
        payload in any::<u32>(),
        meta in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let bytes = wrap(kind, payload % (2 << 20), &meta);
        for stage in [OPEN, Stage::Hello] {
            if let Ok(head) = Head::decode(bytes[..HEAD_BYTES].try_into().unwrap(), stage) {
                prop_assert!(head.meta_len <= head.kind.meta_max() && head.payload_len <= 1 << 20);
                let _ = head.decode_meta(&meta);
            }
        }
    }
}

/// Frames as they came or might come: `good-*` is one frame, `bad-*` is none. New ones are written with
/// `PORTOLAN_WRITE_CORPUS=1`; whatever a fuzzer finds belongs here too.
#[test]
fn the_corpus_is_replayed() {
    let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"));
    if std::env::var_os("PORTOLAN_WRITE_CORPUS").is_some() {
        for (i, frame) in frames().iter().enumerate() {
            let good = frame.encode();
            let mut cut = wrap(good[0], 0, &good[HEAD_BYTES..good.len() - 1]);
            std::fs::write(folder.join(format!("good-{i:02}.bin")), &good).unwrap();
            std::fs::write(folder.join(format!("bad-{i:02}-cut-fields.bin")), &cut).unwrap();
            cut[4] ^= 0x80;
            std::fs::write(folder.join(format!("bad-{i:02}-wrong-length.bin")), &cut).unwrap();
        }
    }
    let (mut good, mut bad) = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (name, bytes) = (
            path.file_name().unwrap().to_string_lossy().into_owned(),
            std::fs::read(&path).unwrap(),
        );
        let expected = usize::from(name.starts_with("good-"));
        assert_eq!(read_all(&bytes, OPEN), expected, "{name}");
        good += expected;
        bad += 1 - expected;
    }
    assert!(
        good >= frames().len() && bad >= frames().len(),
        "{good} good, {bad} bad"
    );
}

proptest! {
    #[test]
    fn a_true_frame_with_a_changed_field_is_another_frame_or_none(
        which in 0usize..9,
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let good = frames()[which % frames().len()].encode();
        let mut meta = good[HEAD_BYTES..].to_vec();
        let at = at.index(meta.len());
        meta[at] = value;
        // Under true checksums, as a hostile peer would send it.
        let bytes = wrap(good[0], 0, &meta);
        let head = Head::decode(bytes[..HEAD_BYTES].try_into().unwrap(), OPEN).unwrap();
        if let Ok(frame) = head.decode_meta(&meta) {
            let again = frame.encode();
            let head = Head::decode(again[..HEAD_BYTES].try_into().unwrap(), OPEN).unwrap();
            prop_assert_eq!(head.decode_meta(&again[HEAD_BYTES..]).unwrap(), frame);
        }
    }
}
