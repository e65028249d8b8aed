//! Agents of two sites over a stream in memory, a bus and real tiers.

mod pace;

use super::*;
use crate::EmbeddedBus;
use crate::control::EmbeddedControl;
use futures_util::FutureExt;
use portolan_base::{BlockHash, Bytes, Dependency, Provenance, Scope, TenantName};
use portolan_kv::tier::HostTier;
use portolan_kv::{BlockKv, PoolBlock, PoolConfig};
use portolan_ports::{ControlEvent, ControlFault, MemoryControl, Running, VersionRule};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const RULES: LeaseRules = LeaseRules {
    lease: Duration::from_millis(400),
    drift: Duration::from_millis(50),
};

/// Time since the test began.
struct Watch(Instant);

impl Clock for Watch {
    fn now(&self) -> Moment {
        Moment(0) + self.0.elapsed()
    }
}

struct Counting(AtomicU64);

impl Random for Counting {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

struct World {
    bus: Arc<dyn Bus>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    folder: tempfile::TempDir,
}

/// A site: its agent, what it caches, and its tasks.
struct Lives {
    agent: Arc<SiteInvalidation>,
    tiers: Arc<Tiers>,
    clock: Arc<dyn Clock>,
    _tasks: JoinSet<()>,
}

fn model() -> ModelName {
    ModelName::new("m").unwrap()
}

fn site(name: &str) -> SiteName {
    SiteName::new(name).unwrap()
}

fn about(tenant: &str, document: &str, version: u64) -> Arc<Provenance> {
    let dependency = Dependency {
        kind: "document".to_owned(),
        name: document.to_owned(),
        version: "1".to_owned(),
    };
    Arc::new(Provenance {
        dependencies: [dependency].into(),
        ..Provenance::of(TenantName::new(tenant).unwrap(), model(), version)
    })
}

impl World {
    fn new() -> Self {
        Self {
            bus: Arc::new(EmbeddedBus::new()),
            clock: Arc::new(Watch(Instant::now())),
            random: Arc::new(Counting(AtomicU64::new(1))),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn start(&self, name: &str, stream: &Arc<dyn ControlStream>) -> Lives {
        let host = Arc::new(HostTier::new(PoolConfig::of(Bytes(1 << 20))));
        self.start_with(name, stream, Arc::new(Tiers::new(vec![host])))
    }

    fn start_with(&self, name: &str, stream: &Arc<dyn ControlStream>, tiers: Arc<Tiers>) -> Lives {
        let agent = SiteInvalidation::new(InvalidationParts {
            site: site(name),
            sites: vec![site("paris"), site("tokyo")],
            models: [(model(), 1)].into(),
            stream: Arc::clone(stream),
            bus: Arc::clone(&self.bus),
            tiers: Arc::clone(&tiers),
            deciding: Arc::new(VersionRule),
            rules: RULES,
            file: Some(self.folder.path().join(format!("{name}.json"))),
            clock: Arc::clone(&self.clock),
            random: Arc::clone(&self.random),
        });
        Lives {
            tiers,
            clock: Arc::clone(&self.clock),
            _tasks: agent.start(),
            agent,
        }
    }
}

impl Lives {
    /// Puts a block of a tenant that depends on a document.
    fn cache(&self, n: u8, tenant: &str, document: &str) {
        let version = self.agent.version(&model(), 1);
        let block = PoolBlock {
            id: BlockId([n; 16]),
            parent: None,
            hashes: vec![BlockHash(u64::from(n))],
            about: about(tenant, document, version),
            rebuild: Duration::from_millis(1),
            kv: BlockKv::default(),
        };
        let gone = self
            .tiers
            .demote(Arc::new(block), &self.tiers.open(), self.clock.now());
        assert!(gone.is_empty());
    }

    /// Which blocks could be used at this moment.
    fn usable(&self) -> Vec<u8> {
        let now = self.clock.now();
        let nobody = Provenance::public(model(), 1);
        let is_usable = |n: &u8| {
            !self
                .tiers
                .below(&[BlockId([*n; 16])], 0, &nobody, now)
                .blocks()
                .is_empty()
        };
        (1..9).filter(is_usable).collect()
    }
}

fn order(what: Invalidated) -> Order {
    Order {
        what,
        actor: "operator alice".to_owned(),
        reason: String::new(),
        running: Running::Finish,
    }
}

fn changed(document: &str) -> Invalidated {
    Invalidated::Dependency {
        by: Dependency {
            kind: "document".to_owned(),
            name: document.to_owned(),
            version: "2".to_owned(),
        },
        of: None,
    }
}

async fn give(at: &Lives, what: Invalidated) -> Given {
    at.agent
        .invalidate(order(what), Patience::Everywhere)
        .await
        .unwrap()
}

#[tokio::test]
async fn what_was_cached_before_any_stream_was_followed_is_forgotten_when_one_is() {
    let world = World::new();
    let memory = MemoryControl::new();
    let stream: Arc<dyn ControlStream> = Arc::new(memory.clone());
    memory.set_fault(Some(ControlFault::Cut));
    let paris = world.start("paris", &stream);
    let begun = paris.agent.begin();
    paris.cache(1, "acme", "a");
    // An order that paris never meets: the stream is replaced before it can be followed.
    let order = ControlEvent::Invalidation(Invalidation {
        id: "inv-1".to_owned(),
        what: changed("a"),
        from: site("tokyo"),
        actor: "operator".to_owned(),
        reason: String::new(),
        sent_at: world.clock.now(),
        running: Running::Finish,
    });
    stream.append(order).await.unwrap();
    memory.found_anew();
    memory.set_fault(None);
    paris.agent.caught_up().await;
    assert_eq!(paris.usable(), [0; 0]);
    let kv = InUse {
        begun,
        about: &about("acme", "a", 1),
    };
    let used = paris.agent.check_kv(kv, world.clock.now(), &|_| false);
    assert_eq!(used, Err(Stale::Invalidated), "nor what was under way by then");
    paris.cache(2, "acme", "a");
    assert_eq!(paris.usable(), [2]);
}

#[tokio::test]
async fn whoever_leaves_while_it_asks_leaves_nothing_behind_and_only_some_ask_at_once() {
    let (world, stream) = (World::new(), MemoryControl::new());
    let stream: Arc<dyn ControlStream> = Arc::new(stream);
    let paris = world.start("paris", &stream);
    let what = changed("b");
    let out = || paris.agent.state.lock().effects.len();
    // Nobody answers before this test lets go of its thread.
    let asking: Vec<_> = (0..REHEARSALS_AT_ONCE + 5)
        .map(|_| {
            let mut asking = Box::pin(paris.agent.rehearse(&what));
            assert!(asking.as_mut().now_or_never().is_none());
            asking
        })
        .collect();
    assert_eq!(out(), REHEARSALS_AT_ONCE);
    drop(asking);
    assert_eq!(out(), 0);
    assert_eq!(paris.agent.rehearse(&what).await[0].site, site("paris"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_holds_at_every_site_when_it_is_done_and_takes_what_it_is_about_alone() {
    let (world, stream) = (World::new(), MemoryControl::new());
    let stream: Arc<dyn ControlStream> = Arc::new(stream);
    let (paris, tokyo) = (world.start("paris", &stream), world.start("tokyo", &stream));
    for running in [&paris, &tokyo] {
        running.agent.caught_up().await;
        running.cache(1, "acme", "a");
        running.cache(2, "acme", "b");
        running.cache(3, "globex", "b");
        assert_eq!(running.usable(), [1, 2, 3]);
    }
    let effects = paris.agent.rehearse(&changed("b")).await;
    let told: Vec<_> = effects.iter().map(|e| (e.site.as_str(), e.blocks)).collect();
    assert_eq!(told, [("paris", 2), ("tokyo", 2)]);
    assert_eq!(tokyo.usable(), [1, 2, 3], "asking changes nothing");

    let given = give(&paris, changed("b")).await;
    assert_eq!((paris.usable(), tokyo.usable()), (vec![1], vec![1]));
    assert_eq!(
        (given.blocks, given.bytes),
        (4, Bytes(effects.iter().map(|e| e.bytes.0).sum()))
    );
    assert!(
        given.sites.iter().all(|site| site.applied_ms.is_some()),
        "{given:?}"
    );

    let acme = Scope::Tenant(TenantName::new("acme").unwrap());
    let globex = Scope::Tenant(TenantName::new("globex").unwrap());
    let prefix = |of: &Scope| Invalidated::Prefix {
        block: BlockId([1; 16]),
        of: Some(of.clone()),
    };
    give(&tokyo, prefix(&globex)).await;
    assert_eq!(paris.usable(), [1], "it is not theirs");
    give(&tokyo, prefix(&acme)).await;
    assert_eq!((paris.usable(), tokyo.usable()), (vec![], vec![]));
    paris.cache(4, "acme", "a");
    paris.cache(5, "globex", "a");
    give(&tokyo, Invalidated::Tenant { scope: acme }).await;
    assert_eq!(paris.usable(), [5]);
    let before = paris.agent.begin();
    let given = give(&tokyo, Invalidated::Model { model: model() }).await;
    assert!(paris.usable().is_empty());
    for running in [&paris, &tokyo] {
        assert_eq!(running.agent.version(&model(), 1), 1 + given.id.0);
    }
    let check = |begun| {
        let about = about("globex", "a", 1);
        let kv = InUse { begun, about: &about };
        paris.agent.check_kv(kv, world.clock.now(), &|_| false)
    };
    assert_eq!(check(before), Err(Stale::Invalidated));
    assert_eq!(check(paris.agent.begin()), Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_hears_nothing_uses_nothing_until_it_has_caught_up() {
    let (world, memory) = (World::new(), MemoryControl::new());
    let stream: Arc<dyn ControlStream> = Arc::new(memory.clone());
    let tokyos = MemoryControl::clone(&memory);
    let (paris, tokyo) = (
        world.start("paris", &stream),
        world.start("tokyo", &(Arc::new(tokyos) as _)),
    );
    for running in [&paris, &tokyo] {
        running.agent.caught_up().await;
        running.cache(1, "acme", "a");
        running.cache(2, "acme", "b");
    }
    memory.set_fault(Some(ControlFault::Silent));
    let begun = Instant::now();
    let given = give(&paris, changed("b")).await;
    let took = begun.elapsed();
    assert!(took >= RULES.longest(), "{took:?}");
    assert!(
        given.sites.iter().all(|site| site.applied_ms.is_none()),
        "{given:?}"
    );
    assert!(paris.usable().is_empty() && tokyo.usable().is_empty());
    assert_eq!(tokyo.agent.check(world.clock.now()), Err(Stale::Lapsed));
    memory.set_fault(None);
    tokyo.agent.caught_up().await;
    assert_eq!(tokyo.usable(), [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_an_order_is_an_error_and_nothing_goes() {
    let (world, memory) = (World::new(), MemoryControl::new());
    let stream: Arc<dyn ControlStream> = Arc::new(memory.clone());
    let paris = world.start("paris", &stream);
    paris.agent.caught_up().await;
    paris.cache(1, "acme", "a");
    memory.set_fault(Some(ControlFault::NoQuorum));
    let refused = paris
        .agent
        .invalidate(order(changed("a")), Patience::Acknowledged)
        .await;
    assert!(
        matches!(refused, Err(ControlError::NotAcknowledged(_))),
        "{refused:?}"
    );
    assert_eq!(paris.usable(), [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_missed_entries_for_good_forgets_everything_and_goes_on() {
    let (world, memory) = (World::new(), MemoryControl::new());
    let stream: Arc<dyn ControlStream> = Arc::new(memory.clone());
    let paris = world.start("paris", &stream);
    paris.agent.caught_up().await;
    paris.cache(1, "acme", "a");
    memory.found_anew();
    let until = Instant::now() + Duration::from_secs(10);
    while !paris.usable().is_empty() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    paris.agent.caught_up().await;
    assert!(paris.usable().is_empty());
    paris.cache(2, "acme", "a");
    assert_eq!(paris.usable(), [2]);
    give(&paris, changed("a")).await;
    assert!(paris.usable().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_and_orders_survive_a_restart_and_what_was_missed_is_applied_first() {
    let (world, folder) = (World::new(), tempfile::tempdir().unwrap());
    let open = || -> Arc<dyn ControlStream> {
        Arc::new(EmbeddedControl::open(folder.path(), world.random.as_ref()).unwrap())
    };
    let stream = open();
    let paris = world.start("paris", &stream);
    let tokyo = world.start("tokyo", &stream);
    paris.agent.caught_up().await;
    tokyo.agent.caught_up().await;
    tokyo.cache(1, "acme", "a");
    let raised = give(&paris, Invalidated::Model { model: model() }).await.id;
    tokyo.cache(2, "acme", "a");
    tokyo.cache(3, "acme", "b");
    tokyo.agent.write_down();
    // What is cached is as if it lay on a disk.
    let disk = Arc::clone(&tokyo.tiers);
    drop(tokyo);
    give(&paris, changed("a")).await;
    drop((paris, stream));
    let stream = open();
    let tokyo = world.start_with("tokyo", &stream, disk);
    assert_eq!(
        tokyo.agent.version(&model(), 1),
        1 + raised.0,
        "known before anything is followed"
    );
    tokyo.agent.caught_up().await;
    assert_eq!(tokyo.usable(), [3]);
    let stranger = world.start("elsewhere", &stream);
    stranger.agent.caught_up().await;
    assert_eq!(stranger.agent.version(&model(), 1), 1 + raised.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_several_threads_write_at_once_is_whole_whenever_it_is_read() {
    let world = World::new();
    let stream: Arc<dyn ControlStream> = Arc::new(MemoryControl::new());
    let paris = world.start("paris", &stream);
    paris.agent.caught_up().await;
    let file = world.folder.path().join("paris.json");
    paris.agent.write_down();
    std::thread::scope(|threads| {
        let writers: Vec<_> = (0..4)
            .map(|_| threads.spawn(|| (0..50).for_each(|_| paris.agent.write_down())))
            .collect();
        while !writers.iter().all(|writer| writer.is_finished()) {
            assert!(Record::read(&file).is_some(), "it is torn");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_without_a_record_trusts_nothing_that_lies_there() {
    let (world, memory) = (World::new(), MemoryControl::new());
    let stream: Arc<dyn ControlStream> = Arc::new(memory);
    let paris = world.start("paris", &stream);
    paris.agent.caught_up().await;
    paris.cache(1, "acme", "a");
    let disk = Arc::clone(&paris.tiers);
    drop(paris);
    std::fs::write(world.folder.path().join("paris.json"), "{\"stream").unwrap();
    let paris = world.start_with("paris", &stream, disk);
    paris.agent.caught_up().await;
    assert!(paris.usable().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_come_twice_or_unreadable_do_no_harm() {
    let (world, memory) = (World::new(), MemoryControl::new());
    let stream: Arc<dyn ControlStream> = Arc::new(memory.clone());
    memory.set_fault(Some(ControlFault::Doubles));
    let paris = world.start("paris", &stream);
    paris.agent.caught_up().await;
    paris.cache(1, "acme", "a");
    paris.cache(2, "acme", "b");
    let mut aborts = paris.agent.aborts();
    let abort = Order {
        running: Running::Abort,
        ..order(changed("a"))
    };
    paris.agent.invalidate(abort, Patience::Everywhere).await.unwrap();
    assert_eq!(paris.usable(), [2]);
    assert_eq!(aborts.recv().await.unwrap().what, changed("a"));
    assert!(aborts.try_recv().is_err(), "once");
    stream.append(ControlEvent::Unknown).await.unwrap();
    give(&paris, changed("c")).await;
    assert!(
        paris.usable().is_empty(),
        "what cannot be read may be about anything"
    );
}
