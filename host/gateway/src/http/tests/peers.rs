//! Orders of other sites: whose KV is computed for them.

use super::support::App;
use crate::peer::PeerService;
use crate::site::SiteParts;
use async_trait::async_trait;
use parking_lot::Mutex;
use portolan_base::kv::KvManifest;
use portolan_base::{
    BlockId, InstanceName, ModelName, Moment, Permille, Provenance, RequestId, Sequence, SiteName, TenantKey,
    TenantName, Tokens,
};
use portolan_decide::{Bounds, Draw, PrewarmRules};
use portolan_ports::{
    AlwaysValid, AsOf, Begun, CacheValidity, ControlError, DecodeEvent, DecodeJob, Engine,
    EngineDescription, EngineError, EngineLoad, Given, HeldPrefix, InUse, Invalidated,
    Invalidation, KvEvent, KvOrder, KvPiece, KvSource, Order, OrderPurpose, Patience, PieceSink,
    PrefillJob, PrefillReport, Retention, SiteEffect, Stale,
};
use std::sync::Arc;
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
    fn held(&self, key: &TenantKey, tokens: &[u32]) -> HeldPrefix {
        self.engine.held(key, tokens)
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
