//! A site's transport: its listener, its links, and their end.

use crate::config::{Priority, TransportConfig};
use crate::counters::Counters;
use crate::hello::Identity;
use crate::inbound::EVENTS_MAX;
use crate::link::{Link, LinkSpec};
use crate::session::Session;
use crate::wire::{PlainTcp, Wiring};
use crate::{holder, lane};
use async_trait::async_trait;
use parking_lot::Mutex;
use portolan_base::{Random, SiteName, TransferId};
use portolan_ports::{KvOrder, KvSource, LinkReading, Pull, TransferError, Transport};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Sessions by the dialing site and the number it drew.
pub(crate) type Sessions = Arc<Mutex<HashMap<(SiteName, u128), Arc<Session>>>>;

/// What all tasks of a site see.
pub(crate) struct Shared {
    pub(crate) config: TransportConfig,
    pub(crate) source: Arc<dyn KvSource>,
    pub(crate) wiring: Arc<dyn Wiring>,
    pub(crate) sessions: Sessions,
    random: Arc<dyn Random>,
    links: Mutex<HashMap<SiteName, (Arc<Link>, CancellationToken)>>,
    tasks: TaskTracker,
    ended: CancellationToken,
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

    /// Where bytes to and from a site are counted; a site that is no peer of ours has counters of its own.
    pub(crate) fn counters_of(&self, site: &SiteName) -> Arc<Counters> {
        self.links
            .lock()
            .get(site)
            .map_or_else(Arc::default, |(link, _)| Arc::clone(&link.counters))
    }
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
        let listener = TcpListener::bind(config.listen).await?;
        let address = listener.local_addr()?;
        let peers = config.peers.clone();
        let shared = Arc::new(Shared {
            config,
            source,
            wiring,
            random,
            sessions: Sessions::default(),
            links: Mutex::default(),
            tasks: TaskTracker::new(),
            ended: CancellationToken::new(),
        });
        shared.spawn(holder::listen(Arc::clone(&shared), listener));
        let site = Self { shared, address };
        for (peer, addresses) in peers {
            site.add_peer(peer, addresses);
        }
        Ok(site)
    }

    /// Where this site listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a peer, or gives a known one new addresses; transfers under way with the old ones then end as
    /// [`TransferError::LinkDown`].
    pub fn add_peer(&self, peer: SiteName, addresses: Vec<SocketAddr>) {
        let shared = &self.shared;
        let lanes = usize::from(shared.config.lanes.max(1));
        let counters = shared.counters_of(&peer);
        let link = Arc::new(Link::new(
            LinkSpec {
                peer: peer.clone(),
                addresses,
                session: shared.draw_u128(),
                lanes,
                max_resend: shared.config.max_resend,
                timing: shared.config.timing(),
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
        order: KvOrder,
        priority: Priority,
    ) -> Result<Pull, TransferError> {
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
        let transfer = TransferId::draw(&*shared.random);
        // Lanes must never wait for the consumer of one transfer; memory is bounded by the KV that was ordered.
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let watcher = CancellationToken::new();
        let begun = link.begin(
            transfer,
            order,
            priority.to_wire(),
            (sender.clone(), watcher.clone().drop_guard()),
        );
        if !begun || ended.is_cancelled() {
            return Err(link.down("the link broke before the order was sent"));
        }
        shared.spawn(async move {
            tokio::select! {
                () = sender.closed() => link.cancel(transfer),
                () = watcher.cancelled() => {}
            }
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

/// Watches over a link, and ends its transfers when it ends.
async fn judge(link: Arc<Link>, ended: CancellationToken) {
    let watch = async {
        let mut ticks = tokio::time::interval(link.timing.tick());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            link.check();
        }
    };
    ended.run_until_cancelled(watch).await.unwrap_or(());
    link.fail_all(&link.down("this site shuts down or the peer's addresses changed"));
}

#[async_trait]
impl Transport for SiteTransport {
    async fn pull(&self, peer: &SiteName, order: KvOrder) -> Result<Pull, TransferError> {
        self.pull_with(peer, order, Priority::default()).await
    }

    fn link(&self, peer: &SiteName) -> Option<LinkReading> {
        self.shared
            .links
            .lock()
            .get(peer)
            .map(|(link, _)| link.counters.reading(link.is_up()))
    }
}
