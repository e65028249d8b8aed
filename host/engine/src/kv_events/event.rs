//! One event, in either encoding: `["BlockStored", field, …]` or `{"type": "BlockStored", name: field, …}`.

use super::EventError;
use super::pack::{Reader, Token};
use portolan_base::{Group, GroupKind, Tier};
use portolan_kv::index::event::{CacheEvent, EngineHash, ExtraKey, Removed, Stored};

/// What became of an event.
pub(super) enum Read {
    Event(CacheEvent),
    Unknown,
    Malformed,
    Medium,
    Remote,
    Partial,
}

/// Fields of a tagged array, by position after the tag. What older and newer releases append is found by name only in
/// maps; SGLang has a map with the salt where vLLM has the adapter's name.
const STORED: [&str; 10] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
];
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];

/// Reads one event from the bytes of its value.
pub(super) fn read(event: Reader<'_>) -> Read {
    fields(event).map_or(Read::Malformed, |found| {
        found.map_or(Read::Unknown, |(kind, fields)| fields.into_event(kind))
    })
}

#[derive(Clone, Copy)]
enum Kind {
    Stored,
    Removed,
    Cleared,
}

fn kind(tag: &str) -> Option<Kind> {
    Some(match tag {
        "BlockStored" => Kind::Stored,
        "BlockRemoved" => Kind::Removed,
        "AllBlocksCleared" => Kind::Cleared,
        _ => return None,
    })
}

/// The event's kind and fields; none of a kind that is not known.
fn fields(mut event: Reader<'_>) -> Result<Option<(Kind, Fields<'_>)>, EventError> {
    let mut fields = Fields::default();
    match event.token()? {
        Token::Array(count @ 1..) => {
            let Token::Text(tag) = event.token()? else {
                return Err(EventError::NoBatch);
            };
            let Some(kind) = kind(tag) else {
                return Ok(None);
            };
            let names: &[&str] = match kind {
                Kind::Stored => &STORED,
                Kind::Removed => &REMOVED,
                Kind::Cleared => &[],
            };
            for name in names.iter().take(count - 1) {
                fields.set(name, event.value()?)?;
            }
            Ok(Some((kind, fields)))
        }
        Token::Map(pairs) => {
            let mut tag = None;
            for _ in 0..pairs {
                let (name, value) = (event.token()?, event.value()?);
                match name {
                    Token::Text("type") => tag = text(value)?,
                    Token::Text(name) => fields.set(name, value)?,
                    _ => return Err(EventError::NoBatch),
                }
            }
            Ok(tag.and_then(kind).map(|kind| (kind, fields)))
        }
        _ => Err(EventError::NoBatch),
    }
}

/// Fields as they were sent.
#[derive(Default)]
struct Fields<'a> {
    hashes: Option<Vec<EngineHash>>,
    parent: Option<EngineHash>,
    tokens: Option<Vec<u32>>,
    block_tokens: Option<u32>,
    adapter: Option<String>,
    medium: Option<&'a str>,
    /// Strings among `extra_keys` may be the adapter's name, known only once all fields are.
    extra: Vec<Vec<Extra<'a>>>,
    salt: Option<&'a str>,
    group: Option<u64>,
    spec: Option<&'a str>,
    locality: Option<&'a str>,
}

enum Extra<'a> {
    Text(&'a str),
    Media(&'a str, i64),
    Other(Vec<u8>),
}

impl<'a> Fields<'a> {
    fn set(&mut self, name: &str, value: Reader<'a>) -> Result<(), EventError> {
        match name {
            "block_hashes" => self.hashes = Some(list(value, hash)?),
            "parent_block_hash" => {
                self.parent = optional(value)?.map(|mut value| hash(&mut value)).transpose()?;
            }
            "token_ids" => self.tokens = Some(list(value, token_id)?),
            "block_size" => {
                self.block_tokens = optional(value)?.map(|mut value| number(&mut value)).transpose()?;
            }
            "medium" => self.medium = text(value)?,
            "extra_keys" => self.extra = extras(value)?,
            "group_idx" => {
                self.group = optional(value)?
                    .map(|mut value| wide_number(&mut value))
                    .transpose()?;
            }
            "kv_cache_spec_kind" => self.spec = text(value)?,
            "locality" => self.locality = text(value)?,
            "cache_salt" => self.salt = text(value)?.filter(|salt| !salt.is_empty()),
            // A name beats a number, whichever comes first.
            "lora_name" => match value.peek()? {
                Token::Map(_) => self.metadata(value)?,
                _ => self.adapter = text(value)?.map(str::to_owned).or(self.adapter.take()),
            },
            "lora_id" if self.adapter.is_none() => {
                self.adapter = match value.peek()? {
                    Token::Number(id) => Some(format!("#{id}")),
                    Token::Text(id) => Some(id.to_owned()),
                    _ => None,
                };
            }
            _ => {}
        }
        Ok(())
    }

    /// SGLang's map beside the fields, of which the salt matters.
    fn metadata(&mut self, mut value: Reader<'a>) -> Result<(), EventError> {
        if let Token::Map(pairs) = value.token()? {
            for _ in 0..pairs {
                let (name, value) = (value.token()?, value.value()?);
                if name == Token::Text("cache_salt") {
                    self.set("cache_salt", value)?;
                }
            }
        }
        Ok(())
    }

    fn into_event(self, kind: Kind) -> Read {
        if matches!(kind, Kind::Cleared) {
            return Read::Event(CacheEvent::Cleared);
        }
        if self.locality == Some("REMOTE") {
            return Read::Remote;
        }
        let Some(tier) = tier(self.medium) else {
            return Read::Medium;
        };
        match kind {
            Kind::Removed => self.removed(tier),
            _ => self.stored(tier),
        }
    }

    fn removed(self, tier: Tier) -> Read {
        let group = self.group.map(u8::try_from).transpose();
        match (self.hashes, group) {
            (Some(hashes), Ok(group)) => Read::Event(CacheEvent::Removed(Removed { hashes, group, tier })),
            _ => Read::Malformed,
        }
    }

    fn stored(self, tier: Tier) -> Read {
        let kind = match self.spec {
            None | Some("full_attention" | "mla_attention" | "sink_full_attention") => GroupKind::Attention,
            Some("mamba") => GroupKind::State,
            Some(_) => return Read::Partial,
        };
        let extra = self.named_extra();
        let number = u8::try_from(self.group.unwrap_or(0));
        match (self.hashes, self.tokens, self.block_tokens, number) {
            (Some(hashes), Some(tokens), Some(block_tokens), Ok(number)) => {
                Read::Event(CacheEvent::Stored(Stored {
                    parent: self.parent,
                    extra: with_salt(extra, self.salt, hashes.len()),
                    hashes,
                    tokens,
                    block_tokens,
                    lora: self.adapter,
                    group: Group { number, kind },
                    tier,
                }))
            }
            _ => Read::Malformed,
        }
    }

    /// What each block depends on: nothing at all where no block depends on anything. Of the strings the first that is
    /// the adapter's name says no more than that; at a prompt's first block another one is the salt.
    fn named_extra(&self) -> Vec<Vec<ExtraKey>> {
        if self.extra.iter().all(Vec::is_empty) {
            return Vec::new();
        }
        let block = |(at, keys): (usize, &Vec<Extra<'_>>)| {
            let mut adapter = self.adapter.as_deref();
            let key = |extra: &Extra<'_>| match extra {
                Extra::Text(name) if adapter == Some(name) => {
                    adapter = None;
                    None
                }
                Extra::Text(salt) if at == 0 && self.parent.is_none() => {
                    Some(ExtraKey::Salt((*salt).to_owned()))
                }
                Extra::Text(other) => Some(ExtraKey::Other(other.as_bytes().to_vec())),
                Extra::Media(id, offset) => Some(ExtraKey::Media((*id).to_owned(), *offset)),
                Extra::Other(bytes) => Some(ExtraKey::Other(bytes.clone())),
            };
            keys.iter().filter_map(key).collect()
        };
        self.extra.iter().enumerate().map(block).collect()
    }
}

fn with_salt(mut extra: Vec<Vec<ExtraKey>>, salt: Option<&str>, blocks: usize) -> Vec<Vec<ExtraKey>> {
    let Some(salt) = salt else { return extra };
    if extra.is_empty() {
        extra.resize_with(blocks, Vec::new);
    }
    if let Some(first) = extra.first_mut()
        && !first.iter().any(|key| matches!(key, ExtraKey::Salt(_)))
    {
        first.push(ExtraKey::Salt(salt.to_owned()));
    }
    extra
}

/// The tier of a medium; none for one that is not known. Releases without the field have GPU memory alone.
fn tier(medium: Option<&str>) -> Option<Tier> {
    Some(match medium {
        None | Some("" | "GPU") => Tier::Device,
        Some("CPU" | "CPU_PINNED" | "CPU_TIER1") => Tier::Host,
        Some("STORAGE" | "DISK" | "FS" | "NVME" | "CPU_TIER2") => Tier::Disk,
        Some(_) => return None,
    })
}

/// The elements of a list; none of nil.
fn list<'a, T>(
    mut value: Reader<'a>,
    element: impl Fn(&mut Reader<'a>) -> Result<T, EventError>,
) -> Result<Vec<T>, EventError> {
    match value.token()? {
        Token::Array(count) => (0..count).map(|_| element(&mut value)).collect(),
        Token::Nil => Ok(Vec::new()),
        _ => Err(EventError::NoBatch),
    }
}

fn optional(value: Reader<'_>) -> Result<Option<Reader<'_>>, EventError> {
    Ok(match value.peek()? {
        Token::Nil => None,
        _ => Some(value),
    })
}

fn text(mut value: Reader<'_>) -> Result<Option<&str>, EventError> {
    match value.token()? {
        Token::Text(text) => Ok(Some(text)),
        Token::Nil => Ok(None),
        _ => Err(EventError::NoBatch),
    }
}

/// Numbers may come signed or not: the bits are the same. Of bytes the last eight, as engines shorten them.
fn hash(value: &mut Reader<'_>) -> Result<EngineHash, EventError> {
    Ok(EngineHash(match value.token()? {
        Token::Number(number) => number,
        Token::Negative(number) => number as u64,
        Token::Bytes(bytes) if !bytes.is_empty() => {
            let last = &bytes[bytes.len().saturating_sub(8)..];
            last.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
        }
        _ => return Err(EventError::NoBatch),
    }))
}

/// A token id. Engines that draft with EAGLE send each token with its successor.
fn token_id(value: &mut Reader<'_>) -> Result<u32, EventError> {
    match value.token()? {
        Token::Number(id) => u32::try_from(id).map_err(|_| EventError::NoBatch),
        Token::Array(2) => {
            let token = number(value)?;
            value.value()?;
            Ok(token)
        }
        _ => Err(EventError::NoBatch),
    }
}

fn wide_number(value: &mut Reader<'_>) -> Result<u64, EventError> {
    match value.token()? {
        Token::Number(number) => Ok(number),
        _ => Err(EventError::NoBatch),
    }
}

fn number(value: &mut Reader<'_>) -> Result<u32, EventError> {
    u32::try_from(wide_number(value)?).map_err(|_| EventError::NoBatch)
}

fn extras(value: Reader<'_>) -> Result<Vec<Vec<Extra<'_>>>, EventError> {
    list(value, |block| list(block.value()?, |key| Ok(extra(key.value()?))))
}

/// One of `extra_keys`. What is neither a string nor an identity with its place counts by its bytes.
fn extra(value: Reader<'_>) -> Extra<'_> {
    let mut reader = value;
    let mut token = || reader.token().unwrap_or(Token::Other);
    match token() {
        Token::Text(text) => Extra::Text(text),
        Token::Bytes(bytes) => Extra::Other(bytes.to_vec()),
        Token::Array(2) => match (token(), token()) {
            (Token::Text(id), Token::Number(at)) => Extra::Media(id, at as i64),
            (Token::Text(id), Token::Negative(at)) => Extra::Media(id, at),
            _ => Extra::Other(value.to_vec()),
        },
        _ => Extra::Other(value.to_vec()),
    }
}
