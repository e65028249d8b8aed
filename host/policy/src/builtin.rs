//! The policies the host ships, as pure functions.
//!
//! Each exists once: the host holds it as a `dyn Policy` made by [`policy()`], and the component of the same name in
//! `plugins/` wraps the very same type, so native and WebAssembly answers are equal. All arithmetic is on integers
//! (64 bits inside, saturating to 32), so an answer is the same on every machine.

pub mod config;
pub mod contract;
pub mod rank;

mod arithmetic;
mod cache_score;
mod native;
mod registry;

pub mod dependency;
pub mod global_cache_aware;
pub mod idle;
pub mod jurisdiction;
pub mod latency_aware;
pub mod least_loaded;
pub mod lowest_cost;
pub mod offload;
pub mod prefix_affinity;
pub mod price_aware;
pub mod random;
pub mod region_cache_aware;
pub mod round_robin;
pub mod threshold;
pub mod ttft;
pub mod version;

pub use config::ConfigError;
pub use contract::{Candidate, Candidates, Cost, Groups, Invalidation, Residency, Routes, Routing};
pub use dependency::DependencyRule;
pub use global_cache_aware::GlobalCacheAware;
pub use idle::IdleRule;
pub use jurisdiction::Jurisdiction;
pub use latency_aware::LatencyAware;
pub use least_loaded::LeastLoaded;
pub use lowest_cost::LowestCost;
pub use offload::Offload;
pub use prefix_affinity::PrefixAffinity;
pub use price_aware::PriceAware;
pub use random::RandomRoute;
pub use rank::{Rank, Tier};
pub use region_cache_aware::RegionCacheAware;
pub use registry::{BUILT_IN, BuiltinError, default_for, names, policy};
pub use round_robin::RoundRobin;
pub use threshold::Threshold;
pub use ttft::Ttft;
pub use version::VersionRule;

#[cfg(test)]
mod tests;
