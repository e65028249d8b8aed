//! One process of a site: gateway, chart, agents and engine as they are in production, on carriers under the weather.

use super::carriers::{Carrier, Door, Hub};
use super::content::{MODEL, birth_of, description};
use super::engine::ChaosEngine;
use super::life::Life;
use crate::chaos::dice::Dice;
use crate::chaos::history::{BirthId, End};
use portolan_base::{BitsPerSecond, Bytes, Clock, InstanceName, ModelName, Moment, Random, TenantName};
use portolan_decide::Serving;
use portolan_fleet::{
    Agent, Chart, InstanceSpec, InvalidationParts, LeaseRules, LinkSpec, SiteInvalidation, SiteSpec, Telling,
    Topology,
};
use portolan_gateway::peer::PeerService;
use portolan_gateway::policies::{DeskParts, PolicyDesk};
use portolan_gateway::site::{ExactKv, Limits};
use portolan_gateway::{ServedModel, Site, SiteParts};
use portolan_kv::tier::{BlockTier, HostTier, Tiers, Top};
use portolan_kv::{PoolBlock, PoolConfig};
use portolan_ports::{
    Bus, CacheValidity, ControlStream, Engine, FakeLoader, FakeText, Fleet, KeyRecord, MemoryStore,
    PolicyStore, Principal, Role, TenantRecord, Transport, VersionRule,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::broadcast;
use tokio::task::JoinSet;

/// A seventh of production's, so that a schedule of two seconds holds several leases.
pub(crate) const RULES: LeaseRules = LeaseRules {
    lease: Duration::from_millis(300),
    drift: Duration::from_millis(45),
};

/// 2026-01-01T00:00:00Z in microseconds.
const START_US: u64 = 1_767_225_600_000_000;

/// A clock that is wrong by seconds, and fast or slow by as much as the rules of leases allow.
pub(crate) struct SkewedClock {
    began: Instant,
    start_us: u64,
    per_mille: u64,
}

impl SkewedClock {
    pub(crate) fn draw(dice: &Dice) -> Self {
        Self {
            began: Instant::now(),
            start_us: START_US + dice.roll(10_000_001),
            // Two of these drift apart by less than 45 ms in 345.
            per_mille: 945 + dice.roll(111),
        }
    }
}

impl Clock for SkewedClock {
    fn now(&self) -> Moment {
        let elapsed = self.began.elapsed().as_micros() as u64;
        Moment(self.start_us + elapsed / 1000 * self.per_mille + elapsed % 1000 * self.per_mille / 1000)
    }
}

/// Blocks with their last use.
pub(crate) type Blocks = Vec<(Arc<PoolBlock>, Moment)>;

/// What of a site outlives its process.
pub(crate) struct Machine {
    pub(crate) at: usize,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) store: Arc<MemoryStore>,
    /// Where its processes write down how far they are, each in a file of its own: one that was killed here may still
    /// be writing.
    pub(crate) folder: PathBuf,
    /// How many processes it had before this one.
    pub(crate) before: u32,
    /// What lies on its disk.
    pub(crate) blocks: Blocks,
    /// A copy of its folder: the file, and what lay on the disk.
    pub(crate) copy: Option<(Option<Vec<u8>>, Blocks)>,
    /// How many KiB its disk holds, and how long a block takes to compute.
    pub(crate) room_kib: u64,
    pub(crate) pace: Duration,
}

/// A process that runs.
pub(crate) struct Running {
    pub(crate) life: Life,
    pub(crate) site: Arc<Site>,
    pub(crate) agent: Arc<SiteInvalidation>,
    pub(crate) clock: Arc<dyn Clock>,
    tier: Arc<HostTier>,
    _engine: Arc<ChaosEngine>,
    _tasks: [JoinSet<()>; 2],
}

/// The fleet as it is written down.
pub(crate) fn topology(hub: &Hub, jurisdictions: &[&str]) -> Topology {
    let instance = || InstanceSpec {
        name: InstanceName::new("e1").unwrap(),
        model: ModelName::new(MODEL).unwrap(),
        role: Role::Both,
        serving: Serving::default(),
        decode_slots: 8,
        price_micros_per_kilotoken: 1,
    };
    let site = |(name, jurisdiction): (&portolan_base::SiteName, &&str)| SiteSpec {
        name: name.clone(),
        region: String::new(),
        jurisdiction: (*jurisdiction).to_owned(),
        instances: vec![instance()],
    };
    let pairs = hub
        .names
        .iter()
        .flat_map(|from| hub.names.iter().map(move |to| (from, to)));
    let links = pairs.filter(|(from, to)| from != to).map(|(from, to)| LinkSpec {
        from: from.clone(),
        to: to.clone(),
        capacity: BitsPerSecond(100_000_000_000),
        rtt: Duration::from_millis(1),
        price_micros_per_gib: 0,
    });
    let sites = hub.names.iter().zip(jurisdictions).map(site).collect();
    Topology::new(sites, links.collect(), vec!["standard".to_owned()]).unwrap()
}

/// A store that knows the tenants, each by `key-NAME`, and the operator by `key-operator`.
pub(crate) fn store(tenants: &BTreeMap<String, String>) -> Arc<MemoryStore> {
    let store = MemoryStore::new();
    let put_key = |key: &str, principal| {
        let record = KeyRecord {
            principal,
            label: "chaos".to_owned(),
            holder: None,
        };
        store.put_key(key, record, "chaos", Moment(1)).unwrap();
    };
    put_key("key-operator", Principal::Operator);
    for (name, jurisdiction) in tenants {
        let tenant = TenantName::new(name).unwrap();
        let record = TenantRecord {
            name: tenant.clone(),
            jurisdiction: jurisdiction.clone(),
            user_class: "standard".to_owned(),
        };
        store.put_tenant(record, "chaos", Moment(1)).unwrap();
        put_key(&format!("key-{name}"), Principal::Tenant(tenant));
    }
    Arc::new(store)
}

impl Machine {
    /// Where its process writes down how far it is.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join(format!("place-{}.json", self.before))
    }

    /// Its process is no more. What it had written before anything else is what lies there for the next one.
    pub(crate) fn ended(&mut self, process: &Running) {
        let text = std::fs::read(self.file()).ok();
        self.blocks = process.blocks();
        self.before += 1;
        if let Some(text) = text {
            drop(std::fs::write(self.file(), text));
        }
    }

    /// Starts a process on what the machine holds.
    pub(crate) fn start(&self, hub: &Arc<Hub>, topology: &Topology, random: &Arc<Dice>) -> Running {
        let life = Life::new();
        let carrier = Arc::new(Carrier {
            here: self.at,
            life: life.clone(),
            hub: Arc::clone(hub),
        });
        let tier = Arc::new(HostTier::new(PoolConfig::of(Bytes(self.room_kib << 10))));
        for (block, used_at) in &self.blocks {
            drop(tier.offer(Arc::clone(block), *used_at));
        }
        let tiers = Arc::new(Tiers::new(vec![Arc::clone(&tier) as Arc<dyn BlockTier>]));
        let name = hub.names[self.at].clone();
        let description = description("e1");
        let agent = SiteInvalidation::new(InvalidationParts {
            site: name.clone(),
            sites: hub.names.clone(),
            models: [(description.model.clone(), 1)].into(),
            stream: Arc::clone(&carrier) as Arc<dyn ControlStream>,
            bus: Arc::clone(&carrier) as Arc<dyn Bus>,
            tiers: Arc::clone(&tiers),
            deciding: Arc::new(VersionRule),
            rules: RULES,
            file: Some(self.file()),
            clock: Arc::clone(&self.clock),
            random: Arc::clone(random) as Arc<dyn Random>,
        });
        let following = agent.start();
        let engine = Arc::new(ChaosEngine {
            flaw: hub.flaw,
            attic: Default::default(),
            site: name.to_string(),
            description: description.clone(),
            tiers: Arc::clone(&tiers),
            clock: Arc::clone(&self.clock),
            ledger: Arc::clone(&hub.ledger),
            life: life.clone(),
            pace: self.pace,
            events: broadcast::channel(256).0,
        });
        let top = Arc::downgrade(&engine);
        tiers.attach(top as std::sync::Weak<dyn Top>);
        let engines = BTreeMap::from([(
            description.instance.clone(),
            Arc::clone(&engine) as Arc<dyn Engine>,
        )]);
        let index = topology.site_index(&name).unwrap();
        let incarnation = (self.clock.now().millis() << 20) | (random.next_u64() >> 44);
        let telling = Telling::everything([3; 32], incarnation);
        let chart = Chart::new(
            topology.clone(),
            index,
            &engines,
            Arc::clone(&self.clock),
            &telling,
        );
        let chart = Arc::new(chart);
        let speaking = Agent {
            site: name.clone(),
            chart: Arc::clone(&chart),
            engines: engines.clone(),
            bus: Arc::clone(&carrier) as Arc<dyn Bus>,
            transport: Arc::clone(&carrier) as Arc<dyn Transport>,
            clock: Arc::clone(&self.clock),
            lease: Duration::from_secs(2),
        };
        let speaking = speaking.start();
        let tables = Arc::new(topology.names().clone());
        let desk = PolicyDesk::new(DeskParts {
            store: Arc::clone(&self.store) as Arc<dyn PolicyStore>,
            loader: Arc::new(FakeLoader),
            names: Arc::new(move || Arc::clone(&tables)),
            clock: Arc::clone(&self.clock),
        });
        let model = ServedModel {
            text: Arc::new(FakeText::new()),
            description: description.clone(),
            created: 1,
            served: Default::default(),
        };
        let site = Site::new(SiteParts {
            name,
            index,
            engines,
            models: BTreeMap::from([(description.model, model)]),
            fleet: chart as Arc<dyn Fleet>,
            transport: Arc::clone(&carrier) as Arc<dyn Transport>,
            store: Arc::clone(&self.store) as Arc<dyn PolicyStore>,
            desk: Arc::new(desk),
            clock: Arc::clone(&self.clock),
            random: Arc::clone(random) as Arc<dyn Random>,
            secret: [7; 32],
            public: Arc::default(),
            limits: Limits::default(),
            timeouts: Default::default(),
            retries: Default::default(),
            exact: ExactKv::default(),
            validity: Arc::clone(&agent) as Arc<dyn CacheValidity>,
            replicate: None,
            prewarm: None,
        });
        hub.doors.lock()[self.at] = Some(Arc::new(Door {
            peers: PeerService::new(&site),
            life: life.clone(),
        }));
        Running {
            life,
            site,
            agent,
            clock: Arc::clone(&self.clock),
            tier,
            _engine: engine,
            _tasks: [following, speaking],
        }
    }
}

impl Running {
    /// What lies on the disk at this moment.
    pub(crate) fn blocks(&self) -> Blocks {
        let mut blocks = Vec::new();
        self.tier.hand_down(&mut |block, used_at| {
            blocks.push((block, used_at));
            true
        });
        // Given from the latest used on; a block comes before those on top of it.
        blocks
    }

    /// KV that it would use.
    pub(crate) fn end(&self, name: &str, behind: Option<String>) -> End {
        let blocks = self.blocks();
        let parents: BTreeMap<_, _> = blocks.iter().map(|(block, _)| (block.id, block.parent)).collect();
        // A block can be found while every one beneath it is there.
        let is_found = |block: &PoolBlock| {
            let mut beneath = block.parent;
            while let Some(id) = beneath {
                match parents.get(&id) {
                    Some(parent) => beneath = *parent,
                    None => return false,
                }
            }
            true
        };
        let found = blocks.iter().filter(|(block, _)| is_found(block));
        let usable: Vec<BirthId> = found.filter_map(|(block, _)| birth_of(block)).collect();
        End {
            site: name.to_owned(),
            behind,
            usable,
        }
    }
}
