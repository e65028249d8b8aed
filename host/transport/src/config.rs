//! What a site's transport is told when it starts.

use portolan_base::{Bytes, SiteName};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Largest chunk a configuration may ask for: a reader keeps one chunk a lane that belongs to nothing (a duplicate),
/// so this bounds that memory too.
pub const CHUNK_MAX: Bytes = Bytes(64 << 20);

/// The secret all sites of one cluster share; a peer that cannot prove it gets no further than the hello.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClusterSecret([u8; 32]);

impl ClusterSecret {
    /// Derives the key from a passphrase of any length.
    pub fn derive(passphrase: &str) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("portolan 2026 transport cluster secret");
        hasher.update(passphrase.as_bytes());
        Self(*hasher.finalize().as_bytes())
    }

    /// Takes 256 bits as they are.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(crate) fn prove(&self, side: &[u8], transcript: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(side);
        hasher.update(transcript);
        *hasher.finalize().as_bytes()
    }
}

impl std::fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterSecret(..)")
    }
}

/// Which transfer's chunks go first. Classes are served in strict order, transfers of one class in turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A client waits for its first token.
    #[default]
    LiveDecode,
    /// A prefix fetched because that is cheaper than computing it.
    Fetch,
    /// KV expected to be wanted soon.
    Prewarm,
    /// A second copy.
    Replica,
}

impl Priority {
    pub(crate) const fn to_wire(self) -> u8 {
        match self {
            Self::LiveDecode => 0,
            Self::Fetch => 1,
            Self::Prewarm => 2,
            Self::Replica => 3,
        }
    }
}

/// How one site's transport behaves.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// This site.
    pub site: SiteName,
    /// Where peers connect; port 0 takes any free port.
    pub listen: SocketAddr,
    /// The other sites, each with the addresses it may be reached at, tried in turn.
    pub peers: BTreeMap<SiteName, Vec<SocketAddr>>,
    /// TCP connections to each peer.
    pub lanes: u16,
    /// Largest chunk; the smaller value of two peers is used.
    pub chunk: Bytes,
    /// Silence after which a link counts as stalled, and time a broken link has to be re-made.
    pub stall: Duration,
    /// How often a damaged chunk is sent again before the transfer fails.
    pub max_resend: u32,
    /// What peers prove in the hello.
    pub secret: ClusterSecret,
}

impl TransportConfig {
    /// A site without peers, with the defaults argued for below.
    pub fn new(site: SiteName, listen: SocketAddr, secret: ClusterSecret) -> Self {
        Self {
            site,
            listen,
            secret,
            peers: BTreeMap::new(),
            // One connection leaves a third of the loopback rate unused; beyond four nothing is gained, and on a long
            // path four windows carry four times what one can.
            lanes: 4,
            // The plateau of throughput for CPU time lies at 1 to 4 MiB; larger chunks only make a resend dearer.
            chunk: Bytes(4 << 20),
            // Eight times the ping interval of a quarter of it would survive a lost packet's retransmissions on an
            // ocean link (RTT 0.3 s), and a client that waits 2 s can still be served by a local prefill.
            stall: Duration::from_secs(2),
            // Three independent hits on the same chunk are not line noise but a broken machine.
            max_resend: 3,
        }
    }

    pub(crate) fn chunk_bytes(&self) -> u32 {
        let bytes = self.chunk.0.clamp(1, CHUNK_MAX.0);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    pub(crate) fn timing(&self) -> Timing {
        Timing {
            stall: self.stall.max(Duration::from_millis(20)),
        }
    }
}

/// Every interval follows from the stall time, so that one number tunes them all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) stall: Duration,
}

impl Timing {
    /// Four pings fit into the stall time: one late answer is no stall.
    pub(crate) fn ping(self) -> Duration {
        self.stall / 4
    }

    /// How late a stall may be noticed.
    pub(crate) fn tick(self) -> Duration {
        (self.stall / 20).max(Duration::from_millis(5))
    }

    /// A peer that refuses connections or our secret on every lane for this long is not coming back by itself.
    pub(crate) fn refused(self) -> Duration {
        self.stall / 4
    }

    /// First wait between two dials.
    pub(crate) fn redial(self) -> Duration {
        self.stall / 32
    }

    /// Longest wait between two dials: two tries at least before the link is given up.
    pub(crate) fn redial_max(self) -> Duration {
        self.stall / 4
    }

    /// A hello that takes longer is abandoned.
    pub(crate) fn hello(self) -> Duration {
        self.stall
    }

    /// How long a session outlives its last connection: longer than its peer waits, so that a peer that reconnects in
    /// time finds its transfers.
    pub(crate) fn retention(self) -> Duration {
        self.stall * 2
    }
}
