//! What policies keep between calls, in a folder of its own beside the store.
//!
//! Calls read and write memory; a thread writes what changed to disk once a second, and [`SledState::close`] writes the
//! rest. So a call costs no more than without a disk, and what is lost by `kill -9` is the last second: `state` holds
//! counters and hints, not what was acknowledged to anyone.
//!
//! Each scope and policy has a sled tree of its own, and a key is only ever looked up in the tree of the policy that
//! asks.

mod record;

use crate::files;
use crate::opening::{is_locked, open_sled};
use parking_lot::{Mutex, RwLock};
use portolan_base::{Clock, Moment};
use portolan_ports::{Entry, PolicyState, StateQuota, StateSpace, StateValue, StateValues, StoreError};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often changes are written: a second's worth of counters is what a crash may cost.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// sled's page cache. Everything is in memory here already, so sled needs little of its own.
const CACHE_BYTES: u64 = 4 << 20;

/// A [`PolicyState`] that survives restarts.
pub struct SledState {
    memory: Arc<Memory>,
    writer: Mutex<Option<Writer>>,
}

/// The thread that writes, and how to end it.
struct Writer {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

struct Memory {
    quota: StateQuota,
    spaces: RwLock<HashMap<StateSpace, Arc<Mutex<Space>>>>,
}

#[derive(Default)]
struct Space {
    values: StateValues,
    /// Keys whose value on disk is another.
    changed: HashSet<String>,
}

impl fmt::Debug for SledState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SledState({} spaces)", self.memory.spaces.read().len())
    }
}

impl SledState {
    /// Opens the state in `folder`, or begins one there, and reads it into memory. `clock` tells what ended meanwhile.
    ///
    /// # Errors
    /// [`StoreError::InUse`] when another process has it open, [`StoreError::Io`] when the folder cannot be used,
    /// [`StoreError::Damaged`] when a record does not read back.
    pub fn open(folder: &Path, quota: StateQuota, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        files::create_folder(folder)?;
        let db = open_db(folder)?;
        let memory = Arc::new(Memory {
            quota,
            spaces: RwLock::new(read(&db, folder, clock.now())?),
        });
        let (stop, stopped) = channel();
        let disk = Disk {
            db,
            memory: memory.clone(),
            clock,
        };
        let thread = std::thread::Builder::new()
            .name("policy-state".into())
            .spawn(move || {
                while stopped.recv_timeout(WRITE_EVERY) == Err(RecvTimeoutError::Timeout) {
                    disk.write_or_log();
                }
                disk.write_or_log();
            })
            .map_err(|e| files::io(folder, &e))?;
        Ok(Self {
            memory,
            writer: Mutex::new(Some(Writer { stop, thread })),
        })
    }

    /// Writes what is not on disk yet and closes the files. Later changes stay in memory.
    pub fn close(&self) {
        let Some(writer) = self.writer.lock().take() else {
            return;
        };
        drop(writer.stop);
        if writer.thread.join().is_err() {
            tracing::error!("the thread that writes policy state failed; its last changes are lost");
        }
    }
}

impl Drop for SledState {
    fn drop(&mut self) {
        self.close();
    }
}

impl PolicyState for SledState {
    fn get(&self, space: &StateSpace, key: &str, now: Moment) -> Option<u64> {
        let known = self.memory.spaces.read().get(space).cloned()?;
        let value = known.lock().values.get(key, now);
        value.map(|value| value.number)
    }

    fn set(&self, space: &StateSpace, entry: Entry<'_>, now: Moment) -> bool {
        let value = StateValue {
            number: entry.value,
            expires: entry.ttl.map(|ttl| now + ttl),
        };
        let space = self.memory.space(space);
        let mut space = space.lock();
        space.put(&self.memory.quota, (entry.key, value), now)
    }

    fn add(&self, space: &StateSpace, key: &str, delta: i64, now: Moment) -> u64 {
        let space = self.memory.space(space);
        let mut space = space.lock();
        let sum = space.values.sum(key, delta, now);
        space.put(&self.memory.quota, (key, sum), now);
        sum.number
    }
}

impl Memory {
    fn space(&self, space: &StateSpace) -> Arc<Mutex<Space>> {
        if let Some(known) = self.spaces.read().get(space) {
            return known.clone();
        }
        self.spaces.write().entry(space.clone()).or_default().clone()
    }
}

impl Space {
    fn put(&mut self, quota: &StateQuota, (key, value): (&str, StateValue), now: Moment) -> bool {
        let changed = &mut self.changed;
        let kept = self.values.put(quota, (key, value), now, |gone| {
            changed.insert(gone);
        });
        if kept && !changed.contains(key) {
            changed.insert(key.to_owned());
        }
        kept
    }

    /// What has to be written: each changed key with its value, or `None` where it is gone.
    fn take_changes(&mut self, now: Moment) -> Vec<(String, Option<StateValue>)> {
        if self.changed.is_empty() {
            return Vec::new();
        }
        self.changed.extend(self.values.expire(now));
        let values = &self.values;
        self.changed
            .drain()
            .map(|key| {
                let value = values.stored(&key);
                (key, value)
            })
            .collect()
    }
}

/// The writing side.
struct Disk {
    db: sled::Db,
    memory: Arc<Memory>,
    clock: Arc<dyn Clock>,
}

impl Disk {
    fn write_or_log(&self) {
        if let Err(error) = self.write() {
            tracing::error!(%error, "policy state could not be written; it is tried again");
        }
    }

    /// Writes every change, one batch for each space.
    fn write(&self) -> sled::Result<()> {
        let spaces: Vec<(StateSpace, Arc<Mutex<Space>>)> = self
            .memory
            .spaces
            .read()
            .iter()
            .map(|(name, space)| (name.clone(), space.clone()))
            .collect();
        let mut wrote = false;
        for (name, space) in spaces {
            let changes = space.lock().take_changes(self.clock.now());
            if changes.is_empty() {
                continue;
            }
            if let Err(error) = self.write_space(&name, &changes) {
                let mut space = space.lock();
                space.changed.extend(changes.into_iter().map(|(key, _)| key));
                return Err(error);
            }
            wrote = true;
        }
        if wrote {
            self.db.flush()?;
        }
        Ok(())
    }

    fn write_space(&self, space: &StateSpace, changes: &[(String, Option<StateValue>)]) -> sled::Result<()> {
        let mut batch = sled::Batch::default();
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(key.as_bytes(), &record::encode(*value)),
                None => batch.remove(key.as_bytes()),
            }
        }
        self.db.open_tree(record::tree_name(space))?.apply_batch(batch)
    }
}

fn open_db(folder: &Path) -> Result<sled::Db, StoreError> {
    let config = sled::Config::new()
        .path(folder)
        .cache_capacity(CACHE_BYTES)
        .flush_every_ms(None);
    open_sled(&config).map_err(|error| match is_locked(&error) {
        true => StoreError::InUse(folder.display().to_string()),
        false => record::failed(folder, &error),
    })
}

/// Everything that has not ended.
fn read(
    db: &sled::Db,
    folder: &Path,
    now: Moment,
) -> Result<HashMap<StateSpace, Arc<Mutex<Space>>>, StoreError> {
    // What was within the quota when it was written is taken back even if the quota shrank.
    let unbounded = StateQuota {
        keys: usize::MAX,
        bytes: usize::MAX,
        key_bytes: usize::MAX,
    };
    let mut spaces = HashMap::new();
    for name in db.tree_names() {
        let Some(space_name) = record::space_of(&name) else {
            continue;
        };
        let tree = db.open_tree(&name).map_err(|e| record::failed(folder, &e))?;
        let mut space = Space::default();
        for entry in &tree {
            let (key, value) = entry.map_err(|e| record::failed(folder, &e))?;
            let (key, value) = record::decode(folder, &key, &value)?;
            if value.is_alive(now) {
                space.values.put(&unbounded, (&key, value), now, drop);
            } else {
                space.changed.insert(key);
            }
        }
        spaces.insert(space_name, Arc::new(Mutex::new(space)));
    }
    Ok(spaces)
}

#[cfg(test)]
mod tests;
