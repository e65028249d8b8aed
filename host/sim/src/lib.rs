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
//! | `pipe` | one link, and how busy something was lately |
//! | `report`, `fate` | what came of it, altogether and for each request |
//! | `clock` | the time of a simulation |

mod clock;
mod fate;
mod machine;
mod pipe;
mod report;
mod scenario;
#[cfg(test)]
mod tests;
mod traffic;
mod world;

pub use clock::VirtualClock;
pub use fate::{Fate, Served};
pub use report::{Latency, Report};
pub use scenario::{Origin, Scenario, ScenarioError, SimInstance, SimLink, SimSite};
pub use traffic::{MOONCAKE_BLOCK_TOKENS, SimRequest, Synthetic, TraceError, read_azure, read_mooncake};
pub use world::{Rehearsal, rehearse, simulate};
