//! Which blocks lie on disk: catalogue, budget, orders to forget.

use crate::file::{BadFile, SumKey};
use crate::folder::{FileName, Folder, Removal};
use crate::gate::Gate;
use crate::landing::{Landing, LandingConfig, OpenSet};
use crate::realm::Realm;
use crate::state::{Filed, State, Work};
use crate::writer;
use parking_lot::{Condvar, Mutex};
use portolan_base::kv::LandingId;
use portolan_base::{BlockId, Bytes, Dependency, ModelName, Moment, Provenance, Scope};
use portolan_kv::index::Tier;
use portolan_kv::tier::{BlockTier, Card, Left, Lying, Offered, Reading, TierUse};
use portolan_kv::{Kept, PoolBlock, PoolConfig, Selector};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

/// What a disk tier is to be.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// The folder of this site and model; the tier makes one within for its realm, and removes those of others.
    pub folder: PathBuf,
    /// The model whose KV it takes.
    pub model: ModelName,
    /// Within which bounds its KV may be used.
    pub realm: Realm,
    /// The host's secret: files that were not written with it are dropped.
    pub secret: [u8; 32],
    /// Budget, shares, where prefixes may end, time to live.
    pub pool: PoolConfig,
    /// Blocks that may wait to be written; further ones are not taken.
    pub queue: Bytes,
    /// What may land of transfers that do not come to their end, beside the pool's budget.
    pub landing: LandingConfig,
    /// Whether files are overwritten before they are unlinked.
    pub secure_delete: bool,
}

/// Why a disk tier cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the disk tier in {folder} cannot be used: {source}")]
pub struct DiskError {
    folder: PathBuf,
    source: std::io::Error,
}

/// Blocks in files. Writing happens on a thread of its own; dropping the tier lets it finish.
#[derive(Debug)]
pub struct DiskTier {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

/// What the tier and its writer both see.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) folder: Folder,
    pub(crate) key: SumKey,
    pub(crate) landing: Option<Landing>,
    pub(crate) state: Mutex<State>,
    /// Told when there is work, and when there is none left.
    pub(crate) changed: Condvar,
    queue: Bytes,
    model: ModelName,
    gate: OnceLock<Gate>,
}

impl DiskTier {
    /// Opens a tier, with what an earlier process left there. Reads the head of every file; bodies are checked when they
    /// are read.
    ///
    /// # Errors
    /// When the folder cannot be made, read or written to.
    pub fn open(config: DiskConfig) -> Result<Self, DiskError> {
        let folder = config.folder.clone();
        Self::start(config).map_err(|source| DiskError { folder, source })
    }

    fn start(config: DiskConfig) -> std::io::Result<Self> {
        let removal = if config.secure_delete {
            Removal::Overwrite
        } else {
            Removal::Unlink
        };
        let name = config.realm.to_string();
        let landed = format!("{name}.landed");
        let lands = config.landing.budget.0 > 0;
        let wanted = [&name, &landed];
        remove_others(&config.folder, &wanted[..1 + usize::from(lands)], removal)?;
        let folder = Folder::open(config.folder.join(&name), removal)?;
        let key = SumKey(*blake3::keyed_hash(&config.secret, config.realm.bytes()).as_bytes());
        let open = || {
            Landing::open(
                Folder::open(config.folder.join(&landed), removal)?,
                key,
                config.landing,
            )
        };
        let landing = lands.then(open).transpose()?;
        let mut state = State::new(config.pool);
        state.take_over(&folder, key)?;
        let shared = Arc::new(Shared {
            folder,
            key,
            landing,
            state: Mutex::new(state),
            changed: Condvar::new(),
            queue: config.queue,
            model: config.model,
            gate: OnceLock::new(),
        });
        let theirs = Arc::clone(&shared);
        let writer = std::thread::Builder::new()
            .name("kv-disk".to_owned())
            .spawn(move || writer::run(&theirs))?;
        Ok(Self {
            shared,
            writer: Some(writer),
        })
    }

    /// The model whose KV it takes.
    pub fn model(&self) -> &ModelName {
        &self.shared.model
    }

    /// Has `gate` say whose KV is written; without one, everybody's is. Only the first counts.
    pub fn guard(&self, gate: Gate) {
        drop(self.shared.gate.set(gate));
    }

    fn may_lie(&self, about: &Provenance) -> bool {
        self.shared.gate.get().is_none_or(|gate| gate.allows(about))
    }

    /// Opens what landed of a set, for one transfer; none when nothing of it may land here.
    pub fn landed(&self, set: LandingId, about: &Arc<Provenance>, now: Moment) -> Option<OpenSet> {
        if !self.may_lie(about) {
            return None;
        }
        OpenSet::open(&self.shared, set, about, now)
    }

    /// Bytes that landed.
    pub fn landed_bytes(&self) -> Bytes {
        Bytes(self.shared.landing.as_ref().map_or(0, Landing::used))
    }

    /// Takes a block that was last used at `used_at`, waiting for room in the queue until `until`; false when that did not
    /// come in time.
    pub fn take(&self, block: Arc<PoolBlock>, used_at: Moment, until: Instant) -> bool {
        let kv = block.kv.size();
        let mut state = self.shared.state.lock();
        while state.queued.0 > 0 && state.queued + kv > self.shared.queue {
            if self.shared.changed.wait_until(&mut state, until).timed_out() {
                return false;
            }
        }
        drop(state);
        self.offer(block, used_at);
        Instant::now() < until
    }

    /// Waits until everything that was taken is on disk, and everything that was to go has gone.
    pub fn settle(&self) {
        let mut state = self.shared.state.lock();
        while state.is_busy || !state.work.is_empty() {
            self.shared.changed.wait(&mut state);
        }
    }
}

impl Shared {
    /// Has files erased that were buried.
    pub(crate) fn erase_landed(&self, dead: Vec<FileName>) {
        if !dead.is_empty() {
            self.state
                .lock()
                .work
                .extend(dead.into_iter().map(Work::EraseLanded));
            self.changed.notify_all();
        }
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        self.shared.state.lock().is_closed = true;
        self.shared.changed.notify_all();
        if let Some(writer) = self.writer.take() {
            // A panic of the writer was reported by its thread.
            drop(writer.join());
        }
    }
}

/// Removes the folders of other realms, whose KV can never be used again, and what landed when nothing may land any more.
fn remove_others(folder: &std::path::Path, wanted: &[&String], removal: Removal) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_wanted = wanted.iter().any(|wanted| name.to_str() == Some(wanted.as_str()));
        if entry.file_type()?.is_dir() && !is_wanted {
            tracing::info!(folder = %entry.path().display(), "KV of another model version or build is removed");
            Folder::open(entry.path(), removal)?.remove()?;
        }
    }
    Ok(())
}

impl BlockTier for DiskTier {
    fn tier(&self) -> Tier {
        Tier::Disk
    }

    fn offer(&self, block: Arc<PoolBlock>, now: Moment) -> Offered {
        if block.about.model != self.shared.model || !self.may_lie(&block.about) {
            return Offered::default();
        }
        let mut state = self.shared.state.lock();
        if !state.lacks(&block) {
            state.pool.touch_one(&block.id, now);
            return Offered {
                taken: true,
                ..Offered::default()
            };
        }
        let kv = block.kv.size();
        if state.queued + kv > self.shared.queue {
            state.refused += 1;
            return Offered::default();
        }
        let replaced: Vec<_> = state.pool.remove(&block.id).into_iter().collect();
        state.remove_later(&replaced);
        let name = FileName {
            id: block.id,
            number: state.next,
        };
        state.next += 1;
        let filed = block.with(Filed {
            name,
            kv,
            has_snapshot: block.kv.snapshot.is_some(),
        });
        let inserted = state.pool.insert(filed, now);
        let mut gone = state.remove_later(&inserted.evicted);
        gone.extend(state.remove_later(&inserted.replaced));
        if inserted.added {
            state.pending.insert(name.number, (block, now));
            state.queued += kv;
            state.work.push_back(Work::Write(name, kv));
        } else {
            gone.extend(replaced.iter().map(|block| Left::from(block.as_ref())));
        }
        self.shared.changed.notify_all();
        Offered {
            taken: inserted.added,
            displaced: Vec::new(),
            gone,
        }
    }

    fn holds(&self, id: &BlockId, parent: Option<BlockId>, on: &[Dependency], now: Moment) -> Option<Lying> {
        let state = self.shared.state.lock();
        state.pool.find_for(id, parent, on, now).map(|block| Lying {
            bytes: block.kv.kv,
            has_snapshot: block.kv.has_snapshot,
        })
    }

    fn read(&self, id: &BlockId, now: Moment) -> Option<Arc<PoolBlock>> {
        let (name, filed) = {
            let mut state = self.shared.state.lock();
            state.pool.touch_one(id, now);
            let filed = Arc::new(state.pool.see(id)?.block.clone());
            let name = filed.kv.name;
            if let Some((block, _)) = state.pending.get(&name.number) {
                return Some(Arc::clone(block));
            }
            (name, filed)
        };
        let began = Instant::now();
        let read = self.shared.folder.read(name, self.shared.key);
        let took = began.elapsed();
        let mut state = self.shared.state.lock();
        if state.name_of(id) != Some(name) {
            // It was forgotten or replaced while it was read.
            return None;
        }
        match read {
            Ok(block) if block.parent == filed.parent && block.about.scope == filed.about.scope => {
                state.measured(block.kv.size(), took);
                Some(Arc::new(block))
            }
            other => {
                let reason = other.err().unwrap_or(BadFile::Foreign);
                tracing::warn!(block = ?id, %reason, "dropped from the disk tier");
                state.damaged += 1;
                let gone: Vec<_> = state.pool.remove(id).into_iter().collect();
                state.remove_later(&gone);
                self.shared.changed.notify_all();
                None
            }
        }
    }

    fn reading(&self) -> Reading {
        self.shared.state.lock().reading
    }

    fn count(&self, scope: &Scope, hits: u64, misses: u64) {
        self.shared.state.lock().pool.count(scope, hits, misses);
    }

    fn invalidate(&self, what: &Selector, above: &[BlockId]) -> Vec<Left> {
        if let Some(landing) = &self.shared.landing {
            self.shared.erase_landed(landing.invalidate(what));
        }
        let mut state = self.shared.state.lock();
        let mut gone = state.pool.invalidate(what);
        gone.extend(state.pool.forget(above));
        for block in &gone {
            let name = block.kv.name;
            // A block that is being written is not published once it is not pending any more.
            if state.pending.remove(&name.number).is_none() {
                self.shared.folder.bury(name);
                state.work.push_back(Work::Erase(name));
            }
        }
        drop(state);
        if !gone.is_empty() {
            self.shared.folder.sync();
            self.shared.changed.notify_all();
        }
        gone.iter().map(|block| block.as_ref().into()).collect()
    }

    fn would_forget(&self, what: &Selector, above: &[BlockId]) -> Vec<(BlockId, Bytes)> {
        self.shared.state.lock().pool.would_forget(what, above)
    }

    fn expire(&self, now: Moment) -> Vec<Left> {
        if let Some(landing) = &self.shared.landing {
            self.shared.erase_landed(landing.expire(now));
        }
        let mut state = self.shared.state.lock();
        let gone = state.pool.expire(now);
        self.shared.changed.notify_all();
        state.remove_later(&gone)
    }

    fn usage(&self) -> TierUse {
        let state = self.shared.state.lock();
        TierUse {
            damaged: state.damaged,
            refused: state.refused,
            ..TierUse::of(&state.pool)
        }
    }

    fn each(&self, show: &mut dyn FnMut(Card)) {
        self.shared
            .state
            .lock()
            .pool
            .iter()
            .for_each(|seen| show(seen.into()));
    }
}
