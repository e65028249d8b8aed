//! COMPUTES: the trait of anything that turns prompts into KV and KV into tokens.
//!
//! Prefill computes the KV of all prompt tokens but the last; decode takes that KV, runs the last prompt token and
//! every token after it. So no logits and no first token ever cross a link, a recurrent state is at the exact length
//! decode needs, and every sampled token is drawn in one place.

use crate::{Cancel, KvPiece, KvSet, Sample, WholeRequests};
use async_trait::async_trait;
use portolan_base::kv::KvLayout;
use portolan_base::{
    BlockHash, CachePart, Dependency, InstanceName, ModelName, Moment, Permille, PrefillCurve, Provenance,
    RequestId, TenantKey, Tokens,
};
use portolan_kv::PoolBlock;
use portolan_kv::tier::{Card, TierUse, Tiers};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc};

pub use portolan_base::Role;

/// What an instance is. Does not change while it runs.
#[derive(Clone, Debug)]
pub struct EngineDescription {
    /// The instance's name, unique within its site.
    pub instance: InstanceName,
    /// The model it serves.
    pub model: ModelName,
    /// What it is for.
    pub role: Role,
    /// Shapes of its KV.
    pub layout: Arc<KvLayout>,
    /// Longest prompt and answer together.
    pub context_tokens: Tokens,
    /// Token ids are below this.
    pub vocabulary: u32,
    /// Sequences it can decode at once.
    pub decode_slots: u32,
}

/// How tokens are drawn. Greedy when the temperature is zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// 0 takes the likeliest token; otherwise logits are divided by it.
    pub temperature: f32,
    /// Smallest set of tokens whose probabilities reach this is drawn from; 1 keeps all.
    pub top_p: f32,
    /// At most this many of the likeliest tokens are drawn from; 0 keeps all.
    pub top_k: u32,
    /// Tokens less likely than this share of the likeliest one's probability are not drawn; 0 keeps all.
    pub min_p: f32,
    /// Taken from the logit of each token that the answer holds already.
    pub presence_penalty: f32,
    /// Taken from the logit of a token for each time that the answer holds it.
    pub frequency_penalty: f32,
    /// What the logit of each token of prompt and answer is divided by, or multiplied with where it is negative; 1 changes
    /// nothing.
    pub repetition_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that the answer has at least: before, none that ends it is drawn.
    pub min_tokens: u32,
    /// With each token, what the model thought of it and of so many of the likeliest.
    pub logprobs: Option<u32>,
    /// Seed of the draws.
    pub seed: u64,
}

impl Sampling {
    /// The likeliest token, always.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        repetition_penalty: 1.0,
        logit_bias: Vec::new(),
        min_tokens: 0,
        logprobs: None,
        seed: 0,
    };
}

impl Default for Sampling {
    fn default() -> Self {
        Self::GREEDY
    }
}

/// What the model thought of one token: natural logarithms of probabilities, before anything that the client asked for
/// changed them.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token that was drawn.
    pub drawn: f32,
    /// Of the likeliest, which may hold the drawn one; the likeliest first.
    pub likeliest: Vec<(u32, f32)>,
}

/// Whether KV may stay where it was computed or received once the request is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Retention {
    /// It may be kept for reuse.
    Keep,
    /// It is dropped at the end: the site is `transient` for this data.
    Drop,
}

/// Computes KV.
#[derive(Clone, Debug)]
pub struct PrefillJob {
    /// Whose work it is.
    pub request: RequestId,
    /// The tenant's cache key.
    pub key: TenantKey,
    /// Whose KV this is and what it depends on, beyond what of it is public.
    pub about: Arc<Provenance>,
    /// The tokens whose KV is wanted: the prompt without its last token. Not empty.
    pub tokens: Arc<[u32]>,
    /// The receiver holds the attention KV of this many tokens, a whole number of blocks; pieces begin there.
    pub held: u32,
    /// Whether the instance may keep what it computes.
    pub retention: Retention,
    /// Stops the job.
    pub cancel: Cancel,
}

/// What a prefill did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefillReport {
    /// Tokens whose KV the instance had already.
    pub cached: u32,
    /// Tokens it computed.
    pub computed: u32,
    /// Microseconds the job waited before the first layer ran.
    pub queue_us: u64,
    /// Microseconds from then to the last piece.
    pub compute_us: u64,
    /// What the instance's site fetched for it before, from whom it tried to; empty from an engine.
    pub fetches: Vec<FetchReport>,
}

/// One try of a prefill's site to fetch what the instance lacked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchReport {
    /// The site that holds it.
    pub site: String,
    /// Which of its instances.
    pub instance: String,
    /// Prompt tokens that were to come.
    pub wanted: u32,
    /// Prompt tokens that came and were kept.
    pub tokens: u32,
    /// Bytes that crossed.
    pub bytes: u64,
    /// Microseconds it took.
    pub took_us: u64,
    /// Microseconds it was thought to take.
    pub estimated_us: u64,
    /// Microseconds that computing the same tokens was thought to take.
    pub computing_us: u64,
    /// Why not all of it came.
    pub failed: Option<String>,
}

/// Generates tokens.
#[derive(Clone, Debug)]
pub struct DecodeJob {
    /// Whose work it is.
    pub request: RequestId,
    /// The tenant's cache key.
    pub key: TenantKey,
    /// Whose KV this is and what it depends on, beyond what of it is public.
    pub about: Arc<Provenance>,
    /// The whole prompt. Not empty.
    pub prompt: Arc<[u32]>,
    /// KV of all prompt tokens but the last.
    pub kv: KvSet,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Most tokens to generate, at least 1.
    pub max_tokens: u32,
    /// Token ids that end the answer; they are not sent on.
    pub stop_ids: Vec<u32>,
    /// Whether the instance may keep the prompt's KV.
    pub retention: Retention,
    /// Whether to send the logits of the last prompt position first.
    pub logits: bool,
    /// Stops the job.
    pub cancel: Cancel,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// A stop token or stop string.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
}

/// What comes out of a decode, in order. Exactly one of the last two ends it, unless it was cancelled.
#[derive(Clone, Debug, PartialEq)]
pub enum DecodeEvent {
    /// Logits of the last prompt position, one a vocabulary entry; only when asked for.
    Logits(Vec<f32>),
    /// What the model thought of the token that follows; only when asked for.
    Logprobs(TokenLogprobs),
    /// One more token.
    Token(u32),
    /// The answer is complete.
    Finished(FinishReason),
    /// The engine could not go on.
    Failed(EngineError),
}

/// Why an engine did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The job is not one this engine can do; trying elsewhere will not help.
    #[error("the job is not possible: {0}")]
    BadJob(String),
    /// No room at present.
    #[error("the engine is full: {0}")]
    Full(String),
    /// The job was cancelled.
    #[error("the job was cancelled")]
    Cancelled,
    /// What the job was to begin on was invalidated meanwhile, or nobody knows whether it was. It is to be computed.
    #[error("the KV was invalidated before decode began on it")]
    Stale,
    /// The engine broke; another instance may do.
    #[error("the engine failed: {0}")]
    Broken(String),
    /// The engine cannot be reached, and has heard nothing of the job; another instance may do.
    #[error("the engine failed: {0}")]
    Unreachable(String),
}

/// KV an instance holds for the beginning of a prompt. Holding it keeps the bytes alive.
#[derive(Clone, Debug, Default)]
pub struct HeldPrefix {
    /// Tokens covered, a whole number of blocks.
    pub tokens: u32,
    /// Pieces of these tokens: attention KV, and from [`Engine::kept`] recurrent states too.
    pub pieces: Vec<KvPiece>,
}

/// KV that was computed elsewhere, to be kept for reuse.
#[derive(Clone, Debug)]
pub struct KeepJob {
    /// The tenant's cache key.
    pub key: TenantKey,
    /// The tokens it is of: a whole number of blocks.
    pub tokens: Arc<[u32]>,
    /// Their KV.
    pub kv: KvSet,
    /// Whose it is and what it depends on.
    pub about: Arc<Provenance>,
}

/// How loaded an instance is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineLoad {
    /// Requests waiting for prefill.
    pub prefill_queued_requests: u32,
    /// Prompt tokens waiting for prefill.
    pub prefill_queued_tokens: u32,
    /// Sequences decoding.
    pub decode_running: u32,
    /// KV memory in use.
    pub kv_used: Permille,
    /// Share of the last interval spent on prefill.
    pub prefill_busy: Permille,
    /// Share of the last interval spent on decode.
    pub decode_busy: Permille,
    /// Measured prefill time in nanoseconds for each uncached token.
    pub prefill_ns_per_token: u64,
    /// The same by length; all zero where too little was measured.
    #[serde(default)]
    pub prefill_curve: PrefillCurve,
    /// Measured decode step in microseconds.
    pub decode_step_us: u32,
}

/// What changed in an instance's cache, for its own site's prefix index. Block hashes are index blocks. Never leaves the
/// site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// These consecutive blocks of one prompt are held from now on.
    Stored {
        /// Where in the cache.
        part: CachePart,
        /// The block before the first; none at a prompt's beginning.
        parent: Option<BlockHash>,
        /// Which.
        blocks: Vec<BlockHash>,
        /// Whose they are; none: the engine does not know, and they are whose the block before them is.
        about: Option<Arc<Provenance>>,
    },
    /// These are gone.
    Removed {
        /// From where in the cache.
        part: CachePart,
        /// Which, in any order.
        blocks: Vec<BlockHash>,
    },
    /// Everything in a rank's cache is gone.
    Cleared {
        /// Which rank.
        rank: u16,
    },
}

/// What an instance keeps for reuse, as an operator sees it: never tokens, never their KV.
pub trait KvCache: Send + Sync {
    /// What its own pool holds.
    fn usage(&self) -> TierUse;

    /// Shows every block of its own pool, in no particular order.
    fn each(&self, show: &mut dyn FnMut(Card));

    /// The tiers below it, which it may share with others. Orders to forget are given here.
    fn tiers(&self) -> &Tiers;

    /// The time on the clock that blocks' uses are counted by.
    fn now(&self) -> Moment;

    /// Shows every block of its own pool with its KV and its last use, until told to stop: what was used last first, a
    /// block before those computed on top of it. Orders to forget wait meanwhile, so that what is shown is not what one
    /// forgot. Nothing where KV of this engine is not kept in tiers.
    fn hand_down(&self, _take: &mut dyn FnMut(Arc<PoolBlock>, Moment) -> bool) {}
}

/// One engine instance.
#[async_trait]
pub trait Engine: Send + Sync {
    /// What this instance is.
    fn describe(&self) -> &EngineDescription;

    /// The attention KV this instance holds for the beginning of `tokens`, for what depends `on` these: nothing that depends
    /// on one of them at another version. Empty for hybrid models, whose recurrent state cannot be joined to what another
    /// instance computed.
    fn held(&self, key: &TenantKey, tokens: &[u32], on: &[Dependency]) -> HeldPrefix;

    /// All KV this instance holds for the beginning of `tokens`, as what depends `on` these can go on from it: attention KV,
    /// and recurrent states at exactly its length. Blocks are found by their tenant-keyed ids. Empty where an engine hands none over.
    fn kept(&self, key: &TenantKey, tokens: &[u32], on: &[Dependency]) -> HeldPrefix {
        self.held(key, tokens, on)
    }

    /// Keeps KV that was computed elsewhere, as far as there is room; returns how much of the job's tokens is held
    /// afterwards. Copies the bytes, which takes milliseconds where there are many. Zero where an engine takes none.
    fn keep(&self, _job: &KeepJob) -> Tokens {
        Tokens(0)
    }

    /// Computes KV and sends each piece as soon as it exists: layer by layer, block by block, recurrent states last.
    /// Pieces are complete when this returns `Ok`.
    async fn prefill(
        &self,
        job: PrefillJob,
        pieces: mpsc::UnboundedSender<KvPiece>,
    ) -> Result<PrefillReport, EngineError>;

    /// Generates tokens. Dropping the receiver cancels the job.
    fn decode(&self, job: DecodeJob) -> mpsc::UnboundedReceiver<DecodeEvent>;

    /// How loaded it is.
    fn load(&self) -> EngineLoad;

    /// What it keeps for reuse; none when that lies in another process.
    fn cache(&self) -> Option<&dyn KvCache> {
        None
    }

    /// The engine as one that answers whole requests; then it takes neither prefill nor decode jobs, and the host has
    /// no KV of it.
    fn whole(&self) -> Option<&dyn WholeRequests> {
        None
    }

    /// Whether it can be given work: whether its process runs and answers.
    fn is_up(&self) -> bool {
        true
    }

    /// Numbers of its own for the metrics page.
    fn samples(&self) -> Vec<Sample> {
        Vec::new()
    }

    /// What changes in its cache from now on.
    fn events(&self) -> broadcast::Receiver<KvEvent>;
}
