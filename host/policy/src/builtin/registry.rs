//! The built-in policies by name.

use super::config::ConfigError;
use super::contract::{Cost, Invalidation, Residency, Routing};
use super::native::{Code, native};
use super::*;
use crate::names::NameTables;
use crate::policy::Policy;
use crate::question::QuestionKind;
use std::sync::Arc;

/// Every built-in policy: the question it answers, and its name. The first of a question is its default.
pub const BUILT_IN: &[(QuestionKind, &str)] = &[
    (QuestionKind::Residency, "jurisdiction"),
    (QuestionKind::Cost, "ttft"),
    (QuestionKind::Cost, "latency-aware"),
    (QuestionKind::Cost, "price-aware"),
    (QuestionKind::Routing, "lowest-cost"),
    (QuestionKind::Routing, "threshold"),
    (QuestionKind::Routing, "offload"),
    (QuestionKind::Routing, "prefix-affinity"),
    (QuestionKind::Routing, "round-robin"),
    (QuestionKind::Routing, "random"),
    (QuestionKind::Routing, "least-loaded"),
    (QuestionKind::Routing, "region-cache-aware"),
    (QuestionKind::Routing, "global-cache-aware"),
    (QuestionKind::Invalidation, "version"),
    (QuestionKind::Invalidation, "dependency"),
    (QuestionKind::Invalidation, "idle"),
];

/// Why there is no such policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuiltinError {
    /// No built-in policy of the name answers the question.
    #[error("no built-in {question} policy is called {name:?}; there are {}", names(*.question).collect::<Vec<_>>().join(", "))]
    Unknown {
        /// The question asked.
        question: QuestionKind,
        /// The name asked for.
        name: String,
    },
    /// Its configuration cannot be used.
    #[error("the built-in policy {name} cannot be configured")]
    Config {
        /// The policy.
        name: String,
        /// What is wrong.
        #[source]
        source: ConfigError,
    },
}

/// The names of the built-in policies that answer `question`, the default first.
pub fn names(question: QuestionKind) -> impl Iterator<Item = &'static str> {
    BUILT_IN
        .iter()
        .filter(move |(q, _)| *q == question)
        .map(|(_, name)| *name)
}

/// The policy that answers where nothing is bound, or where what is bound failed; it needs no configuration. For a
/// failed residency policy the caller must close instead: only the origin's jurisdiction stays.
pub const fn default_for(question: QuestionKind) -> &'static str {
    match question {
        QuestionKind::Residency => "jurisdiction",
        QuestionKind::Cost => "ttft",
        QuestionKind::Routing => "lowest-cost",
        QuestionKind::Invalidation => "version",
    }
}

/// Makes a built-in policy. `config` is the binding's JSON text; an empty one means the defaults.
pub fn policy(
    question: QuestionKind,
    name: &str,
    config: &str,
    tables: &NameTables,
) -> Result<Arc<dyn Policy>, BuiltinError> {
    let unknown = || BuiltinError::Unknown {
        question,
        name: name.to_owned(),
    };
    let make = match question {
        QuestionKind::Residency => residency_code(name),
        QuestionKind::Cost => cost_code(name),
        QuestionKind::Routing => routing_code(name),
        QuestionKind::Invalidation => invalidation_code(name),
    }
    .ok_or_else(unknown)?;
    let code = make(config, tables).map_err(|source| BuiltinError::Config {
        name: name.to_owned(),
        source,
    })?;
    Ok(native(name, code))
}

type Make = fn(&str, &NameTables) -> Result<Code, ConfigError>;

fn residency_code(name: &str) -> Option<Make> {
    fn make<P: Residency + 'static>(config: &str, tables: &NameTables) -> Result<Code, ConfigError> {
        Ok(Code::Residency(Box::new(P::configure(config, tables)?)))
    }
    match name {
        "jurisdiction" => Some(make::<Jurisdiction>),
        _ => None,
    }
}

fn cost_code(name: &str) -> Option<Make> {
    fn make<P: Cost + 'static>(config: &str, tables: &NameTables) -> Result<Code, ConfigError> {
        Ok(Code::Cost(Box::new(P::configure(config, tables)?)))
    }
    Some(match name {
        "ttft" => make::<Ttft>,
        "latency-aware" => make::<LatencyAware>,
        "price-aware" => make::<PriceAware>,
        _ => return None,
    })
}

fn routing_code(name: &str) -> Option<Make> {
    fn make<P: Routing + 'static>(config: &str, tables: &NameTables) -> Result<Code, ConfigError> {
        Ok(Code::Routing(Box::new(P::configure(config, tables)?)))
    }
    Some(match name {
        "lowest-cost" => make::<LowestCost>,
        "threshold" => make::<Threshold>,
        "offload" => make::<Offload>,
        "prefix-affinity" => make::<PrefixAffinity>,
        "round-robin" => make::<RoundRobin>,
        "random" => make::<RandomRoute>,
        "least-loaded" => make::<LeastLoaded>,
        "region-cache-aware" => make::<RegionCacheAware>,
        "global-cache-aware" => make::<GlobalCacheAware>,
        _ => return None,
    })
}

fn invalidation_code(name: &str) -> Option<Make> {
    fn make<P: Invalidation + 'static>(config: &str, tables: &NameTables) -> Result<Code, ConfigError> {
        Ok(Code::Invalidation(Box::new(P::configure(config, tables)?)))
    }
    Some(match name {
        "version" => make::<VersionRule>,
        "dependency" => make::<DependencyRule>,
        "idle" => make::<IdleRule>,
        _ => return None,
    })
}
