//! Captured messages read exactly, both encodings alike, damage at every place, and feeds with gaps.

mod damage;
mod encodings;
mod feeds;
mod golden;

use super::*;
use portolan_base::{BlockHash, Bytes, TenantKey};
use portolan_kv::index::event::{CacheEvent, EngineHash, ExtraKey, Removed, Stored};
use portolan_kv::index::{Group, GroupKind, Holder, Lookup, SharedIndex, Tier};
use portolan_ports::KvEvent;
use serde_json::Value;
use std::path::Path;

/// One captured message.
struct Captured {
    number: u64,
    payload: Vec<u8>,
    decoded: Value,
}

impl Captured {
    fn live(&self) -> Live<'_> {
        Live {
            sequence: self.number,
            payload: &self.payload,
        }
    }
}

fn lines(file: &str) -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/kv-events");
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn captured(file: &str) -> Vec<Captured> {
    let read = |line: Value| Captured {
        number: line["seq"].as_u64().unwrap(),
        payload: bytes_of(&line["payload_hex"]),
        decoded: line["decoded"].clone(),
    };
    lines(file).into_iter().map(read).collect()
}

fn bytes_of(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap().as_bytes();
    let digit = |digit: u8| (digit as char).to_digit(16).unwrap() as u8;
    hex.chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

/// What the reference reader saw, as the index' events.
fn expected(decoded: &Value) -> Vec<CacheEvent> {
    decoded[1]
        .as_array()
        .unwrap()
        .iter()
        .map(expected_event)
        .collect()
}

fn expected_event(event: &Value) -> CacheEvent {
    let hash = |value: &Value| EngineHash(value.as_u64().unwrap());
    let hashes = || {
        event["block_hashes"]
            .as_array()
            .unwrap()
            .iter()
            .map(hash)
            .collect()
    };
    assert!(
        matches!(event["medium"].as_str(), Some("GPU") | None),
        "other media were not captured"
    );
    let group = |event: &Value| event["group_idx"].as_u64().map(|number| number as u8);
    match event["type"].as_str().unwrap() {
        "AllBlocksCleared" => CacheEvent::Cleared,
        "BlockRemoved" => CacheEvent::Removed(Removed {
            hashes: hashes(),
            group: group(event),
            tier: Tier::Device,
        }),
        "BlockStored" => {
            let keys = event["extra_keys"].as_array().unwrap();
            let salts = |keys: &Value| {
                let salts = keys.as_array().into_iter().flatten();
                salts
                    .map(|salt| ExtraKey::Salt(salt.as_str().unwrap().to_owned()))
                    .collect()
            };
            let extra: Vec<Vec<ExtraKey>> = keys.iter().map(salts).collect();
            let has_some = extra.iter().any(|keys| !keys.is_empty());
            let kind = match event["kv_cache_spec_kind"].as_str().unwrap() {
                "full_attention" => GroupKind::Attention,
                "mamba" => GroupKind::State,
                other => panic!("{other} was not captured"),
            };
            let tokens = event["token_ids"].as_array().unwrap().iter();
            CacheEvent::Stored(Stored {
                parent: event["parent_block_hash"].as_u64().map(EngineHash),
                hashes: hashes(),
                tokens: tokens.map(|token| token.as_u64().unwrap() as u32).collect(),
                block_tokens: event["block_size"].as_u64().unwrap() as u32,
                extra: if has_some { extra } else { Vec::new() },
                lora: None,
                group: Group {
                    number: group(event).unwrap(),
                    kind,
                },
                tier: Tier::Device,
            })
        }
        other => panic!("{other} was not captured"),
    }
}

/// The salts of the captured tenants, and of none.
fn salts(salt: Option<&str>) -> Option<BlockHash> {
    match salt {
        None => Some(BlockHash::root(&key("none"))),
        Some(salt @ ("tenantA" | "tenantB")) => Some(BlockHash::root(&key(salt))),
        Some(_) => None,
    }
}

fn key(tenant: &str) -> TenantKey {
    TenantKey::derive(&[1; 32], tenant, "tiny", 1)
}

/// A feed into an index, as an instance's agent keeps it.
struct Fed {
    feed: EventFeed,
    index: SharedIndex,
}

impl Fed {
    fn new() -> Self {
        Self {
            feed: EventFeed::new(0, Bytes(1 << 24)),
            index: SharedIndex::new(Bytes(1 << 24)),
        }
    }

    fn live(&mut self, live: Live<'_>) -> Result<Wanted, FeedError> {
        let index = &self.index;
        self.feed.live(live, &salts, &mut |event| take(index, &event))
    }

    fn replayed(&mut self, past: Live<'_>) {
        let index = &self.index;
        self.feed
            .replayed(past, &salts, &mut |event| take(index, &event))
            .unwrap();
    }

    fn replay_ended(&mut self) {
        let index = &self.index;
        self.feed.replay_ended(&salts, &mut |event| take(index, &event));
    }

    /// Tokens of a tenant's prompt that are held.
    fn held(&self, tenant: &str, prompt: &[u32]) -> u32 {
        let mut lookup = Lookup::default();
        self.index
            .look_up(&BlockHash::chain(&key(tenant), prompt), &mut lookup);
        lookup
            .matches()
            .iter()
            .map(|found| found.blocks * 16)
            .max()
            .unwrap_or(0)
    }
}

fn take(index: &SharedIndex, event: &KvEvent) {
    match event {
        KvEvent::Stored {
            part, parent, blocks, ..
        } => index.stored(Holder::part(0, *part), *parent, blocks),
        KvEvent::Removed { part, blocks } => index.removed(Holder::part(0, *part), blocks),
        KvEvent::Cleared { rank } => index.clear(portolan_kv::Place {
            instance: 0,
            rank: *rank,
        }),
    }
}
