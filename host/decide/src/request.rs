//! What is known about one request when it is decided.

use crate::fleet::SiteIndex;
use portolan_base::{Moment, RequestId};
use portolan_policy::RequestRow;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where the client wants its prompt computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefillMode {
    /// Wherever the policies say.
    #[default]
    Auto,
    /// At the site the request came in, or not at all.
    LocalOnly,
    /// At another site when there is one that works.
    RemotePreferred,
    /// At another site, or not at all.
    RemoteRequired,
}

impl PrefillMode {
    /// The value of the policies' `prefill-mode` column.
    pub const fn code(self) -> u32 {
        match self {
            Self::Auto => 0,
            Self::LocalOnly => 1,
            Self::RemotePreferred => 2,
            Self::RemoteRequired => 3,
        }
    }
}

impl PrefillMode {
    /// The mode of a `prefill-mode` column; `auto` for a value that stands for none.
    pub const fn of_code(code: u32) -> Self {
        match code {
            1 => Self::LocalOnly,
            2 => Self::RemotePreferred,
            3 => Self::RemoteRequired,
            _ => Self::Auto,
        }
    }

    /// The word clients use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::LocalOnly => "local_only",
            Self::RemotePreferred => "remote_preferred",
            Self::RemoteRequired => "remote_required",
        }
    }
}

/// Which engines can answer a request as it was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Manner {
    /// Those that take prompt and sampling: the gateway writes the answer.
    #[default]
    Pieces,
    /// Those that take the client's own words: it asks for what only they understand.
    Whole,
    /// Both.
    Either,
}

/// Whether someone waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// A client waits for the first token.
    #[default]
    Interactive,
    /// It may wait.
    Batch,
    /// Only the KV is wanted, ahead of demand.
    Prewarm,
}

impl RequestKind {
    /// The value of the policies' `kind` column.
    pub const fn code(self) -> u32 {
        match self {
            Self::Interactive => 0,
            Self::Batch => 1,
            Self::Prewarm => 2,
        }
    }
}

/// One request, as decisions see it. Names are indices into the policies' tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFacts {
    /// The request's id.
    pub id: RequestId,
    /// Index of the tenant in this host's table.
    pub tenant: u32,
    /// Index into the model table.
    pub model: u32,
    /// Keyed hash of the conversation; 0 when there is none.
    pub session: u64,
    /// Where the request came in.
    pub origin: SiteIndex,
    /// Index into the jurisdictions; 0: no restriction stated.
    pub jurisdiction: u32,
    /// Index into the user classes.
    pub user_class: u32,
    /// Whether someone waits.
    pub kind: RequestKind,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Most tokens the client allows.
    pub max_output_tokens: u32,
    /// What such requests really produce.
    pub expected_output_tokens: u32,
    /// Where the client wants its prompt computed.
    pub prefill_mode: PrefillMode,
    /// Which engines can answer it.
    pub manner: Manner,
    /// 0 is the most urgent.
    pub priority: u32,
    /// Hoped-for time to first token in ms; 0: none stated.
    pub ttft_slo_ms: u32,
    /// Seed of every choice made for this request.
    pub seed: u64,
    /// When it is decided.
    pub now: Moment,
    /// Labels a policy may look up.
    pub labels: BTreeMap<String, String>,
}

impl RequestFacts {
    /// The row a policy sees.
    pub fn row(&self, offload_threshold_tokens: u32, congested: bool) -> RequestRow {
        let now = self.now.millis();
        RequestRow {
            tenant: self.tenant,
            model: self.model,
            session_lo: low(self.session),
            session_hi: high(self.session),
            origin_site: self.origin.0,
            jurisdiction: self.jurisdiction,
            user_class: self.user_class,
            kind: self.kind.code(),
            prompt_tokens: self.prompt_tokens,
            max_output_tokens: self.max_output_tokens,
            expected_output_tokens: self.expected_output_tokens,
            prefill_mode: self.prefill_mode.code(),
            priority: self.priority,
            ttft_slo_ms: self.ttft_slo_ms,
            seed_lo: low(self.seed),
            seed_hi: high(self.seed),
            now_ms_lo: low(now),
            now_ms_hi: high(now),
            offload_threshold_tokens,
            condition_bits: u32::from(congested),
        }
    }
}

fn low(value: u64) -> u32 {
    (value & u64::from(u32::MAX)) as u32
}

fn high(value: u64) -> u32 {
    (value >> 32) as u32
}
