//! The sites of a world: real gateways, fake engines, and links that write down what crosses.

use super::oracle::{Rules, Verdicts};
use super::policy::SeedLoader;
use super::{Dice, purpose_of};
use crate::http::router;
use crate::http::tests::support::{Counter, StepClock, description, request};
use crate::peer::PeerService;
use crate::policies::{DeskParts, PolicyDesk};
use crate::site::{ExactKv, Limits, ServedModel, Site, SiteParts};
use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::http::Method;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use portolan_base::kv::KvManifest;
use portolan_base::{
    BitsPerSecond, Bytes, Clock, Dependency, InstanceName, Moment, Permille, Scope, SiteName, TenantKey,
    TenantName, Tokens, TransferId,
};
use portolan_decide::{
    FleetView, InstanceView, LinkFigures, LinkView, ReplicaRules, SiteIndex, SiteView, Standing,
};
use portolan_policy::{NameTables, Placement, SiteEntry};
use portolan_ports::{
    DecodeEvent, DecodeJob, Engine, EngineDescription, EngineError, EngineLoad, FakeEngine, FakeFleet,
    FakeText, Fleet, HeldPrefix, KeepJob, KeyRecord, KvEvent, KvOrder, KvPiece, KvSource, LinkReading,
    MemoryStore, OrderPurpose, PieceSink, PolicyStore, PrefillJob, PrefillReport, Principal, Pull, PullEvent,
    PullReport, Retention, Role, TenantRecord, TransferError, Transport,
};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};
use tower::ServiceExt;

/// Tokens of the one prompt that everybody sends.
const PROMPT: u32 = 200;
const TENANTS: usize = 3;
const REQUESTS: u64 = 6;
const JURISDICTIONS: [&str; 4] = ["any", "eu", "us", "jp"];

/// Something that happened to data.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    /// An order with the prompt's tokens went from one site to another, and so many bytes of KV came back.
    Order {
        request: String,
        asks: usize,
        holds: usize,
        purpose: OrderPurpose,
        bytes: u64,
    },
    /// An engine was given the prompt.
    Worked {
        request: String,
        at: usize,
        retention: Retention,
    },
    /// KV that came from elsewhere was kept.
    Kept {
        tenant: String,
        jurisdiction: String,
        at: usize,
    },
}

/// What was asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    tenant: usize,
    jurisdiction: u32,
    origin: usize,
    prewarm: bool,
}

/// What every part of a world writes to.
#[derive(Default)]
struct Log(Mutex<Vec<Seen>>);

pub(super) struct World {
    rules: Rules,
    nodes: Arc<Vec<Node>>,
    log: Arc<Log>,
    asked: Mutex<BTreeMap<String, Asked>>,
    statuses: Mutex<Vec<u16>>,
    handed_over: Mutex<usize>,
    dice: Mutex<Dice>,
    bound: Vec<u32>,
}

struct Node {
    site: Arc<Site>,
    peers: PeerService,
    engine: Arc<Watched>,
    router: Router,
}

impl World {
    /// Draws a fleet, policies, and who holds KV of the prompt already.
    pub(super) async fn draw(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let count = 2 + dice.roll(4) as usize;
        let sites = (0..count).map(|_| 1 + dice.roll(3) as u32).collect();
        let mut policy = |percent| dice.chance(percent).then(|| seed ^ dice.roll(u64::MAX));
        let rules = Rules {
            sites,
            platform: policy(60),
            tenants: (0..TENANTS).map(|_| policy(50)).collect(),
        };
        let bound: Vec<u32> = (0..TENANTS).map(|_| dice.roll(4) as u32).collect();
        // A jurisdiction that no site lies in is refused before residency is asked.
        let bound: Vec<u32> = bound
            .into_iter()
            .map(|j| if rules.sites.contains(&j) { j } else { 0 })
            .collect();
        let log = Arc::new(Log::default());
        let nodes = build(&rules, &bound, &mut dice, &log);
        let world = Self {
            rules,
            nodes,
            log,
            asked: Mutex::default(),
            statuses: Mutex::default(),
            handed_over: Mutex::default(),
            dice: Mutex::new(dice),
            bound,
        };
        world.bind().await;
        world.fill(&mut dice).await;
        world
    }

    /// Makes the policies active through the door of the first site; all share one desk.
    async fn bind(&self) {
        let platform = [("_platform".to_owned(), self.rules.platform)];
        let tenants = self.rules.tenants.iter().enumerate();
        for (scope, seed) in tenants.map(|(t, seed)| (format!("t{t}"), *seed)).chain(platform) {
            let Some(seed) = seed else { continue };
            let path = format!("/v1/portolan/tenants/{scope}/policies/residency?name=p");
            let put = request(Method::PUT, &path, "key-operator", Body::from(seed.to_string()));
            let reply = self.nodes[0].router.clone().oneshot(put).await.unwrap();
            assert!(reply.status().is_success(), "{}", reply.status());
        }
    }

    /// Leaves KV of the prompt at random sites, as earlier policies might have: what lies there must not be fetched all
    /// the same.
    async fn fill(&self, dice: &mut Dice) {
        for node in self.nodes.iter() {
            for tenant in 0..TENANTS {
                if dice.chance(50) {
                    let name = TenantName::new(&format!("t{tenant}")).unwrap();
                    let tokens: Arc<[u32]> = prompt()[..PROMPT as usize - 1].into();
                    let layout = &node.engine.describe().layout;
                    let key = node
                        .site
                        .cache_key(&name, (layout, layout.model_version), &tokens);
                    node.engine.fill(key, tokens).await;
                }
            }
        }
    }

    /// Sends the requests, and waits until what they set off has ended.
    pub(super) async fn play(&self) {
        for number in 0..REQUESTS {
            let (asked, id) = (self.draw_request(), format!("r{number}"));
            self.asked.lock().insert(id.clone(), asked.clone());
            let mut body = json!({"model": "fake", "prompt": prompt(), "request_id": id, "max_tokens": 2});
            let door = if asked.prewarm {
                "/v1/portolan/prewarm"
            } else {
                "/v1/completions"
            };
            if !asked.prewarm {
                let modes = ["auto", "local_only", "remote_preferred", "remote_required"];
                body["prefill_policy"] = json!(modes[self.dice.lock().roll(4) as usize]);
            }
            if asked.jurisdiction != 0 {
                body["portolan"] = json!({"jurisdiction": JURISDICTIONS[asked.jurisdiction as usize]});
            }
            let key = format!("key-t{}", asked.tenant);
            let post = request(Method::POST, door, &key, Body::from(body.to_string()));
            let reply = self.nodes[asked.origin]
                .router
                .clone()
                .oneshot(post)
                .await
                .unwrap();
            let status = reply.status().as_u16();
            drop(reply.into_body().collect().await.unwrap());
            self.statuses.lock().push(status);
        }
        let under_way = |node: &Node| node.site.replication.as_ref().is_some_and(|r| r.counts().1 > 0);
        while self.nodes.iter().any(under_way) {
            tokio::task::yield_now().await;
        }
        for node in self.nodes.iter() {
            self.empty(node).await;
        }
    }

    /// Empties a site, waits until it has handed over what it could, and returns it to service.
    async fn empty(&self, node: &Node) {
        let order = json!({"within_s": 600}).to_string();
        for (verb, order) in [("evacuate", order), ("return", String::new())] {
            let path = format!("/v1/portolan/site/{verb}");
            let post = request(Method::POST, &path, "key-operator", Body::from(order));
            let reply = node.router.clone().oneshot(post).await.unwrap();
            assert!(reply.status().is_success(), "{}", reply.status());
            while node.site.evacuation.progress().is_some_and(|told| !told.ended) {
                tokio::task::yield_now().await;
            }
        }
        *self.handed_over.lock() += node.site.evacuation.progress().map_or(0, |told| told.moved);
    }

    /// Prefixes that sites took over.
    pub(super) fn handed_over(&self) -> usize {
        *self.handed_over.lock()
    }

    fn draw_request(&self) -> Asked {
        let mut dice = self.dice.lock();
        let tenant = dice.roll(TENANTS as u64) as usize;
        let origin = dice.roll(self.nodes.len() as u64) as usize;
        let some = self.rules.sites[dice.roll(self.nodes.len() as u64) as usize];
        // A key may narrow what it is bound to, and nothing else.
        let jurisdiction = match self.bound[tenant] {
            0 if dice.chance(50) => some,
            bound => bound,
        };
        Asked {
            tenant,
            jurisdiction,
            origin,
            prewarm: dice.chance(15),
        }
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.log.0.lock().clone()
    }

    pub(super) fn outcomes(&self) -> Vec<u16> {
        self.statuses.lock().clone()
    }

    /// The request that something was seen of, and what the answers say of it.
    pub(super) fn verdicts_of(&self, seen: &Seen) -> (Asked, Verdicts) {
        let asked = match seen {
            Seen::Order { request, .. } | Seen::Worked { request, .. } => self.asked.lock()[request].clone(),
            Seen::Kept {
                tenant,
                jurisdiction,
                at,
            } => Asked {
                tenant: tenant[1..].parse().unwrap(),
                jurisdiction: JURISDICTIONS.iter().position(|j| j == jurisdiction).unwrap_or(0) as u32,
                origin: *at,
                prewarm: false,
            },
        };
        let purpose = purpose_of(asked.prewarm);
        let verdicts = self
            .rules
            .verdicts(asked.tenant, asked.jurisdiction, asked.origin, purpose);
        (asked, verdicts)
    }

    /// What other policies than those of this world would have said of the same.
    pub(super) fn other_verdicts_of(&self, asked: &Asked) -> Verdicts {
        let other = |seed: &Option<u64>| seed.map(|seed| seed ^ 1);
        let rules = Rules {
            platform: other(&self.rules.platform).or(Some(1)),
            tenants: self.rules.tenants.iter().map(other).collect(),
            ..self.rules.clone()
        };
        rules.verdicts(
            asked.tenant,
            asked.jurisdiction,
            asked.origin,
            purpose_of(asked.prewarm),
        )
    }

    /// Answers that failed when requests were served.
    pub(super) fn closed_answers(&self) -> usize {
        let asked = self.asked.lock();
        let closed = |a: &Asked| self.rules.closed(a.tenant, a.jurisdiction, purpose_of(a.prewarm));
        asked.values().map(closed).sum()
    }

    /// What a site explains is what the oracle says.
    pub(super) fn check_explanations(&self, seed: u64) {
        for (id, asked) in self.asked.lock().iter() {
            let name = TenantName::new(&format!("t{}", asked.tenant)).unwrap();
            let id = portolan_base::RequestId::from_client(id).unwrap();
            let Some(record) = self.nodes[asked.origin].site.records.get(&name, &id) else {
                continue;
            };
            let told: Vec<Placement> = record.verdicts.iter().map(|verdict| verdict.placement).collect();
            let purpose = purpose_of(asked.prewarm);
            let expected = self
                .rules
                .verdicts(asked.tenant, asked.jurisdiction, asked.origin, purpose)
                .serve;
            assert!(
                told.is_empty() || told == expected,
                "world {seed:#x}, {id}: {told:?}, not {expected:?}"
            );
        }
    }
}

fn prompt() -> Vec<u32> {
    (0..PROMPT).map(|n| 1 + n % 100).collect()
}

fn build(rules: &Rules, bound: &[u32], dice: &mut Dice, log: &Arc<Log>) -> Arc<Vec<Node>> {
    let count = rules.sites.len();
    let names = names(rules);
    let store = Arc::new(store(bound));
    let clock: Arc<dyn Clock> = Arc::new(StepClock::from_2026());
    let tables = Arc::new(names.clone());
    let desk = Arc::new(PolicyDesk::new(DeskParts {
        store: Arc::clone(&store) as Arc<dyn PolicyStore>,
        loader: Arc::new(SeedLoader),
        names: Arc::new(move || Arc::clone(&tables)),
        clock: Arc::clone(&clock),
    }));
    let view = view(rules, dice);
    let links: BTreeSet<(usize, usize)> = view
        .links
        .keys()
        .map(|(from, to)| (from.0 as usize, to.0 as usize))
        .collect();
    let switchboard = Arc::new(Switchboard::default());
    let node = |at: usize, dice: &mut Dice| {
        let description = EngineDescription {
            instance: InstanceName::new("e1").unwrap(),
            ..description("e1")
        };
        let engine = Arc::new(Watched {
            inner: FakeEngine::new(description.clone()),
            at,
            kept: Mutex::default(),
            log: Arc::clone(log),
        });
        let fleet = FakeFleet::new(view.clone(), names.clone());
        // What is believed of others is advice, and may be wrong.
        let believed = |other| if other == at { 10 } else { 75 };
        fleet.set_held(
            (0..count)
                .map(|other| u32::from(dice.chance(believed(other))) * PROMPT)
                .collect(),
        );
        let model = ServedModel {
            text: Arc::new(FakeText::new()),
            description: description.clone(),
            created: 1,
            served: Default::default(),
        };
        let wire = Wire {
            here: at,
            links: links.clone(),
            board: Arc::clone(&switchboard),
            log: Arc::clone(log),
        };
        let site = Site::new(SiteParts {
            name: site_name(at),
            index: SiteIndex(at as u32),
            engines: BTreeMap::from([(
                description.instance.clone(),
                Arc::clone(&engine) as Arc<dyn Engine>,
            )]),
            models: BTreeMap::from([(description.model, model)]),
            fleet: Arc::new(fleet) as Arc<dyn Fleet>,
            transport: Arc::new(wire),
            store: Arc::clone(&store) as Arc<dyn PolicyStore>,
            desk: Arc::clone(&desk),
            clock: Arc::clone(&clock),
            random: Arc::new(Counter::from(dice.roll(1 << 40))),
            secret: [7; 32],
            public: Arc::default(),
            limits: Limits::default(),
            timeouts: Default::default(),
            retries: Default::default(),
            exact: ExactKv::default(),
            validity: Arc::new(portolan_ports::AlwaysValid),
            replicate: Some(ReplicaRules {
                asks: 1,
                window: Duration::from_secs(3600),
                min_tokens: Tokens(16),
                bounds: portolan_decide::Bounds {
                    per_minute: Bytes(1 << 30),
                    at_once: 4,
                },
                pause: Duration::ZERO,
            }),
            prewarm: None,
        });
        Node {
            peers: PeerService::new(&site),
            router: router(Arc::clone(&site)),
            site,
            engine,
        }
    };
    let nodes: Arc<Vec<Node>> = Arc::new((0..count).map(|at| node(at, dice)).collect());
    drop(switchboard.0.set(Arc::downgrade(&nodes)));
    nodes
}

fn site_name(at: usize) -> SiteName {
    SiteName::new(&format!("s{at}")).unwrap()
}

fn names(rules: &Rules) -> NameTables {
    let site = |(at, jurisdiction): (usize, &u32)| SiteEntry {
        name: format!("s{at}"),
        region: String::new(),
        jurisdiction: *jurisdiction,
    };
    NameTables {
        tenant: String::new(),
        sites: rules.sites.iter().enumerate().map(site).collect(),
        jurisdictions: JURISDICTIONS.map(Into::into).to_vec(),
        models: vec!["fake".into()],
        user_classes: vec!["standard".into()],
    }
}

/// Everyone's view: instances that are fast or slow, and about half of all links.
fn view(rules: &Rules, dice: &mut Dice) -> FleetView {
    let count = rules.sites.len() as u32;
    let mut instance = |at: u32| InstanceView {
        name: InstanceName::new("e1").unwrap(),
        site: SiteIndex(at),
        model: 0,
        role: Role::Both,
        standing: Standing::Ready,
        serving: Default::default(),
        prefill_queued_requests: 0,
        prefill_queued_tokens: 0,
        decode_running: 0,
        decode_slots: 8,
        kv_used: Permille(0),
        prefill_busy: Permille(0),
        decode_busy: Permille(0),
        prefill_ns_per_token: 10u64.pow(4 + dice.roll(3) as u32),
        prefill_curve: Default::default(),
        decode_step_us: 100,
        price_micros_per_kilotoken: 1,
    };
    let instances = (0..count).map(&mut instance).collect();
    let link = LinkView {
        up: true,
        rtt: Duration::ZERO,
        capacity: BitsPerSecond(100_000_000_000),
        busy: Permille(0),
        loss: Permille(0),
        price_micros_per_gib: 0,
        measured: LinkFigures::default(),
    };
    let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
    let pairs = pairs.filter(|(from, to)| from != to && dice.chance(70));
    FleetView {
        sites: (0..rules.sites.len())
            .map(|at| SiteView {
                name: site_name(at),
                jurisdiction: rules.sites[at],
            })
            .collect(),
        instances,
        links: pairs
            .map(|(from, to)| ((SiteIndex(from), SiteIndex(to)), link))
            .collect(),
        elsewhere: Default::default(),
        offload_threshold: Tokens(0),
        congestion_mark: Permille(700),
        bandwidth: Default::default(),
    }
}

fn store(bound: &[u32]) -> MemoryStore {
    let store = MemoryStore::new();
    let key = |principal| KeyRecord {
        principal,
        label: "test".into(),
        holder: None,
    };
    store
        .put_key("key-operator", key(Principal::Operator), "test", Moment(1))
        .unwrap();
    for (tenant, bound) in bound.iter().enumerate() {
        let name = TenantName::new(&format!("t{tenant}")).unwrap();
        let jurisdiction = match bound {
            0 => String::new(),
            bound => JURISDICTIONS[*bound as usize].to_owned(),
        };
        let record = TenantRecord {
            name: name.clone(),
            jurisdiction,
            user_class: "standard".into(),
        };
        store.put_tenant(record, "test", Moment(1)).unwrap();
        store
            .put_key(
                &format!("key-{name}"),
                key(Principal::Tenant(name)),
                "test",
                Moment(1),
            )
            .unwrap();
    }
    store
}

/// Joins the sites once all of them exist.
#[derive(Default)]
struct Switchboard(OnceLock<Weak<Vec<Node>>>);

/// One site's links.
struct Wire {
    here: usize,
    /// From where to where KV may come.
    links: BTreeSet<(usize, usize)>,
    board: Arc<Switchboard>,
    log: Arc<Log>,
}

#[async_trait]
impl Transport for Wire {
    async fn pull(&self, peer: &SiteName, order: KvOrder) -> Result<Pull, TransferError> {
        let holds: usize = peer.as_str()[1..].parse().unwrap();
        let nodes = self.board.0.get().and_then(Weak::upgrade);
        let nodes = nodes.filter(|_| self.links.contains(&(holds, self.here)));
        let nodes = nodes.ok_or_else(|| TransferError::UnknownPeer(peer.clone()))?;
        let mut log = self.log.0.lock();
        let place = log.len();
        log.push(Seen::Order {
            request: order.request.as_str().to_owned(),
            asks: self.here,
            holds,
            purpose: order.purpose,
            bytes: 0,
        });
        drop(log);
        let (events, receiver) = mpsc::channel(10_000);
        let sink = Sink {
            events: events.clone(),
            log: Arc::clone(&self.log),
            place,
        };
        let (asks, peer) = (site_name(self.here), peer.clone());
        tokio::spawn(async move {
            let served = nodes[holds].peers.serve(asks, order, Box::new(sink)).await;
            let last = match served {
                Ok(prefill) => Ok(PullEvent::Done(PullReport {
                    prefill,
                    ..PullReport::default()
                })),
                Err(detail) => Err(TransferError::Refused { peer, detail }),
            };
            drop(events.send(last).await);
        });
        Ok(Pull {
            transfer: TransferId(1),
            events: receiver,
        })
    }

    fn link(&self, _: &SiteName) -> Option<LinkReading> {
        None
    }
}

/// Writes down what comes before it passes it on.
struct Sink {
    events: mpsc::Sender<Result<PullEvent, TransferError>>,
    log: Arc<Log>,
    place: usize,
}

impl PieceSink for Sink {
    fn manifest(&mut self, manifest: KvManifest) {
        drop(self.events.try_send(Ok(PullEvent::Manifest(manifest))));
    }

    fn piece(&mut self, piece: KvPiece) {
        if let Seen::Order { bytes, .. } = &mut self.log.0.lock()[self.place] {
            *bytes += piece.bytes.len() as u64;
        }
        drop(self.events.try_send(Ok(PullEvent::Piece(piece))));
    }

    fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }
}

/// KV of a prompt's whole blocks.
type KeptPrompt = (TenantKey, Arc<[u32]>, Vec<KvPiece>);

/// A fake engine that keeps KV, and writes down what it is given.
struct Watched {
    inner: FakeEngine,
    at: usize,
    kept: Mutex<Vec<KeptPrompt>>,
    log: Arc<Log>,
}

impl Watched {
    /// Leaves KV here without anybody having asked for it.
    async fn fill(&self, key: TenantKey, tokens: Arc<[u32]>) {
        let job = PrefillJob {
            request: portolan_base::RequestId::from_client("fill").unwrap(),
            key,
            about: Arc::new(portolan_base::Provenance::public(
                self.describe().model.clone(),
                1,
            )),
            tokens: Arc::clone(&tokens),
            held: 0,
            retention: Retention::Keep,
            cancel: Default::default(),
        };
        let (pieces_in, mut pieces) = mpsc::unbounded_channel();
        self.inner.prefill(job, pieces_in).await.unwrap();
        let mut whole = Vec::new();
        while let Some(piece) = pieces.recv().await {
            whole.push(piece);
        }
        self.kept.lock().push((key, tokens, whole));
    }

    fn worked(&self, request: &portolan_base::RequestId, retention: Retention) {
        self.log.0.lock().push(Seen::Worked {
            request: request.as_str().to_owned(),
            at: self.at,
            retention,
        });
    }
}

#[async_trait]
impl Engine for Watched {
    fn describe(&self) -> &EngineDescription {
        self.inner.describe()
    }

    fn held(&self, _: &TenantKey, _: &[u32], _: &[Dependency]) -> HeldPrefix {
        HeldPrefix::default()
    }

    fn kept(&self, key: &TenantKey, tokens: &[u32], _: &[Dependency]) -> HeldPrefix {
        let block = self.describe().layout.block_tokens;
        let kept = self.kept.lock();
        let of = |(theirs, prompt, pieces): &KeptPrompt| {
            let same = prompt.iter().zip(tokens).take_while(|(a, b)| a == b).count() as u32;
            let whole = if theirs == key { same / block * block } else { 0 };
            let within = |piece: &&KvPiece| piece.id.tokens.end <= whole;
            HeldPrefix {
                tokens: whole,
                pieces: pieces.iter().filter(within).cloned().collect(),
            }
        };
        kept.iter()
            .map(of)
            .max_by_key(|held| held.tokens)
            .unwrap_or_default()
    }

    fn keep(&self, job: &KeepJob) -> Tokens {
        let tenant = match &job.about.scope {
            Scope::Tenant(tenant) => tenant.to_string(),
            Scope::Public => unreachable!("nothing is public here"),
        };
        self.log.0.lock().push(Seen::Kept {
            tenant,
            jurisdiction: job.about.jurisdiction.clone(),
            at: self.at,
        });
        let pieces = job.kv.pieces().cloned().collect();
        self.kept.lock().push((job.key, Arc::clone(&job.tokens), pieces));
        Tokens(job.kv.tokens())
    }

    async fn prefill(
        &self,
        job: PrefillJob,
        pieces: mpsc::UnboundedSender<KvPiece>,
    ) -> Result<PrefillReport, EngineError> {
        self.worked(&job.request, job.retention);
        self.inner.prefill(job, pieces).await
    }

    fn decode(&self, job: DecodeJob) -> mpsc::UnboundedReceiver<DecodeEvent> {
        self.worked(&job.request, job.retention);
        self.inner.decode(job)
    }

    fn load(&self) -> EngineLoad {
        self.inner.load()
    }

    fn events(&self) -> broadcast::Receiver<KvEvent> {
        self.inner.events()
    }
}
