//! MOVES KV between sites: implements [`portolan_ports::Transport`] over several TCP connections a peer.
//!
//! # The protocol, version 5
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
//! nothing before it is longer than 8 KiB. [`MutualTls`] puts TLS 1.3 underneath, where certificates name both sites;
//! over [`PlainTcp`] the secret authenticates the peer at the start of a connection but not every byte after it, and
//! any site of the cluster can call itself by another's name.
//!
//! **Who may have what.** A listener that admits only named peers refuses the others at the hello. Each order says
//! whose data it is, under which jurisdiction and for which request; the holder's source judges it for the peer that
//! the hello named. A receiver takes manifests and chunks only of transfers that it ordered itself on that link: ids
//! are 128 random bits, a chunk of any other id is skipped, unread by anyone.
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
//! | receiver | `Order` | transfer, priority class (0 first), bytes it has room for, codings it reads, chunks that landed, its window, order |
//! | receiver | `Credit` | transfer, bytes it has room for, counted from the start |
//! | holder | `Manifest` | transfer, manifest and coding (as JSON text); at once on one lane, and on every lane before the first chunk of that transfer on it |
//! | holder | `Chunk` | transfer, chunk number, piece id, offset, length of the piece, attempt, how its bytes come, XXH3-64 of all these but the last two and of the plain payload |
//! | receiver | `Ack`, `Nack` | transfer; the manifest, a chunk number or the end |
//! | holder | `Final` | transfer; report, numbers of pieces, chunks and bytes, and the sum of all chunks' checksums, or an error text |
//! | receiver | `Cancel` | transfer |
//! | receiver | `Ping` | a number |
//! | holder | `Pong` | the number, the delivery rate it measured, TCP segments sent and sent again |
//!
//! **Chunks.** Pieces are cut at multiples of the chunk; a small or empty piece is one chunk; the chunks of a piece
//! are numbered in sequence. Whichever lane is free
//! takes the next chunk of the most urgent class, the transfers of a class in turn, recurrent states before the rest of
//! their class. A piece is begun only into room that the receiver has. The holder keeps a chunk until it is
//! acknowledged, which the receiver does after it has verified it.
//!
//! **Quantised pieces.** When the manifest names `int8` or `int4`, a piece of an attention layer may come quantised
//! ([`portolan_kv::quant`]): its length says so, since a quantised piece is smaller than a plain one. Chunks, checksums,
//! acknowledgements, grants and totals are then those of the quantised piece, and the receiver makes values of it when
//! it is whole. No chunk is coded besides. A manifest that names a coding which the order did not is a breach.
//!
//! **Chunks that landed.** On a poor link the receiver keeps verified chunks on disk ([`StoreAndForward`]), and names them
//! in the next order of the same set, each with the BLAKE3-128 of its bytes. Where the holder would send the same bytes it
//! sends the head alone; the receiver takes them from its disk, verifies them like any others, and says `Nack` when it
//! cannot: then they are sent.
//!
//! **Chunks beside the connection.** Where a link has a [`Carrier`], an order names a window in the receiver's memory. The
//! holder's carrier writes a chunk's bytes there, then its head goes over the connection as ever, and says where they lie;
//! the slot is used again once the chunk is acknowledged. `Nack` brings the bytes over the connection, and so does
//! whatever goes wrong with the carrier.
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
//! | a lane is silent for half the stall time, others are not | it is closed, its chunks go to the others, and it is made again along another path if there is one |
//! | a transfer takes longer than its deadline | stalled |
//! | the same set fails twice by damage | it is not ordered again for ten minutes |
//! | the listener restarted | its session number is new: transfers of the old one fail at once |
//! | chunk of a transfer that ended | skipped, and the holder is told `Cancel` |
//!
//! **Time.** Timeouts are measured with `tokio::time`, never with the host's clock: they are durations of this process.

mod carrier;
mod codec;
mod config;
mod counters;
mod delivery;
pub mod fault_proxy;
mod frame;
pub mod fuzz;
mod hello;
mod holder;
mod inbound;
mod landing;
mod lane;
mod link;
mod memory;
#[cfg(feature = "nixl")]
mod nixl;
mod pacer;
mod paths;
mod probe;
mod quarantine;
mod session;
mod site;
mod sizing;
mod spares;
pub mod speed;
mod tls;
mod wire;

pub use carrier::{Carrier, CarrierError, Window};
pub use codec::{Coding, Compression};
pub use config::{
    Admission, Backend, CHUNK_MAX, ClusterSecret, Egress, LinkPath, PeerLink, Priority, TransportConfig,
};
pub use landing::StoreAndForward;
#[cfg(feature = "nixl")]
pub use nixl::{NixlCarrier, NixlConfig, WorkerError, work as nixl_worker};
pub use probe::{LinkProbe, Segments, TcpInfo};
pub use site::{SiteTransport, TransportParts};
pub use tls::{IssueError, Issued, MutualTls, SiteIssuer, TlsError, TlsFiles, TlsIdentity};
pub use wire::{Accepted, PeerProof, PlainTcp, Wire, Wiring};
