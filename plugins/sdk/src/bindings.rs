//! Bindings generated from `wit/policy.wit`, one module a world, for the macros of this crate.

pub use portolan_world_cost as cost;
pub use portolan_world_invalidation as invalidation;
pub use portolan_world_residency as residency;
pub use portolan_world_routing as routing;
