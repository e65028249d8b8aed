//! Orders of other sites: whose KV is computed for them, and who waits meanwhile.

use super::support::App;
use crate::peer::PeerService;
use crate::policies::{By, DeskParts, PolicyDesk, PolicySlot, Upload};
use crate::site::SiteParts;
use async_trait::async_trait;
use parking_lot::Mutex;
use portolan_base::kv::KvManifest;
use portolan_base::{
    BlockId, Dependency, InstanceName, ModelName, Moment, Permille, Provenance, RequestId, Sequence,
    SiteName, TenantKey, TenantName, Tokens,
};
use portolan_decide::{Bounds, Draw, PrewarmRules};
use portolan_policy::{Answered, Call, Policy, PolicyDescriptor, QuestionKind, Scope};
use portolan_ports::{
    AlwaysValid, AsOf, Begun, Binding, CacheValidity, ControlError, DecodeEvent, DecodeJob, Engine,
    EngineDescription, EngineError, EngineLoad, FakeLoader, Given, HeldPrefix, InUse, Invalidated,
    Invalidation, KvEvent, KvOrder, KvPiece, KvSource, Order, OrderPurpose, Patience, PieceSink,
    PolicyLoader, PolicyRejection, PolicyReport, PrefillJob, PrefillReport, Rehearsal, Retention, Reuse,
    SiteEffect, Stale,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};

/// How far orders about the model raised its version.
const RAISED: u64 = 41;

/// Everything is valid, and the model was invalidated.
struct Raised;

#[async_trait]
impl CacheValidity for Raised {
    fn begin(&self) -> Begun {
        AlwaysValid.begin()
    }
    fn place(&self) -> AsOf {
        AlwaysValid.place()
    }
    fn check(&self, now: Moment) -> Result<(), Stale> {
        AlwaysValid.check(now)
    }
    fn check_kv(&self, kv: InUse<'_>, now: Moment, has: &dyn Fn(&BlockId) -> bool) -> Result<(), Stale> {
        AlwaysValid.check_kv(kv, now, has)
    }
    fn version(&self, _: &ModelName, configured: u64) -> u64 {
        configured + RAISED
    }
    fn epoch(&self, about: &Provenance) -> Sequence {
        AlwaysValid.epoch(about)
    }
    fn aborts(&self) -> broadcast::Receiver<Arc<Invalidation>> {
        AlwaysValid.aborts()
    }
    async fn invalidate(&self, order: Order, patience: Patience) -> Result<Given, ControlError> {
        AlwaysValid.invalidate(order, patience).await
    }
    async fn rehearse(&self, what: &Invalidated) -> Vec<SiteEffect> {
        AlwaysValid.rehearse(what).await
    }
}

/// Notes whose KV it computes.
struct Noting {
    engine: Arc<dyn Engine>,
    computed: Mutex<Vec<Arc<Provenance>>>,
}

#[async_trait]
impl Engine for Noting {
    fn describe(&self) -> &EngineDescription {
        self.engine.describe()
    }
    fn held(&self, key: &TenantKey, tokens: &[u32], on: &[Dependency]) -> HeldPrefix {
        self.engine.held(key, tokens, on)
    }
    async fn prefill(
        &self,
        job: PrefillJob,
        pieces: mpsc::UnboundedSender<KvPiece>,
    ) -> Result<PrefillReport, EngineError> {
        self.computed.lock().push(Arc::clone(&job.about));
        self.engine.prefill(job, pieces).await
    }
    fn decode(&self, job: DecodeJob) -> mpsc::UnboundedReceiver<DecodeEvent> {
        self.engine.decode(job)
    }
    fn load(&self) -> EngineLoad {
        self.engine.load()
    }
    fn events(&self) -> broadcast::Receiver<KvEvent> {
        self.engine.events()
    }
}

struct Taken;

impl PieceSink for Taken {
    fn manifest(&mut self, _: KvManifest) {}
    fn piece(&mut self, _: KvPiece) {}
    fn is_cancelled(&self) -> bool {
        false
    }
}

fn order(purpose: OrderPurpose) -> KvOrder {
    KvOrder {
        request: RequestId::from_client("r").unwrap(),
        tenant: TenantName::new("acme").unwrap(),
        jurisdiction: String::new(),
        user_class: "standard".to_owned(),
        model: ModelName::new("fake").unwrap(),
        model_version: 1,
        instance: InstanceName::new("e1").unwrap(),
        tokens: (1..100).collect(),
        held: 0,
        retention: Retention::Keep,
        draw: Draw::default(),
        fidelity: Default::default(),
        dependencies: Arc::default(),
        fetch_from: Arc::default(),
        as_of: AsOf::default(),
        purpose,
    }
}

async fn served(app: &App, order: KvOrder) -> Result<PrefillReport, String> {
    let peers = PeerService::new(&app.site);
    peers
        .serve(SiteName::new("paris").unwrap(), order, Box::new(Taken))
        .await
}

#[tokio::test]
async fn what_is_computed_for_others_is_of_the_version_that_the_model_has_since_the_latest_order() {
    let noting = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&noting);
    let app = App::changed(move |parts: &mut SiteParts| {
        parts.validity = Arc::new(Raised);
        parts.prewarm = Some(PrewarmRules {
            likely: Permille(500),
            min_tokens: Tokens(16),
            bounds: Bounds {
                per_minute: portolan_base::Bytes(1 << 30),
                at_once: 1,
            },
            pause: Duration::ZERO,
        });
        let name = InstanceName::new("e1").unwrap();
        let engine = Arc::new(Noting {
            engine: parts.engines.remove(&name).unwrap(),
            computed: Mutex::default(),
        });
        *noted.lock() = Some(Arc::clone(&engine));
        parts.engines.insert(name, engine);
    });
    let engine = noting.lock().take().unwrap();
    for purpose in [OrderPurpose::Serve, OrderPurpose::Prewarm] {
        served(&app, order(purpose)).await.unwrap();
        let computed = engine.computed.lock().pop().unwrap();
        assert_eq!(
            computed.model_version,
            1 + RAISED,
            "{purpose:?}: KV of an older one is not kept"
        );
    }
}

/// How long a slow policy takes.
const SLOW: Duration = Duration::from_millis(300);

/// Makes policies that keep their thread for a while.
struct SlowLoader;

struct Slow(Arc<dyn Policy>);

impl Policy for Slow {
    fn descriptor(&self) -> &PolicyDescriptor {
        self.0.descriptor()
    }
    fn ask(&self, call: &Call<'_>) -> Answered {
        std::thread::sleep(SLOW);
        self.0.ask(call)
    }
}

impl PolicyLoader for SlowLoader {
    fn check(
        &self,
        question: Option<QuestionKind>,
        component: &[u8],
        rehearsal: Option<Rehearsal<'_>>,
    ) -> PolicyReport {
        FakeLoader.check(question, component, rehearsal)
    }
    fn compile(&self, component: &[u8]) -> Result<Vec<u8>, PolicyRejection> {
        FakeLoader.compile(component)
    }
    fn accepts(&self, sha256: &str, compiled: &[u8]) -> bool {
        FakeLoader.accepts(sha256, compiled)
    }
    fn load(
        &self,
        binding: &Binding,
        component: &[u8],
        compiled: Option<&[u8]>,
    ) -> Result<Arc<dyn Policy>, PolicyRejection> {
        let policy = FakeLoader.load(binding, component, compiled)?;
        Ok(Arc::new(Slow(policy)))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_slow_residency_policy_holds_up_its_own_order_and_nobody_else() {
    let app = App::changed(|parts: &mut SiteParts| {
        let names = parts.fleet.names();
        parts.desk = Arc::new(PolicyDesk::new(DeskParts {
            store: Arc::clone(&parts.store),
            loader: Arc::new(SlowLoader),
            names: Arc::new(move || Arc::clone(&names)),
            clock: Arc::clone(&parts.clock),
        }));
    });
    let upload = Upload {
        slot: PolicySlot::new(Scope::Platform, QuestionKind::Residency),
        name: "slow".to_owned(),
        config: None,
        component: "ok:slow".to_owned().into(),
        signature: String::new(),
        budget: None,
        reuse: Reuse::ByClass,
    };
    app.site.parts.desk.upload(upload, &By::new("op", "")).unwrap();
    let ticks = Arc::new(AtomicU32::new(0));
    let counting = tokio::spawn({
        let ticks = Arc::clone(&ticks);
        async move {
            loop {
                tokio::time::sleep(Duration::from_millis(10)).await;
                ticks.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    // In a task, as the transport serves it: the test's own body is not run by the worker.
    let serving = tokio::spawn(async move { served(&app, order(OrderPurpose::Serve)).await });
    serving.await.unwrap().unwrap();
    counting.abort();
    let ticks = ticks.load(Ordering::Relaxed);
    assert!(ticks >= 5, "{ticks} ticks of a task beside it in {SLOW:?}");
}
