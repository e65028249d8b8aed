//! How long orders take, at 200 and at a thousand a second, from when each is sent until every site's agent has applied it.
//!
//! The agents, tiers, stream and bus are those of production, in one process so that one clock tells all times: over the
//! embedded stream with its flush, and over a NATS server with a connection for each site. Orders come by the clock, whether
//! or not those before them were acknowledged, so that what waits is measured too.

use super::*;
use crate::bus::conformance::{Line, SECRET, config, topology, wait};
use crate::nats::{NatsBus, NatsControl};
use portolan_base::Sequence;
use portolan_ports::BusMessage;
use std::collections::BTreeMap;

/// The sites, the first of which gives the orders.
const SITES: [&str; 3] = ["paris", "virginia", "tokyo"];

/// Blocks at each site, each of which depends on a document of its own; the orders name one after the other.
const BLOCKS: usize = 3000;

/// Orders a second.
const PACES: [u64; 2] = [200, 1000];

/// How long orders come.
const LASTS: u64 = 3;

/// How long the last orders may take to be applied on a machine that is busy with other work.
const PATIENCE: Duration = Duration::from_secs(120);

/// A site with what it says of itself.
struct Followed {
    lives: Lives,
    said: broadcast::Receiver<BusMessage>,
}

/// When each order was sent and acknowledged, by its position.
type Sent = BTreeMap<Sequence, (Moment, Moment)>;

fn start(world: &World, name: &str, bus: &Arc<dyn Bus>, stream: &Arc<dyn ControlStream>) -> Followed {
    let host = Arc::new(HostTier::new(PoolConfig::of(Bytes(1 << 30))));
    let tiers = Arc::new(Tiers::new(vec![host]));
    let agent = SiteInvalidation::new(InvalidationParts {
        site: site(name),
        sites: SITES.map(site).into(),
        models: [(model(), 1)].into(),
        stream: Arc::clone(stream),
        bus: Arc::clone(bus),
        tiers: Arc::clone(&tiers),
        deciding: Arc::new(VersionRule),
        rules: LeaseRules::default(),
        file: Some(world.folder.path().join(format!("{name}.json"))),
        clock: Arc::clone(&world.clock),
        random: Arc::clone(&world.random),
    });
    let said = bus.subscribe();
    let lives = Lives {
        tiers,
        clock: Arc::clone(&world.clock),
        _tasks: agent.start(),
        agent,
    };
    for n in 0..BLOCKS {
        lives.cache_as(block_of(n), &format!("d{n}"));
    }
    Followed { lives, said }
}

fn block_of(n: usize) -> BlockId {
    let mut id = [1; 16];
    id[..8].copy_from_slice(&(n as u64).to_le_bytes());
    BlockId(id)
}

impl Lives {
    fn cache_as(&self, id: BlockId, document: &str) {
        let block = PoolBlock {
            id,
            parent: None,
            hashes: vec![],
            about: about("acme", document, 1),
            rebuild: Duration::from_millis(1),
            kv: BlockKv::default(),
        };
        drop(
            self.tiers
                .demote(Arc::new(block), &self.tiers.open(), self.clock.now()),
        );
    }
}

/// Gives the orders, by the clock.
async fn give_all(world: &World, agent: &Arc<SiteInvalidation>, a_second: u64) -> Sent {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / a_second as u32);
    let mut acknowledged = JoinSet::new();
    for n in 0..a_second * LASTS {
        ticks.tick().await;
        let (agent, clock) = (Arc::clone(agent), Arc::clone(&world.clock));
        acknowledged.spawn(async move {
            let sent = clock.now();
            let order = order(changed(&format!("d{n}")));
            let given = agent.invalidate(order, Patience::Acknowledged).await.unwrap();
            (given.id, (sent, clock.now()))
        });
    }
    acknowledged.join_all().await.into_iter().collect()
}

/// When a site applied what.
type AppliedAt = Arc<Mutex<BTreeMap<Sequence, Moment>>>;

/// Takes down what a site says of itself.
async fn listen(mut said: broadcast::Receiver<BusMessage>, name: &'static str, applied: AppliedAt) {
    while let Ok(said) = said.recv().await {
        if let BusMessage::Applied(report) = said
            && report.site.as_str() == name
        {
            applied.lock().entry(report.sequence).or_insert(report.applied_at);
        }
    }
}

/// Asserted is that every site applies every order; the line that is printed is the measurement, and says nothing on a
/// machine that is busy with other work.
async fn at_pace(a_second: u64, over: &str, buses: [Arc<dyn Bus>; 3], streams: [Arc<dyn ControlStream>; 3]) {
    let world = World::new();
    let sites: Vec<Followed> = (0..SITES.len())
        .map(|at| start(&world, SITES[at], &buses[at], &streams[at]))
        .collect();
    for followed in &sites {
        followed.lives.agent.caught_up().await;
    }
    let mut listening = JoinSet::new();
    let mut applied: Vec<AppliedAt> = Vec::new();
    let mut alive = Vec::new();
    for (followed, name) in sites.into_iter().zip(SITES) {
        let at = AppliedAt::default();
        listening.spawn(listen(followed.said, name, Arc::clone(&at)));
        applied.push(at);
        alive.push(followed.lives);
    }
    let sent = give_all(&world, &alive[0].agent, a_second).await;
    let last = *sent.keys().next_back().expect("orders were given");
    let mut everywhere: BTreeMap<Sequence, Duration> = BTreeMap::new();
    let acknowledged = sent.values().map(|(sent, told)| told.since(*sent)).collect();
    let mut lines = vec![format!("acknowledged {}", told(acknowledged))];
    for (at, name) in applied.iter().zip(SITES) {
        let begun = Instant::now();
        while at.lock().keys().next_back() < Some(&last) {
            assert!(
                begun.elapsed() < PATIENCE,
                "{name} applied {} entries",
                at.lock().len()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let at = at.lock();
        let mut took = Vec::new();
        for (sequence, (sent, _)) in &sent {
            let after = at.get(sequence).expect("the site said so").since(*sent);
            took.push(after);
            let slowest = everywhere.entry(*sequence).or_default();
            *slowest = after.max(*slowest);
        }
        lines.push(format!("{name} {}", told(took)));
    }
    let everywhere: Vec<Duration> = everywhere.into_values().collect();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!(
        "sent until applied, {over}, {} orders at {a_second} a second, 3 sites: every site {}; {}; load {}",
        sent.len(),
        told(everywhere),
        lines.join("; "),
        load.split(' ').next().unwrap_or_default()
    );
}

fn sorted(mut times: Vec<Duration>) -> Vec<Duration> {
    times.sort();
    times
}

fn at(times: &[Duration], permille: usize) -> Duration {
    times[(times.len() * permille / 1000).min(times.len() - 1)]
}

fn told(times: Vec<Duration>) -> String {
    let times = sorted(times);
    let ms = |permille| at(&times, permille).as_secs_f64() * 1000.0;
    format!(
        "P50 {:.2} P90 {:.2} P99 {:.2} max {:.2} ms",
        ms(500),
        ms(900),
        ms(990),
        ms(1000)
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_long_until_every_agent_has_applied_orders_embedded() {
    for a_second in PACES {
        let folder = tempfile::tempdir().unwrap();
        let stream = EmbeddedControl::open(folder.path(), &Counting(AtomicU64::new(7))).unwrap();
        let stream: Arc<dyn ControlStream> = Arc::new(stream);
        let bus: Arc<dyn Bus> = Arc::new(EmbeddedBus::new());
        let streams = [(); 3].map(|()| Arc::clone(&stream));
        at_pace(a_second, "embedded", [(); 3].map(|()| Arc::clone(&bus)), streams).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_long_until_every_agent_has_applied_orders_over_nats() {
    for a_second in PACES {
        over_nats(a_second).await;
    }
}

async fn over_nats(a_second: u64) {
    let Some(Line::Nats(server, _folder)) = Line::nats() else {
        return;
    };
    let mut buses: Vec<Arc<dyn Bus>> = Vec::new();
    let mut streams: Vec<Arc<dyn ControlStream>> = Vec::new();
    for name in SITES {
        let bus = NatsBus::connect(&config(&server), &topology(), &[site(name)], &SECRET)
            .await
            .unwrap();
        wait("the bus is connected", || bus.is_connected()).await;
        streams.push(Arc::new(NatsControl::on(&bus, 1)));
        buses.push(Arc::new(bus));
    }
    let (Ok(buses), Ok(streams)) = (buses.try_into(), streams.try_into()) else {
        panic!("three sites");
    };
    at_pace(a_second, "over NATS", buses, streams).await;
}
