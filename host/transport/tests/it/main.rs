//! The transport over loopback: whole, broken, hostile.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod carrier;
mod chaos;
mod faults;
mod landing;
mod link;
mod matrix;
#[cfg(feature = "nixl")]
mod nixl;
mod pipeline;
mod plain;
mod tls;
mod world;
