//! MOVES KV between sites: implements [`portolan_ports::Transport`] over several TCP connections a peer.
//!
//! # The protocol, version 1
//!
//! **Roles.** The site that wants KV *dials*, the site that holds it *listens*; each of two sites that order from
//! each other has connections of its own. A *link* is one dialing site and one listening site. It has several *lanes*,
//! a TCP connection each. The lanes of a link name the same session number, so the listener knows that they belong
//! together; the listener draws a number of its own for each session, so the dialer notices when it was forgotten.
//!
//! **Hello.** Either side opens with `PTLNKV` and a 16-bit version (big endian). Then:
//!
//! | from | frame | holds |
//! |---|---|---|
//! | dialer | `DialerHello` | both site names, session number, nonce, largest chunk |
//! | listener | `ListenerHello` | site name, nonce, largest chunk; keyed BLAKE3 of `"listener"` and both hellos |
//! | dialer | `DialerProof` | keyed BLAKE3 of `"dialer"` and both hellos |
//! | listener | `Welcome` | its session number, or why it refuses |
//!
//! The smaller chunk of the two holds. Nobody who does not know the cluster's secret gets further than this, and
//! nothing before it is longer than 8 KiB. Encryption belongs in [`Wiring`]; without it the secret authenticates the
//! peer at the start of a connection but not every byte after it.
//!
//! **Frames.** A head of 32 bytes, little endian, then the fields (postcard), then, for a chunk, its payload:
//!
//! | bytes | | |
//! |---|---|---|
//! | 0 | kind | |
//! | 4..8 | length of the fields | bounded by kind: order 32 MiB, manifest 1 MiB, others 8 KiB |
//! | 8..12 | length of the payload | zero but for chunks, at most the agreed chunk |
//! | 16..24 | XXH3-64 of the fields | |
//! | 24..32 | XXH3-64 of bytes 0..24 | checked before any length is believed |
//!
//! | from | frame | fields |
//! |---|---|---|
//! | receiver | `Order` | transfer, priority class (0 first), order |
//! | holder | `Manifest` | transfer, manifest (as JSON text); at once on one lane, and on every lane before the first chunk of that transfer on it |
//! | holder | `Chunk` | transfer, chunk number, piece id, offset, length of the piece, attempt, XXH3-64 of all these but the attempt and of the payload |
//! | receiver | `Ack`, `Nack` | transfer; the manifest, a chunk number or the end |
//! | holder | `Final` | transfer; report and numbers of pieces, chunks and bytes, or an error text |
//! | receiver | `Cancel` | transfer |
//! | both | `Ping`, `Pong` | a number, returned as it came |
//!
//! **Chunks.** Pieces are cut at multiples of the chunk; a small or empty piece is one chunk; the chunks of a piece
//! are numbered in sequence. Whichever lane is free
//! takes the next chunk of the most urgent class, the transfers of a class in turn. The holder keeps a chunk until it
//! is acknowledged, which the receiver does after it has verified it.
//!
//! **What breaks, and what then.**
//!
//! | damage | consequence |
//! |---|---|
//! | payload of a chunk | `Nack`, sent again; after `max_resend` resends the transfer fails as damaged |
//! | head or fields of a frame | the lane is closed and made again |
//! | a lane breaks | its unacknowledged chunks go to other lanes; orders without a manifest and cancellations are said again |
//! | lanes break again and again and nothing comes in between | link down |
//! | all lanes broken, none re-made within the stall time | link down (a quarter of it when every dial is refused) |
//! | no byte on any lane for the stall time | stalled; pings flow while a prefill computes, so that is no stall |
//! | a lane is silent, others are not | it is closed, its chunks go to the others |
//! | the listener restarted | its session number is new: transfers of the old one fail at once |
//! | chunk of a transfer that ended | skipped, and the holder is told `Cancel` |
//!
//! **Time.** Timeouts are measured with `tokio::time`, never with the host's clock: they are durations of this process.

mod config;
mod counters;
pub mod fault_proxy;
mod frame;
mod hello;
mod holder;
mod inbound;
mod lane;
mod link;
mod session;
mod site;
mod wire;

pub use config::{CHUNK_MAX, ClusterSecret, Priority, TransportConfig};
pub use site::SiteTransport;
pub use wire::{PlainTcp, Wire, Wiring};
