//! Wires the crates into one program: configuration, the running host, the command line.
//!
//! The only reader of the system clock and of the operating system's randomness is [`system`].

pub mod authoring;
pub mod bench;
pub mod chart;
pub mod client;
pub mod command;
pub mod config;
pub mod dr;
pub mod host;
pub mod kv;
pub mod lab;
pub mod plan;
pub mod registry;
pub mod scaling;
pub mod signing;
pub mod simulation;
pub mod system;
pub mod watch;
