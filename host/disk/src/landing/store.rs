//! The sets that lie in a folder, within their budget.

use super::LandingConfig;
use super::file::{self, Found, Lying, Seal, SetHead};
use crate::file::SumKey;
use crate::folder::{FileName, Folder};
use parking_lot::Mutex;
use portolan_base::kv::{LandedChunk, LandingId, PieceId};
use portolan_base::{BlockId, Moment, Provenance};
use portolan_kv::Selector;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// All sets of one tier.
#[derive(Debug)]
pub(crate) struct Landing {
    folder: Folder,
    key: SumKey,
    config: LandingConfig,
    sets: Mutex<Sets>,
}

#[derive(Debug, Default)]
struct Sets {
    by_id: HashMap<LandingId, Set>,
    /// Transfers that use a set, by number. An order to forget strikes them out.
    visits: HashMap<u64, Visit>,
    used: u64,
    next: u64,
}

#[derive(Debug)]
struct Visit {
    id: LandingId,
    about: Arc<Provenance>,
}

#[derive(Debug)]
struct Set {
    name: FileName,
    about: Arc<Provenance>,
    used_at: Moment,
    /// Bytes of its file, those included that are being written.
    length: u64,
    body: Arc<Mutex<Body>>,
}

/// The file of a set. None once it is to go: nothing is written behind the back of who overwrites it.
#[derive(Debug)]
struct Body {
    open: Option<File>,
    seal: Seal,
    length: u64,
    chunks: HashMap<(PieceId, u64), Lying>,
}

/// A file to be erased.
pub(crate) type Dead = FileName;

impl Landing {
    /// Opens a folder, with what an earlier process left there.
    pub(crate) fn open(folder: Folder, key: SumKey, config: LandingConfig) -> io::Result<Self> {
        let mut sets = Sets::default();
        let mut found = folder.scan_open(|file, length| {
            let sound = file::scan(file, length, key)?;
            if sound.length < length {
                file.set_len(sound.length)?;
            }
            Ok(sound)
        })?;
        found.sort_by_key(|(name, ..)| name.number);
        for (name, file, sound) in found {
            sets.next = name.number + 1;
            if let Some(older) = sets.take_over(name, file, sound) {
                folder.bury(older);
                folder.erase(older);
            }
        }
        Ok(Self {
            folder,
            key,
            config,
            sets: Mutex::new(sets),
        })
    }

    /// A transfer begins to use a set.
    pub(super) fn visit(&self, id: LandingId, about: &Arc<Provenance>, now: Moment) -> u64 {
        let mut sets = self.sets.lock();
        sets.touch(&id, now);
        let number = sets.next_number();
        let about = Arc::clone(about);
        sets.visits.insert(number, Visit { id, about });
        number
    }

    /// It ended.
    pub(super) fn leave(&self, visit: u64) {
        self.sets.lock().visits.remove(&visit);
    }

    pub(super) fn chunks(&self, visit: u64) -> Vec<LandedChunk> {
        let Some(body) = self.sets.lock().body_of(visit) else {
            return Vec::new();
        };
        let body = body.lock();
        body.chunks.values().map(|lying| lying.chunk.clone()).collect()
    }

    /// Writes a chunk; gives what had to go for it, if there is room then.
    pub(super) fn land(
        &self,
        visit: u64,
        chunk: LandedChunk,
        bytes: &[u8],
        now: Moment,
    ) -> (bool, Vec<Dead>) {
        let need = bytes.len() as u64 + ROOM_FOR_HEADS;
        let mut dead = Vec::new();
        let body = {
            let mut sets = self.sets.lock();
            let room = self.make_room(&mut sets, visit, need, &mut dead);
            room.and_then(|()| self.reserve(&mut sets, visit, need, now))
        };
        let landed = body.map(|body| body.lock().append(chunk, bytes, self.key));
        let landed = landed.unwrap_or(Ok(false)).unwrap_or_else(|error| {
            tracing::error!(%error, "a chunk of KV could not be kept on disk");
            false
        });
        (landed, dead)
    }

    /// Buries the sets that were idle longest until so many bytes have room; none when they cannot have it.
    fn make_room(&self, sets: &mut Sets, visit: u64, need: u64, dead: &mut Vec<Dead>) -> Option<()> {
        let id = sets.visits.get(&visit)?.id;
        while sets.used + need > self.config.budget.0 {
            let oldest = sets.oldest_idle(&id)?;
            dead.extend(self.bury(sets, &oldest));
        }
        Some(())
    }

    /// Counts so many bytes against the set of a visit, which is begun when it is not there.
    fn reserve(&self, sets: &mut Sets, visit: u64, need: u64, now: Moment) -> Option<Arc<Mutex<Body>>> {
        let Visit { id, about } = sets.visits.get(&visit)?;
        let (id, about) = (*id, Arc::clone(about));
        if !sets.by_id.contains_key(&id)
            && let Err(error) = self.begin(sets, id, about, now)
        {
            tracing::error!(%error, "a file for KV that lands could not be made");
            return None;
        }
        sets.touch(&id, now);
        sets.used += need;
        let set = sets.by_id.get_mut(&id)?;
        set.length += need;
        Some(Arc::clone(&set.body))
    }

    fn begin(&self, sets: &mut Sets, id: LandingId, about: Arc<Provenance>, now: Moment) -> io::Result<()> {
        let name = file_name(id, sets.next_number());
        let head = SetHead {
            id,
            about,
            begun_at: now,
        };
        let (bytes, seal) = file::begin(&head, self.key)?;
        let open = self.folder.begin(name)?;
        open.write_all_at(&bytes, 0)?;
        let length = bytes.len() as u64;
        let found = Found {
            head,
            seal,
            chunks: Vec::new(),
            length,
        };
        sets.take_over(name, open, found);
        Ok(())
    }

    /// The bytes of a chunk, if they are what they were.
    pub(super) fn read(&self, visit: u64, chunk: &LandedChunk) -> Option<Vec<u8>> {
        let body = self.sets.lock().body_of(visit)?;
        let key = (chunk.piece.clone(), chunk.offset);
        let mut bytes = vec![0; chunk.len as usize];
        let mut body = body.lock();
        let lying = body.chunks.get(&key).filter(|lying| lying.chunk == *chunk)?;
        let read = body.open.as_ref()?.read_exact_at(&mut bytes, lying.at);
        if read.is_ok() && LandedChunk::digest_of(&bytes) == chunk.digest {
            return Some(bytes);
        }
        tracing::warn!(set = ?body.seal[..4], ?read, "a chunk that had landed is damaged; it is sent again");
        body.chunks.remove(&key);
        None
    }

    /// Removes the set of a visit.
    pub(super) fn clear(&self, visit: u64) -> Vec<Dead> {
        let mut sets = self.sets.lock();
        let id = sets.visits.get(&visit).map(|visit| visit.id);
        id.and_then(|id| self.bury(&mut sets, &id)).into_iter().collect()
    }

    /// Forgets what an order may be about. None of it can be found when this returns, nor after a restart; transfers
    /// under way land no more of it.
    pub(crate) fn invalidate(&self, what: &Selector) -> Vec<Dead> {
        let mut sets = self.sets.lock();
        sets.visits.retain(|_, visit| !what.covers_some_of(&visit.about));
        let gone = sets
            .by_id
            .iter()
            .filter(|(_, set)| what.covers_some_of(&set.about));
        let gone: Vec<_> = gone.map(|(id, _)| *id).collect();
        let dead: Vec<_> = gone.iter().filter_map(|id| self.bury(&mut sets, id)).collect();
        drop(sets);
        if !dead.is_empty() {
            self.folder.sync();
        }
        dead
    }

    /// Forgets what was not used for too long.
    pub(crate) fn expire(&self, now: Moment) -> Vec<Dead> {
        let mut sets = self.sets.lock();
        let over = |set: &Set| now.since(set.used_at) >= self.config.time_to_live;
        let idle = sets
            .by_id
            .iter()
            .filter(|(id, set)| over(set) && !sets.is_visited(id));
        let idle: Vec<_> = idle.map(|(id, _)| *id).collect();
        idle.iter().filter_map(|id| self.bury(&mut sets, id)).collect()
    }

    /// Bytes that lie here.
    pub(crate) fn used(&self) -> u64 {
        self.sets.lock().used
    }

    /// Erases what was buried.
    pub(crate) fn erase(&self, dead: Dead) {
        self.folder.erase(dead);
    }

    fn bury(&self, sets: &mut Sets, id: &LandingId) -> Option<Dead> {
        let set = sets.by_id.remove(id)?;
        sets.used = sets.used.saturating_sub(set.length);
        // Waits for who is writing; whoever comes later finds it closed.
        let mut body = set.body.lock();
        body.open = None;
        body.chunks.clear();
        self.folder.bury(set.name);
        Some(set.name)
    }
}

/// What a chunk takes beside its bytes, at most: its head and two checksums.
const ROOM_FOR_HEADS: u64 = 128;

/// Files of sets are named like those of blocks, in a folder of their own.
fn file_name(id: LandingId, number: u64) -> FileName {
    FileName {
        id: BlockId(id.0),
        number,
    }
}

impl Sets {
    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes a file into account; names the one that it replaces.
    fn take_over(&mut self, name: FileName, file: File, found: Found) -> Option<FileName> {
        let Found {
            head,
            seal,
            chunks,
            length,
        } = found;
        let chunks = chunks
            .into_iter()
            .map(|lying| ((lying.chunk.piece.clone(), lying.chunk.offset), lying));
        let body = Body {
            open: Some(file),
            seal,
            length,
            chunks: chunks.collect(),
        };
        let set = Set {
            name,
            about: head.about,
            used_at: head.begun_at,
            length,
            body: Arc::new(Mutex::new(body)),
        };
        self.used += length;
        let older = self.by_id.insert(head.id, set)?;
        self.used = self.used.saturating_sub(older.length);
        Some(older.name)
    }

    fn touch(&mut self, id: &LandingId, now: Moment) {
        if let Some(set) = self.by_id.get_mut(id) {
            set.used_at = set.used_at.max(now);
        }
    }

    fn is_visited(&self, id: &LandingId) -> bool {
        self.visits.values().any(|visit| visit.id == *id)
    }

    /// The set that was not used for the longest time, of those that no transfer uses, and another one than `but`.
    fn oldest_idle(&self, but: &LandingId) -> Option<LandingId> {
        let idle = self
            .by_id
            .iter()
            .filter(|(id, _)| *id != but && !self.is_visited(id));
        idle.min_by_key(|(_, set)| set.used_at).map(|(id, _)| *id)
    }

    fn body_of(&self, visit: u64) -> Option<Arc<Mutex<Body>>> {
        let id = self.visits.get(&visit)?.id;
        self.by_id.get(&id).map(|set| Arc::clone(&set.body))
    }
}

impl Body {
    /// False when the file is to go.
    fn append(&mut self, chunk: LandedChunk, bytes: &[u8], key: SumKey) -> io::Result<bool> {
        let place = (chunk.piece.clone(), chunk.offset);
        if self.chunks.contains_key(&place) {
            return Ok(true);
        }
        let Some(file) = &self.open else { return Ok(false) };
        let mut record = file::before(&chunk, &self.seal, self.length, key)?;
        let at = self.length + record.len() as u64;
        record.extend_from_slice(bytes);
        // What a failure leaves half written is written over by the next chunk.
        file.write_all_at(&record, self.length)?;
        self.length = at + bytes.len() as u64;
        self.chunks.insert(place, Lying { chunk, at });
        Ok(true)
    }
}
