//! How large the KV of a prompt is, and which link it needs.

mod estimate;
mod known;

pub use estimate::{Estimate, EstimateError, Request, estimate};
