//! A WebAssembly component as a policy: the only user of wasmtime.
//!
//! [`ComponentLoader`] is the live host's [`portolan_ports::PolicyLoader`]. A component answers one question of the
//! contract in `wit/policy.wit`, imports nothing but the contract's own interfaces (no WASI) and is bounded on every
//! axis by [`Limits`]:
//!
//! - **time**: fuel, which is deterministic, and an epoch deadline for what fuel does not see;
//! - **space**: memory over all of an instance, tables, handles, bytes of an answer;
//! - **the host's work**: each host call costs fuel, log lines are rationed, [`PolicyState`] has a quota.
//!
//! Each call gets an instance of its own, in a store of its own, made ahead of demand. [`Policy::ask`] blocks: for a
//! compact component at most the time its fuel buys (well below a millisecond), for others up to
//! [`Limits::slow_deadline_ms`], while a thread of the slow lane works; an asynchronous caller hands such calls to a
//! blocking thread.
//!
//! Cranelift is outside of wasmtime's security promise, so a host that takes components from strangers compiles them in
//! a process of their own ([`Compilation::Child`]): bounded in processor time and memory, and killed when it overruns.
//! Its death is a finding about the component.
//!
//! [`Policy::ask`]: portolan_policy::Policy::ask

mod answer;
mod artefact;
mod bindings;
mod check;
mod compile_worker;
mod compiler;
mod componentize;
mod contract;
mod engine;
mod fault;
mod filler;
mod guest;
mod host;
mod lane;
mod limiter;
mod limits;
mod loader;
mod log;
mod probing;
mod question;
mod samples;
mod slots;
mod stats;
mod stock;
mod ticker;
mod version;

pub use artefact::{ArtefactKey, KeyError};
pub use compile_worker::compile_worker;
pub use compiler::Compilation;
pub use componentize::{ComponentizeError, componentize};
pub use contract::POLICY_WIT;
pub use engine::{Allocation, EngineError};
pub use limits::{CompileBudget, CompileBudgets, FuelBudget, Limits, OutOfRange, SizeClass, TenantLimits};
pub use loader::{ComponentLoader, LoaderConfig};
pub use portolan_ports::{Entry, MemoryState, PolicyState, StateQuota, StateSpace};
pub use stats::{RuntimeStats, VersionKey, VersionStats};
