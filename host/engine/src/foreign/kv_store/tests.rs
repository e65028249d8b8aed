//! The store, and its socket against a connector that says what it should and what it should not.

use super::super::ForeignError;
use super::frame::{Checksums, Count, Frame, Hello, Idle, Kind, Prompt, Refused, Welcome};
use super::*;
use portolan_base::ModelName;
use portolan_base::kv::KvDtype;
use portolan_ports::CacheSalt;
use proptest::prelude::*;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const BLOCK: usize = 2 * 2 * 2 * 16 * 4 * 4;

fn layout() -> Arc<KvLayout> {
    let layer = LayerKv::FullAttention {
        kv_heads: 2,
        head_dim: 4,
    };
    Arc::new(KvLayout {
        model: ModelName::new("m").unwrap(),
        model_version: 1,
        dtype: KvDtype::F32,
        block_tokens: 16,
        window: None,
        layers: vec![layer; 2],
    })
}

fn key(tenant: &str) -> TenantKey {
    TenantKey::derive(&[7; 32], tenant, "m", 1)
}

/// A store of so many blocks that knows acme's salt, and what it tells the index.
fn store(blocks: usize) -> (Arc<KvStore>, broadcast::Receiver<KvEvent>) {
    let (events, told) = broadcast::channel(64);
    let salts = Arc::new(SaltBook::default());
    salts.learn(&CacheSalt {
        text: acme().into(),
        root: Some(BlockHash::root(&key("acme"))),
    });
    let store = KvStore::new(layout(), (blocks * BLOCK) as u64, [1; 32], (salts, events));
    (Arc::new(store.unwrap()), told)
}

fn acme() -> String {
    key("acme").cache_salt()
}

fn tokens(seed: u32, count: u32) -> Vec<u32> {
    (0..count).map(|n| seed * 1000 + n).collect()
}

fn bytes(fill: u8) -> (Bytes, u32) {
    let bytes: Vec<u8> = (0..BLOCK).map(|n| fill.wrapping_add(n as u8)).collect();
    let sum = crc32fast::hash(&bytes);
    (bytes.into(), sum)
}

fn put(store: &KvStore, salt: &str, tokens: &[u32], fills: &[u8]) -> usize {
    store.put(Given {
        salt,
        tokens,
        first: 0,
        blocks: fills.iter().map(|fill| bytes(*fill)).collect(),
        about: None,
    })
}

#[test]
fn a_prompt_finds_what_its_own_salt_saved_and_the_index_is_told() {
    let (store, mut told) = store(8);
    let prompt = tokens(1, 40);
    assert_eq!(put(&store, &acme(), &prompt, &[1, 2]), 2);
    assert_eq!(store.find(&acme(), &prompt), 2);
    assert_eq!(store.find(&acme(), &prompt[..31]), 1, "whole blocks");
    assert_eq!(store.find(&acme(), &tokens(2, 40)), 0);
    assert_eq!(
        store.find(&key("globex").cache_salt(), &prompt),
        0,
        "another tenant"
    );
    assert_eq!(put(&store, "never given out", &prompt, &[1, 2]), 0);
    let chain = BlockHash::chain(&key("acme"), &prompt);
    for (at, parent) in [(0, None), (1, Some(chain[0]))] {
        let event = told.try_recv().unwrap();
        let blocks = vec![chain[at]];
        assert_eq!(
            event,
            KvEvent::Stored {
                part: PART,
                parent,
                blocks,
                about: None,
            }
        );
    }
    assert_eq!(put(&store, &acme(), &prompt, &[1, 2]), 2, "again");
    assert!(told.try_recv().is_err(), "and nothing new is told");
}

#[test]
fn the_longest_unused_go_first_and_no_beginning_before_its_end() {
    let (store, mut told) = store(3);
    let (old, new) = (tokens(1, 32), tokens(2, 32));
    put(&store, &acme(), &old, &[1, 2]);
    put(&store, &acme(), &new, &[3, 4]);
    assert_eq!((store.find(&acme(), &old), store.find(&acme(), &new)), (1, 2));
    assert_eq!(store.used(), 3 * BLOCK as u64);
    let removed = std::iter::from_fn(|| told.try_recv().ok()).last().unwrap();
    let chain = BlockHash::chain(&key("acme"), &old);
    assert_eq!(
        removed,
        KvEvent::Removed {
            part: PART,
            blocks: vec![chain[1]]
        }
    );
    let (tiny, _) = self::store(0);
    assert_eq!(put(&tiny, &acme(), &old, &[1, 2]), 0, "no room for one block");
}

#[test]
fn what_one_site_keeps_another_keeps_byte_for_byte() {
    let (here, _) = store(8);
    let (there, _) = store(8);
    let prompt = tokens(1, 50);
    put(&here, &acme(), &prompt, &[1, 2, 3]);
    let kept = here.kept(&key("acme"), &prompt);
    assert_eq!((kept.tokens, kept.pieces.len()), (48, 6));
    let job = KeepJob {
        key: key("acme"),
        tokens: prompt[..48].into(),
        kv: KvSet::assemble(layout(), 48, kept.pieces).unwrap(),
        about: Arc::new(Provenance::public(ModelName::new("m").unwrap(), 1)),
    };
    assert_eq!(there.keep(&job), Tokens(48));
    let taken = there.take(&acme(), &prompt, 0);
    let fills: Vec<_> = taken.iter().map(|block| block.bytes.clone()).collect();
    assert_eq!(fills, [1, 2, 3].map(|fill| bytes(fill).0));
    assert_eq!(there.kept(&key("globex"), &prompt).tokens, 0);
}

#[test]
fn a_block_that_changed_where_it_lies_is_not_sent() {
    let (store, _) = store(8);
    let prompt = tokens(1, 48);
    let mut damaged = bytes(2);
    damaged.1 ^= 1;
    store.put(Given {
        salt: &acme(),
        tokens: &prompt,
        first: 0,
        blocks: vec![bytes(1), damaged, bytes(3)],
        about: None,
    });
    assert_eq!(store.kept(&key("acme"), &prompt).tokens, 16);
    assert_eq!(store.counts.refused.load(Relaxed), 2);
}

fn hello() -> Hello {
    Hello {
        engine: "vllm test".to_owned(),
        layers: 2,
        kv_heads: 2,
        head_dim: 4,
        dtype: "f32".to_owned(),
        block_tokens: 16,
        rank: 0,
        ranks: 1,
    }
}

/// A service for a store, and its end.
fn served(folder: &Path, store: &Arc<KvStore>) -> (std::path::PathBuf, tokio::task::JoinHandle<()>) {
    let path = folder.join("kv.sock");
    let listener = bind(&path).unwrap();
    (path, tokio::spawn(run(Arc::clone(store), listener)))
}

async fn say(stream: &mut UnixStream, kind: Kind, fields: &impl serde::Serialize, payload: Vec<u8>) -> Frame {
    let frame = Frame::new(kind, fields, payload.into()).unwrap();
    frame.write(stream).await.unwrap();
    Frame::read(stream).await.unwrap().unwrap()
}

fn prompt(tokens: &[u32], first: u32, blocks: &[(Bytes, u32)]) -> (Prompt, Vec<u8>) {
    let fields = Prompt {
        salt: acme(),
        tokens: tokens.len() as u32,
        first,
        checksums: blocks.iter().map(|(_, sum)| *sum).collect(),
        turn: 0,
        aside: 0,
    };
    let mut payload: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    blocks
        .iter()
        .for_each(|(bytes, _)| payload.extend_from_slice(bytes));
    (fields, payload)
}

#[tokio::test]
async fn the_connector_saves_finds_and_loads() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = store(8);
    let (path, service) = served(folder.path(), &store);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let welcome = say(&mut stream, Kind::Hello, &hello(), Vec::new()).await;
    assert_eq!(welcome.fields::<Welcome>().unwrap().block_bytes, BLOCK as u64);
    let asked = tokens(1, 40);
    let (fields, payload) = prompt(&asked, 0, &[bytes(1), bytes(2)]);
    let saved = say(&mut stream, Kind::Save, &fields, payload).await;
    assert_eq!(saved.fields::<Count>().unwrap().blocks, 2);
    let (fields, payload) = prompt(&asked, 0, &[]);
    let found = say(&mut stream, Kind::Find, &fields, payload).await;
    assert_eq!(found.fields::<Count>().unwrap().blocks, 2);
    let (fields, payload) = prompt(&asked, 1, &[]);
    let blocks = say(&mut stream, Kind::Load, &fields, payload).await;
    assert_eq!(blocks.fields::<Checksums>().unwrap().checksums, [bytes(2).1]);
    assert_eq!(blocks.payload, bytes(2).0);
    // A block that is damaged on its way is not kept, nor what follows it.
    let mut damaged = bytes(4);
    damaged.1 ^= 4;
    let other = tokens(2, 48);
    let (fields, payload) = prompt(&other, 0, &[bytes(3), damaged, bytes(5)]);
    let saved = say(&mut stream, Kind::Save, &fields, payload).await;
    assert_eq!(saved.fields::<Count>().unwrap().blocks, 1);
    service.abort();
}

#[tokio::test]
async fn another_shape_is_refused_with_both_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = store(8);
    let (path, service) = served(folder.path(), &store);
    for other in [
        Hello { layers: 3, ..hello() },
        Hello {
            kv_heads: 1,
            ..hello()
        },
        Hello {
            head_dim: 8,
            ..hello()
        },
        Hello {
            block_tokens: 32,
            ..hello()
        },
        Hello {
            dtype: "bf16".to_owned(),
            ..hello()
        },
    ] {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let frame = say(&mut stream, Kind::Hello, &other, Vec::new()).await;
        let reason = frame.fields::<Refused>().unwrap().reason;
        assert!(
            frame.kind == Kind::Refused && reason.contains("vllm test keeps"),
            "{reason}"
        );
    }
    service.abort();
}

/// What worker `rank` of two has of a block: one of two heads, of keys and of values, of both layers.
fn half(block: &Bytes, rank: usize) -> (Bytes, u32) {
    let head = BLOCK / 8;
    let own = block.chunks(head).skip(rank).step_by(2);
    let part = Bytes::from(own.collect::<Vec<_>>().concat());
    let sum = crc32fast::hash(&part);
    (part, sum)
}

#[tokio::test]
async fn two_workers_save_and_load_their_heads_of_blocks_that_one_would_have_saved() {
    let folder = tempfile::tempdir().unwrap();
    let (store, mut told) = store(8);
    let (path, service) = served(folder.path(), &store);
    let mut workers = Vec::new();
    for rank in 0..2 {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let hello = Hello {
            rank,
            ranks: 2,
            ..hello()
        };
        let welcome = say(&mut stream, Kind::Hello, &hello, Vec::new()).await;
        assert_eq!(welcome.fields::<Welcome>().unwrap().block_bytes, BLOCK as u64 / 2);
        workers.push(stream);
    }
    let asked = tokens(1, 40);
    let whole = [bytes(1).0, bytes(2).0];
    let mut kept = Vec::new();
    for (rank, worker) in workers.iter_mut().enumerate() {
        let halves = [half(&whole[0], rank), half(&whole[1], rank)];
        let (fields, payload) = prompt(&asked, 0, &halves);
        let saved = say(worker, Kind::Save, &Prompt { turn: 7, ..fields }, payload).await;
        kept.push(saved.fields::<Count>().unwrap().blocks);
    }
    assert_eq!(kept, [0, 2], "with the last part");
    let blocks: Vec<_> = store
        .take(&acme(), &asked, 0)
        .into_iter()
        .map(|b| b.bytes)
        .collect();
    assert_eq!(blocks, whole);
    assert!(matches!(told.try_recv(), Ok(KvEvent::Stored { .. })));
    for (rank, worker) in workers.iter_mut().enumerate() {
        let (fields, payload) = prompt(&asked, 1, &[]);
        let came = say(worker, Kind::Load, &fields, payload).await;
        let (part, sum) = half(&whole[1], rank);
        assert_eq!(came.fields::<Checksums>().unwrap().checksums, [sum]);
        assert_eq!(came.payload, part);
    }
    // A worker alone has blocks of nobody; what it says again is not put together with what another says later.
    let other = tokens(2, 16);
    for (rank, turn) in [(0, 8), (1, 9), (1, 8)] {
        let (fields, payload) = prompt(&other, 0, &[half(&whole[0], rank)]);
        let saved = say(
            &mut workers[rank],
            Kind::Save,
            &Prompt { turn, ..fields },
            payload,
        )
        .await;
        assert_eq!(saved.fields::<Count>().unwrap().blocks, 0);
    }
    assert_eq!((store.find(&acme(), &other), store.waiting()), (0, 1));
    for (rank, ranks) in [(2, 2), (0, 3), (0, 65), (0, 0)] {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let hello = Hello {
            rank,
            ranks,
            ..hello()
        };
        let frame = say(&mut stream, Kind::Hello, &hello, Vec::new()).await;
        let reason = frame.fields::<Refused>().unwrap().reason;
        assert!(reason.contains(&format!("worker {rank} of {ranks}")), "{reason}");
    }
    service.abort();
}

#[tokio::test]
async fn an_engine_that_hands_nothing_over_says_so_and_what_it_left_alone_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = store(8);
    let (path, service) = served(folder.path(), &store);
    let idle = Idle {
        engine: "vllm test".to_owned(),
        reason: "its KV is 4 groups of blocks".to_owned(),
    };
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let noted = say(&mut stream, Kind::Idle, &idle, Vec::new()).await;
    assert_eq!((noted.kind, store.counts.idle.load(Relaxed)), (Kind::Noted, 1));
    let mut stream = UnixStream::connect(&path).await.unwrap();
    say(&mut stream, Kind::Hello, &hello(), Vec::new()).await;
    assert_eq!(store.counts.idle.load(Relaxed), 0, "another process of it");
    let (fields, payload) = prompt(&tokens(1, 16), 0, &[]);
    say(&mut stream, Kind::Find, &Prompt { aside: 3, ..fields }, payload).await;
    assert_eq!(store.counts.aside.load(Relaxed), 3);
    put(&store, "never given out", &tokens(1, 16), &[1]);
    assert_eq!(store.counts.unkept.load(Relaxed), 1);
    service.abort();
}

#[tokio::test]
async fn only_a_socket_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kv.sock");
    std::fs::write(&path, b"someone's").unwrap();
    assert!(matches!(bind(&path), Err(ForeignError::Socket { .. })));
    std::fs::remove_file(&path).unwrap();
    drop(bind(&path).unwrap());
    drop(bind(&path).unwrap());
}

/// What comes back for bytes that are said after a good hello, or instead of one.
async fn reaction(path: &Path, greeted: bool, said: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(path).await.unwrap();
    if greeted {
        say(&mut stream, Kind::Hello, &hello(), Vec::new()).await;
    }
    drop(stream.write_all(said).await);
    drop(stream.shutdown().await);
    let mut back = Vec::new();
    // A connection that is closed before everything was read ends with a reset.
    drop(stream.read_to_end(&mut back).await);
    back
}

/// A good frame as bytes.
async fn good() -> Vec<u8> {
    let (fields, payload) = prompt(&tokens(1, 40), 0, &[bytes(1), bytes(2)]);
    let mut bytes = Vec::new();
    let frame = Frame::new(Kind::Save, &fields, payload.into()).unwrap();
    frame.write(&mut bytes).await.unwrap();
    bytes
}

#[test]
fn whatever_comes_over_the_socket_ends_that_connection_at_most() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = store(8);
    let (path, service, frame) = runtime.block_on(async {
        let (path, service) = served(folder.path(), &store);
        (path, service, good().await)
    });
    let run = |greeted: bool, said: Vec<u8>| {
        runtime.block_on(async {
            reaction(&path, greeted, &said).await;
            assert!(!service.is_finished(), "the service goes on");
        });
    };
    // Lengths that nobody has memory for, kinds and versions that are not there, counts that do not fit.
    for (at, with) in [
        (0, vec![0; 4]),
        (4, vec![9]),
        (5, vec![77]),
        (5, vec![2]),
        (8, vec![0xff; 4]),
        (8, vec![0, 0, 16, 0]),
        (12, vec![1, 2, 3, 4]),
        (16, vec![0xff; 8]),
        (16, vec![0, 0, 0, 16, 0, 0, 0, 0]),
        (30, b"9999999999".to_vec()),
    ] {
        let mut said = frame.clone();
        said[at..at + with.len()].copy_from_slice(&with);
        run(true, said);
    }
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(200));
    let cases = (
        any::<bool>(),
        0..frame.len(),
        any::<u8>(),
        0..frame.len(),
        any::<bool>(),
    );
    runner
        .run(&cases, |(greeted, at, with, end, cut)| {
            let mut said = frame.clone();
            said[at % 200] ^= with;
            if cut {
                said.truncate(end);
            }
            run(greeted, said);
            Ok(())
        })
        .unwrap();
    // Someone who says what he should is served as ever.
    let back = runtime.block_on(reaction(&path, true, &frame));
    assert!(back.windows(10).any(|w| w == br#"{"blocks":"#), "{back:?}");
    service.abort();
}
