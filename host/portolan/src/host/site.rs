//! One running site: engines, transport, gateway, agent.

use super::as_port;
use super::following::Following;
use super::parts::{HostError, Model, Shared};
use super::tiers::{self, SiteTiers};
use super::tls::{self, Renewal};
use super::{carrier, foreign, residency};
use crate::config::{EngineKind, SiteConfig};
use crate::scaling;
use async_trait::async_trait;
use portolan_base::{InstanceName, ModelName, SiteName};
use portolan_engine::{InstanceConfig, NativeInstance, Surroundings};
use portolan_fleet::warm_up::until_warm;
use portolan_fleet::{Agent, Chart, Farewell, Telling};
use portolan_gateway::peer::PeerService;
use portolan_gateway::{ServedBy, ServedModel, Site, SiteParts};
use portolan_ports::{AlwaysValid, Engine, Fleet, KvOrder, KvSource, PieceSink, PolicyStore, PrefillReport};
use portolan_transport::{Admission, SiteTransport, TcpInfo, TransportConfig, TransportParts};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

/// How long answers under way, and writing KV to disk, may take after the host was told to stop. Supervisors kill after 10 s (docker) or 30 s
/// (Kubernetes); nine leave a second to close links and store.
const DRAIN: Duration = Duration::from_secs(9);

/// The last part of [`DRAIN`]: for answers that did not end by themselves to say so to their clients, and to settle. Nothing
/// is computed for it; half a second reaches clients on other continents.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long a site waits for its instances to be warm before it opens without them.
const WARM_UP: Duration = Duration::from_secs(30);

/// How long KV is written to disk even when answers took all of [`DRAIN`]: some 100 MiB on a common disk.
const WRITE_LEAST: Duration = Duration::from_millis(500);

/// A site of this process.
pub struct RunningSite {
    name: SiteName,
    http: SocketAddr,
    listener: Option<TcpListener>,
    engines: BTreeMap<InstanceName, Arc<dyn Engine>>,
    tiers: SiteTiers,
    transport: Arc<SiteTransport>,
    peers: Arc<LateSource>,
    /// Follows the control stream, from before the doors open.
    following: Option<Following>,
    gateway: Option<Arc<Site>>,
    renewal: Option<Renewal>,
    /// Instances that are being warmed up.
    warming: Vec<(InstanceName, JoinSet<()>)>,
    tasks: JoinSet<()>,
    farewell: Option<Farewell>,
    /// Ends when the last client is served after `stop`.
    serving: Option<JoinHandle<()>>,
    stop: Arc<Notify>,
}

impl RunningSite {
    /// Starts the engines and binds the ports; nothing is served yet.
    pub(super) async fn prepare(config: &SiteConfig, shared: &Shared) -> Result<Self, HostError> {
        let tiers = tiers::open(config, shared).await?;
        // Before anything that could use what lies in a tier.
        let following = Following::start(config, shared, &tiers.all);
        let engines = start_engines(config, shared, &tiers).await?;
        let warming = warm_up(config, &engines);
        let listener = TcpListener::bind(config.listen).await;
        let listener = listener.map_err(|e| listen_error("the gateway", config.listen, &e))?;
        let http = listener
            .local_addr()
            .map_err(|e| listen_error("the gateway", config.listen, &e))?;
        let peers = Arc::new(LateSource::default());
        let (wiring, renewal) = tls::wiring(config)?;
        let parts = TransportParts {
            source: Arc::clone(&peers) as Arc<dyn KvSource>,
            random: Arc::clone(&shared.random),
            wiring,
            probe: Arc::new(TcpInfo),
            landing: tiers.landing(Arc::clone(&shared.clock)),
            carrier: carrier::of(config, shared),
        };
        let transport = SiteTransport::bind_parts(transport_config(config, shared), parts)
            .await
            .map_err(|e| listen_error("the transport", config.transport, &e))?;
        Ok(Self {
            name: config.name.clone(),
            http,
            listener: Some(listener),
            engines,
            tiers,
            transport: Arc::new(transport),
            peers,
            following,
            gateway: None,
            renewal,
            warming,
            tasks: JoinSet::new(),
            farewell: None,
            serving: None,
            stop: Arc::new(Notify::new()),
        })
    }

    /// Opens the doors: orders of other sites, then clients.
    pub(super) fn open(&mut self, shared: &Shared) -> Result<(), HostError> {
        let index = shared.topology.site_index(&self.name);
        let index =
            index.ok_or_else(|| HostError::Broken(format!("site {} is not in the topology", self.name)))?;
        let clock = Arc::clone(&shared.clock);
        let telling = Telling {
            secret: shared.secrets.summaries,
            incarnation: incarnation(shared),
            disclosure: residency::disclosure(index, shared),
        };
        let topology = shared.topology.clone();
        let chart = Chart::new(topology, index, &self.engines, clock, &telling)
            .with_conversion(shared.config.scaling.conversion())
            .with_bus(shared.bus.as_port());
        let chart = match shared.config.kv.prewarm {
            Some(_) => chart.with_foresight(&shared.secrets.summaries),
            None => chart,
        };
        let to_here = shared
            .config
            .links_in_use()
            .iter()
            .filter(|link| link.to == self.name);
        let chart = to_here.fold(chart, |chart, link| chart.with_floor(&link.from, link.floor()));
        let chart = Arc::new(chart);
        let agent = Agent {
            site: self.name.clone(),
            chart: Arc::clone(&chart),
            engines: self.engines.clone(),
            bus: shared.bus.as_port(),
            transport: as_port(&self.transport),
            clock: Arc::clone(&shared.clock),
            lease: shared.config.fleet.lease(),
        };
        self.farewell = Some(agent.farewell());
        self.tasks = agent.start();
        self.serve_when_warm(&chart);
        let scaling = shared.config.scaling.clone();
        self.tasks
            .spawn(scaling::tell(self.name.clone(), Arc::clone(&chart), scaling));
        if let Some(renewal) = self.renewal.take() {
            self.tasks.spawn(renewal.run());
        }
        let gateway = Site::new(SiteParts {
            name: self.name.clone(),
            index,
            engines: self.engines.clone(),
            models: self.served_models(&shared.models, shared.clock.now().millis() / 1000),
            fleet: chart as Arc<dyn Fleet>,
            transport: as_port(&self.transport),
            store: Arc::clone(&shared.store) as Arc<dyn PolicyStore>,
            desk: Arc::clone(&shared.desk),
            clock: Arc::clone(&shared.clock),
            random: Arc::clone(&shared.random),
            secret: shared.secrets.caches,
            public: Arc::clone(&shared.public),
            limits: shared.config.limits.limits(),
            timeouts: shared.config.timeouts(),
            retries: shared.config.retry_budget(),
            exact: shared.exact.clone(),
            validity: self
                .following
                .as_ref()
                .map_or_else(|| Arc::new(AlwaysValid) as _, Following::validity),
            replicate: shared.config.kv.replicate.map(|replicate| replicate.rules()),
            prewarm: shared.config.kv.prewarm.map(|prewarm| prewarm.rules()),
        });
        shared.live.reach(&gateway, &self.transport);
        gateway.set_recovery(shared.recovery.doors());
        if let Some(following) = &self.following {
            following.attach(&gateway);
        }
        self.peers.set(PeerService::new(&gateway));
        if let Some(listener) = self.listener.take() {
            let stop = Arc::clone(&self.stop);
            let site = Arc::clone(&gateway);
            let serve = async move {
                let stopped = async move { stop.notified().await };
                if let Err(error) = portolan_gateway::http::serve(site, listener, stopped).await {
                    tracing::error!(%error, "the gateway's listener broke");
                }
            };
            self.serving = Some(tokio::spawn(serve));
        }
        self.gateway = Some(gateway);
        Ok(())
    }

    /// Waits for the instances that are being warmed up, at most [`WARM_UP`]. Before any site opens: sites that open one
    /// after the other miss each other's first word.
    pub(super) async fn wait_until_warm(&mut self) {
        if let Some(following) = &self.following {
            following.caught_up(&self.name).await;
        }
        let until = tokio::time::Instant::now() + WARM_UP;
        for (instance, mut warming) in std::mem::take(&mut self.warming) {
            if tokio::time::timeout_at(until, warming.join_next()).await.is_err() {
                tracing::warn!(site = %self.name, %instance, "not warm after {WARM_UP:?}; the site opens without it");
                self.warming.push((instance, warming));
            }
        }
    }

    /// Has the instances that are not warm yet serve once they are.
    fn serve_when_warm(&mut self, chart: &Arc<Chart>) {
        for (instance, mut warming) in std::mem::take(&mut self.warming) {
            chart.set_warming_up(&instance, true);
            let chart = Arc::clone(chart);
            self.tasks.spawn(async move {
                // A warm-up ends only when it succeeded, or with the process.
                if warming.join_next().await.is_some_and(|ended| ended.is_ok()) {
                    chart.set_warming_up(&instance, false);
                }
            });
        }
    }

    /// Its name.
    pub fn name(&self) -> &SiteName {
        &self.name
    }

    /// Where clients connect.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Its links.
    pub fn transport(&self) -> &SiteTransport {
        &self.transport
    }

    /// Its gateway, once the doors are open.
    pub fn gateway(&self) -> Option<&Arc<Site>> {
        self.gateway.as_ref()
    }

    /// Ends the site in order: takes no new clients, lets answers under way finish, writes the KV that lies in memory to
    /// the disk tier, both together for at most [`DRAIN`], then closes links and engines.
    pub async fn stop(mut self) {
        self.stop.notify_one();
        if let Some(farewell) = self.farewell.take() {
            farewell.say();
        }
        let until = Instant::now() + DRAIN;
        if let Some(serving) = self.serving.take() {
            end_serving(&self.name, self.gateway.as_ref(), serving).await;
        }
        let engines = self.engines.values().cloned().collect();
        let until = until.max(Instant::now() + WRITE_LEAST);
        std::mem::take(&mut self.tiers).write_down(engines, until).await;
        if let Some(following) = &self.following {
            following.write_down();
        }
        self.kill().await;
    }

    /// Ends the site at once, as a power cut would.
    pub async fn kill(mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
        self.transport.shutdown().await;
        self.tasks.shutdown().await;
        if let Some(following) = self.following.take() {
            following.stop().await;
        }
    }

    fn served_models(
        &self,
        models: &BTreeMap<ModelName, Model>,
        created: u64,
    ) -> BTreeMap<ModelName, ServedModel> {
        let mut served = BTreeMap::new();
        for engine in self.engines.values() {
            let description = engine.describe();
            if let Some(model) = models.get(&description.model) {
                let served = served
                    .entry(description.model.clone())
                    .or_insert_with(|| ServedModel {
                        text: model.text(),
                        description: description.clone(),
                        created,
                        served: kind(engine),
                    });
                served.served = served.served.and(kind(engine));
            }
        }
        served
    }
}

/// Lets answers end; tells the clients of those that take too long.
async fn end_serving(site: &SiteName, gateway: Option<&Arc<Site>>, mut serving: JoinHandle<()>) {
    let patience = DRAIN.saturating_sub(LAST_WORDS);
    if tokio::time::timeout(patience, &mut serving).await.is_ok() {
        return;
    }
    if let Some(gateway) = gateway {
        let answers = gateway.in_flight();
        tracing::warn!(%site, answers, "clients were still served after {patience:?}; answers under way are cut");
        gateway.cut_answers();
    }
    if tokio::time::timeout(LAST_WORDS, &mut serving).await.is_err() {
        tracing::warn!(%site, "connections were still open after {DRAIN:?}; they are cut");
        serving.abort();
    }
}

fn kind(engine: &Arc<dyn Engine>) -> ServedBy {
    match engine.whole() {
        Some(_) => ServedBy::Whole,
        None => ServedBy::Pieces,
    }
}

/// Begins to warm up the instances that are to be warm before they serve.
fn warm_up(
    config: &SiteConfig,
    engines: &BTreeMap<InstanceName, Arc<dyn Engine>>,
) -> Vec<(InstanceName, JoinSet<()>)> {
    let wanted = config.instances.iter().filter(|i| i.warmup_before_serving);
    // One that is not ours tries itself out; here it is only waited for.
    let engine = |i: &crate::config::InstanceConfig| {
        let mut work = JoinSet::new();
        work.spawn(until_warm(Arc::clone(engines.get(&i.name)?)));
        Some((i.name.clone(), work))
    };
    wanted.filter_map(engine).collect()
}

async fn start_engines(
    config: &SiteConfig,
    shared: &Shared,
    tiers: &SiteTiers,
) -> Result<BTreeMap<InstanceName, Arc<dyn Engine>>, HostError> {
    let mut engines: BTreeMap<InstanceName, Arc<dyn Engine>> = BTreeMap::new();
    let around = Surroundings {
        tiers: Arc::clone(&tiers.all),
        clock: Arc::clone(&shared.clock),
    };
    for instance in &config.instances {
        let Some(model) = shared.models.get(&instance.model).cloned() else {
            continue;
        };
        if instance.engine != EngineKind::Native {
            let engine = foreign::start((config, instance), &model, shared)?;
            engines.insert(instance.name.clone(), engine);
            continue;
        }
        let Some(loaded) = model.on(instance.device) else {
            continue;
        };
        let start = InstanceConfig {
            name: instance.name.clone(),
            model: instance.model.clone(),
            model_version: model.version,
            role: instance.role,
            decode_slots: instance.decode_slots,
            pool: instance.pool(),
            cache: shared.config.cache(instance.pool(), instance.kv_snapshot_blocks),
        };
        let around = around.clone();
        let depth = instance.max_queue_depth;
        let start = move || {
            let started = NativeInstance::start_in(loaded, start, around)?;
            Ok(started.with_queue_depth(depth))
        };
        let started = tokio::task::spawn_blocking(start).await;
        let started = started.map_err(|e| HostError::Broken(e.to_string()))?;
        let engine = started.map_err(|source| HostError::Engine {
            instance: instance.name.as_str().to_owned(),
            site: config.name.as_str().to_owned(),
            source,
        })?;
        engines.insert(instance.name.clone(), Arc::new(engine));
    }
    Ok(engines)
}

/// Greater at each start, as long as the clock goes on; drawn by chance beyond the millisecond.
fn incarnation(shared: &Shared) -> u64 {
    (shared.clock.now().millis() << 20) | (shared.random.next_u64() >> 44)
}

fn transport_config(config: &SiteConfig, shared: &Shared) -> TransportConfig {
    let transport = TransportConfig {
        admission: Admission::NamedPeers,
        ..TransportConfig::new(config.name.clone(), config.transport, shared.secrets.cluster)
    };
    shared.config.transfer.over(transport)
}

fn listen_error(what: &str, address: SocketAddr, error: &dyn std::fmt::Display) -> HostError {
    HostError::Listen {
        what: what.to_owned(),
        address,
        detail: error.to_string(),
    }
}

/// Stands in for a site's peer service until the gateway exists: the transport has to be bound first.
#[derive(Default)]
struct LateSource(OnceLock<PeerService>);

impl LateSource {
    fn set(&self, service: PeerService) {
        // Set once, when the doors open.
        drop(self.0.set(service));
    }
}

#[async_trait]
impl KvSource for LateSource {
    async fn serve(
        &self,
        peer: SiteName,
        order: KvOrder,
        sink: Box<dyn PieceSink>,
    ) -> Result<PrefillReport, String> {
        match self.0.get() {
            Some(service) => service.serve(peer, order, sink).await,
            None => Err("the site is starting; try again".to_owned()),
        }
    }
}
