//! Write a Portolan policy in Rust.
//!
//! A policy is a struct, one of four traits ([`Residency`], [`Cost`], [`Routing`], [`Invalidation`]) and one macro
//! that makes a component of it. This is a complete one: urgent requests go where the queue is shortest, the others
//! where they are cheapest.
//!
//! ```
//! use portolan_sdk::{Candidates, ConfigError, NameTables, RequestView, Routing, RoutingDecision};
//!
//! struct UrgentFirst;
//!
//! impl Routing for UrgentFirst {
//!     fn configure(_config: &str, _names: &NameTables) -> Result<Self, ConfigError> {
//!         Ok(Self)
//!     }
//!
//!     fn decide(&self, request: RequestView<'_>, candidates: Candidates<'_>) -> RoutingDecision {
//!         if request.priority() == 0 {
//!             candidates.scores(request, |candidate| candidate.route.queue_us())
//!         } else {
//!             candidates.scores(request, |candidate| candidate.cost.total_us())
//!         }
//!     }
//! }
//!
//! portolan_sdk::routing!(UrgentFirst);
//! # fn main() {}
//! ```
//!
//! Build it as a `cdylib` for `wasm32-unknown-unknown` and turn the module into a component;
//! `examples/01-routing-policy-rust` has every command.
//!
//! A policy has no clock, randomness, file or socket: the request carries the time and a seed. It may use [`log`],
//! [`state`] and [`labels`]; the component imports only what it uses, and each import makes it slower to start.
//! The feature `allocator`, on by default, brings an allocator that answers without growing the memory.
//! Numbers are `u32` in the unit that the name says, and [`NEVER`] as a cost or a score means "never take this route".

#[cfg(all(feature = "allocator", target_family = "wasm"))]
mod allocator;
#[doc(hidden)]
pub mod bindings;
pub mod labels;
pub mod log;
pub mod state;

#[doc(hidden)]
pub mod convert;
mod worlds;

pub use portolan_policy::builtin::{
    self, Candidate, Candidates, ConfigError, Cost, Groups, Invalidation, Rank, Residency, Routes, Routing,
    Tier, config,
};
pub use portolan_policy::{
    CostMatrix, CostRow, CostView, Dependency, Directive, Event, GroupView, ModelChange, NEVER, NameTables,
    Placement, Pressure, Purpose, RequestView, RouteView, RoutingDecision, SiteEntry, Subject,
};
