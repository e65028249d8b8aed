//! REMEMBERS: policies, bindings, tenants, keys and the audit log, in one folder of this host.
//!
//! ```text
//! lock                        held while a process has the store open
//! secret                      32 random bytes, 0600: what every key of this installation is derived from
//! db/                         sled: every record, and the audit log
//! components/<sha256>.wasm    components as they were uploaded, named by their content
//! artefacts/<sha256>.cwasm    this machine's code for the component of that name
//! state/                      sled: what policies keep between calls, see [`SledState`]
//! ```
//!
//! Components and artefacts are files because they are large, and because an artefact is mapped into memory. A file is
//! written beside its place, flushed and renamed, never changed; after that the record that names it and the audit
//! line are one sled transaction; that is flushed; then the call returns. So what was acknowledged survives
//! `kill -9` and a power cut, and what was not acknowledged leaves at most a file that nothing names, which the next
//! [`SledStore::open`] removes.
//!
//! A component is verified against its name whenever it is read. An artefact is only a cache: the loader that wrote it
//! authenticates it (with a key from [`PlatformSecret::derive`]) and compiles anew what it does not recognise.
//!
//! [`SledStore::snapshot`] copies a store that is in use, and [`SledStore::restore`] makes one of such a copy.
//! ```
//! use portolan_base::{Moment, Random};
//! use portolan_ports::{KeyRecord, PolicyStore, Principal};
//! use portolan_store::SledStore;
//!
//! # struct Dice;
//! # impl Random for Dice { fn next_u64(&self) -> u64 { 4 } }
//! # let folder = tempfile::tempdir()?;
//! let store = SledStore::open(folder.path(), &Dice)?;
//! let record = KeyRecord { principal: Principal::Operator, label: "console".into(), holder: None };
//! store.put_key("sk-op-1", record, "init", Moment(1))?;
//! assert_eq!(store.authenticate("sk-op-1")?, Some(Principal::Operator));
//! assert_eq!(store.authenticate("sk-op-2")?, None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod files;
mod key_ring;
mod ledger;
mod opening;
mod secret;
mod slot;
mod snapshot;
mod state;
mod store;

pub use secret::PlatformSecret;
pub use state::SledState;
pub use store::SledStore;
