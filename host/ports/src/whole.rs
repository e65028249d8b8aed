//! COMPUTES, for engines that are not ours: they answer whole requests over HTTP and keep their KV to themselves.
//!
//! What a client sent reaches such an engine byte for byte, but for the fields that are taken out or put in by name, and
//! what the engine answers reaches the client byte for byte. KV never passes through the host: two instances that hand
//! it over to each other tell one another where it is in words that the host carries and does not read.

use crate::{Cancel, EngineError};
use async_trait::async_trait;
use bytes::Bytes;
use portolan_base::{BlockHash, Random, RequestId};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Which of an engine's inference paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WholePath {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

impl WholePath {
    /// The path.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }
}

/// What separates the blocks of one tenant from another's in a cache that the host does not see into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSalt {
    /// What the engine is given.
    pub text: Arc<str>,
    /// What the prefix index begins the hashes of such prompts with; none: its blocks are not to be found again.
    pub root: Option<BlockHash>,
}

impl CacheSalt {
    /// One that nobody knows again: what an engine keeps under it, nobody finds.
    pub fn once(random: &dyn Random) -> Self {
        let (high, low) = (random.next_u64(), random.next_u64());
        Self {
            text: format!("{high:016x}{low:016x}").into(),
            root: None,
        }
    }
}

/// One request for an engine that answers whole ones.
#[derive(Clone, Debug)]
pub struct WholeJob {
    /// Whose work it is; the same on both legs of a request that two instances serve.
    pub request: RequestId,
    /// Where it goes.
    pub path: WholePath,
    /// The client's JSON object.
    pub body: Bytes,
    /// Fields of the body's top level that are not for the engine.
    pub remove: Arc<[&'static str]>,
    /// Headers of the client's that the engine is given: lower-case name, value.
    pub headers: Arc<[(String, String)]>,
    /// What the engine salts its blocks with.
    pub salt: CacheSalt,
    /// The prompt's tokens as the host cut it; of several prompts the first one's.
    pub prompt: Arc<[u32]>,
    /// Prompt tokens that are expected to be computed, for the load.
    pub uncached: u32,
    /// Stops it.
    pub cancel: Cancel,
}

/// The head of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    /// HTTP status.
    pub status: u16,
    /// Headers for the client: lower-case name, value.
    pub headers: Vec<(String, Bytes)>,
}

impl AnswerHead {
    /// Whether server-sent events follow.
    pub fn is_stream(&self) -> bool {
        let kind = self.headers.iter().find(|(name, _)| name == "content-type");
        kind.is_some_and(|(_, value)| value.starts_with(b"text/event-stream"))
    }
}

/// The body of an answer. Dropping it closes the connection, which cancels the request at the engine.
#[async_trait]
pub trait AnswerBody: Send {
    /// The next bytes as they came; none at the end.
    async fn next(&mut self) -> Option<Result<Bytes, EngineError>>;
}

/// An answer that has begun.
pub struct WholeAnswer {
    /// Its head.
    pub head: AnswerHead,
    /// Its body.
    pub body: Box<dyn AnswerBody>,
}

/// What the prefill leg of a request did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handed {
    /// Prompt tokens whose KV the instance had already; none where it does not say.
    pub cached: Option<u32>,
}

/// A prefill leg that may still run.
pub type Prefilling = Pin<Box<dyn Future<Output = Result<Handed, EngineError>> + Send>>;

/// KV of a prompt that another instance may take.
pub struct Offer {
    /// What the decode instance is told, as JSON; none where the prefill instance had nothing to say, and the other
    /// computes.
    pub params: Option<Arc<str>>,
    /// Ends with the prefill leg. A leg that fails leaves the decode instance waiting: who takes the offer gives up.
    pub prefilling: Prefilling,
}

/// An engine that answers whole requests.
#[async_trait]
pub trait WholeRequests: Send + Sync {
    /// Sends a request and returns when the head of its answer is there. `params` name KV that another instance has.
    /// Dropping the call cancels the request.
    ///
    /// # Errors
    /// [`EngineError::Full`], [`EngineError::Broken`] and [`EngineError::Unreachable`] where another instance may do
    /// better; what the engine says is wrong with the request is an answer.
    async fn answer(&self, job: WholeJob, params: Option<Arc<str>>) -> Result<WholeAnswer, EngineError>;

    /// Has the prompt computed for another instance. Returns when that can be asked: before the prompt is computed where
    /// both legs run at once.
    ///
    /// # Errors
    /// As for [`Self::answer`]; a request that the engine refuses is [`EngineError::BadJob`], and the decode instance
    /// will say what is wrong with it.
    async fn offer(&self, job: WholeJob) -> Result<Offer, EngineError>;

    /// Takes an offer that nobody needs, so that the other instance frees its KV. Works on after it returns.
    fn release(&self, job: WholeJob, params: Arc<str>);

    /// Tells the instance a salt ahead of its use: of blocks with a salt it was never told, it does not know whose they
    /// are.
    fn expect(&self, salt: &CacheSalt);

    /// Whether another instance had better compute the prompt of this request; some requests do not survive being
    /// parted, and some are too small for it.
    fn is_parted(&self, job: &WholeJob, prompt_tokens: u32) -> bool;
}
