//! KNOWS the sites: what a decision is made from.

use portolan_base::{BlockHash, ModelName};
use portolan_decide::{FleetView, InstanceIndex};
use portolan_policy::NameTables;
use std::sync::Arc;

/// How work on an instance ended, for its breaker. Being full and the client's own errors are neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceOutcome {
    /// It did what was asked.
    Served,
    /// It, or the link to it, failed.
    Failed,
}

/// What is known about every site, seen from one of them. All calls answer from memory.
pub trait Fleet: Send + Sync {
    /// Sites, instances and links at this moment. Indices are stable for the life of the process.
    fn view(&self) -> Arc<FleetView>;

    /// The tables behind the indices; `tenant` is empty.
    fn names(&self) -> Arc<NameTables>;

    /// Tokens of the prompt that each instance holds KV for, by instance index: advice, a false hit costs latency.
    fn held(&self, model: &ModelName, chain: &[BlockHash]) -> Vec<u32>;

    /// Reports how work on an instance ended.
    fn outcome(&self, instance: InstanceIndex, outcome: InstanceOutcome);
}
