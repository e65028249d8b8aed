//! KV of llama.cpp's server with the host, as blocks: what a slot held when its answer ended is saved and taken apart, and
//! what the host has of a prompt is put together and restored before the prompt is computed. So its prefixes are in the
//! index, and are copied between sites as any KV is.
//!
//! A server that is told of KV compares its tokens with the prompt's and computes what differs; the bytes are the
//! host's matter, which compares a block with its checksum before it goes into a file. Files live as long as one save or
//! restore.

use super::super::kv_store::{Given, KvStore};
use super::super::{Shared, hand_over};
use super::file::{Form, SlotFile};
use super::on_disk::OnDisk;
use super::{DidRestore, DidSave, Left, Slot, Slots};
use crate::splice::{Edit, field};
use bytes::Bytes;
use parking_lot::Mutex;
use portolan_base::kv::KvLayout;
use portolan_ports::WholeJob;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How long the prompt may take whose slot shows the file's form.
const TRIAL: Duration = Duration::from_secs(60);

/// Blocks of that prompt.
const TRIED_BLOCKS: u32 = 2;

/// The slots of a server whose KV lies with the host.
pub(in crate::foreign) struct KeptSlots {
    slots: Slots,
    store: Arc<KvStore>,
    /// How the server writes its files; none: nothing of its KV is kept.
    form: Mutex<Option<Form>>,
}

/// What is kept of an answer once it ends.
pub(in crate::foreign) struct Keeping {
    slot: Slot,
    begins: Left,
}

impl KeptSlots {
    pub(in crate::foreign) fn new(folder: PathBuf, store: Arc<KvStore>) -> Self {
        Self {
            slots: Slots::new(folder),
            store,
            form: Mutex::new(None),
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.slots.folder.join(file)
    }
}

impl Shared {
    /// A slot for the request, with what the host has of its prompt. None: it goes to whichever slot the server picks, and
    /// nothing of it is kept.
    pub(in crate::foreign) async fn seated(
        &self,
        kept: &KeptSlots,
        job: &WholeJob,
    ) -> (Vec<Edit<'static>>, Option<Keeping>) {
        let mut edits = vec![Edit::Remove(hand_over::FIELD)];
        if kept.form.lock().is_none() || job.salt.root.is_none() || !is_one(job) {
            return (edits, None);
        }
        let begins = Left {
            salt: Arc::clone(&job.salt.text),
            tokens: Arc::clone(&job.prompt),
        };
        self.salts.learn(&job.salt);
        let slot = match self.slot(&kept.slots, Some(&begins)).await {
            Ok(slot) => slot,
            Err(reason) => {
                tracing::warn!(instance = %self.description.instance, %reason, "no slot; nothing of this answer is kept");
                return (edits, None);
            }
        };
        let mut keeping = Keeping { slot, begins };
        if let Err(reason) = self.fill(kept, &mut keeping).await {
            kept.store.counts.refused.fetch_add(1, Relaxed);
            tracing::warn!(instance = %self.description.instance, reason, "kept KV cannot be used; it computes");
        }
        edits.extend(keeping.slot.edits());
        (edits, Some(keeping))
    }

    /// Puts what the host has into the slot, where that is more than the slot has.
    async fn fill(&self, kept: &KeptSlots, keeping: &mut Keeping) -> Result<(), String> {
        let Keeping { slot, begins } = keeping;
        let step = kept.store.block_tokens();
        // What the slot has is not known while the answer runs.
        let there = slot
            .left
            .take()
            .map_or(0, |left| left.of(&begins.salt, &begins.tokens));
        // The last token is computed: its logits are the answer's beginning.
        let wanted = &begins.tokens[..begins.tokens.len().saturating_sub(1)];
        let found = kept.store.find(&begins.salt, wanted);
        let Some(form) = (*kept.form.lock()).filter(|_| found * step > there) else {
            return Ok(());
        };
        let blocks = kept.store.take(&begins.salt, &wanted[..found * step], 0);
        let whole = blocks.iter().take_while(|block| block.is_whole());
        let blocks: Vec<Bytes> = whole.map(|block| block.bytes.clone()).collect();
        let tokens = wanted[..blocks.len() * step].to_vec();
        let (count, blocks_count) = (tokens.len() as u64, blocks.len() as u64);
        let file = self.new_file();
        let (path, layout) = (kept.path(&file), kept.store.shared_layout());
        let written = tokio::task::spawn_blocking({
            let path = path.clone();
            let on_disk = OnDisk::new(path.clone());
            move || std::fs::write(path, form.write(&layout, &tokens, &blocks)).map(|()| on_disk)
        });
        let restored = match written.await {
            Ok(Ok(_on_disk)) => self.act::<DidRestore>(slot, "restore", &file).await,
            Ok(Err(error)) => Err(format!("{}: {error}", path.display())),
            Err(broke) => Err(broke.to_string()),
        };
        let restored = restored?.n_restored;
        if restored != count {
            return Err(format!("{restored} of {count} tokens were restored"));
        }
        kept.store.counts.loaded.fetch_add(blocks_count, Relaxed);
        Ok(())
    }

    /// Takes what the slot holds, now that its answer has ended. The slot is free afterwards.
    pub(in crate::foreign) async fn keep_slot(&self, kept: &KeptSlots, mut keeping: Keeping) {
        let Keeping { slot, begins } = &keeping;
        let left = match self.take_apart(kept, slot, begins).await {
            Ok(tokens) => Some(tokens),
            Err(reason) => {
                kept.store.counts.refused.fetch_add(1, Relaxed);
                tracing::warn!(instance = %self.description.instance, reason, "a slot's KV is not kept");
                None
            }
        };
        keeping.slot.left = left.map(|tokens| Left {
            salt: Arc::clone(&keeping.begins.salt),
            tokens,
        });
    }

    /// What the slot holds, with its blocks in the store where some of the prompt's are not there.
    async fn take_apart(&self, kept: &KeptSlots, slot: &Slot, begins: &Left) -> Result<Arc<[u32]>, String> {
        let step = kept.store.block_tokens();
        let have = kept.store.find(&begins.salt, &begins.tokens);
        if begins.tokens.len() / step <= have {
            return Ok(Arc::clone(&begins.tokens));
        }
        let layout = kept.store.shared_layout();
        let (_, tokens, blocks) = self.saved(kept, slot, (layout, have)).await?;
        // Someone else's request may have come between: whose tokens these are is not known then.
        if !tokens.starts_with(&begins.tokens[..tokens.len().min(begins.tokens.len())]) {
            return Err("it holds another prompt".to_owned());
        }
        let summed = |block: Vec<u8>| {
            let checksum = crc32fast::hash(&block);
            (Bytes::from(block), checksum)
        };
        let put = kept.store.put(Given {
            salt: &begins.salt,
            tokens: &tokens,
            first: have,
            blocks: blocks.into_iter().map(summed).collect(),
            about: None,
        });
        kept.store.counts.saved.fetch_add(put as u64, Relaxed);
        Ok(tokens.into())
    }

    /// Saves a slot: how its file is written, its tokens, and its blocks from one on.
    async fn saved(
        &self,
        kept: &KeptSlots,
        slot: &Slot,
        (layout, first): (Arc<KvLayout>, usize),
    ) -> Result<(Form, Vec<u32>, Vec<Vec<u8>>), String> {
        let file = self.new_file();
        let path = kept.path(&file);
        let on_disk = OnDisk::new(path.clone());
        let done = self.act::<DidSave>(slot, "save", &file).await;
        let read = tokio::task::spawn_blocking({
            let path = path.clone();
            move || {
                let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
                let file = SlotFile::read(&bytes, &layout).map_err(|e| e.to_string())?;
                let blocks = file.blocks(&layout, first);
                Ok::<_, String>((file.form, file.tokens, blocks))
            }
        });
        let read = read.await.map_err(|broke| broke.to_string());
        drop(on_disk);
        done?;
        read?
    }

    /// Finds out how this process of the server writes its files: a prompt of the host's own is computed, saved, taken
    /// apart, put together and restored. Where that fails, nothing of its KV is kept.
    pub(in crate::foreign) async fn learn_form(&self, kept: &KeptSlots) {
        if let Some(free) = kept.slots.free.get() {
            // Of a process before this one.
            free.idle.lock().iter_mut().for_each(|slot| slot.left = None);
        }
        let learnt = tokio::time::timeout(TRIAL, self.form_of(kept)).await;
        let learnt = learnt.unwrap_or_else(|_| Err(format!("nothing came for {TRIAL:?}")));
        if let Err(reason) = &learnt {
            tracing::warn!(instance = %self.description.instance, reason,
                "its slots cannot be taken apart; nothing of its KV is kept with the host");
        }
        *kept.form.lock() = learnt.ok();
    }

    async fn form_of(&self, kept: &KeptSlots) -> Result<Form, String> {
        let layout = kept.store.shared_layout();
        let mut slot = self.slot(&kept.slots, None).await.map_err(|e| e.to_string())?;
        slot.left = None;
        let prompt = self.drawn_prompt(TRIED_BLOCKS * layout.block_tokens);
        let ask = json!({"model": self.model_name(), "prompt": prompt, "max_tokens": 1, "temperature": 0,
            "id_slot": slot.id, "cache_prompt": false});
        let asked = self
            .upstream
            .ask("/v1/completions", Bytes::from(ask.to_string()), TRIAL);
        let (status, said) = asked.await.map_err(|e| e.to_string())?;
        if !status.is_success() {
            return Err(format!("it answered {status}: {}", super::shorten(&said)));
        }
        let (form, tokens, blocks) = self.saved(kept, &slot, (Arc::clone(&layout), 0)).await?;
        if tokens != prompt {
            return Err(format!(
                "a slot of {} tokens holds {}",
                prompt.len(),
                tokens.len()
            ));
        }
        let file = self.new_file();
        let path = kept.path(&file);
        let again = form.write(&layout, &tokens, &blocks);
        let same = SlotFile::read(&again, &layout).is_ok_and(|file| file.blocks(&layout, 0) == blocks);
        if !same {
            return Err("what is put together is not what was taken apart".to_owned());
        }
        let _on_disk = OnDisk::new(path.clone());
        let restored = match std::fs::write(&path, again) {
            Ok(()) => self.act::<DidRestore>(&slot, "restore", &file).await,
            Err(error) => Err(format!("{}: {error}", path.display())),
        };
        match restored?.n_restored {
            n if n == tokens.len() as u64 => Ok(form),
            n => Err(format!("{n} of {} tokens were restored", tokens.len())),
        }
    }
}

/// Whether one answer to one prompt is asked for: several have slots of the server's own choice.
fn is_one(job: &WholeJob) -> bool {
    let says = |name: &str| field(&job.body, name).unwrap_or("null");
    let one = |name: &str| matches!(says(name), "null" | "1");
    let list = says("prompt").strip_prefix('[').map(str::trim_start);
    let several = list.is_some_and(|inner| inner.starts_with(['"', '[']));
    one("n") && one("best_of") && !several && !job.prompt.is_empty()
}
