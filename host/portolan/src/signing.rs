//! Whom a policy comes from: ed25519 keys, detached signatures, and the book of keys that are trusted.
//!
//! The text of a signature and what it covers are in [`portolan_ports::VersionSignature`]; this module makes and checks
//! them. Keys are text as well: `portolan-secret-key-1 ed25519 SEED` in a file of mode 0600, and `ed25519:PUBLIC` in the
//! configuration, both in hexadecimal.

mod book;
mod day;
mod key;
#[cfg(test)]
mod tests;

pub use book::{KeyBook, Trust, TrustedKey};
pub use day::{BadDay, end_of};
pub use key::{BadKey, PublicKey, SecretKey};

use sha2::{Digest, Sha256};

/// SHA-256 of a component, hexadecimal, as its version is named.
pub fn digest(component: &[u8]) -> String {
    hex::encode(Sha256::digest(component))
}
