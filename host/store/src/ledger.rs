//! Records and the audit log in sled: every change and its audit line are one transaction.
//!
//! sled keeps the error of its first write that failed and refuses every write from then on, until its files are opened
//! anew: see [`Ledger::reopen`].

use crate::files;
use crate::opening::open_sled;
use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};
use portolan_base::Moment;
use portolan_ports::{AuditRecord, ChangeRecord, Operation, StoreError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sled::transaction::{ConflictableTransactionError, TransactionError, Transactional};
use std::path::{Path, PathBuf};

/// The schema this release writes. Raise it whenever an older release would misread what is written.
pub(crate) const SCHEMA: u32 = 1;

/// sled's page cache. Its default of 1 GiB is for databases; ours holds a few MiB, as policies are files.
const CACHE_BYTES: u64 = 16 << 20;

/// What kinds of record there are; one sled tree each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    /// `schema` and `secret`: what the store itself must know before it can be read.
    Meta,
    /// `<scope>/<question>/<sha256>` → a version and its position in the audit log.
    Versions,
    /// `<scope>/<question>` → the last generation given out, and the binding in force.
    Bindings,
    /// `<scope>/<question>/<generation>` → a binding that was made.
    History,
    /// `<tenant>` → a tenant.
    Tenants,
    /// Digest of a key, hexadecimal → whom it lets in.
    Keys,
    /// Sequence, eight bytes big endian → a line of the audit log.
    Audit,
    /// Number, eight bytes big endian → a change that waits, or waited, for a second person.
    Proposals,
    /// `<tenant>` → its uploads of the last hour.
    Uploads,
}

impl Table {
    pub(crate) const ALL: [Self; 9] = [
        Self::Meta,
        Self::Versions,
        Self::Bindings,
        Self::History,
        Self::Tenants,
        Self::Keys,
        Self::Audit,
        Self::Proposals,
        Self::Uploads,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Versions => "versions",
            Self::Bindings => "bindings",
            Self::History => "history",
            Self::Tenants => "tenants",
            Self::Keys => "keys",
            Self::Audit => "audit",
            Self::Proposals => "proposals",
            Self::Uploads => "uploads",
        }
    }
}

/// One record to be written, serialized, or removed.
#[derive(Debug)]
pub(crate) struct Write {
    table: Table,
    key: Vec<u8>,
    /// `None` removes the record.
    value: Option<Vec<u8>>,
}

impl Write {
    pub(crate) fn new(
        table: Table,
        key: impl Into<Vec<u8>>,
        value: &impl Serialize,
    ) -> Result<Self, StoreError> {
        let value = serde_json::to_vec(&Stored {
            schema: SCHEMA,
            value,
        })
        .map_err(|e| StoreError::Invalid {
            what: format!("a record of {}", table.name()),
            why: e.to_string(),
        })?;
        Ok(Self {
            table,
            key: key.into(),
            value: Some(value),
        })
    }

    /// A record as it stood in another store.
    pub(crate) fn raw(table: Table, key: Vec<u8>, value: Vec<u8>) -> Self {
        Self {
            table,
            key,
            value: Some(value),
        }
    }

    /// Removes a record.
    pub(crate) fn removal(table: Table, key: impl Into<Vec<u8>>) -> Self {
        Self {
            table,
            key: key.into(),
            value: None,
        }
    }
}

/// A record on disk: the schema it was written in, so that a later release can read old records one by one.
#[derive(Serialize, Deserialize)]
struct Stored<T> {
    schema: u32,
    value: T,
}

/// An audit line before it has a number.
#[derive(Debug)]
pub(crate) struct Deed {
    pub(crate) at: Moment,
    pub(crate) actor: String,
    pub(crate) action: &'static str,
    pub(crate) subject: String,
    pub(crate) reason: String,
}

impl Deed {
    /// What an operator did to a running host.
    pub(crate) fn of(operation: Operation) -> Self {
        Self {
            at: operation.at,
            actor: operation.actor,
            action: operation.kind.action(),
            subject: operation.subject,
            reason: operation.reason,
        }
    }

    /// The deed, which made a change of a binding.
    pub(crate) fn changing(self, change: ChangeRecord) -> ChangingDeed {
        ChangingDeed {
            deed: self,
            change: Some(change),
        }
    }
}

/// A deed, with the change of a binding where it made one.
#[derive(Debug)]
pub(crate) struct ChangingDeed {
    deed: Deed,
    change: Option<ChangeRecord>,
}

impl From<Deed> for ChangingDeed {
    fn from(deed: Deed) -> Self {
        Self { deed, change: None }
    }
}

/// The right to change records, held while a change is decided on and written: what was read stays true meanwhile.
#[derive(Debug)]
pub(crate) struct Turn {
    next_sequence: u64,
    /// A write failed, and the files were not opened anew since.
    has_failed: bool,
}

impl Turn {
    /// The number the next audit line will get.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Whether every write would be refused for one that failed before.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed
    }
}

/// sled's files while they are open.
#[derive(Debug)]
struct Open {
    db: sled::Db,
    trees: Vec<sled::Tree>,
}

impl Open {
    fn at(folder: &Path) -> Result<Self, StoreError> {
        let place = folder.display().to_string();
        let config = sled::Config::new()
            .path(folder)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(None);
        let db = open_sled(&config).map_err(|e| match e {
            sled::Error::Io(e) => files::io(folder, &e),
            e => StoreError::Damaged {
                place,
                detail: e.to_string(),
            },
        })?;
        let trees = Table::ALL
            .iter()
            .map(|table| db.open_tree(table.name()).map_err(|e| failed(*table, &e)))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self { db, trees })
    }
}

/// The records.
#[derive(Debug)]
pub(crate) struct Ledger {
    folder: PathBuf,
    /// None after they could not be opened anew.
    open: RwLock<Option<Open>>,
    turn: Mutex<Turn>,
}

impl Ledger {
    /// Opens the records in `folder`, which only this process may use.
    pub(crate) fn open(folder: &Path) -> Result<Self, StoreError> {
        let ledger = Self {
            folder: folder.to_owned(),
            open: RwLock::new(Some(Open::at(folder)?)),
            turn: Mutex::new(Turn {
                next_sequence: 1,
                has_failed: false,
            }),
        };
        ledger.turn.lock().next_sequence = ledger.after_last_line()?;
        Ok(ledger)
    }

    /// Opens the files anew after a write that failed. What was acknowledged had been flushed and is there; what was not
    /// may be gone. Reads wait meanwhile.
    pub(crate) fn reopen(&self, turn: &mut Turn) -> Result<(), StoreError> {
        let mut open = self.open.write();
        // sled holds its files' lock until the last of it is dropped.
        *open = None;
        *open = Some(Open::at(&self.folder)?);
        drop(open);
        turn.next_sequence = self.after_last_line()?;
        turn.has_failed = false;
        Ok(())
    }

    fn after_last_line(&self) -> Result<u64, StoreError> {
        Ok(self.audit(1)?.first().map_or(1, |line| line.sequence + 1))
    }

    /// Waits until no other change is under way.
    pub(crate) fn turn(&self) -> parking_lot::MutexGuard<'_, Turn> {
        self.turn.lock()
    }

    /// Writes records and the audit line of the deed, all or nothing. On disk when this returns.
    pub(crate) fn commit(
        &self,
        turn: &mut Turn,
        deed: impl Into<ChangingDeed>,
        writes: Vec<Write>,
    ) -> Result<(), StoreError> {
        self.commit_all(turn, vec![deed.into()], writes)
    }

    /// Writes records and the audit lines of several deeds, all or nothing. On disk when this returns.
    pub(crate) fn commit_all(
        &self,
        turn: &mut Turn,
        deeds: Vec<ChangingDeed>,
        mut writes: Vec<Write>,
    ) -> Result<(), StoreError> {
        let mut sequence = turn.next_sequence;
        for ChangingDeed { deed, change } in deeds {
            let line = AuditRecord {
                sequence,
                at: deed.at,
                actor: deed.actor,
                action: deed.action.to_owned(),
                subject: deed.subject,
                reason: deed.reason,
                change,
            };
            writes.push(Write::new(Table::Audit, sequence.to_be_bytes(), &line)?);
            sequence += 1;
        }
        self.put(turn, &writes)?;
        turn.next_sequence = sequence;
        Ok(())
    }

    /// Writes records that no person asked for and no audit line speaks of. On disk when this returns.
    pub(crate) fn commit_unaudited(&self, turn: &mut Turn, writes: &[Write]) -> Result<(), StoreError> {
        self.put(turn, writes)
    }

    fn put(&self, turn: &mut Turn, writes: &[Write]) -> Result<(), StoreError> {
        let put = self.write(writes).and_then(|()| self.flush());
        turn.has_failed |= put.is_err();
        put
    }

    fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        let open = self.opened()?;
        let written = open.trees.as_slice().transaction(|trees| {
            for write in writes {
                let tree = &trees[write.table as usize];
                match &write.value {
                    Some(value) => tree.insert(write.key.as_slice(), value.as_slice())?,
                    None => tree.remove(write.key.as_slice())?,
                };
            }
            Ok::<(), ConflictableTransactionError<()>>(())
        });
        written.map_err(|e| match e {
            TransactionError::Storage(e) => StoreError::Io(e.to_string()),
            TransactionError::Abort(()) => StoreError::Io("the transaction was aborted".into()),
        })
    }

    fn flush(&self) -> Result<(), StoreError> {
        let flushed = self.opened()?.db.flush();
        flushed.map(|_| ()).map_err(|e| StoreError::Io(e.to_string()))
    }

    /// The files, which are not closed while this is held.
    fn opened(&self) -> Result<MappedRwLockReadGuard<'_, Open>, StoreError> {
        RwLockReadGuard::try_map(self.open.read(), Option::as_ref).map_err(|_| self.closed())
    }

    fn closed(&self) -> StoreError {
        let place = self.folder.display();
        StoreError::Io(format!(
            "{place}: it could not be opened again after a write that failed; the next change tries it again"
        ))
    }

    /// One record.
    pub(crate) fn get<T: DeserializeOwned>(&self, table: Table, key: &str) -> Result<Option<T>, StoreError> {
        let found = self.tree(table)?.get(key).map_err(|e| failed(table, &e))?;
        found
            .map(|value| decode(table, key.as_bytes(), &value))
            .transpose()
    }

    /// The records whose keys begin with `prefix`, with their keys, in the order of the keys.
    pub(crate) fn scan<T: DeserializeOwned>(
        &self,
        table: Table,
        prefix: &str,
    ) -> Result<Vec<(sled::IVec, T)>, StoreError> {
        let entries = self.tree(table)?.scan_prefix(prefix);
        entries.map(|entry| Self::entry(table, entry)).collect()
    }

    /// Every record of a table as it stands, in the order of the keys.
    pub(crate) fn raw(&self, table: Table) -> Result<Vec<(sled::IVec, sled::IVec)>, StoreError> {
        self.tree(table)?
            .iter()
            .map(|entry| entry.map_err(|e| failed(table, &e)))
            .collect()
    }

    /// The newest lines of the audit log, newest first.
    pub(crate) fn audit(&self, limit: usize) -> Result<Vec<AuditRecord>, StoreError> {
        let entries = self.tree(Table::Audit)?.iter().rev().take(limit);
        entries
            .map(|entry| Self::entry(Table::Audit, entry).map(|(_, line)| line))
            .collect()
    }

    fn entry<T: DeserializeOwned>(
        table: Table,
        entry: sled::Result<(sled::IVec, sled::IVec)>,
    ) -> Result<(sled::IVec, T), StoreError> {
        let (key, value) = entry.map_err(|e| failed(table, &e))?;
        let record = decode(table, &key, &value)?;
        Ok((key, record))
    }

    /// A table, which is not closed while this is held.
    fn tree(&self, table: Table) -> Result<MappedRwLockReadGuard<'_, sled::Tree>, StoreError> {
        let open = self.opened()?;
        Ok(MappedRwLockReadGuard::map(open, |open| {
            &open.trees[table as usize]
        }))
    }
}

fn decode<T: DeserializeOwned>(table: Table, key: &[u8], value: &[u8]) -> Result<T, StoreError> {
    let damaged = |e: serde_json::Error| StoreError::Damaged {
        place: format!("{}, record {}", table.name(), key.escape_ascii()),
        detail: e.to_string(),
    };
    let raw: Stored<Box<serde_json::value::RawValue>> = serde_json::from_slice(value).map_err(damaged)?;
    if raw.schema > SCHEMA {
        return Err(StoreError::NewerSchema {
            found: raw.schema,
            known: SCHEMA,
        });
    }
    serde_json::from_str(raw.value.get()).map_err(damaged)
}

fn failed(table: Table, error: &sled::Error) -> StoreError {
    match error {
        sled::Error::Corruption { .. } => StoreError::Damaged {
            place: table.name().to_owned(),
            detail: error.to_string(),
        },
        error => StoreError::Io(format!("{}: {error}", table.name())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_its_own_tree() {
        for (position, table) in Table::ALL.iter().enumerate() {
            assert_eq!(
                *table as usize, position,
                "{table:?} would be looked up in another table's tree"
            );
        }
    }

    #[test]
    fn records_of_a_later_release_and_torn_records_are_told_apart() {
        let later = br#"{"schema":2,"value":{"shape":"unknown"}}"#;
        let read = decode::<AuditRecord>(Table::Audit, &1u64.to_be_bytes(), later);
        assert!(
            matches!(read, Err(StoreError::NewerSchema { found: 2, known: 1 })),
            "{read:?}"
        );
        let torn = br#"{"schema":1,"value":{"seq"#;
        let read = decode::<AuditRecord>(Table::Audit, &1u64.to_be_bytes(), torn);
        let Err(StoreError::Damaged { place, .. }) = read else {
            panic!("{read:?}")
        };
        assert_eq!(place, r"audit, record \x00\x00\x00\x00\x00\x00\x00\x01");
    }
}
