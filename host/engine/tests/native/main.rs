//! The native engine as its callers see it, held to the reference implementation's numbers.
#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod device;
mod gguf;
mod jobs;
mod loading;
mod oracle;
mod quality;
mod reuse;
mod smollm;
mod support;
mod tiers;
mod window;
