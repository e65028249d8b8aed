//! The one integration-test binary.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests are outside the functions that clippy knows as tests"
)]

mod ahead;
/// Schedules of faults, and one checker for all of them.
#[path = "../chaos/chaos.rs"]
mod chaos;
mod cold_start;
mod devices;
mod engines;
mod evacuation;
mod fetch;
mod fetch_abroad;
mod first_light;
/// Guests from WebAssembly text, shared with the runtime's own tests; each uses a part of it.
#[path = "../../host/plugin/tests/policy/guests.rs"]
#[expect(dead_code, reason = "shared with the runtime's own tests")]
mod guests;
mod hedging;
mod hostile_tenants;
mod hot_swap;
mod invalidation;
/// One guest of each toolchain; `make test-languages`.
#[path = "../languages/golden.rs"]
mod languages;
mod many_processes;
mod policies_agree;
mod policy_tools;
mod quantised;
mod recovery;
mod rehearsed;
mod replicas;
mod residency;
mod rollout;
mod stopping;
mod tutorial;
mod two_doors;
mod windowed;
