//! The path record: everything that happened to one request, for people and for replay.

use portolan_base::kv::KvQuant;
use portolan_base::{RequestId, TenantName};
use portolan_policy::{CostRow, PolicySource, QuestionKind, RequestRow, RouteRow};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One policy call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRecord {
    /// What was asked.
    pub question: QuestionKind,
    /// Who answered.
    pub name: String,
    /// SHA-256 of the component, or `built-in`.
    pub version: String,
    /// Who bound it.
    pub source: PolicySource,
    /// How long the call took, in µs.
    pub micros: u64,
    /// Fuel used, where metered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuel: Option<u64>,
    /// `ok`, or the word of the fault that made the host fall back.
    pub outcome: String,
    /// What was answered, in short: a deferral or a refusal shows here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// The fault in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The generation of its binding; absent for what is built in and for a version on trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Which configuration it had, in digits that stand for its text; absent when it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_digest: Option<String>,
}

/// A version on trial that was asked once the answer was out, with what the decision had been made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowRecord {
    /// The call.
    #[serde(flatten)]
    pub call: PolicyRecord,
    /// What it would have done otherwise; absent when it agrees, or gave no usable answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<String>,
}

/// One candidate route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateRecord {
    /// Computes the prompt.
    #[serde(flatten)]
    pub route: RouteRecord,
    /// What the policies were told about it.
    pub facts: RouteRow,
    /// What the cost policy said; absent when the route was excluded before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostRow>,
    /// What the routing policy said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<u32>,
    /// Place in the plan: 0 is taken first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Why it is not in the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded: Option<String>,
}

/// An instance that could have served and was not looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Where it is.
    pub site: String,
    /// Which.
    pub instance: String,
    /// Why.
    pub reason: String,
}

/// A route by names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRecord {
    /// Where the prompt is computed.
    pub prefill_site: String,
    /// By which instance.
    pub prefill_instance: String,
    /// Where the answer is generated.
    pub decode_site: String,
    /// By which instance.
    pub decode_instance: String,
}

/// Why something else was done than planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    /// The stage at which it happened.
    pub stage: String,
    /// What had been planned or asked.
    pub from: String,
    /// What was done instead.
    pub to: String,
    /// Why.
    pub reason: String,
}

/// What one site may do with the data of a request, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteVerdict {
    /// The site.
    pub site: String,
    /// What both answers allow.
    pub placement: portolan_policy::Placement,
    /// What the platform's allows.
    pub platform: portolan_policy::Placement,
    /// What the tenant's allows; none: it has bound no policy.
    pub tenant: Option<portolan_policy::Placement>,
    /// Who said so, and by which rule.
    pub why: String,
}

/// How a decision came about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionRecord {
    /// What the policies were told about the request.
    pub request: RequestRow,
    /// Every route looked at.
    pub candidates: Vec<CandidateRecord>,
    /// Instances of the model that were not looked at.
    pub left_out: Vec<LeftOut>,
    /// Every policy call.
    pub policies: Vec<PolicyRecord>,
    /// Placement of each site, by name, as the intersection of all residency answers.
    pub placements: Vec<(String, portolan_policy::Placement)>,
    /// The same with who said so.
    #[serde(default)]
    pub verdicts: Vec<SiteVerdict>,
    /// Policy fallbacks.
    pub fallbacks: Vec<Fallback>,
}

impl DecisionRecord {
    /// The candidate that is tried first.
    pub fn taken(&self) -> Option<&CandidateRecord> {
        self.candidates.iter().find(|candidate| candidate.rank == Some(0))
    }
}

/// When a stage ran, in milliseconds since the request was accepted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageRecord {
    /// The stage's one name.
    pub name: String,
    /// When it began.
    pub start_ms: f64,
    /// When it ended.
    pub end_ms: f64,
}

/// KV of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvRecord {
    /// Bytes that crossed between sites.
    pub bytes_moved: u64,
    /// Prompt tokens that did not have to be computed.
    pub cached_tokens: u32,
    /// Prompt tokens that were computed.
    pub computed_tokens: u32,
    /// Chunks that arrived damaged or were lost, and were sent again.
    pub chunks_resent: u32,
    /// How the KV was quantised on its way between sites. Where this is, the answer is not promised to equal a single
    /// site's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantised: Option<KvQuant>,
}

/// KV that was fetched from another site rather than computed, or was to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FetchRecord {
    /// The site that holds it.
    pub site: String,
    /// Which of its instances.
    pub instance: String,
    /// The site that it was to come to: where the prompt is computed.
    #[serde(default)]
    pub to_site: String,
    /// Which of its instances.
    #[serde(default)]
    pub to_instance: String,
    /// Prompt tokens that were to come.
    pub wanted_tokens: u32,
    /// Prompt tokens that came and were kept, so that they were not computed; 0 when it failed.
    pub tokens: u32,
    /// Bytes that crossed, those of a fetch that failed too.
    pub bytes: u64,
    /// How long it took, in ms.
    pub took_ms: f64,
    /// How long it was thought to take, in ms.
    pub estimated_ms: f64,
    /// How long computing the same tokens was thought to take, in ms.
    pub computing_ms: f64,
    /// Why not all of it came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Everything that happened to one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathRecord {
    /// The request.
    pub request_id: RequestId,
    /// The client's trace id, when it sent one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// Whose it was.
    pub tenant: TenantName,
    /// The model asked for.
    pub model: String,
    /// Unix time in milliseconds when it was accepted.
    pub accepted_ms: u64,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
    /// Milliseconds from accept to the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// The route that served it; absent when none did.
    pub route: Option<RouteRecord>,
    /// What the policies were told about the request: with the candidates' facts and the labels, all that a decision
    /// was made from, so that it can be made again.
    pub request: RequestRow,
    /// Labels a policy could look up.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Every route looked at.
    pub candidates: Vec<CandidateRecord>,
    /// Instances of the model that were not looked at, and why: broken, silent, draining, coming back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// Every policy call.
    pub policies: Vec<PolicyRecord>,
    /// Every version that was asked without being obeyed. Written shortly after the request was settled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shadows: Vec<ShadowRecord>,
    /// What the residency answers allowed.
    pub placements: Vec<(String, portolan_policy::Placement)>,
    /// The same with who said so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<SiteVerdict>,
    /// When each stage ran.
    pub stages: Vec<StageRecord>,
    /// KV moved and reused.
    pub kv: KvRecord,
    /// KV fetched from other sites before prefill.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fetches: Vec<FetchRecord>,
    /// Everything that went otherwise than planned.
    pub fallbacks: Vec<Fallback>,
    /// `running`, `ok`, `refused` (by a policy, or for want of a route), `cancelled` or `failed`.
    pub status: String,
    /// Why it did not end well, in words: in which stage the client left, why it was refused, what failed at last. Absent
    /// while it runs and when it is `ok`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
