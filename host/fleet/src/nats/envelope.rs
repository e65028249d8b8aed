//! A message's bytes: what it is, a checksum that only the fleet's sites can make, and its body.
//!
//! ```text
//! format u8 = 1 | kind u8 | mark [u8; 16] | body
//! mark    BLAKE3 of format, kind, subject and body, keyed with the fleet's secret
//! body    JSON; of a prefix summary: instance's length u8, instance, id u64, part u16, parts u16, a part of its bytes
//! ```
//!
//! The mark keeps out who has a login at the server and not the secret, another fleet of the same name included. A
//! summary of a large cache is longer than a server takes (1 MiB by default) and goes in parts; one that is missing is a
//! gap in the summary's own numbers.

use bytes::{BufMut, Bytes, BytesMut};
use portolan_base::{InstanceName, SiteName};
use portolan_ports::{
    AppliedReport, BusMessage, EffectQuestion, EffectReply, InstanceLoadReport, PrefixSummary, SitePresence,
    SnapshotRequest, Visits,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

const FORMAT: u8 = 1;
const MARK: usize = 16;
const HEAD: usize = 2 + MARK;

/// Bytes of a summary in one message: half of what a server takes by default.
const PART: usize = 512 << 10;

/// Parts of a summary: 32 MiB, the summary of 14 million blocks.
const PARTS: u16 = 64;

const PRESENCE: u8 = 0;
const LOAD: u8 = 1;
const PREFIXES: u8 = 2;
const WANTED: u8 = 3;
const VISITS: u8 = 4;
const APPLIED: u8 = 5;
const EFFECT_WANTED: u8 = 6;
const EFFECT: u8 = 7;

/// What is marked and is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marked {
    /// What a policy slot holds.
    Policy = 64,
    /// Which configuration a site runs.
    Configuration = 65,
}

/// Why a message is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum EnvelopeError {
    /// Other software, or a later one.
    #[error("it is of another format")]
    Format,
    /// Not of this fleet.
    #[error("whoever sent it does not have this fleet's secret")]
    Mark,
    /// It is of this fleet, and makes no sense.
    #[error("it cannot be read: {0}")]
    Body(String),
}

/// Makes and opens messages.
pub(super) struct Seal {
    key: [u8; 32],
    next: AtomicU64,
}

/// Summaries of which parts came, by whom they are about.
#[derive(Default)]
pub(super) struct Assembly(BTreeMap<(SiteName, InstanceName), Parts>);

struct Parts {
    id: u64,
    next: u16,
    bytes: BytesMut,
}

impl Seal {
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        Self {
            key: blake3::derive_key("portolan 2026 bus", secret),
            next: AtomicU64::new(0),
        }
    }

    /// The messages that carry `message`: one, or the parts of a long summary. None for a summary that is too long.
    pub(super) fn payloads(&self, subject: &str, message: &BusMessage) -> Vec<Bytes> {
        let one = |kind, body: Vec<u8>| vec![self.seal(subject, kind, &body)];
        match message {
            BusMessage::Presence(presence) => one(PRESENCE, json(presence)),
            BusMessage::Load(report) => one(LOAD, json(report)),
            BusMessage::SnapshotWanted(request) => one(WANTED, json(request)),
            BusMessage::Prefixes(told) => self.parts(subject, told),
            BusMessage::Visits(visits) => one(VISITS, json(visits)),
            BusMessage::Applied(report) => one(APPLIED, json(report)),
            BusMessage::EffectWanted(question) => one(EFFECT_WANTED, json(question)),
            BusMessage::Effect(reply) => one(EFFECT, json(reply)),
        }
    }

    fn parts(&self, subject: &str, told: &PrefixSummary) -> Vec<Bytes> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let count = told.summary.len().div_ceil(PART).max(1);
        let Some(count) = u16::try_from(count).ok().filter(|count| *count <= PARTS) else {
            tracing::warn!(from = %told.from, instance = %told.instance, bytes = told.summary.len(),
                "a prefix summary is too long for the bus; other sites do not learn what the instance holds");
            return Vec::new();
        };
        let name = told.instance.as_str().as_bytes();
        let part = |number: u16| {
            let from = usize::from(number) * PART;
            let bytes = &told.summary[from..told.summary.len().min(from + PART)];
            let mut body = Vec::with_capacity(name.len() + bytes.len() + 13);
            // A name has 63 characters at most.
            body.push(name.len() as u8);
            body.extend_from_slice(name);
            body.put_u64_le(id);
            body.put_u16_le(number);
            body.put_u16_le(count);
            body.extend_from_slice(bytes);
            self.seal(subject, PREFIXES, &body)
        };
        (0..count).map(part).collect()
    }

    /// Something that is kept `at` a place, marked as of this fleet and of that place.
    pub(super) fn marked(&self, at: &str, kind: Marked, body: &[u8]) -> Bytes {
        self.seal(at, kind as u8, body)
    }

    /// What was marked so.
    pub(super) fn unmark<'b>(
        &self,
        at: &str,
        kind: Marked,
        bytes: &'b [u8],
    ) -> Result<&'b [u8], EnvelopeError> {
        let (found, body) = self.checked(at, bytes)?;
        match found == kind as u8 {
            true => Ok(body),
            false => Err(EnvelopeError::Format),
        }
    }

    fn seal(&self, subject: &str, kind: u8, body: &[u8]) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEAD + body.len());
        bytes.put_u8(FORMAT);
        bytes.put_u8(kind);
        bytes.put_slice(&self.mark(subject, kind, body));
        bytes.put_slice(body);
        bytes.freeze()
    }

    fn mark(&self, subject: &str, kind: u8, body: &[u8]) -> [u8; MARK] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&[FORMAT, kind]);
        hasher.update(&(subject.len() as u64).to_le_bytes());
        hasher.update(subject.as_bytes());
        hasher.update(body);
        let mut mark = [0; MARK];
        mark.copy_from_slice(&hasher.finalize().as_bytes()[..MARK]);
        mark
    }

    /// Kind and body of bytes whose mark is right.
    fn checked<'b>(&self, subject: &str, payload: &'b [u8]) -> Result<(u8, &'b [u8]), EnvelopeError> {
        let (head, body) = payload.split_at_checked(HEAD).ok_or(EnvelopeError::Format)?;
        let (format, kind) = (head[0], head[1]);
        if format != FORMAT {
            return Err(EnvelopeError::Format);
        }
        let expected = self.mark(subject, kind, body);
        match constant_time_eq(&expected, &head[2..]) {
            true => Ok((kind, body)),
            false => Err(EnvelopeError::Mark),
        }
    }

    /// The message that came under `subject`; none while parts of it are missing.
    pub(super) fn open(
        &self,
        subject: &str,
        payload: &[u8],
        assembly: &mut Assembly,
    ) -> Result<Option<BusMessage>, EnvelopeError> {
        let (kind, body) = self.checked(subject, payload)?;
        match kind {
            PRESENCE => read::<SitePresence>(body).map(|said| Some(BusMessage::Presence(said))),
            LOAD => read::<InstanceLoadReport>(body).map(|said| Some(BusMessage::Load(said))),
            WANTED => read::<SnapshotRequest>(body).map(|said| Some(BusMessage::SnapshotWanted(said))),
            PREFIXES => assembly.take(subject, body),
            VISITS => read::<Visits>(body).map(|said| Some(BusMessage::Visits(said))),
            APPLIED => read::<AppliedReport>(body).map(|said| Some(BusMessage::Applied(said))),
            EFFECT_WANTED => read::<EffectQuestion>(body).map(|said| Some(BusMessage::EffectWanted(said))),
            EFFECT => read::<EffectReply>(body).map(|said| Some(BusMessage::Effect(said))),
            _ => Err(EnvelopeError::Format),
        }
    }
}

impl Assembly {
    fn take(&mut self, subject: &str, body: &[u8]) -> Result<Option<BusMessage>, EnvelopeError> {
        let (to, from) = ends(subject).ok_or_else(|| short("its subject"))?;
        let (length, rest) = body.split_first().ok_or_else(|| short("its instance"))?;
        let (name, rest) = rest
            .split_at_checked(usize::from(*length))
            .ok_or_else(|| short("its instance"))?;
        let (numbers, bytes) = rest.split_at_checked(12).ok_or_else(|| short("its numbers"))?;
        let name = std::str::from_utf8(name).map_err(|e| EnvelopeError::Body(e.to_string()))?;
        let instance = InstanceName::new(name).map_err(|e| EnvelopeError::Body(e.to_string()))?;
        let id = u64::from_le_bytes(fixed(&numbers[..8]));
        let part = u16::from_le_bytes(fixed(&numbers[8..10]));
        let parts = u16::from_le_bytes(fixed(&numbers[10..]));
        if parts == 0 || parts > PARTS || part >= parts || bytes.len() > PART {
            return Err(EnvelopeError::Body(format!("part {part} of {parts}")));
        }
        let key = (from.clone(), instance.clone());
        let whole = match part {
            0 => BytesMut::from(bytes),
            _ => match self.0.remove(&key) {
                Some(mut known) if known.id == id && known.next == part => {
                    known.bytes.put_slice(bytes);
                    known.bytes
                }
                // A part before this one is missing: the summary's number will show it.
                _ => return Ok(None),
            },
        };
        if part + 1 < parts {
            let next = part + 1;
            self.0.insert(
                key,
                Parts {
                    id,
                    next,
                    bytes: whole,
                },
            );
            return Ok(None);
        }
        self.0.remove(&key);
        Ok(Some(BusMessage::Prefixes(PrefixSummary {
            from,
            instance,
            to,
            summary: whole.as_ref().into(),
        })))
    }
}

/// Receiver and sender of `….RECEIVER.SENDER`.
fn ends(subject: &str) -> Option<(SiteName, SiteName)> {
    let mut tokens = subject.rsplit('.');
    let from = site(tokens.next()?)?;
    let to = site(tokens.next()?)?;
    Some((to, from))
}

/// The site that a part of a subject names.
pub(super) fn site(token: &str) -> Option<SiteName> {
    let mut name = Vec::with_capacity(token.len());
    let mut rest = token.bytes();
    while let Some(byte) = rest.next() {
        name.push(match byte {
            b'=' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    SiteName::new(std::str::from_utf8(&name).ok()?).ok()
}

fn json<T: Serialize>(said: &T) -> Vec<u8> {
    serde_json::to_vec(said).expect("names and numbers are always JSON")
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, EnvelopeError> {
    serde_json::from_slice(body).map_err(|e| EnvelopeError::Body(e.to_string()))
}

fn short(what: &str) -> EnvelopeError {
    EnvelopeError::Body(format!("it ends before {what}"))
}

fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut fixed = [0; N];
    fixed.copy_from_slice(bytes);
    fixed
}

/// Compares without telling how much was right.
fn constant_time_eq(a: &[u8; MARK], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests;
