//! A small language for integration tests: a world of two sites, tenants that ask, an operator that meddles.
#![expect(
    clippy::missing_panics_doc,
    clippy::expect_used,
    clippy::panic,
    reason = "a harness fails by panicking"
)]
#![allow(clippy::unwrap_used, reason = "a harness fails by panicking")]

pub mod oracle;
pub mod processes;
pub mod world;

pub use oracle::{Oracle, oracle_folder};
pub use world::{Answer, Ask, Link, World};
