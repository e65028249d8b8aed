//! A site's transport: its listener, its links, and their end.

use crate::carrier::{Carrier, CarrierError, Window};
use crate::codec::Compression;
use crate::config::{Admission, Backend, Egress, PeerLink, Priority, TransportConfig, purpose_of_wire};
use crate::counters::Counters;
use crate::hello::Identity;
use crate::inbound::Arrived;
use crate::landing::{Ground, StoreAndForward, set_of};
use crate::link::{Link, LinkSpec, Start};
use crate::memory::Memory;
use crate::pacer::Pacer;
use crate::paths::Paths;
use crate::probe::{LinkProbe, TcpInfo};
use crate::quarantine::Quarantine;
use crate::session::Session;
use crate::wire::{PlainTcp, Wiring};
use crate::{holder, lane, sizing};
use async_trait::async_trait;
use parking_lot::Mutex;
use portolan_base::{Bytes, Random, SiteName, TransferId};
use portolan_ports::{
    KvOrder, KvPiece, KvSource, Landing, LinkReading, Pull, PullEvent, QuarantinedSet, TransferError,
    Transport,
};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Sessions by the dialing site and the number it drew.
pub(crate) type Sessions = Arc<Mutex<HashMap<(SiteName, u128), Arc<Session>>>>;

/// What all tasks of a site see.
pub(crate) struct Shared {
    pub(crate) config: TransportConfig,
    pub(crate) source: Arc<dyn KvSource>,
    pub(crate) wiring: Arc<dyn Wiring>,
    pub(crate) probe: Arc<dyn LinkProbe>,
    pub(crate) sessions: Sessions,
    pub(crate) memory: Arc<Memory>,
    pub(crate) quarantine: Arc<Quarantine>,
    landing: Option<Arc<dyn Landing>>,
    pub(crate) carrier: Option<Arc<dyn Carrier>>,
    random: Arc<dyn Random>,
    links: Mutex<HashMap<SiteName, (Arc<Link>, CancellationToken)>>,
    admitted: Mutex<HashMap<SiteName, Admitted>>,
    tasks: TaskTracker,
    ended: CancellationToken,
}

/// What a peer that may order here gets.
#[derive(Clone)]
struct Admitted {
    /// One for all its sessions, so that a reconnecting peer gets no more.
    pacer: Arc<Pacer>,
    compression: Option<Compression>,
}

impl From<Egress> for Admitted {
    fn from(egress: Egress) -> Self {
        Self {
            pacer: Arc::new(Pacer::new(egress.budget)),
            compression: egress.compression,
        }
    }
}

impl Shared {
    pub(crate) fn identity(&self) -> Identity<'_> {
        Identity {
            site: &self.config.site,
            secret: &self.config.secret,
            chunk: self.config.chunk_bytes(),
            random: &*self.random,
        }
    }

    pub(crate) fn draw_u128(&self) -> u128 {
        TransferId::draw(&*self.random).0
    }

    /// Runs a task that ends with the site at the latest.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let ended = self.ended.clone();
        self.tasks.spawn(async move {
            ended.run_until_cancelled_owned(task).await;
        });
    }

    /// Whether a site whose name is proven may order here.
    pub(crate) fn admits(&self, site: &SiteName) -> bool {
        self.config.admission == Admission::AnyPeer || self.admitted.lock().contains_key(site)
    }

    /// Where the chunks of an order may land.
    fn ground(&self, link: &Link, order: &KvOrder) -> Option<Ground> {
        let landing = self.landing.as_ref();
        let landing = landing.filter(|_| link.landing != StoreAndForward::Never)?;
        let set = landing.open(set_of(order), Arc::new(order.provenance()))?;
        Some(Ground::new(set))
    }

    /// Memory that a carrier may put an order's chunks into.
    async fn window(&self, link: &Link) -> Option<Arc<dyn Window>> {
        let carrier = self.carrier.as_ref();
        let carrier = carrier.filter(|_| link.backend == Backend::Carrier)?;
        let opened = tokio::time::timeout(link.timing.stall, carrier.open(self.config.window.0)).await;
        let opened = opened.unwrap_or(Err(CarrierError::Stalled(link.timing.stall)));
        opened
            .inspect_err(|error| {
                tracing::warn!(peer = %link.peer, %error, "a carrier cannot be used; KV comes over connections");
            })
            .ok()
    }

    /// What paces the KV for a site.
    pub(crate) fn pacer_of(&self, site: &SiteName) -> Arc<Pacer> {
        let mut admitted = self.admitted.lock();
        match admitted.get(site) {
            Some(known) => Arc::clone(&known.pacer),
            // Not kept: that would admit the site.
            None if self.config.admission == Admission::NamedPeers => Arc::new(Pacer::new(None)),
            None => {
                let usual = || Admitted::from(Egress::default());
                Arc::clone(&admitted.entry(site.clone()).or_insert_with(usual).pacer)
            }
        }
    }

    /// How KV for a site is made smaller.
    pub(crate) fn compression_for(&self, site: &SiteName) -> Compression {
        let own = self.admitted.lock().get(site).and_then(|known| known.compression);
        own.unwrap_or(self.config.compression)
    }

    /// Where bytes to and from a site are counted; a site that is no peer of ours has counters of its own.
    pub(crate) fn counters_of(&self, site: &SiteName) -> Arc<Counters> {
        self.links
            .lock()
            .get(site)
            .map_or_else(Arc::default, |(link, _)| Arc::clone(&link.counters))
    }
}

/// What a site's transport works with.
pub struct TransportParts {
    /// Serves the orders of peers.
    pub source: Arc<dyn KvSource>,
    /// Draws ids and nonces.
    pub random: Arc<dyn Random>,
    /// Wraps connections.
    pub wiring: Arc<dyn Wiring>,
    /// Reads what the network stack knows of them.
    pub probe: Arc<dyn LinkProbe>,
    /// Where transfers land that a poor link cuts; none: they begin anew.
    pub landing: Option<Arc<dyn Landing>>,
    /// Carries chunks on links that are to use it; none: they use their connections.
    pub carrier: Option<Arc<dyn Carrier>>,
}

/// The links of one site. Dropping it closes every socket and ends every task.
pub struct SiteTransport {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl std::fmt::Debug for SiteTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SiteTransport")
            .field("site", &self.shared.config.site)
            .field("address", &self.address)
            .finish()
    }
}

impl SiteTransport {
    /// Listens on the configured address and begins to connect to the configured peers, over bare TCP.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn bind(
        config: TransportConfig,
        source: Arc<dyn KvSource>,
        random: Arc<dyn Random>,
    ) -> std::io::Result<Self> {
        Self::bind_with(config, source, random, Arc::new(PlainTcp)).await
    }

    /// As [`SiteTransport::bind`], with connections wrapped by `wiring`.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn bind_with(
        config: TransportConfig,
        source: Arc<dyn KvSource>,
        random: Arc<dyn Random>,
        wiring: Arc<dyn Wiring>,
    ) -> std::io::Result<Self> {
        let probe = Arc::new(TcpInfo);
        let parts = TransportParts {
            source,
            random,
            wiring,
            probe,
            landing: None,
            carrier: None,
        };
        Self::bind_parts(config, parts).await
    }

    /// As [`SiteTransport::bind`], with everything the transport works with.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn bind_parts(config: TransportConfig, parts: TransportParts) -> std::io::Result<Self> {
        let listener = TcpListener::bind(config.listen).await?;
        let address = listener.local_addr()?;
        let peers = config.peers.clone();
        let shared = Arc::new(Shared {
            memory: Memory::new(config.memory),
            quarantine: Arc::default(),
            landing: parts.landing,
            carrier: parts.carrier,
            config,
            source: parts.source,
            wiring: parts.wiring,
            random: parts.random,
            probe: parts.probe,
            sessions: Sessions::default(),
            links: Mutex::default(),
            admitted: Mutex::default(),
            tasks: TaskTracker::new(),
            ended: CancellationToken::new(),
        });
        shared.spawn(holder::listen(Arc::clone(&shared), listener));
        let site = Self { shared, address };
        for (peer, link) in peers {
            site.add_link(peer, link);
        }
        Ok(site)
    }

    /// Where this site listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets `site` order from this one, where only named peers may, and says what it gets. Sessions under way keep how
    /// their KV is made smaller, and share the budget.
    pub fn admit(&self, site: SiteName, egress: Egress) {
        match self.shared.admitted.lock().entry(site) {
            Entry::Vacant(new) => _ = new.insert(egress.into()),
            Entry::Occupied(mut known) => {
                known.get().pacer.set(egress.budget);
                known.get_mut().compression = egress.compression;
            }
        }
    }

    /// Adds a peer, or gives a known one new addresses; transfers under way with the old ones then end as
    /// [`TransferError::LinkDown`].
    pub fn add_peer(&self, peer: SiteName, addresses: Vec<SocketAddr>) {
        self.add_link(peer, addresses.into());
    }

    /// As [`SiteTransport::add_peer`], with all that is known of the link.
    pub fn add_link(&self, peer: SiteName, way: PeerLink) {
        let shared = &self.shared;
        let lanes = usize::from(lanes_of(&shared.config, &way));
        let most = shared.config.chunk_bytes();
        let chunk = way
            .capacity
            .map_or(most, |capacity| sizing::chunk(capacity, most));
        let counters = shared.counters_of(&peer);
        let link = Arc::new(Link::new(
            LinkSpec {
                peer: peer.clone(),
                paths: Paths::new(way.paths),
                session: shared.draw_u128(),
                lanes,
                chunk,
                quantised: way.quantised,
                landing: way.landing,
                backend: way.backend,
                max_resend: shared.config.max_resend,
                deadline: shared.config.deadline,
                window: shared.config.window,
                timing: shared.config.timing(),
                memory: Arc::clone(&shared.memory),
                quarantine: Arc::clone(&shared.quarantine),
            },
            counters,
        ));
        let ended = shared.ended.child_token();
        let replaced = shared
            .links
            .lock()
            .insert(peer, (Arc::clone(&link), ended.clone()));
        if let Some((_, old)) = replaced {
            old.cancel();
        }
        for lane in 0..lanes {
            let keep = lane::keep(Arc::clone(shared), Arc::clone(&link), lane);
            let ended = ended.clone();
            shared.spawn(async move {
                ended.run_until_cancelled_owned(keep).await;
            });
        }
        // Outside `Shared::spawn`: it has something to do when the site ends.
        shared.tasks.spawn(judge(link, ended));
    }

    /// Sends an order whose chunks travel in the given priority class.
    ///
    /// # Errors
    /// When there is no such peer or its link cannot be used.
    pub async fn pull_with(
        &self,
        peer: &SiteName,
        mut order: KvOrder,
        priority: Priority,
    ) -> Result<Pull, TransferError> {
        order.purpose = purpose_of_wire(priority.to_wire());
        let shared = &self.shared;
        let known = shared
            .links
            .lock()
            .get(peer)
            .map(|(link, ended)| (Arc::clone(link), ended.clone()));
        let (link, ended) = known.ok_or_else(|| TransferError::UnknownPeer(peer.clone()))?;
        match ended.run_until_cancelled(link.wait_up()).await {
            Some(up) => up?,
            None => return Err(link.down("this site shuts down")),
        }
        if shared.quarantine.holds(peer, &order, Instant::now()) {
            return Err(TransferError::Quarantined { peer: peer.clone() });
        }
        let ground = shared.ground(&link, &order);
        let window = shared.window(&link).await;
        let transfer = TransferId::draw(&*shared.random);
        // Lanes must never wait for the consumer of one transfer: what they put here is bounded by what the holder was
        // granted, and that grows only as the consumer takes pieces out of the channel behind it.
        let (sender, arrived) = mpsc::unbounded_channel();
        let (forward, events) = mpsc::channel(FORWARD);
        let watcher = CancellationToken::new();
        let start = Start {
            order,
            priority: priority.to_wire(),
            ground,
            window,
        };
        let begun = link.begin(transfer, start, (sender, watcher.clone().drop_guard()));
        if !begun || ended.is_cancelled() {
            return Err(link.down("the link broke before the order was sent"));
        }
        shared.spawn(async move {
            tokio::select! {
                () = forward.closed() => link.cancel(transfer),
                () = pass_on(&link, transfer, arrived, &forward) => {}
            }
            drop(watcher);
        });
        Ok(Pull { transfer, events })
    }

    /// The shortest round trip seen to a peer, which is the path without queues; zero before the first measurement.
    pub fn rtt_min(&self, peer: &SiteName) -> Option<Duration> {
        self.shared
            .links
            .lock()
            .get(peer)
            .map(|(link, _)| link.counters.rtt_min())
    }

    /// Bytes granted to transfers and not taken by their consumers yet.
    pub fn memory_reserved(&self) -> Bytes {
        Bytes(self.shared.memory.used())
    }

    /// Tasks alive. Zero after [`SiteTransport::shutdown`].
    pub fn live_tasks(&self) -> usize {
        self.shared.tasks.len()
    }

    /// Transfers under way: those this site receives, and those it serves.
    pub fn live_transfers(&self) -> (usize, usize) {
        let received = self
            .shared
            .links
            .lock()
            .values()
            .map(|(link, _)| link.transfers())
            .sum();
        let served = self
            .shared
            .sessions
            .lock()
            .values()
            .map(|session| session.transfers())
            .sum();
        (received, served)
    }

    /// Closes every socket, ends every task and every transfer; sources that serve an order are stopped at their
    /// next await. May be called again.
    pub async fn shutdown(&self) {
        self.end();
        self.shared.tasks.wait().await;
    }

    fn end(&self) {
        self.shared.ended.cancel();
        self.shared.tasks.close();
        for (_, session) in self.shared.sessions.lock().drain() {
            session.close();
        }
    }
}

impl Drop for SiteTransport {
    fn drop(&mut self) {
        self.end();
    }
}

/// Events that may wait for their consumer beyond what is counted: enough that it never waits for a task to wake.
const FORWARD: usize = 4;

/// Passes events on as the consumer takes them, and grants the holder more for each piece taken.
async fn pass_on(
    link: &Link,
    transfer: TransferId,
    mut arrived: mpsc::UnboundedReceiver<Result<Arrived, TransferError>>,
    forward: &mpsc::Sender<Result<PullEvent, TransferError>>,
) {
    while let Some(came) = arrived.recv().await {
        let taken = came.as_ref().map_or(0, Arrived::wire_len);
        let event = came.and_then(|came| unpack(link, came));
        let broken = event.is_err();
        if forward.send(event).await.is_err() || broken {
            return link.cancel(transfer);
        }
        link.consumed(transfer, taken);
    }
}

/// Makes of a quantised piece what its consumer can use: here and not where it was read, so that no lane waits for it.
fn unpack(link: &Link, came: Arrived) -> Result<PullEvent, TransferError> {
    match came {
        Arrived::Event(event) => Ok(event),
        Arrived::Quantised(piece) => match piece.shape.decode(piece.quant, &piece.bytes) {
            Ok(bytes) => Ok(PullEvent::Piece(KvPiece {
                id: piece.id,
                bytes: bytes.into(),
            })),
            Err(error) => Err(TransferError::Protocol {
                peer: link.peer.clone(),
                detail: error.to_string(),
            }),
        },
    }
}

/// The lanes of a link: as many as were asked for, or as fill it.
fn lanes_of(config: &TransportConfig, way: &PeerLink) -> u16 {
    let least = config.lanes.max(1);
    match (way.lanes, way.capacity) {
        (Some(lanes), _) => lanes.max(1),
        (None, Some(capacity)) => sizing::lanes(capacity, way.rtt, sizing::flow_window(), least),
        (None, None) => least,
    }
}

/// Watches over a link, and ends its transfers when it ends.
async fn judge(link: Arc<Link>, ended: CancellationToken) {
    let watch = async {
        loop {
            // Nothing can stall, run late or wait for room while nothing is under way.
            let begun = link.begun.notified();
            if link.transfers() == 0 {
                link.idle(begun).await;
            }
            let (tick, slept) = (link.timing.tick(), Instant::now());
            tokio::time::sleep(tick).await;
            if link.timing.overslept(tick, slept.elapsed()) {
                link.heard_now();
            }
            link.check();
            link.replenish();
        }
    };
    ended.run_until_cancelled(watch).await.unwrap_or(());
    link.fail_all(&link.down("this site shuts down or the peer's addresses changed"));
}

#[async_trait]
impl Transport for SiteTransport {
    async fn pull(&self, peer: &SiteName, order: KvOrder) -> Result<Pull, TransferError> {
        let class = Priority::from(order.purpose);
        self.pull_with(peer, order, class).await
    }

    fn link(&self, peer: &SiteName) -> Option<LinkReading> {
        self.shared
            .links
            .lock()
            .get(peer)
            .map(|(link, _)| link.counters.reading(link.is_up()))
    }

    fn redial(&self, peer: &SiteName) {
        if let Some((link, _)) = self.shared.links.lock().get(peer) {
            link.redial();
        }
    }

    fn quarantine(&self) -> Vec<QuarantinedSet> {
        self.shared.quarantine.list(Instant::now())
    }
}
