//! How much a fleet can serve, and which threshold and prefill/decode split serve most.
//!
//! The model is that of Prefill-as-a-Service (arXiv 2604.15039): prompts longer than a threshold are prefilled by a
//! remote pool and their KV sent over, the others locally. Pure arithmetic, deterministic.
//!
//! ```
//! use portolan_base::{Bytes, BitsPerSecond, Tokens, kv::KvSize};
//! use portolan_planner::{Averaging, DecodeProfile, Fleet, PrefillProfile, SearchGrid, TruncatedLogNormal};
//!
//! let fleet = Fleet {
//!     remote: PrefillProfile { fixed_s: 0.39, per_token_s: 4.2e-5, per_token_squared_s: 1e-10 },
//!     remote_instances: 4,
//!     local: PrefillProfile { fixed_s: 0.47, per_token_s: 1.3e-4, per_token_squared_s: 3e-10 },
//!     decode: DecodeProfile { batch: 20, step_s: 0.025, output_tokens: 1024.0 },
//!     kv: KvSize { fixed: Bytes(182_000_000), per_token: Bytes(17_280) },
//!     egress: BitsPerSecond(100_000_000_000),
//!     averaging: Averaging::TimeOfMean,
//! };
//! let lengths = TruncatedLogNormal::new(9.9, 1.0, Tokens(128), Tokens(131_072))?;
//! let best = portolan_planner::best_plan(&fleet, &lengths, 8, &SearchGrid::default()).expect("the grid is not empty");
//! assert_eq!((best.split.prefill, best.split.decode), (3, 5));
//! # Ok::<(), portolan_planner::LengthsError>(())
//! ```

mod bound;
mod egress;
mod lengths;
mod live;
mod model;
mod profile;
mod quadratic;
pub mod regions;
mod search;
mod setting;
#[cfg(test)]
mod tests;
mod threshold;
mod ttft;
mod waiting;

pub use bound::{LocalRoles, UpperBound, Worth, upper_bound};
pub use egress::{cluster_egress, kv_throughput};
pub use lengths::{LengthDistribution, LengthsError, MeasuredLengths, Slice, TruncatedLogNormal};
pub use live::{
    Division, LivePools, LocalInstances, Outlook, Seen, SeenRequest, WANTED_LOAD, WantedInstances,
    best_division, look_ahead,
};
pub use model::{Averaging, Bottleneck, Fleet, Plan, Split, evaluate};
pub use profile::{DecodeProfile, FitError, PrefillProfile};
pub use search::{NOTHING_OFFLOADED, SearchGrid, best_plan};
pub use setting::{AtBandwidth, Setting};
pub use threshold::{OffloadCase, offload_threshold};
pub use ttft::unloaded_ttft_quantile;
pub use waiting::{PlanAtRate, balanced_threshold, best_at_rate, best_threshold_at_rate, expected_ttft};
