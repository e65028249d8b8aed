//! The writing side: sled, begun anew whenever it holds much more than what lives.
//!
//! sled keeps what was overwritten until it needs the place again and gives nothing back, so every so often everything
//! is written into a new generation:
//!
//! ```text
//! state/lock       held while a process has the state open
//! state/current    the number of the generation that counts
//! state/7/         that generation: sled
//! ```
//!
//! A generation counts from the moment when `current` names it, which is one rename, and is whole by then. `kill -9`
//! leaves the one before or the one after, and a folder that does not count is removed when the state is opened. Calls
//! see memory only and wait for none of it.
//!
//! A sled in which a write failed is of no more use: it refuses the next ones, or waits for ever that the failed one is done, even
//! when it is dropped. As memory has everything, such a generation is left for a new one, once there is room, and what sled has of
//! it in memory stays until the process ends: at most its cache.

use super::memory::{Changes, Memory, Pages};
use super::record;
use crate::files;
use crate::opening::{is_locked, lock, open_sled};
use portolan_base::Clock;
use portolan_ports::{StateSpace, StoreError};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// sled's page cache. Everything is in memory here already, so sled needs little of its own.
const CACHE_BYTES: u64 = 4 << 20;

/// sled takes disk in pieces of this size and reuses a piece when little in it lives. An eighth of its default: with
/// records of some 4 kB the smaller pieces empty sooner. Still smaller ones put larger records into files of their own.
const SEGMENT_BYTES: usize = 64 << 10;

/// A generation below this size is left as it is: sixteen segments.
const SMALL_BYTES: u64 = 1 << 20;

/// The disk may hold so many permille of what lives, before a generation begins: with what one pass writes, three times.
const WASTEFUL_PERMILLE: u64 = 2500;

/// And so many permille of what the generation held when it was begun, so that many policies with little each, where
/// sled's own records count, do not make it begin for ever.
const GROWN_PERMILLE: u64 = 1250;

/// Room that is looked for beside what lives before a generation is begun: opening sled's files writes some of them, and what
/// fails there is worse than what is not begun.
const ROOM_BYTES: u64 = 2 << 20;

/// And so many times what lives, which is more than a generation takes that was just begun.
const ROOM_TIMES: u64 = 2;

/// Passes without a try after generations that failed though there was room, at most: a minute. Each costs memory.
const PAUSE_MAX: u32 = 63;

/// How a generation began.
#[derive(Clone, Copy, Debug, Default)]
struct Begun {
    on_disk: u64,
    living: u64,
}

/// Passes that are let go by before a generation is begun again.
#[derive(Clone, Copy, Debug, Default)]
struct Pause {
    left: u32,
    all: u32,
}

impl Pause {
    fn longer(self) -> Self {
        let all = (self.all * 2 + 1).min(PAUSE_MAX);
        Self { left: all, all }
    }
}

/// The folder, with the generation that counts.
pub(super) struct Disk {
    folder: PathBuf,
    generation: u64,
    db: sled::Db,
    /// A write failed, and sled takes no other.
    has_failed: bool,
    pause: Pause,
    /// What the generation took when it was begun.
    begun: Begun,
    memory: Arc<Memory>,
    clock: Arc<dyn Clock>,
    /// Declared last, so that the lock goes after sled has closed its files.
    _lock: File,
}

impl Disk {
    /// Opens the generation that counts, or begins the first, and reads it into `memory`.
    pub(super) fn open(
        folder: &Path,
        memory: Arc<Memory>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StoreError> {
        files::create_folder(folder)?;
        let lock = lock(folder)?;
        let current = current(folder)?;
        sweep(folder, current)?;
        let generation = current.unwrap_or(1);
        let db = open_db(&folder.join(generation.to_string()))?;
        if current.is_none() {
            name_current(folder, generation)?;
        }
        let disk = Self {
            folder: folder.to_owned(),
            generation,
            begun: Begun::default(),
            has_failed: false,
            pause: Pause::default(),
            db,
            memory,
            clock,
            _lock: lock,
        };
        disk.read()?;
        Ok(disk)
    }

    fn read(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        for entry in &*self.db {
            let (key, value) = entry.map_err(|e| record::failed(&self.folder, &e))?;
            let page = record::decode(&self.folder, &key, &value)?;
            self.memory
                .space(&page.space)
                .restore(page.doublings, page.values, now);
        }
        Ok(())
    }

    /// Writes every change, and begins a generation when the disk holds too much or a write failed. On disk when this
    /// returns.
    pub(super) fn write(&mut self) -> Result<(), StoreError> {
        self.sweep_retired();
        let now = self.clock.now();
        self.memory.relieve(now);
        if self.has_failed {
            self.begin_anew()?;
            self.has_failed = false;
            tracing::warn!("policy state is written again after a write that failed");
            return Ok(());
        }
        if let Err(error) = self.write_pages(&self.db, Pages::Changed) {
            self.has_failed = true;
            never_drop(self.db.clone());
            return Err(error);
        }
        if self.is_wasteful()? {
            self.begin_anew()?;
        }
        Ok(())
    }

    fn is_wasteful(&self) -> Result<bool, StoreError> {
        let bytes = self.db.size_on_disk().map_err(|e| self.failed(&e))?;
        let permille = |of: u64, permille: u64| of.saturating_mul(permille) / 1000;
        let living = self.memory.bytes();
        // Where less lives than then, less is allowed.
        let left = (living.saturating_mul(1000) / self.begun.living.max(1)).min(1000);
        let allowed = permille(living, WASTEFUL_PERMILLE)
            .max(permille(permille(self.begun.on_disk, GROWN_PERMILLE), left))
            .max(SMALL_BYTES);
        Ok(bytes > allowed)
    }

    /// Writes everything into a new generation and makes it the one that counts.
    fn begin_anew(&mut self) -> Result<(), StoreError> {
        // One that failed in its last step may be named all the same.
        let named = current(&self.folder)?.unwrap_or_default();
        let generation = self.generation.max(named) + 1;
        let path = self.folder.join(generation.to_string());
        remove_folder(&path)?;
        let room = self.memory.bytes().saturating_mul(ROOM_TIMES);
        let room = usize::try_from(room.saturating_add(ROOM_BYTES)).unwrap_or(usize::MAX);
        files::try_room(&self.folder, room)?;
        self.wait_out()?;
        let db = self.write_anew(&path, generation).inspect_err(|_| {
            // What memory took for written is in the generation that is given up.
            for (_, space) in self.memory.all() {
                space.was_not_written();
            }
            self.give_up(&path, generation);
        });
        self.pause = match db {
            Ok(_) => Pause::default(),
            Err(_) => self.pause.longer(),
        };
        let db = db?;
        self.begun = Begun {
            on_disk: db.size_on_disk().map_err(|e| self.failed(&e))?,
            living: self.memory.bytes(),
        };
        self.generation = generation;
        tracing::debug!(
            generation,
            bytes = self.begun.on_disk,
            "policy state was written anew"
        );
        // Its folder goes in the next pass, when sled's threads have let go of it.
        drop(std::mem::replace(&mut self.db, db));
        Ok(())
    }

    /// A generation that holds everything and counts.
    fn write_anew(&self, path: &Path, generation: u64) -> Result<sled::Db, StoreError> {
        let db = open_db(path)?;
        let written = self
            .write_pages(&db, Pages::All)
            .and_then(|()| files::sync_folder(path))
            .and_then(|()| name_current(&self.folder, generation));
        match written {
            Ok(()) => Ok(db),
            Err(error) => {
                never_drop(db);
                Err(error)
            }
        }
    }

    /// Lets a pass go by, while there is a pause.
    fn wait_out(&mut self) -> Result<(), StoreError> {
        match self.pause.left.checked_sub(1) {
            None => Ok(()),
            Some(left) => {
                self.pause.left = left;
                let place = self.folder.display();
                Err(StoreError::Io(format!(
                    "{place}: it could not be written anew; it is tried again in {} s",
                    left + 1
                )))
            }
        }
    }

    /// Gives back what a generation took that could not be begun: the disk is full, or nearly.
    fn give_up(&self, path: &Path, generation: u64) {
        if current(&self.folder).is_ok_and(|named| named != Some(generation)) {
            // What is left of it goes in the next try, or at the next start.
            let _ = remove_folder(path);
        }
    }

    fn sweep_retired(&self) {
        let Some(before) = self.generation.checked_sub(1) else {
            return;
        };
        if let Err(error) = remove_folder(&self.folder.join(before.to_string())) {
            tracing::warn!(%error, "an old generation of policy state is left until the next start");
        }
    }

    /// Writes pages of every policy into `db`, one batch for each, and flushes.
    fn write_pages(&self, db: &sled::Db, wanted: Pages) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut wrote = Vec::new();
        let mut write = || {
            for (name, space) in self.memory.all() {
                let Some(changes) = space.take(wanted, now) else {
                    continue;
                };
                wrote.push(space);
                write_space(db, &name, changes)?;
            }
            if !wrote.is_empty() {
                db.flush()?;
            }
            Ok(())
        };
        let written = write();
        written.map_err(|error| {
            wrote.iter().for_each(|space| space.was_not_written());
            self.failed(&error)
        })
    }

    fn failed(&self, error: &sled::Error) -> StoreError {
        record::failed(&self.folder, error)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.sweep_retired();
    }
}

/// Keeps what dropping would wait for, which may be for ever.
fn never_drop(db: sled::Db) {
    std::mem::forget(db);
}

fn write_space(db: &sled::Db, name: &StateSpace, changes: Changes) -> sled::Result<()> {
    let prefix = record::prefix(name);
    let mut batch = sled::Batch::default();
    if changes.are_all {
        for key in db.scan_prefix(&prefix).keys() {
            batch.remove(key?);
        }
    }
    for (page, value) in changes.pages {
        let key = record::key(&prefix, changes.doublings, page);
        match value {
            Some(value) => batch.insert(key, value),
            None => batch.remove(key),
        }
    }
    db.apply_batch(batch)
}

fn current(folder: &Path) -> Result<Option<u64>, StoreError> {
    let path = folder.join("current");
    let Some(bytes) = files::read(&path)? else {
        return Ok(None);
    };
    let number = std::str::from_utf8(&bytes)
        .ok()
        .and_then(|text| text.trim().parse().ok());
    number.map(Some).ok_or_else(|| StoreError::Damaged {
        place: path.display().to_string(),
        detail: "it does not name a generation; remove the folder to begin with empty state".into(),
    })
}

fn name_current(folder: &Path, generation: u64) -> Result<(), StoreError> {
    files::write(&folder.join("current"), generation.to_string().as_bytes())
}

/// Removes the generations that do not count.
fn sweep(folder: &Path, current: Option<u64>) -> Result<(), StoreError> {
    files::sweep_temporary(folder)?;
    for path in files::paths(folder)? {
        let generation = path
            .file_name()
            .and_then(|name| name.to_str()?.parse::<u64>().ok());
        if generation.is_some() && generation != current {
            remove_folder(&path)?;
        }
    }
    Ok(())
}

fn remove_folder(path: &Path) -> Result<(), StoreError> {
    // A file that is still open is gone without giving its place back.
    if let Ok(records) = File::options().write(true).open(path.join("db")) {
        // What cannot be given back is not worth more than the folder.
        let _ = records.set_len(0);
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(files::io(path, &error)),
        _ => Ok(()),
    }
}

fn open_db(folder: &Path) -> Result<sled::Db, StoreError> {
    let config = sled::Config::new()
        .path(folder)
        .cache_capacity(CACHE_BYTES)
        .segment_size(SEGMENT_BYTES)
        .flush_every_ms(None);
    open_sled(&config).map_err(|error| match is_locked(&error) {
        true => StoreError::InUse(folder.display().to_string()),
        false => record::failed(folder, &error),
    })
}
