//! Policies in an OCI registry, in the layout that the WebAssembly tools share: a config of
//! `application/vnd.wasm.config.v0+json` and one layer of `application/wasm`. Signatures travel in the manifest's
//! annotation [`layout::SIGNATURES`].
//!
//! A tag is a hint, the digest is the name: whatever is downloaded is measured before and hashed after, and a manifest's
//! digest is told so that it can be asked for again.

pub mod address;
pub mod client;
mod credentials;
pub mod layout;
#[cfg(test)]
mod tests;

pub use address::{Address, BadAddress};
pub use client::{Pulled, Pushed, Registry, RegistryError};
pub use credentials::Credentials;
