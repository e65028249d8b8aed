//! A consistent copy of a store that is in use, and a store made of such a copy.
//!
//! ```text
//! records.jsonl               every record: its table, its key in hexadecimal, its value as text; a last line counts them
//! secret                      the secret that keys of the installation are derived from
//! components/<sha256>.wasm    components as they were uploaded
//! ```
//!
//! Two copies of a store that nothing changed in between are equal byte for byte. A copy is whole when the last line of
//! `records.jsonl` is there. Artefacts are not in it: they are made anew.

use crate::files;
use crate::ledger::{Ledger, Table, Write};
use crate::store::SledStore;
use portolan_ports::StoreError;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

const RECORDS: &str = "records.jsonl";
const SECRET: &str = "secret";
const COMPONENTS: &str = "components";

/// Records written at once when a store is made: sled keeps all of a transaction in memory.
const AT_ONCE: usize = 500;

/// A line of the copy.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Record(String, String, String),
    End { records: usize },
}

impl SledStore {
    /// Copies the store into `folder`, which is made, while it is in use: changes wait meanwhile, reads do not. Returns how
    /// many records there are.
    ///
    /// # Errors
    /// When something cannot be read or written; what lies in `folder` then is no copy.
    pub fn snapshot(&self, folder: &Path) -> Result<usize, StoreError> {
        let components = folder.join(COMPONENTS);
        files::create_folder(folder)?;
        files::create_folder(&components)?;
        let _turn = self.ledger().turn();
        let (mut text, mut records) = (Vec::new(), 0);
        for table in Table::ALL {
            for (key, value) in self.ledger().raw(table)? {
                let value = String::from_utf8(value.to_vec()).map_err(|error| StoreError::Damaged {
                    place: format!("{}, record {}", table.name(), key.escape_ascii()),
                    detail: error.to_string(),
                })?;
                push(
                    &mut text,
                    &Line::Record(table.name().to_owned(), hex::encode(&key), value),
                )?;
                records += 1;
            }
        }
        push(&mut text, &Line::End { records })?;
        for path in files::paths(self.components())? {
            if let (Some(name), Some(bytes)) = (path.file_name(), files::read(&path)?) {
                files::write(&components.join(name), &bytes)?;
            }
        }
        let secret = self.components().with_file_name(SECRET);
        let secret = files::read(&secret)?.ok_or_else(|| missing(&secret))?;
        files::write(&folder.join(SECRET), &secret)?;
        files::write(&folder.join(RECORDS), &text)?;
        Ok(records)
    }

    /// Makes a store in `folder`, which must not hold one, of the copy in `snapshot`. Open it with [`SledStore::open`].
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when the copy is not whole, and when there is a store already.
    pub fn restore(snapshot: &Path, folder: &Path) -> Result<usize, StoreError> {
        let place = snapshot.join(RECORDS);
        let text = files::read(&place)?.ok_or_else(|| missing(&place))?;
        let writes = read(&place, &text)?;
        if folder.join("db").exists() {
            return Err(StoreError::Damaged {
                place: folder.display().to_string(),
                detail: "there is a store already; restore into an empty folder".to_owned(),
            });
        }
        files::create_folder(folder)?;
        let components = folder.join(COMPONENTS);
        files::create_folder(&components)?;
        let secret = snapshot.join(SECRET);
        let bytes = files::read(&secret)?.ok_or_else(|| missing(&secret))?;
        files::write(&folder.join(SECRET), &bytes)?;
        if snapshot.join(COMPONENTS).is_dir() {
            for path in files::paths(&snapshot.join(COMPONENTS))? {
                if let (Some(name), Some(bytes)) = (path.file_name(), files::read(&path)?) {
                    files::write(&components.join(name), &bytes)?;
                }
            }
        }
        let ledger = Ledger::open(&folder.join("db"))?;
        for some in writes.chunks(AT_ONCE) {
            ledger.commit_unaudited(&mut ledger.turn(), some)?;
        }
        drop(ledger);
        // The artefacts' folder is made when the store is opened.
        fs::File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|e| files::io(folder, &e))?;
        Ok(writes.len())
    }
}

fn push(text: &mut Vec<u8>, line: &Line) -> Result<(), StoreError> {
    serde_json::to_writer(&mut *text, line).map_err(|error| StoreError::Io(error.to_string()))?;
    text.push(b'\n');
    Ok(())
}

fn read(place: &Path, text: &[u8]) -> Result<Vec<Write>, StoreError> {
    let damaged = |detail: String| StoreError::Damaged {
        place: place.display().to_string(),
        detail,
    };
    let (mut writes, mut end) = (Vec::new(), None);
    for (number, line) in text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .enumerate()
    {
        let line = serde_json::from_slice(line).map_err(|e| damaged(format!("line {}: {e}", number + 1)))?;
        match line {
            Line::Record(table, key, value) => {
                let known = Table::ALL.into_iter().find(|known| known.name() == table);
                let known = known.ok_or_else(|| damaged(format!("there is no table {table:?}")))?;
                let key = hex::decode(&key).map_err(|e| damaged(format!("line {}: {e}", number + 1)))?;
                writes.push(Write::raw(known, key, value.into_bytes()));
            }
            Line::End { records } => end = Some(records),
        }
    }
    match end {
        Some(records) if records == writes.len() => Ok(writes),
        Some(records) => Err(damaged(format!(
            "{} records of {records} are there",
            writes.len()
        ))),
        None => Err(damaged("its end is missing".to_owned())),
    }
}

fn missing(place: &Path) -> StoreError {
    StoreError::Damaged {
        place: place.display().to_string(),
        detail: "it is missing".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::{Moment, Random, TenantName};
    use portolan_ports::{KeyRecord, PolicyStore, Principal, TenantRecord};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Dice;

    impl Random for Dice {
        fn next_u64(&self) -> u64 {
            4
        }
    }

    fn put(store: &SledStore, number: u32) {
        let name = TenantName::new(&format!("t{number}")).unwrap();
        let tenant = TenantRecord {
            name: name.clone(),
            jurisdiction: "eu".to_owned(),
            user_class: "standard".to_owned(),
        };
        store
            .put_tenant(tenant, "test", Moment(u64::from(number)))
            .unwrap();
        let key = KeyRecord {
            principal: Principal::Tenant(name),
            label: "test".to_owned(),
            holder: None,
        };
        store
            .put_key(&format!("key-{number}"), key, "test", Moment(u64::from(number)))
            .unwrap();
    }

    #[test]
    fn a_copy_of_a_store_in_use_is_a_store_as_it_was_at_one_moment() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(SledStore::open(&folder.path().join("a"), &Dice).unwrap());
        put(&store, 0);
        let (stop, writer) = (Arc::new(AtomicBool::new(false)), Arc::clone(&store));
        let told = Arc::clone(&stop);
        let writing = std::thread::spawn(move || {
            for number in 1.. {
                put(&writer, number);
                if told.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for round in 0..5 {
            let (copy, made) = (
                folder.path().join(format!("c{round}")),
                folder.path().join(format!("b{round}")),
            );
            store.snapshot(&copy).unwrap();
            SledStore::restore(&copy, &made).unwrap();
            let restored = SledStore::open(&made, &Dice).unwrap();
            let audit = restored.audit(usize::MAX).unwrap();
            let numbers: Vec<u64> = audit.iter().rev().map(|line| line.sequence).collect();
            assert_eq!(
                numbers,
                (1..=audit.len() as u64).collect::<Vec<_>>(),
                "no line is missing"
            );
            let keys = audit.iter().filter(|line| line.action == "key.put").count() as u32;
            for number in 0..keys {
                assert!(
                    restored.authenticate(&format!("key-{number}")).unwrap().is_some(),
                    "{number} of {keys}"
                );
            }
            assert_eq!(restored.authenticate(&format!("key-{}", keys + 1)).unwrap(), None);
        }
        stop.store(true, Ordering::Relaxed);
        writing.join().unwrap();
        let copies = ["x", "y"].map(|name| {
            store.snapshot(&folder.path().join(name)).unwrap();
            fs::read(folder.path().join(name).join(RECORDS)).unwrap()
        });
        assert_eq!(copies[0], copies[1]);
    }

    #[test]
    fn a_torn_copy_is_no_store_and_a_store_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let store = SledStore::open(&folder.path().join("a"), &Dice).unwrap();
        put(&store, 0);
        let copy = folder.path().join("copy");
        store.snapshot(&copy).unwrap();
        let there = SledStore::restore(&copy, &folder.path().join("a"))
            .unwrap_err()
            .to_string();
        assert!(there.contains("a store already"), "{there}");
        let whole = fs::read(copy.join(RECORDS)).unwrap();
        for cut in [whole.len() / 2, whole.len() - 20] {
            fs::write(copy.join(RECORDS), &whole[..cut]).unwrap();
            let made = folder.path().join(format!("b{cut}"));
            assert!(SledStore::restore(&copy, &made).is_err(), "{cut}");
            assert!(!made.join("db").exists());
        }
    }
}
