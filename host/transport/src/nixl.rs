//! NIXL as a carrier: in a process of its own, which may abort, spin or crash at its end without taking the host along.
//!
//! | file | holds |
//! |---|---|
//! | `host` | the [`Carrier`](crate::Carrier) of this process: starts the other, asks it, ends it |
//! | `arena` | the memory that both share, in pieces that are lent out |
//! | `talk` | what they say to each other |
//! | `worker` | the other process: the only user of the library |
//!
//! The two share one file in memory, half of it for what peers write here and half for what is on its way to them. They
//! talk over a socket that nobody else can reach. What one agent has to know of another travels in our orders: NIXL's own
//! port for that, which believes everyone, is not opened.

mod arena;
mod host;
mod talk;
mod worker;

pub use host::{NixlCarrier, NixlConfig};
pub use worker::{WorkerError, work};
