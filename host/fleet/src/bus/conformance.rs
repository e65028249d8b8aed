//! One suite for every bus: what is promised of it holds for the embedded one and for a real NATS server.
//!
//! A subscriber of either may miss messages; it never sees them out of order, and never slows who publishes.

use super::EmbeddedBus;
use crate::nats::{NatsBus, NatsConfig, NatsLogin, NatsServer, NatsServerError};
use crate::{SiteSpec, Topology};
use portolan_base::{Bytes, InstanceName, Moment, PatternId, Sequence, SiteName};
use portolan_decide::Standing;
use portolan_ports::{
    AppliedReport, Bus, BusMessage, EngineLoad, InstanceLoadReport, PrefixSummary, SitePresence, SiteState,
    SnapshotRequest, StreamId, Visits,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::broadcast::{Receiver, error::TryRecvError};

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// The secret of the fleet under test.
pub(crate) const SECRET: [u8; 32] = [9; 32];

/// What the sites under test talk over.
pub(crate) enum Line {
    Embedded(Arc<EmbeddedBus>),
    /// A server, and the folder it lies in.
    Nats(NatsServer, TempDir),
}

impl Line {
    pub(crate) fn embedded() -> Option<Self> {
        Some(Self::Embedded(Arc::new(EmbeddedBus::new())))
    }

    /// None where there is no server on this machine, which the test says.
    pub(crate) fn nats() -> Option<Self> {
        Self::nats_with("")
    }

    pub(crate) fn nats_with(configuration: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        match NatsServer::start(folder.path(), configuration) {
            Ok(server) => Some(Self::Nats(server, folder)),
            Err(NatsServerError::Missing) if std::env::var_os("PORTOLAN_TEST_NATS").is_none() => {
                println!("SKIPPED: nats-server is not installed (Debian's package of that name)");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A site of a process of its own joins.
    pub(crate) async fn join(&self, site: &str) -> Arc<dyn Bus> {
        match self {
            Self::Embedded(bus) => Arc::clone(bus) as Arc<dyn Bus>,
            Self::Nats(server, _) => {
                let bus = NatsBus::connect(&config(server), &topology(), &[name(site)], &SECRET).await;
                let bus = Arc::new(bus.unwrap());
                wait("the bus is connected", || bus.is_connected()).await;
                bus
            }
        }
    }

    /// Cuts the line: a bus of one process cannot be cut.
    pub(crate) fn cut(&mut self) {
        if let Self::Nats(server, _) = self {
            server.kill();
        }
    }

    /// The line is back.
    pub(crate) fn mend(&mut self) {
        if let Self::Nats(server, _) = self {
            server.restart().unwrap();
        }
    }
}

pub(crate) fn config(server: &NatsServer) -> NatsConfig {
    NatsConfig {
        name: "test".to_owned(),
        servers: vec![server.address()],
        login: NatsLogin::None,
        tls: None,
    }
}

pub(crate) fn name(site: &str) -> SiteName {
    SiteName::new(site).unwrap()
}

pub(crate) fn topology() -> Topology {
    let site = |site: &str, jurisdiction: &str| SiteSpec {
        name: name(site),
        region: String::new(),
        jurisdiction: jurisdiction.to_owned(),
        instances: Vec::new(),
    };
    let sites = vec![site("paris", "eu"), site("virginia", "us"), site("tokyo", "jp")];
    Topology::new(sites, Vec::new(), Vec::new()).unwrap()
}

pub(crate) async fn wait(what: &str, so: impl Fn() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn presence(site: &str, sequence: u64) -> BusMessage {
    BusMessage::Presence(SitePresence {
        site: name(site),
        incarnation: 1,
        sequence,
        state: SiteState::Up,
        lease_ms: 5000,
    })
}

fn load(site: &str, at: u64) -> BusMessage {
    BusMessage::Load(InstanceLoadReport {
        site: name(site),
        instance: InstanceName::new("i").unwrap(),
        load: EngineLoad::default(),
        standing: Standing::Ready,
        duty: None,
        at: Moment(at),
    })
}

pub(crate) fn told(from: &str, to: &str, summary: &[u8]) -> BusMessage {
    BusMessage::Prefixes(PrefixSummary {
        from: name(from),
        instance: InstanceName::new("i").unwrap(),
        to: name(to),
        summary: summary.into(),
    })
}

fn wanted(by: &str, of: &str) -> BusMessage {
    BusMessage::SnapshotWanted(SnapshotRequest {
        by: name(by),
        of: name(of),
        instance: InstanceName::new("i").unwrap(),
        incarnation: 1,
        sequence: 2,
    })
}

fn visits(from: &str, to: &str) -> BusMessage {
    BusMessage::Visits(Visits {
        from: name(from),
        to: name(to),
        patterns: vec![PatternId(7), PatternId(u64::MAX)],
    })
}

fn applied(site: &str) -> BusMessage {
    BusMessage::Applied(AppliedReport {
        site: name(site),
        incarnation: 1,
        stream: StreamId("a".into()),
        sequence: Sequence(9),
        received_at: Moment(5),
        applied_at: Moment(6),
        blocks: 2,
        bytes: Bytes(4096),
    })
}

/// What comes until `last` does.
async fn until(messages: &mut Receiver<BusMessage>, last: &BusMessage) -> Vec<BusMessage> {
    let mut heard = Vec::new();
    let hear = async {
        while heard.last() != Some(last) {
            heard.push(messages.recv().await.expect("nothing is lost here"));
        }
    };
    let heard_all = tokio::time::timeout(PATIENCE, hear).await;
    assert!(heard_all.is_ok(), "{last:?} did not come");
    heard
}

/// A publisher says `last` again and again until it is heard: what is said while nobody listens yet is lost.
async fn is_heard(publisher: &Arc<dyn Bus>, listener: &mut Receiver<BusMessage>, said: BusMessage) {
    let began = Instant::now();
    loop {
        publisher.publish(said.clone());
        tokio::time::sleep(Duration::from_millis(10)).await;
        while let Ok(message) = listener.try_recv() {
            if message == said {
                return;
            }
        }
        assert!(began.elapsed() < PATIENCE, "{said:?} is not heard");
    }
}

async fn a_publishers_messages_come_in_order(line: Option<Line>) {
    let Some(line) = line else { return };
    let (virginia, paris) = (line.join("virginia").await, line.join("paris").await);
    let mut heard = paris.subscribe();
    is_heard(&virginia, &mut heard, wanted("virginia", "paris")).await;
    for n in 0..500 {
        virginia.publish(presence("virginia", n));
        virginia.publish(load("virginia", n));
        virginia.publish(told("virginia", "paris", &n.to_le_bytes()));
        if n % 50 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    // Facts and summaries are two streams over NATS, each with its end.
    let (mut facts, mut summaries) = (Vec::new(), Vec::new());
    let all = async {
        while facts.len() < 1000 || summaries.len() < 500 {
            match heard.recv().await.unwrap() {
                BusMessage::Presence(p) => facts.push(p.sequence * 2),
                BusMessage::Load(l) => facts.push(l.at.0 * 2 + 1),
                BusMessage::Prefixes(told) => {
                    summaries.push(told.summary[..].try_into().map(u64::from_le_bytes).unwrap());
                }
                BusMessage::SnapshotWanted(_)
                | BusMessage::Visits(_)
                | BusMessage::Applied(_)
                | BusMessage::EffectWanted(_)
                | BusMessage::Effect(_) => {}
            }
        }
    };
    assert!(
        tokio::time::timeout(PATIENCE, all).await.is_ok(),
        "{} {}",
        facts.len(),
        summaries.len()
    );
    assert_eq!(facts, (0..1000).collect::<Vec<_>>());
    assert_eq!(summaries, (0..500).collect::<Vec<_>>());
}

async fn what_is_said_comes_as_it_was_to_the_publisher_too(line: Option<Line>) {
    let Some(line) = line else { return };
    let (virginia, paris) = (line.join("virginia").await, line.join("paris").await);
    let (mut own, mut heard) = (virginia.subscribe(), paris.subscribe());
    is_heard(&virginia, &mut heard, presence("virginia", 0)).await;
    until(&mut own, &presence("virginia", 0)).await;
    // A summary of a large cache is longer than one message of a server's.
    let large: Vec<u8> = (0..3_000_000u32).map(|n| n as u8).collect();
    for said in [
        load("virginia", 7),
        told("virginia", "paris", &large),
        wanted("virginia", "paris"),
        visits("virginia", "paris"),
        applied("virginia"),
    ] {
        virginia.publish(said.clone());
        until(&mut heard, &said).await;
        until(&mut own, &said).await;
    }
}

async fn a_slow_consumer_is_told_and_slows_nobody(line: Option<Line>) {
    let Some(line) = line else { return };
    let (virginia, paris) = (line.join("virginia").await, line.join("paris").await);
    let (mut slow, mut heard) = (paris.subscribe(), paris.subscribe());
    is_heard(&virginia, &mut heard, wanted("virginia", "paris")).await;
    let began = Instant::now();
    let mut longest = Duration::ZERO;
    for n in 0..20_000 {
        let one = Instant::now();
        virginia.publish(presence("virginia", n));
        longest = longest.max(one.elapsed());
        if n % 500 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        while let Ok(_heard) = heard.try_recv() {}
    }
    println!(
        "20,000 messages in {:?}, the slowest in {longest:?}",
        began.elapsed()
    );
    assert!(
        began.elapsed() < PATIENCE,
        "the publisher was held up: {:?}",
        began.elapsed()
    );
    is_heard(&virginia, &mut heard, presence("virginia", 20_000)).await;
    assert!(
        matches!(slow.try_recv(), Err(TryRecvError::Lagged(_))),
        "it is told that it missed some"
    );
    let mut last = 0;
    while let Ok(message) = slow.try_recv() {
        if let BusMessage::Presence(presence) = message {
            assert!(presence.sequence >= last, "in order all the same");
            last = presence.sequence;
        }
    }
    assert_eq!(last, 20_000, "the newest is there");
}

async fn after_a_cut_the_same_subscribers_hear_again(line: Option<Line>) {
    let Some(mut line) = line else { return };
    let (virginia, paris) = (line.join("virginia").await, line.join("paris").await);
    let mut heard = paris.subscribe();
    is_heard(&virginia, &mut heard, presence("virginia", 0)).await;
    line.cut();
    for n in 1..100 {
        virginia.publish(presence("virginia", n));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    line.mend();
    is_heard(&virginia, &mut heard, presence("virginia", 100)).await;
    is_heard(&virginia, &mut heard, told("virginia", "paris", b"again")).await;
}

macro_rules! suite {
    ($($test:ident),+ $(,)?) => {
        mod embedded {
            use super::Line;
            $(#[tokio::test]
            async fn $test() {
                super::$test(Line::embedded()).await;
            })+
        }
        mod nats {
            use super::Line;
            $(#[tokio::test]
            async fn $test() {
                super::$test(Line::nats()).await;
            })+
        }
    };
}

suite!(
    a_publishers_messages_come_in_order,
    what_is_said_comes_as_it_was_to_the_publisher_too,
    a_slow_consumer_is_told_and_slows_nobody,
    after_a_cut_the_same_subscribers_hear_again,
);
