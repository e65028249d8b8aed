//! A request that was parsed, authenticated and tokenised: what every later stage works on.

use bytes::Bytes;
use portolan_base::{ModelName, Moment, RequestId};
use portolan_decide::{Manner, PrefillMode, RequestKind};
use portolan_policy::Dependency;
use portolan_ports::{Sampling, TenantRecord, WholePath};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A request as it leaves the accept stage. One for each prompt and choice the client asked for.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// The request's id, in every log line, header and record.
    pub id: RequestId,
    /// The client's trace id.
    pub trace_id: Option<String>,
    /// When the request arrived.
    pub at: Moment,
    /// Whose it is; jurisdiction and class already narrowed by what the client asked.
    pub tenant: TenantRecord,
    /// The model.
    pub model: ModelName,
    /// The prompt in the model's own tokens. Not empty, every id below the vocabulary, within the context.
    pub prompt: Arc<[u32]>,
    /// Most tokens to generate, at least 1.
    pub max_tokens: u32,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Texts that end the answer; not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the answer; not part of it.
    pub stop_token_ids: Vec<u32>,
    /// Whether the model's own end token is ignored.
    pub ignore_eos: bool,
    /// The conversation, as the client named it.
    pub session: Option<String>,
    /// The end user, as the client named it.
    pub user: Option<String>,
    /// The path it came by.
    pub path: &'static str,
    /// Whether someone waits.
    pub kind: RequestKind,
    /// Where the client wants its prompt computed.
    pub prefill_mode: PrefillMode,
    /// 0 is the most urgent.
    pub priority: u32,
    /// Hoped-for time to first token in ms; 0: none stated.
    pub ttft_slo_ms: u32,
    /// Labels a policy may look up.
    pub labels: BTreeMap<String, String>,
    /// What the prompt was made from: its KV dies when one of these changes.
    pub dependencies: Vec<Dependency>,
    /// A salt of the client's own: its blocks are found by prompts with the same one only.
    pub cache_salt: Option<String>,
    /// Which engines can answer it.
    pub manner: Manner,
    /// As the client wrote it, where an engine may have to answer it whole.
    pub original: Option<Arc<Original>>,
}

/// A request as the client wrote it, for engines that answer whole ones.
#[derive(Clone, Debug)]
pub struct Original {
    /// Which inference path.
    pub path: WholePath,
    /// The JSON object.
    pub body: Bytes,
    /// Its fields that no engine is given.
    pub remove: Arc<[&'static str]>,
    /// Headers that engines are given: lower-case name, value.
    pub headers: Arc<[(String, String)]>,
    /// Whether the answer comes piece by piece.
    pub streamed: bool,
    /// Answers that it asks for, all prompts together, at least 1.
    pub answers: usize,
}
