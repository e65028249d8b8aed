//! Turns a policy's bytes into something that can be asked.

use crate::{PolicyLogLine, Sample};
use portolan_policy::{NameTables, Policy, QuestionKind};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::sync::Arc;

pub use portolan_policy::Scope;

/// Whether an instance of a policy answers more than one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Fresh for a compact component, warm for an interpreted one, which takes longer to start than to answer.
    #[default]
    ByClass,
    /// Each call has an instance of its own: nothing is left from the call before.
    Fresh,
    /// An instance is kept for further calls of the same binding, until it traps or has answered many. Faster, and a
    /// policy can then keep something from call to call, which makes its answers hard to replay.
    Warm,
}

impl Reuse {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ByClass => "by-class",
            Self::Fresh => "fresh",
            Self::Warm => "warm",
        }
    }

    /// Whether the component's class decides: what a record need not say.
    pub fn is_by_class(&self) -> bool {
        *self == Self::ByClass
    }
}

impl FromStr for Reuse {
    type Err = UnknownReuse;

    fn from_str(text: &str) -> Result<Self, UnknownReuse> {
        match text {
            "by-class" => Ok(Self::ByClass),
            "fresh" => Ok(Self::Fresh),
            "warm" => Ok(Self::Warm),
            _ => Err(UnknownReuse(text.to_owned())),
        }
    }
}

/// A word that is no [`Reuse`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "reuse is {0:?}; it must be fresh (an instance for each call), warm (kept from call to call) or by-class (fresh when compact)"
)]
pub struct UnknownReuse(String);

/// What a loaded policy is bound to.
#[derive(Clone, Debug)]
pub struct Binding {
    /// Whose policy.
    pub scope: Scope,
    /// Which question.
    pub question: QuestionKind,
    /// The policy's name.
    pub name: String,
    /// SHA-256 of the component, hexadecimal.
    pub version: String,
    /// The binding's own text, JSON by convention, at most 64 KiB.
    pub config: String,
    /// The tables behind the indices.
    pub names: Arc<NameTables>,
    /// Whether instances are kept from call to call.
    pub reuse: Reuse,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// Works, and will hurt.
    Warning,
    /// Cannot be used.
    Error,
}

/// One thing a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable code, such as `core-module`.
    pub code: String,
    /// How bad.
    pub severity: Severity,
    /// What is the matter, with the name or number at fault.
    pub message: String,
    /// How to mend it.
    pub help: String,
}

/// Code of the finding that nothing could be found out: there was no compiler, or no processor, for the component in time.
pub const COMPILER_BUSY: &str = "compiler-busy";

/// Code of the finding that says what compiling took. As an error: more than this host gives.
pub const COMPILE_TIME: &str = "compile-time";

/// What a check says about a component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyReport {
    /// Whether it may be bound.
    pub ok: bool,
    /// The question it answers, when that could be told.
    pub question: Option<QuestionKind>,
    /// What was found.
    pub findings: Vec<Finding>,
    /// SHA-256 of the bytes, hexadecimal.
    pub sha256: String,
    /// Size in bytes.
    pub bytes: u64,
}

impl PolicyReport {
    /// Whether it was not found out if the component can be used: the same may be asked again.
    pub fn is_busy(&self) -> bool {
        self.findings.iter().any(|finding| finding.code == COMPILER_BUSY)
    }

    /// Whether compiling it takes more than this host gives. That is the host's limit: on another one it may be good.
    pub fn overran(&self) -> bool {
        let is_overrun =
            |finding: &Finding| finding.severity == Severity::Error && finding.code == COMPILE_TIME;
        self.findings.iter().any(is_overrun)
    }

    /// Why it cannot be used, the first of the reasons.
    pub fn first_error(&self) -> &str {
        let worst = self.findings.iter().find(|f| f.severity == Severity::Error);
        worst.map_or("no reason was recorded", |f| &f.message)
    }
}

/// A component that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the policy was refused: {}", .0.first_error())]
pub struct PolicyRejection(pub PolicyReport);

/// What a check configures a component with, as the binding would.
#[derive(Clone, Copy, Debug)]
pub struct Rehearsal<'a> {
    /// The binding's text.
    pub config: &'a str,
    /// The tables behind the indices: a configuration may speak of sites and jurisdictions by name. Made-up ones when
    /// `None`.
    pub names: Option<&'a Arc<NameTables>>,
    /// Whose it is, in the log lines that it writes meanwhile; the platform's when `None`.
    pub owner: Option<PolicyOwner<'a>>,
}

/// Whose a component is that is checked.
#[derive(Clone, Copy, Debug)]
pub struct PolicyOwner<'a> {
    /// Whose policy.
    pub scope: &'a Scope,
    /// The policy's name.
    pub name: &'a str,
}

/// Checks components and makes them callable. Compiling takes long: never call this on the request path.
pub trait PolicyLoader: Send + Sync {
    /// Checks a component against the world of `question`, or of whichever question it answers when `None`. Without a
    /// rehearsal it is tried with defaults: an empty configuration, then an empty JSON object, and made-up names.
    fn check(
        &self,
        question: Option<QuestionKind>,
        component: &[u8],
        rehearsal: Option<Rehearsal<'_>>,
    ) -> PolicyReport;

    /// Compiles a checked component to this machine's code, to be kept beside the store.
    fn compile(&self, component: &[u8]) -> Result<Vec<u8>, PolicyRejection>;

    /// Whether `compiled` is an artefact that [`PolicyLoader::load`] would use for the component of this SHA-256. One that
    /// is not is stale or foreign: what [`PolicyLoader::compile`] gives should be kept in its place.
    fn accepts(&self, sha256: &str, compiled: &[u8]) -> bool;

    /// Makes a component callable. `compiled` is what [`PolicyLoader::compile`] gave earlier, if it is still around;
    /// it is authenticated, and compiled anew when it does not fit this host.
    fn load(
        &self,
        binding: &Binding,
        component: &[u8],
        compiled: Option<&[u8]>,
    ) -> Result<Arc<dyn Policy>, PolicyRejection>;

    /// What the policies did so far, for the metrics page. A loader that does not count has nothing to say.
    fn samples(&self) -> Vec<Sample> {
        Vec::new()
    }

    /// The latest log lines of a scope's policies, oldest first. A loader that keeps none has nothing to say.
    fn log_lines(&self, _scope: &Scope) -> Vec<PolicyLogLine> {
        Vec::new()
    }
}
