//! llama.cpp's server keeps KV in slots, and can write one to a file of its folder and read it back. So a prompt is
//! computed in a slot of one server, saved, restored into a slot of another, and decoded there: a server that
//! finds other tokens in its slot than were sent computes what it does not find. Such a file has no checksum of its own:
//! the host takes one when it is saved, and compares before it is restored.

mod file;
mod kept;
mod on_disk;

pub(super) use kept::{Keeping, KeptSlots};

use super::hand_over::{Said, read_answer};
use super::meter::Delivery;
use super::requests::{broken, shorten};
use super::{Shared, hand_over};
use crate::splice::Edit;
use crate::wire::whole;
use bytes::Bytes;
use on_disk::{OnDisk, forget};
use parking_lot::Mutex;
use portolan_ports::{EngineError, WholeJob};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

/// How long writing or reading a slot may take. A gigabyte a second is what a disk does: some 100 GB.
const FILE: Duration = Duration::from_secs(100);

/// How long the server may take to say how many slots it has.
const ASK: Duration = Duration::from_secs(2);

/// What the files of this host are called; others in the folder are left alone.
const PREFIX: &str = "portolan-";

/// Where one server saves slots, and which of them are in use by a request that moves its KV.
#[derive(Debug)]
pub(crate) struct Slots {
    folder: PathBuf,
    free: OnceCell<Free>,
}

#[derive(Debug)]
struct Free {
    idle: Arc<Mutex<Vec<Idle>>>,
    permits: Arc<Semaphore>,
}

/// A slot that nobody uses.
#[derive(Debug)]
struct Idle {
    id: u32,
    left: Option<Left>,
}

/// What an answer left in a slot, as far as the host knows.
#[derive(Clone, Debug)]
struct Left {
    salt: Arc<str>,
    tokens: Arc<[u32]>,
}

impl Left {
    /// Tokens at the beginning of `tokens` that are there, for prompts with this salt.
    fn of(&self, salt: &str, tokens: &[u32]) -> usize {
        let same = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b);
        if *self.salt == *salt { same.count() } else { 0 }
    }
}

/// A slot that nobody else moves KV through until this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    id: u32,
    left: Option<Left>,
    idle: Arc<Mutex<Vec<Idle>>>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let left = self.left.take();
        self.idle.lock().push(Idle { id: self.id, left });
    }
}

impl Slot {
    /// What sends a request to this slot.
    pub(super) fn edits(&self) -> [Edit<'static>; 2] {
        [
            Edit::Set("id_slot", self.id.to_string().into()),
            Edit::Set("cache_prompt", "true".into()),
        ]
    }
}

/// A saved slot, as one leg tells the other of it. Never leaves the host.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    folder: PathBuf,
    file: String,
    tokens: u64,
    /// BLAKE3 of the file.
    digest: String,
}

#[derive(Deserialize)]
struct Props {
    total_slots: u32,
}

#[derive(Deserialize)]
struct DidSave {
    n_saved: u64,
}

#[derive(Deserialize)]
struct DidRestore {
    n_restored: u64,
}

impl Slots {
    /// Slots saved in `folder`. What an earlier process left there is removed: nobody asks for it again.
    pub(super) fn new(folder: PathBuf) -> Self {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                forget(&entry.path());
            }
        }
        Self {
            folder,
            free: OnceCell::new(),
        }
    }
}

impl Shared {
    /// A slot of its own for a request, once one is free: the one that was left with most of what it `begins` with.
    async fn slot(&self, slots: &Slots, begins: Option<&Left>) -> Result<Slot, EngineError> {
        let free = slots.free.get_or_try_init(|| async {
            let (_, said) = self.upstream.get("/props", ASK).await.map_err(|e| broken(&e))?;
            let props: Props = serde_json::from_slice(&said)
                .map_err(|_| EngineError::Broken("it does not say how many slots it has".to_owned()))?;
            let unused = |id| Idle { id, left: None };
            Ok::<_, EngineError>(Free {
                idle: Arc::new(Mutex::new((0..props.total_slots).map(unused).collect())),
                permits: Arc::new(Semaphore::new(props.total_slots as usize)),
            })
        });
        let free: &Free = free.await?;
        let permit = Arc::clone(&free.permits).acquire_owned().await;
        let none = || EngineError::Broken("it has no slots".to_owned());
        let permit = permit.map_err(|_| none())?;
        let mut idle = free.idle.lock();
        let there = |slot: &Idle| match (begins, &slot.left) {
            (Some(begins), Some(left)) => left.of(&begins.salt, &begins.tokens),
            _ => 0,
        };
        // Of equals the first: the longest unused.
        let best = (0..idle.len()).rev().max_by_key(|at| there(&idle[*at]));
        let Idle { id, left } = idle.remove(best.ok_or_else(none)?);
        Ok(Slot {
            id,
            left,
            idle: Arc::clone(&free.idle),
            _permit: permit,
        })
    }

    /// Computes a prompt in a slot and saves that. What the other leg is to know names the file.
    pub(super) async fn slot_leg(
        self: &Arc<Self>,
        slots: &Slots,
        job: &WholeJob,
    ) -> Result<Said, EngineError> {
        tokio::select! {
            biased;
            () = job.cancel.cancelled() => Err(EngineError::Cancelled),
            said = self.compute_and_save(slots, job) => said,
        }
    }

    async fn compute_and_save(self: &Arc<Self>, slots: &Slots, job: &WholeJob) -> Result<Said, EngineError> {
        let mut slot = self.slot(slots, None).await?;
        slot.left = None;
        let mut in_flight = self.meter.sent(job.uncached, Delivery::Streamed);
        let mut edits = hand_over::prefill_edits(None);
        edits.retain(|edit| !matches!(edit, Edit::Set(hand_over::FIELD, _)));
        edits.push(Edit::Remove(hand_over::FIELD));
        edits.extend(slot.edits());
        let answer = self.send(job, edits).await?;
        let (status, body) = whole(answer).await.map_err(|e| broken(&e))?;
        in_flight.piece();
        if !status.is_success() {
            return Err(EngineError::BadJob(shorten(&body)));
        }
        self.computed(job.uncached);
        let file = self.new_file();
        let params = match self.save(slot, slots.folder.clone(), file).await {
            Ok((on_disk, saved)) => {
                let params = serde_json::to_string(&saved).ok();
                if params.is_some() {
                    on_disk.hand_over();
                }
                params
            }
            Err(reason) => {
                tracing::warn!(instance = %self.description.instance, request = %job.request, reason,
                    "a slot could not be saved; the decode instance computes");
                None
            }
        };
        Ok(Said {
            unusable: params.is_none(),
            params: params.map(Arc::from),
            cached: read_answer(&body).cached,
        })
    }

    /// Saves a slot. Goes on when nobody waits any more: the server writes the file whatever becomes of the request, and
    /// one that is written after it was to be removed would stay.
    async fn save(
        self: &Arc<Self>,
        slot: Slot,
        folder: PathBuf,
        file: String,
    ) -> Result<(OnDisk, Saved), String> {
        let shared = Arc::clone(self);
        let saving = tokio::spawn(async move {
            let path = folder.join(&file);
            let on_disk = OnDisk::new(path.clone());
            let DidSave { n_saved: tokens } = shared.act(&slot, "save", &file).await?;
            let digest = tokio::task::spawn_blocking(move || on_disk::digest(&path)).await;
            let saved = Saved {
                folder,
                file,
                tokens,
                digest: digest.map_err(|broke| broke.to_string())??,
            };
            Ok((on_disk, saved))
        });
        saving.await.unwrap_or_else(|broke| Err(broke.to_string()))
    }

    /// Puts what another instance saved into a slot of this one. None: the prompt is computed.
    pub(super) async fn restored(&self, slots: &Slots, coming: Coming) -> Option<Slot> {
        let Coming { saved, file } = coming;
        let here = slots.folder.join(&saved.file);
        let work = async {
            let mut slot = self.slot(slots, None).await.map_err(|e| e.to_string())?;
            slot.left = None;
            let _here = file.brought(here, saved.digest).await?;
            let done: DidRestore = self.act(&slot, "restore", &saved.file).await?;
            match done.n_restored == saved.tokens {
                true => Ok(slot),
                false => Err(format!("{} of {} tokens came", done.n_restored, saved.tokens)),
            }
        };
        let done: Result<Slot, String> = work.await;
        done.inspect_err(|reason| {
            tracing::warn!(instance = %self.description.instance, %reason, "a saved slot cannot be used; it computes");
        })
        .ok()
    }

    /// A name that no other file has.
    fn new_file(&self) -> String {
        let (high, low) = (self.random.next_u64(), self.random.next_u64());
        format!("{PREFIX}{high:016x}{low:016x}.slot")
    }

    async fn act<T: serde::de::DeserializeOwned>(
        &self,
        slot: &Slot,
        action: &str,
        file: &str,
    ) -> Result<T, String> {
        let path = format!("/slots/{}?action={action}", slot.id);
        let body = Bytes::from(serde_json::json!({"filename": file}).to_string());
        let said = self.upstream.ask(&path, body, FILE).await;
        let (status, said) = said.map_err(|e| e.to_string())?;
        match status.is_success() {
            true => serde_json::from_slice(&said).map_err(|e| e.to_string()),
            false => Err(format!("it answered {status}: {}", shorten(&said))),
        }
    }
}

/// A saved slot that an instance was told of. Its file is removed with this, whether anyone came to read it or not.
#[derive(Debug)]
pub(super) struct Coming {
    saved: Saved,
    file: OnDisk,
}

impl Coming {
    pub(super) fn of(params: &str) -> Option<Self> {
        let saved: Saved = serde_json::from_str(params).ok()?;
        let file = OnDisk::new(saved.folder.join(&saved.file));
        Some(Self { saved, file })
    }
}
