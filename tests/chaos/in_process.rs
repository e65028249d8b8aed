//! Thousands of schedules with the parts of production in one process: gateways, charts, agents and tiers, on carriers
//! that lose, delay, double and reorder what they carry, clocks that are seconds apart, and processes that die anywhere.
//!
//! A seed fixes the fleet, the faults, the requests and when each comes; which of two things that happen within the same
//! millisecond is first, it does not.

mod carriers;
mod client;
mod content;
mod engine;
mod flaw;
mod ledger;
mod life;
mod plan;
mod site;
mod weather;
mod world;

pub(crate) use flaw::Flaw;
pub(crate) use world::{run, run_flawed};
