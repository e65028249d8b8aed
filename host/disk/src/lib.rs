//! FILES KV: the disk tier of one model at one site.
//!
//! One file a block, in a folder of its own for each *realm*: everything that has to be equal for KV to be usable (model,
//! version, shapes, and the bits that the model really computes, see [`Realm`]). A block is written to a temporary file,
//! synced, and renamed; its file carries keyed checksums over head and body. What is torn, foreign or damaged is found by
//! them and dropped, at the latest when it is read: a wrong byte never leaves this crate.
//!
//! | file | holds |
//! |---|---|
//! | `file` | what a block's file looks like |
//! | `folder` | the files of a realm: scan, write, read, remove |
//! | `gate` | whose KV may lie there |
//! | `landing` | what broken transfers brought, until another one brings the rest |
//! | `state` | which blocks lie there: the catalogue under its budget |
//! | `tier` | blocks that come, are read, are forgotten |
//! | `writer` | the thread that writes |

mod file;
mod folder;
mod gate;
mod landing;
mod realm;
mod state;
#[cfg(test)]
mod tests;
mod tier;
mod writer;

pub use gate::Gate;
pub use landing::{DiskLanding, LandingConfig, OpenSet};
pub use realm::Realm;
pub use tier::{DiskConfig, DiskError, DiskTier};
