//! What a site's transport is told when it starts.

use crate::codec::Compression;
use crate::landing::StoreAndForward;
use portolan_base::kv::KvQuant;
use portolan_base::{BitsPerSecond, Bytes, SiteName};
use portolan_ports::OrderPurpose;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
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
    /// What a site that is emptied asks another to take; the KV itself then comes as a second copy.
    HandOver,
}

impl From<OrderPurpose> for Priority {
    fn from(purpose: OrderPurpose) -> Self {
        match purpose {
            OrderPurpose::Serve => Self::LiveDecode,
            OrderPurpose::Fetch => Self::Fetch,
            OrderPurpose::Prewarm => Self::Prewarm,
            OrderPurpose::Replica => Self::Replica,
            OrderPurpose::HandOver => Self::HandOver,
        }
    }
}

/// The purpose of an order that came in this class. One of a class this version does not know is served like a second copy,
/// for which nothing is computed.
pub(crate) const fn purpose_of_wire(class: u8) -> OrderPurpose {
    match class {
        0 => OrderPurpose::Serve,
        1 => OrderPurpose::Fetch,
        2 => OrderPurpose::Prewarm,
        4 => OrderPurpose::HandOver,
        _ => OrderPurpose::Replica,
    }
}

impl Priority {
    pub(crate) const fn to_wire(self) -> u8 {
        match self {
            Self::LiveDecode => 0,
            Self::Fetch => 1,
            Self::Prewarm => 2,
            Self::Replica => 3,
            Self::HandOver => 4,
        }
    }
}

/// Who may order KV from a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// Whoever proves the cluster's secret and, under TLS, its name.
    #[default]
    AnyPeer,
    /// Of those, only sites named by [`crate::SiteTransport::admit`].
    NamedPeers,
}

/// One way to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPath {
    /// Where the peer listens.
    pub to: SocketAddr,
    /// The local address to leave from, and with it the interface; none: the kernel chooses.
    pub from: Option<IpAddr>,
}

impl From<SocketAddr> for LinkPath {
    fn from(to: SocketAddr) -> Self {
        Self { to, from: None }
    }
}

/// What carries the bytes of chunks on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// The link's own connections.
    #[default]
    Own,
    /// The site's [`crate::Carrier`], and the connections for what it does not bring.
    Carrier,
}

/// How to reach a peer that KV is ordered from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerLink {
    /// The ways there; lanes spread over them, and leave those that fail.
    pub paths: Vec<LinkPath>,
    /// What the link carries; with the round trip it says how many lanes and what chunks it gets.
    pub capacity: Option<BitsPerSecond>,
    /// Its round-trip time.
    pub rtt: Duration,
    /// TCP connections, when they are not to follow from capacity and round trip.
    pub lanes: Option<u16>,
    /// How KV that need not be exact may come quantised, if at all.
    pub quantised: Option<KvQuant>,
    /// When what comes is kept for a transfer that may not come to its end.
    pub landing: StoreAndForward,
    /// What carries the bytes of chunks.
    pub backend: Backend,
}

impl From<Vec<SocketAddr>> for PeerLink {
    fn from(addresses: Vec<SocketAddr>) -> Self {
        Self {
            paths: addresses.into_iter().map(LinkPath::from).collect(),
            ..Self::default()
        }
    }
}

/// What a peer that orders from this site gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Egress {
    /// Most of the link that KV may take; none: all of it.
    pub budget: Option<BitsPerSecond>,
    /// How KV is made smaller; none: as [`TransportConfig::compression`] says.
    pub compression: Option<Compression>,
}

/// How one site's transport behaves.
#[derive(Clone, Debug)]
pub struct TransportConfig {
    /// This site.
    pub site: SiteName,
    /// Where peers connect; port 0 takes any free port.
    pub listen: SocketAddr,
    /// The sites that KV is ordered from.
    pub peers: BTreeMap<SiteName, PeerLink>,
    /// TCP connections to each peer, at least.
    pub lanes: u16,
    /// Largest chunk; the smaller value of two peers is used.
    pub chunk: Bytes,
    /// Silence after which a link counts as stalled, and time a broken link has to be re-made.
    pub stall: Duration,
    /// How often a damaged chunk is sent again before the transfer fails.
    pub max_resend: u32,
    /// What peers prove in the hello.
    pub secret: ClusterSecret,
    /// Who may order from this site.
    pub admission: Admission,
    /// Most KV that has come and was not taken by its consumer yet, all transfers together; and most KV that waits to
    /// be sent to one peer.
    pub memory: Bytes,
    /// How far one transfer may run ahead of its consumer.
    pub window: Bytes,
    /// The longest a transfer may take, its prefill included.
    pub deadline: Duration,
    /// When chunks are compressed.
    pub compression: Compression,
    /// The differentiated-services code point of its connections, 0 to 63, by which a network queues them apart; none:
    /// as the system marks any connection.
    pub dscp: Option<u8>,
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
            // The plateau of throughput for CPU time lies at 1 to 4 MiB; its lower end brings the first layer sooner and
            // makes a resend cheaper.
            chunk: Bytes(1 << 20),
            // Eight times the ping interval of a quarter of it would survive a lost packet's retransmissions on an
            // ocean link (RTT 0.3 s), and a client that waits 2 s can still be served by a local prefill.
            stall: Duration::from_secs(2),
            // Three independent hits on the same chunk are not line noise but a broken machine.
            max_resend: 3,
            admission: Admission::default(),
            // Eight windows.
            memory: Bytes(2 << 30),
            // 12.5 Gbit/s at 160 ms: across an ocean.
            window: Bytes(256 << 20),
            // Longer than any prefill; a source that hangs is let go of all the same.
            deadline: Duration::from_secs(600),
            compression: Compression::default(),
            dscp: None,
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

    /// A lane that is silent for this long while others are not is replaced: two pings went unanswered.
    pub(crate) fn lane_silence(self) -> Duration {
        self.stall / 2
    }

    /// A connection over one of several paths has to come about in this time; then the next one is tried.
    pub(crate) fn connect(self) -> Duration {
        self.stall / 4
    }

    /// Whether a pause of this process, and no silence of the peer, is what `slept` instead of `planned` says: it was
    /// stopped, or its machine was. Bytes may lie unread, so nobody is judged by such a moment.
    pub(crate) fn overslept(self, planned: Duration, slept: Duration) -> bool {
        slept > planned + self.stall / 4
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
