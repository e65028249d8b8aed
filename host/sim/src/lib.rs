//! REHEARSES: the production decisions on recorded or synthetic traffic, on a virtual clock.
//!
//! What decides is `portolan_decide` with the policies it is handed, what caches is `portolan_kv`; this crate holds
//! time, queues and links, and no routing rule. The same scenario and seed give the same report, to the byte.
//!
//! | file | holds |
//! |---|---|
//! | `traffic` | requests: from trace files, or synthetic |
//! | `scenario` | what is simulated: sites, instances, links, policies |
//! | `world` | the events and what they do |
//! | `machine` | one instance: prefill queue, decode slots, cache |
//! | `flight` | one request on its way |
//! | `pipe` | one link, and how busy something was lately |
//! | `report`, `fate`, `samples` | what came of it, altogether and for each request |
//! | [`case_study`] | the fleet and the traffic of the Prefill-as-a-Service paper |
//! | `clock` | the time of a simulation |

pub mod case_study;
mod clock;
mod fate;
mod flight;
mod machine;
mod pipe;
mod report;
mod samples;
mod scenario;
#[cfg(test)]
mod tests;
mod traffic;
mod world;

pub use clock::VirtualClock;
pub use fate::{Fate, Served};
pub use report::{Report, Spread, TenantReport};
pub use samples::Latency;
pub use scenario::{
    Change, FirstToken, Happening, Origin, Queueing, Scenario, ScenarioError, SimInstance, SimLink, SimSite,
    SlowLoop, ThresholdSource,
};
pub use traffic::{
    Burst, MOONCAKE_BLOCK_TOKENS, Prefixes, SimRequest, Surge, Synthetic, Tenant, TraceError, read_azure,
    read_mooncake,
};
pub use world::{Rehearsal, rehearse, simulate, simulate_on};
