//! The file of the embedded control stream.
//!
//! ```text
//! head     "PORTCTL1", 16 bytes of the stream's id, 8 bytes: the last position that was dropped, 8 bytes checksum
//! record   4 bytes: length of the event, 8 bytes: position, 8 bytes checksum, the event
//! ```
//!
//! Numbers are little endian. A checksum is XXH3-64 over the stream's id and everything else in the head or record. A
//! record without an event reserves the positions up to its own: they may have been given to beats, which are not
//! written, and are not given again by the next process.
//!
//! What a crash leaves behind the last whole record was never acknowledged, and is cut off. A damaged record with whole
//! ones behind it is another matter: what was acknowledged is lost.

use portolan_base::Sequence;
use portolan_ports::{ControlEntry, ControlEvent};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

const MAGIC: &[u8; 8] = b"PORTCTL1";
const HEAD_BYTES: usize = 8 + 16 + 8 + 8;
/// What stands before an event.
pub(super) const RECORD_HEAD_BYTES: usize = 4 + 8 + 8;

/// Longest event in bytes: an order names one thing, whose three texts are bounded by what a request may hold.
pub(super) const EVENT_MAX_BYTES: usize = 1 << 20;

/// A stream's id, drawn when it is founded.
pub(super) type Id = [u8; 16];

/// What a file holds.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) id: Id,
    /// Entries up to here were dropped.
    pub(super) dropped: Sequence,
    pub(super) entries: Vec<ControlEntry>,
    /// No position up to here may be given.
    pub(super) reserved: Sequence,
    /// Bytes up to the end of the last whole record.
    pub(super) whole: usize,
}

impl Contents {
    /// Of a stream in which nothing was said.
    pub(super) fn empty(id: Id) -> Self {
        Self {
            id,
            dropped: Sequence::NONE,
            entries: Vec::new(),
            reserved: Sequence::NONE,
            whole: HEAD_BYTES,
        }
    }
}

/// Why a file cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damage {
    /// In bytes from the beginning.
    pub(super) at: usize,
}

/// Reads a file's bytes.
pub(super) fn read(bytes: &[u8]) -> Result<Contents, Damage> {
    let (id, dropped) = read_head(bytes).ok_or(Damage { at: 0 })?;
    let mut contents = Contents {
        id,
        dropped,
        entries: Vec::new(),
        reserved: dropped,
        whole: HEAD_BYTES,
    };
    while let Some(record) = read_record(&id, &bytes[contents.whole..]) {
        contents.whole += RECORD_HEAD_BYTES + record.event.len();
        contents.reserved = contents.reserved.max(record.sequence);
        if !record.event.is_empty() {
            contents.entries.push(ControlEntry {
                sequence: record.sequence,
                event: ControlEvent::from_bytes(record.event),
            });
        }
    }
    let torn = contents.whole;
    let later = (torn + 1..bytes.len()).any(|at| read_record(&id, &bytes[at..]).is_some());
    if later {
        Err(Damage { at: torn })
    } else {
        Ok(contents)
    }
}

struct Record<'a> {
    sequence: Sequence,
    event: &'a [u8],
}

fn read_head(bytes: &[u8]) -> Option<(Id, Sequence)> {
    let head = bytes.get(..HEAD_BYTES)?;
    let id: Id = head[8..24].try_into().ok()?;
    let dropped = number(&head[24..32])?;
    let whole =
        head.starts_with(MAGIC) && number(&head[32..])? == checksum(&id, &[&head[..8], &head[24..32]]);
    whole.then_some((id, Sequence(dropped)))
}

fn read_record<'a>(id: &Id, bytes: &'a [u8]) -> Option<Record<'a>> {
    let length = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    if length > EVENT_MAX_BYTES {
        return None;
    }
    let event = bytes.get(RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + length)?;
    let told = number(bytes.get(12..RECORD_HEAD_BYTES)?)?;
    let sequence = Sequence(number(&bytes[4..12])?);
    (told == checksum(id, &[&bytes[..12], event])).then_some(Record { sequence, event })
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn checksum(id: &Id, parts: &[&[u8]]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(id);
    parts.iter().for_each(|part| hasher.update(part));
    hasher.digest()
}

/// Adds a record to what will be written.
pub(super) fn record(id: &Id, sequence: Sequence, event: &[u8], into: &mut Vec<u8>) {
    let at = into.len();
    // Events are bounded by `EVENT_MAX_BYTES` before they come here.
    into.extend((event.len() as u32).to_le_bytes());
    into.extend(sequence.0.to_le_bytes());
    let sum = checksum(id, &[&into[at..], event]);
    into.extend(sum.to_le_bytes());
    into.extend(event);
}

fn head(id: &Id, dropped: Sequence) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(id);
    bytes.extend(dropped.0.to_le_bytes());
    let sum = checksum(id, &[&bytes[..8], &bytes[24..]]);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// A file that records are added to.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    /// Bytes that are known to be on disk.
    whole: u64,
}

impl LogFile {
    /// Opens a file that was read, and cuts off what is torn.
    pub(super) fn open(path: &Path, contents: &Contents) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).open(path)?;
        let whole = contents.whole as u64;
        file.set_len(whole)?;
        file.sync_all()?;
        Ok(Self { file, whole })
    }

    /// Writes a file with these entries in place of the one at `path`: whole or not at all.
    pub(super) fn replace(path: &Path, contents: &Contents) -> io::Result<Self> {
        let mut bytes = head(&contents.id, contents.dropped);
        for entry in &contents.entries {
            let event = entry.event.to_bytes().map_err(io::Error::other)?;
            record(&contents.id, entry.sequence, &event, &mut bytes);
        }
        record(&contents.id, contents.reserved, &[], &mut bytes);
        let beside = path.with_extension("writing");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&beside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        if let Some(folder) = path.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(Self {
            file,
            whole: bytes.len() as u64,
        })
    }

    /// Adds records. On disk when this returns; after an error the file is as it was, or is given up by the caller.
    pub(super) fn add(&mut self, records: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.whole))?;
        let written = self.file.write_all(records).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.whole += records.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.file.set_len(self.whole)?;
                Err(error)
            }
        }
    }

    /// In bytes.
    pub(super) fn len(&self) -> u64 {
        self.whole
    }
}
