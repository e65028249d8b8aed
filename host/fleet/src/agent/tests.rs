//! Two agents on one bus: what one site's engine computes the other finds, and the bus shows neither tokens nor hashes.

mod over_any_bus;

use super::*;
use crate::{EmbeddedBus, InstanceSpec, LinkSpec, SiteSpec, Telling, Topology};
use async_trait::async_trait;
use parking_lot::Mutex;
use portolan_base::kv::{KvDtype, KvLayout, LayerKv};
use portolan_base::{
    BitsPerSecond, BlockHash, ModelName, Moment, Provenance, RequestId, Role, TenantKey, Tokens,
};
use portolan_decide::SiteIndex;
use portolan_ports::{
    Cancel, EngineDescription, FakeEngine, Fleet, KvOrder, LinkReading, NoLinks, PRESENCE_LEASE, PrefillJob,
    Pull, Retention, SnapshotRequest, TransferError,
};
use std::time::Instant;
use tokio::sync::mpsc;

/// Real time: the agents' ticks are.
struct Running(Instant);

impl Clock for Running {
    fn now(&self) -> Moment {
        Moment(self.0.elapsed().as_micros() as u64 + 1)
    }
}

fn model() -> ModelName {
    ModelName::new("m").unwrap()
}

fn name(site: &str) -> SiteName {
    SiteName::new(site).unwrap()
}

fn instance() -> InstanceName {
    InstanceName::new("i1").unwrap()
}

fn engine() -> Arc<dyn Engine> {
    let layer = LayerKv::FullAttention {
        kv_heads: 1,
        head_dim: 2,
    };
    Arc::new(FakeEngine::new(EngineDescription {
        instance: instance(),
        model: model(),
        role: Role::Both,
        layout: Arc::new(KvLayout {
            window: None,
            model: model(),
            model_version: 1,
            dtype: KvDtype::F32,
            block_tokens: 16,
            layers: vec![layer],
        }),
        context_tokens: Tokens(4096),
        vocabulary: 1 << 20,
        decode_slots: 4,
    }))
}

fn topology() -> Topology {
    let site = |site: &str| SiteSpec {
        name: name(site),
        region: String::new(),
        jurisdiction: String::new(),
        instances: vec![InstanceSpec {
            name: instance(),
            model: model(),
            role: Role::Both,
            serving: Default::default(),
            decode_slots: 4,
            price_micros_per_kilotoken: 0,
        }],
    };
    let link = LinkSpec {
        from: name("virginia"),
        to: name("paris"),
        capacity: BitsPerSecond(1_000_000),
        rtt: Duration::from_millis(9),
        price_micros_per_gib: 0,
    };
    Topology::new(vec![site("paris"), site("virginia")], vec![link], Vec::new()).unwrap()
}

struct Site {
    chart: Arc<Chart>,
    engine: Arc<dyn Engine>,
    farewell: Farewell,
    _tasks: JoinSet<()>,
}

fn start(bus: &Arc<dyn Bus>, site: &str, incarnation: u64) -> Site {
    start_with(bus, site, incarnation, PRESENCE_LEASE)
}

fn start_with(bus: &Arc<dyn Bus>, site: &str, incarnation: u64, lease: Duration) -> Site {
    start_over(Arc::new(NoLinks), bus, (site, incarnation, lease))
}

fn start_over(
    transport: Arc<dyn Transport>,
    bus: &Arc<dyn Bus>,
    (site, incarnation, lease): (&str, u64, Duration),
) -> Site {
    let topology = topology();
    let clock: Arc<dyn Clock> = Arc::new(Running(Instant::now()));
    let engine = engine();
    let engines = BTreeMap::from([(instance(), Arc::clone(&engine))]);
    let index = topology.site_index(&name(site)).unwrap();
    let telling = Telling::everything([5; 32], incarnation);
    let chart = Arc::new(Chart::new(
        topology,
        index,
        &engines,
        Arc::clone(&clock),
        &telling,
    ));
    let agent = Agent {
        site: name(site),
        chart: Arc::clone(&chart),
        engines,
        bus: Arc::clone(bus),
        transport,
        clock,
        lease,
    };
    Site {
        chart,
        engine,
        farewell: agent.farewell(),
        _tasks: agent.start(),
    }
}

async fn compute(site: &Site, tokens: &[u32]) {
    let job = PrefillJob {
        request: RequestId::from_client("r").unwrap(),
        key: key(),
        about: Arc::new(Provenance::public(model(), 1)),
        tokens: tokens.into(),
        held: 0,
        retention: Retention::Keep,
        cancel: Cancel::new(),
    };
    let (pieces, _taken) = mpsc::unbounded_channel();
    site.engine.prefill(job, pieces).await.unwrap();
}

fn key() -> TenantKey {
    TenantKey::derive(&[1; 32], "t", "m", 1)
}

/// What the chart says that Virginia's instance holds, once it says `expected` or two seconds are over.
async fn held(site: &Site, chain: &[BlockHash], expected: u32) -> u32 {
    let virginia = SiteIndex(1).0 as usize;
    for _ in 0..200 {
        if site.chart.held(&model(), chain)[virginia] == expected {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    site.chart.held(&model(), chain)[virginia]
}

#[tokio::test]
async fn what_one_site_computes_another_finds_after_its_own_restart_and_the_others() {
    let bus: Arc<dyn Bus> = Arc::new(EmbeddedBus::new());
    let (virginia, paris) = (start(&bus, "virginia", 1), start(&bus, "paris", 2));
    let mut line = bus.subscribe();
    let tokens: Vec<u32> = (0..1024).map(|n| 700_000 + n * 37).collect();
    let chain = BlockHash::chain(&key(), &tokens);
    compute(&virginia, &tokens).await;
    assert_eq!(held(&virginia, &chain, 1024).await, 1024);
    assert_eq!(held(&paris, &chain, 1024).await, 1024);
    drop(paris);
    let paris = start(&bus, "paris", 3);
    assert_eq!(held(&paris, &chain, 1024).await, 1024, "it asked for a snapshot");
    drop(virginia);
    let virginia = start(&bus, "virginia", 4);
    assert_eq!(held(&paris, &chain, 0).await, 0, "it came back with nothing");
    drop(virginia);
    let mut told = Vec::new();
    while let Ok(message) = line.try_recv() {
        if let BusMessage::Prefixes(summary) = &message {
            told.extend_from_slice(&summary.summary);
        }
        told.extend(format!("{message:?}").into_bytes());
    }
    let names = chain.iter().map(|block| block.0.to_le_bytes().to_vec());
    let plain = tokens
        .chunks(2)
        .map(|pair| pair.iter().flat_map(|token| token.to_le_bytes()).collect());
    for secret in names.chain(plain) {
        assert!(
            !told.windows(8).any(|part| part == secret),
            "tokens or plain hashes on the bus"
        );
    }
}

#[tokio::test]
async fn a_request_for_another_site_or_an_unknown_instance_is_not_answered() {
    let bus: Arc<dyn Bus> = Arc::new(EmbeddedBus::new());
    let _virginia = start(&bus, "virginia", 1);
    let mut line = bus.subscribe();
    let request = |of: &str, instance: &str| {
        BusMessage::SnapshotWanted(SnapshotRequest {
            by: name("paris"),
            of: name(of),
            instance: InstanceName::new(instance).unwrap(),
            incarnation: 1,
            sequence: u64::MAX,
        })
    };
    let snapshots = async |messages: &mut Receiver<BusMessage>| {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let mut snapshots = 0;
        while let Ok(message) = messages.try_recv() {
            let told = matches!(&message, BusMessage::Prefixes(told) if told.summary[3] == 1);
            snapshots += usize::from(told);
        }
        snapshots
    };
    assert_eq!(snapshots(&mut line).await, 1, "the first");
    bus.publish(request("paris", "i1"));
    bus.publish(request("virginia", "i9"));
    assert_eq!(snapshots(&mut line).await, 0);
    bus.publish(request("virginia", "i1"));
    assert_eq!(snapshots(&mut line).await, 1);
}

/// Links without a connection, and how often each peer was to be dialled at once.
#[derive(Default)]
struct Down(Mutex<Vec<SiteName>>);

#[async_trait]
impl Transport for Down {
    async fn pull(&self, peer: &SiteName, order: KvOrder) -> Result<Pull, TransferError> {
        NoLinks.pull(peer, order).await
    }

    fn link(&self, _peer: &SiteName) -> Option<LinkReading> {
        Some(LinkReading::default())
    }

    fn redial(&self, peer: &SiteName) {
        self.0.lock().push(peer.clone());
    }
}

#[tokio::test]
async fn a_site_that_is_heard_of_is_dialled_at_once_and_one_that_is_not_is_left_to_its_wait() {
    let bus: Arc<dyn Bus> = Arc::new(EmbeddedBus::default());
    let links = Arc::new(Down::default());
    let _paris = start_over(
        Arc::clone(&links) as Arc<dyn Transport>,
        &bus,
        ("paris", 1, PRESENCE_LEASE),
    );
    tokio::time::sleep(SAMPLE_INTERVAL * 3).await;
    assert_eq!(*links.0.lock(), [], "nobody spoke");
    let _virginia = start(&bus, "virginia", 1);
    let began = Instant::now();
    while links.0.lock().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20), "never dialled");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(links.0.lock().first(), Some(&name("virginia")));
}
