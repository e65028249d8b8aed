//! An engine whose KV lies in real tiers; what it computes is told by `content.rs`, what it begins on by its ledger.

use super::content::{BLOCK, LAYERS, birth_of, content, read, token, write};
use super::flaw::Flaw;
use super::ledger::Ledger;
use super::life::Life;
use crate::chaos::dice::mix;
use crate::chaos::history::{Began, BirthId};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use portolan_base::{
    BlockHash, BlockId, CachePart, Clock, Dependency, Moment, Provenance, TenantKey, Tokens,
};
use portolan_kv::tier::{Card, Epoch, Left, TierUse, Tiers, Top};
use portolan_kv::{BlockKv, PoolBlock, Selector};
use portolan_ports::kvset::piece_id;
use portolan_ports::{
    DecodeEvent, DecodeJob, Engine, EngineDescription, EngineError, EngineLoad, FinishReason, HeldPrefix,
    KeepJob, KvCache, KvEvent, KvMade, KvPast, KvPiece, KvSet, PrefillJob, PrefillReport, Retention,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};

/// What an engine is made of.
pub(crate) struct ChaosEngine {
    pub(crate) flaw: Flaw,
    /// What a flawed engine remembers.
    pub(crate) attic: Mutex<HashMap<BlockId, Arc<PoolBlock>>>,
    pub(crate) site: String,
    pub(crate) description: EngineDescription,
    pub(crate) tiers: Arc<Tiers>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) life: Life,
    /// How long a block takes.
    pub(crate) pace: Duration,
    pub(crate) events: broadcast::Sender<KvEvent>,
}

impl ChaosEngine {
    /// What is held of a prompt's beginning that what depends `on` these may use.
    fn lookup(&self, key: &TenantKey, tokens: &[u32], on: &[Dependency]) -> Vec<Arc<PoolBlock>> {
        let ids = BlockId::chain(key, tokens, BLOCK as usize);
        let now = self.clock.now();
        let open = self.tiers.open();
        let nobody = Provenance {
            dependencies: on.into(),
            ..Provenance::public(self.description.model.clone(), 1)
        };
        let below = self.tiers.below(&ids, 0, &nobody, now);
        let mut held = Vec::new();
        for found in below.blocks() {
            let Some(block) = self.tiers.read(found, now) else {
                break;
            };
            self.tiers.demote(Arc::clone(&block), &open, now);
            held.push(block);
        }
        drop(open);
        self.rummage(key, tokens, held)
    }

    fn pieces(&self, blocks: &[Arc<PoolBlock>]) -> Vec<KvPiece> {
        let of_block = |(index, block): (usize, &Arc<PoolBlock>)| {
            let start = index as u32 * BLOCK;
            let layers = (0u16..).zip(block.kv.attention.clone());
            let pieces = layers.map(move |(layer, bytes)| KvPiece {
                id: piece_id(layer, start, Tokens(BLOCK)),
                bytes,
            });
            pieces.collect::<Vec<_>>()
        };
        blocks.iter().enumerate().flat_map(of_block).collect()
    }

    fn found(
        &self,
        (what, request): (Began, &str),
        key: &TenantKey,
        tokens: &[u32],
        on: &[Dependency],
    ) -> HeldPrefix {
        let at = self.ledger.stamp();
        let blocks = self.lookup(key, tokens, on);
        let births = blocks.iter().filter_map(|block| birth_of(block)).collect();
        self.ledger.began((what, &self.site), request, births, at);
        HeldPrefix {
            tokens: blocks.len() as u32 * BLOCK,
            pieces: self.pieces(&blocks),
        }
    }

    /// Keeps the whole blocks of KV that is about something.
    fn keep_all(&self, (key, tokens): (&TenantKey, &[u32]), kv: &KvSet, about: &Arc<Provenance>) -> u32 {
        let since = kv.past().map_or_else(|| self.tiers.epoch(), |past| past.since);
        let ids = BlockId::chain(key, tokens, BLOCK as usize);
        let layers: Vec<Vec<Bytes>> = (0..LAYERS)
            .map(|layer| kv.layer(layer).iter().map(|piece| piece.bytes.clone()).collect())
            .collect();
        for index in 0..ids.len() {
            let of_block: Vec<Bytes> = layers
                .iter()
                .filter_map(|pieces| pieces.get(index).cloned())
                .collect();
            self.store((key, tokens), (index, &ids), of_block, (about, since));
        }
        self.lookup(key, tokens, &about.dependencies).len() as u32 * BLOCK
    }

    fn store(
        &self,
        (key, tokens): (&TenantKey, &[u32]),
        (index, ids): (usize, &[BlockId]),
        attention: Vec<Bytes>,
        (about, since): (&Arc<Provenance>, Epoch),
    ) {
        let hashes = BlockHash::chain(key, tokens);
        let block = Arc::new(PoolBlock {
            id: ids[index],
            parent: index.checked_sub(1).map(|before| ids[before]),
            hashes: vec![hashes[index]],
            about: Arc::clone(about),
            rebuild: Duration::from_millis(1),
            kv: BlockKv {
                attention,
                snapshot: None,
            },
        });
        self.stow((key, tokens), index, &block);
        let open = self.tiers.open();
        // As a pool does: what its parent is missing of could not be found.
        let beneath = index
            .checked_sub(1)
            .map(|at| (ids[at], at.checked_sub(1).map(|at| ids[at])));
        let now = self.clock.now();
        if beneath.is_some_and(|(id, parent)| {
            self.tiers.each()[0]
                .holds(&id, parent, &about.dependencies, now)
                .is_none()
        }) {
            return;
        }
        if !open.allows(&block, &ids[..index], since) {
            return;
        }
        self.ledger.reached(&self.site, about, "kept");
        if let Some(birth) = birth_of(&block) {
            self.ledger.kept(birth, &ids[..=index]);
        }
        let gone = self.tiers.demote(block, &open, self.clock.now());
        drop(open);
        self.tiers.left(&gone);
        drop(self.events.send(KvEvent::Stored {
            part: CachePart::DEVICE,
            parent: index.checked_sub(1).map(|before| hashes[before]),
            blocks: vec![hashes[index]],
            about: Some(Arc::clone(about)),
        }));
    }

    /// Whether something may begin on this KV.
    fn may_begin(&self, kv: &KvSet, about: &Provenance) -> bool {
        match kv.past() {
            Some(KvPast {
                since,
                made: KvMade::FromCache,
            }) if !matches!(self.flaw, Flaw::KeepsForgotten | Flaw::IgnoresLeases) => {
                self.tiers.is_trusted(self.clock.now()) && self.tiers.open().is_untouched(about, since)
            }
            _ => true,
        }
    }

    fn begin_decode(&self, job: &DecodeJob) -> Result<u64, EngineError> {
        let at = self.ledger.stamp();
        self.ledger.reached(&self.site, &job.about, "decoded");
        let before = &job.prompt[..job.prompt.len() - 1];
        if job.kv.tokens() as usize != before.len() {
            return Err(EngineError::BadJob("the KV is not of the prompt".into()));
        }
        if !self.may_begin(&job.kv, &job.about) {
            return Err(EngineError::Stale);
        }
        let said: Vec<(BirthId, u64)> = job.kv.pieces().map(|piece| read(&piece.bytes)).collect();
        let births = said.iter().map(|(birth, _)| *birth).collect();
        self.ledger
            .began((Began::Decode, &self.site), job.request.as_str(), births, at);
        if job.retention == Retention::Keep {
            self.keep_all((&job.key, before), &job.kv, &job.about);
        }
        Ok(said.iter().fold(0, |sum, (_, content)| mix(sum ^ content)))
    }

    /// Computes the blocks from `from` on; the last may be short.
    async fn compute(
        &self,
        job: &PrefillJob,
        from: usize,
        pieces: &mpsc::UnboundedSender<KvPiece>,
    ) -> Result<(), EngineError> {
        let since = self.tiers.epoch();
        let ids = BlockId::chain(&job.key, &job.tokens, BLOCK as usize);
        for start in (from..job.tokens.len()).step_by(BLOCK as usize) {
            tokio::time::sleep(self.pace).await;
            self.life.or_never().await;
            let end = job.tokens.len().min(start + BLOCK as usize);
            let index = start / BLOCK as usize;
            let birth = self.ledger.born(&job.request, &job.about);
            let size = |layer| {
                self.description
                    .layout
                    .piece_bytes(layer, Tokens((end - start) as u32))
            };
            let kv: Vec<Bytes> = (0..LAYERS)
                .map(|layer| {
                    let content = content(&job.about.scope, layer, &job.tokens[..end]);
                    write(birth, content, size(layer).unwrap_or_default().0 as usize)
                })
                .collect();
            if job.retention == Retention::Keep && index < ids.len() {
                self.store(
                    (&job.key, &job.tokens),
                    (index, &ids),
                    kv.clone(),
                    (&job.about, since),
                );
            }
            for (layer, bytes) in (0u16..).zip(kv) {
                let id = piece_id(layer, start as u32, Tokens((end - start) as u32));
                if end as u32 > job.held && pieces.send(KvPiece { id, bytes }).is_err() {
                    return Err(EngineError::Cancelled);
                }
            }
            if job.cancel.is_cancelled() {
                return Err(EngineError::Cancelled);
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Engine for ChaosEngine {
    fn describe(&self) -> &EngineDescription {
        &self.description
    }

    fn held(&self, key: &TenantKey, tokens: &[u32], on: &[Dependency]) -> HeldPrefix {
        self.found((Began::Prefill, "held"), key, tokens, on)
    }

    fn kept(&self, key: &TenantKey, tokens: &[u32], on: &[Dependency]) -> HeldPrefix {
        self.found((Began::Fetch, "kept"), key, tokens, on)
    }

    fn keep(&self, job: &KeepJob) -> Tokens {
        Tokens(self.keep_all((&job.key, &job.tokens), &job.kv, &job.about))
    }

    async fn prefill(
        &self,
        job: PrefillJob,
        pieces: mpsc::UnboundedSender<KvPiece>,
    ) -> Result<PrefillReport, EngineError> {
        self.life.or_never().await;
        self.ledger.reached(&self.site, &job.about, "computed");
        let begun = (Began::Prefill, job.request.as_str());
        let held = self.found(begun, &job.key, &job.tokens, &job.about.dependencies);
        for piece in held
            .pieces
            .into_iter()
            .filter(|piece| piece.id.tokens.end > job.held)
        {
            drop(pieces.send(piece));
        }
        let cached = held.tokens.max(job.held);
        self.compute(&job, held.tokens.max(job.held) as usize, &pieces)
            .await?;
        Ok(PrefillReport {
            cached: held.tokens,
            computed: (job.tokens.len() as u32).saturating_sub(cached),
            ..PrefillReport::default()
        })
    }

    fn decode(&self, job: DecodeJob) -> mpsc::UnboundedReceiver<DecodeEvent> {
        let (events, receiver) = mpsc::unbounded_channel();
        if self.life.is_over() {
            // A process that died says nothing, not even that it did.
            self.life.keep(events);
            return receiver;
        }
        match self.begin_decode(&job) {
            Err(error) => drop(events.send(DecodeEvent::Failed(error))),
            Ok(sum) => drop(tokio::spawn(speak(
                self.life.clone(),
                self.pace,
                (sum, job.max_tokens),
                events,
            ))),
        }
        receiver
    }

    fn load(&self) -> EngineLoad {
        EngineLoad {
            prefill_ns_per_token: self.pace.as_nanos() as u64 / u64::from(BLOCK),
            decode_step_us: self.pace.as_micros() as u32,
            ..EngineLoad::default()
        }
    }

    fn cache(&self) -> Option<&dyn KvCache> {
        Some(self)
    }

    fn events(&self) -> broadcast::Receiver<KvEvent> {
        self.events.subscribe()
    }
}

async fn speak(
    life: Life,
    pace: Duration,
    (sum, count): (u64, u32),
    events: mpsc::UnboundedSender<DecodeEvent>,
) {
    for at in 0..count {
        tokio::time::sleep(pace).await;
        if life.is_over() {
            life.keep(events);
            return;
        }
        if events.send(DecodeEvent::Token(token(sum, at))).is_err() {
            return;
        }
    }
    drop(events.send(DecodeEvent::Finished(FinishReason::Length)));
}

impl KvCache for ChaosEngine {
    fn usage(&self) -> TierUse {
        self.tiers.each()[0].usage()
    }

    fn each(&self, _: &mut dyn FnMut(Card)) {}

    fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }
}

impl Top for ChaosEngine {
    fn invalidate(&self, _: &Selector, _: &[BlockId]) -> Vec<Left> {
        Vec::new()
    }

    fn would_forget(&self, _: &Selector, _: &[BlockId]) -> Vec<(BlockId, portolan_base::Bytes)> {
        Vec::new()
    }

    fn holds(&self, _: &BlockId) -> bool {
        false
    }

    fn left(&self, blocks: &[Left]) {
        let blocks = blocks.iter().flat_map(|block| block.hashes.clone()).collect();
        drop(self.events.send(KvEvent::Removed {
            part: CachePart::DEVICE,
            blocks,
        }));
    }
}
