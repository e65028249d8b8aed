//! Store and forward: what a broken transfer brought is not sent again.

use crate::world::*;
use portolan_base::kv::{KvDtype, KvLayout, LandedChunk, LandingId};
use portolan_base::{BitsPerSecond, Bytes, Clock, ModelName, Moment, Provenance};
use portolan_disk::{DiskConfig, DiskLanding, DiskTier, LandingConfig, Realm};
use portolan_kv::PoolConfig;
use portolan_ports::{
    KvOrder, LandedSet, Landing, LandingFault, MemoryLanding, PullEvent, TransferError, Transport,
};
use portolan_transport::fault_proxy::{Direction, FaultPlan, FaultProxy};
use portolan_transport::{
    PeerLink, PlainTcp, SiteTransport, StoreAndForward, TcpInfo, TransportConfig, TransportParts,
};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// 8 MiB of KV.
const TOKENS: usize = 4 << 10;

struct Still;

impl Clock for Still {
    fn now(&self) -> Moment {
        Moment(1_000_000)
    }
}

/// A landing that counts the bytes that were kept: all of them were acknowledged afterwards.
struct Counted {
    inner: Arc<dyn Landing>,
    bytes: Arc<AtomicU64>,
}

struct CountedSet {
    inner: Arc<dyn LandedSet>,
    bytes: Arc<AtomicU64>,
}

impl Landing for Counted {
    fn open(&self, set: LandingId, about: Arc<Provenance>) -> Option<Arc<dyn LandedSet>> {
        let (inner, bytes) = (self.inner.open(set, about)?, Arc::clone(&self.bytes));
        Some(Arc::new(CountedSet { inner, bytes }))
    }
}

impl LandedSet for CountedSet {
    fn chunks(&self) -> Vec<LandedChunk> {
        self.inner.chunks()
    }
    fn land(&self, chunk: LandedChunk, bytes: &[u8]) -> bool {
        let landed = self.inner.land(chunk, bytes);
        self.bytes
            .fetch_add(bytes.len() as u64 * u64::from(landed), Ordering::SeqCst);
        landed
    }
    fn read(&self, chunk: &LandedChunk) -> Option<Vec<u8>> {
        self.inner.read(chunk)
    }
    fn clear(&self) {
        self.inner.clear();
    }
}

fn disk(folder: &Path) -> Arc<DiskTier> {
    let model = ModelName::new("m").unwrap();
    let layout = KvLayout {
        model: model.clone(),
        model_version: 1,
        dtype: KvDtype::F32,
        block_tokens: 16,
        window: None,
        layers: Vec::new(),
    };
    let config = DiskConfig {
        folder: folder.to_owned(),
        model,
        realm: Realm::of(&layout, [&b"probe"[..]]),
        secret: [7; 32],
        pool: PoolConfig::of(Bytes(1 << 20)),
        queue: Bytes(1 << 20),
        landing: LandingConfig {
            budget: Bytes(64 << 20),
            time_to_live: Duration::from_secs(60),
        },
        secure_delete: true,
    };
    Arc::new(DiskTier::open(config).unwrap())
}

/// A site that orders through `proxy` and lands what comes.
async fn landing_asker(
    proxy: &FaultProxy,
    landing: Arc<dyn Landing>,
    when: StoreAndForward,
    mut config: TransportConfig,
) -> SiteTransport {
    let link = PeerLink {
        landing: when,
        ..vec![proxy.address()].into()
    };
    config.peers.insert(site("holder"), link);
    let parts = TransportParts {
        source: Source::new(Conduct::Fails),
        random: Arc::new(Seed::new(STARTED.fetch_add(1 << 20, Ordering::Relaxed))),
        wiring: Arc::new(PlainTcp),
        probe: Arc::new(TcpInfo),
        landing: Some(landing),
        carrier: None,
    };
    SiteTransport::bind_parts(config, parts).await.unwrap()
}

fn set_bytes(order: &KvOrder) -> u64 {
    pieces(order).iter().map(|piece| piece.bytes.len() as u64).sum()
}

static STARTED: AtomicU64 = AtomicU64::new(77);

async fn shaped(mbit: u64) -> (SiteTransport, FaultProxy) {
    let holder = start(config("holder"), Source::new(Conduct::Whole)).await;
    let plan = FaultPlan {
        rate: Some(BitsPerSecond(mbit * 1_000_000)),
        ..FaultPlan::clear(holder.address())
    };
    let proxy = FaultProxy::start(plan).await.unwrap();
    (holder, proxy)
}

/// Pulls until the transfer fails, cutting the link when so many bytes have come.
async fn until_cut(asker: &SiteTransport, proxy: &FaultProxy, order: &KvOrder, after: u64) -> TransferError {
    let begun = proxy.forwarded(Direction::ToClient);
    let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
    let cut = async {
        while proxy.forwarded(Direction::ToClient) - begun < after {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        proxy.cut();
        std::future::pending::<()>().await;
    };
    let failed = async {
        loop {
            match pull.events.recv().await {
                Some(Ok(PullEvent::Done(_))) | None => panic!("it came whole"),
                Some(Ok(_)) => {}
                Some(Err(error)) => return error,
            }
        }
    };
    tokio::select! {
        () = cut => unreachable!("it waits for ever"),
        error = failed => error,
    }
}

/// Cut twice, and the receiver started anew in between with nothing but its folder: the third transfer brings the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_crosses_once_though_the_link_is_cut_twice_and_the_receiver_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let (_holder, proxy) = shaped(80).await;
    let order = order(1, TOKENS);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let mut before = 0;
    for round in 1..=2 {
        let tier = disk(folder.path());
        let landing = Arc::new(Counted {
            inner: Arc::new(DiskLanding::new([tier], Arc::new(Still))),
            bytes: Arc::clone(&acknowledged),
        });
        let asker = landing_asker(&proxy, landing, StoreAndForward::Always, config("asker")).await;
        let error = until_cut(&asker, &proxy, &order, 2 << 20).await;
        assert!(
            matches!(error, TransferError::LinkDown { .. }),
            "round {round}: {error:?}"
        );
        asker.shutdown().await;
        drop(asker);
        proxy.heal();
        let now = acknowledged.load(Ordering::SeqCst);
        assert!(now > before + (1 << 20), "round {round}: {now} after {before}");
        before = now;
    }
    let landing = Arc::new(DiskLanding::new([disk(folder.path())], Arc::new(Still)));
    let asker = landing_asker(&proxy, landing, StoreAndForward::Always, config("asker")).await;
    let crossed = proxy.forwarded(Direction::ToClient);
    let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
    let (pieces, report) = drain(&mut pull).await.unwrap();
    assert_whole(&order, pieces);
    let crossed = proxy.forwarded(Direction::ToClient) - crossed;
    let acknowledged = acknowledged.load(Ordering::SeqCst);
    assert_eq!(
        report.landed.0, acknowledged,
        "everything that was acknowledged lay here"
    );
    // Heads, manifests and pongs come on top.
    let rest = report.bytes.0;
    assert_eq!(rest + acknowledged, set_bytes(&order));
    assert!(
        crossed < rest + rest / 20 + 60_000,
        "{crossed} bytes for the remaining {rest}"
    );
    assert_eq!(report.chunks_resent, 0);
    assert_eq!(asker.link(&site("holder")).unwrap().landed.0, acknowledged);
    until("the set is gone", Duration::from_secs(3), || {
        let folders = std::fs::read_dir(folder.path()).unwrap();
        folders
            .flatten()
            .all(|inner| std::fs::read_dir(inner.path()).unwrap().next().is_none())
    })
    .await;
}

/// Waits until what is on its way of a transfer that ended has passed.
async fn until_idle(proxy: &FaultProxy) {
    loop {
        let before = proxy.forwarded(Direction::ToClient);
        tokio::time::sleep(Duration::from_millis(300)).await;
        if proxy.forwarded(Direction::ToClient) - before < 10_000 {
            return;
        }
    }
}

/// 8 MiB at 40 Mbit/s take 1.7 s; the deadline is 0.7 s. The monitor says so, what comes from then on is kept, and a few
/// transfers bring together what one could not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_that_is_too_large_for_its_deadline_comes_in_several_transfers() {
    let (_holder, proxy) = shaped(40).await;
    let landing = MemoryLanding::default();
    let mut config = config("asker");
    config.deadline = Duration::from_millis(700);
    let asker = landing_asker(
        &proxy,
        Arc::new(landing.clone()),
        StoreAndForward::WhenPoor,
        config,
    )
    .await;
    let order = order(2, TOKENS);
    let mut failures = 0;
    let (pieces, report) = loop {
        let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
        match drain(&mut pull).await {
            Ok(came) => break came,
            Err(error) => assert!(matches!(error, TransferError::Stalled { .. }), "{error:?}"),
        }
        failures += 1;
        assert!(landing.chunks() > 0, "after {failures}");
        assert!(failures < 12, "it makes no progress");
        until_idle(&proxy).await;
    };
    assert!(failures >= 1);
    assert_whole(&order, pieces);
    assert!(report.landed.0 > 1 << 20, "{report:?}");
    until("the set is gone", Duration::from_secs(1), || {
        landing.chunks() == 0
    })
    .await;
}

/// On a link that brings everything in time nothing is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_lands_on_a_good_link_or_where_it_is_switched_off() {
    let (_holder, proxy) = shaped(400).await;
    for when in [StoreAndForward::WhenPoor, StoreAndForward::Never] {
        let landing = MemoryLanding::faulty(LandingFault::Full);
        let asker = landing_asker(&proxy, Arc::new(landing.clone()), when, config("asker")).await;
        let order = order(3, TOKENS);
        let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
        let (pieces, report) = drain(&mut pull).await.unwrap();
        assert_whole(&order, pieces);
        assert_eq!((report.landed.0, landing.refused()), (0, 0), "{when:?}");
        asker.shutdown().await;
    }
}

/// Whatever is wrong with what lies there, the set comes whole and right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_landed_and_is_lost_or_damaged_or_of_other_kv_crosses_again() {
    let (_holder, proxy) = shaped(80).await;
    for fault in [LandingFault::Full, LandingFault::Rots, LandingFault::Forgets] {
        let landing = MemoryLanding::faulty(fault);
        let asker = landing_asker(
            &proxy,
            Arc::new(landing.clone()),
            StoreAndForward::Always,
            config("asker"),
        )
        .await;
        let order = order(4, TOKENS);
        until_cut(&asker, &proxy, &order, 2 << 20).await;
        proxy.heal();
        assert_eq!(landing.chunks() == 0, fault == LandingFault::Full);
        let mut pull = asker.pull(&site("holder"), order.clone()).await.unwrap();
        let (pieces, report) = drain(&mut pull).await.unwrap();
        assert_whole(&order, pieces);
        assert_eq!(report.landed.0, 0, "{fault:?}");
        asker.shutdown().await;
    }
}
