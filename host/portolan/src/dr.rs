//! Disaster recovery: what it takes to bring a model service back, kept elsewhere, checked, and drilled.
//!
//! | file | what it does |
//! |---|---|
//! | `manifest` | what a service consists of, with sizes and SHA-256 |
//! | `collect` | finds it: files of models, configuration, deployment, the store |
//! | `family` | what each family of models needs |
//! | `target`, `s3` | where backups lie: a folder, or a store that speaks S3 |
//! | `backup` | brings what is not there yet, then the manifest |
//! | `verify` | compares a service with its backup |
//! | `restore`, `probe`, `drill` | brings it back into a scratch folder, and has it answer |

mod backup;
mod collect;
mod drill;
mod error;
mod family;
mod manifest;
mod probe;
mod restore;
mod s3;
mod service;
mod target;
mod verify;

#[cfg(test)]
mod tests;

pub use backup::{Backed, Existing};
pub use collect::{Snapshot, collect, snapshot_folder};
pub use drill::{DrillRecord, DrillRules, Drilled, drill};
pub use error::DrError;
pub use manifest::{Backup, Item, Manifest, Probe, Role};
pub use restore::{Restored, restore};
pub use s3::S3Place;
pub use service::{backup_service, make_snapshot};
pub use target::{Target, open_target};
pub use verify::{Difference, Verdict, verify};
