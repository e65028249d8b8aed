//! What an operator sees of the site's KV, and how it is made to go.

use super::support::{ACME, App, OPERATOR, Reply};
use async_trait::async_trait;
use parking_lot::Mutex;
use portolan_base::{
    BlockHash, BlockId, Bytes, Dependency, ModelName, Moment, Provenance, Scope, TenantKey, TenantName,
};
use portolan_kv::tier::{BlockTier, Card, HostTier, Left, TierUse, Tiers, Top};
use portolan_kv::{BlockKv, PoolBlock, PoolConfig, PrefixPool, Selector};
use portolan_ports::{
    DecodeEvent, DecodeJob, Engine, EngineDescription, EngineError, EngineLoad, FakeEngine, HeldPrefix,
    KvCache, KvEvent, KvPiece, PrefillJob, PrefillReport,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};

/// When the caches of these tests were last used, and ten seconds later.
const USED: Moment = Moment(1_000_000);
const NOW: Moment = Moment(11_000_000);

/// A pool above a tier of host memory.
pub(super) struct Cache {
    pool: Mutex<PrefixPool>,
    tiers: Tiers,
}

impl Cache {
    /// Two blocks of acme in the pool, a public one in host memory.
    pub(super) fn filled() -> Arc<Self> {
        let host = Arc::new(HostTier::new(PoolConfig::of(Bytes(1 << 20))));
        host.offer(Arc::new(block(9, None, Scope::Public, 5000)), USED);
        let mut pool = PrefixPool::new(PoolConfig::of(Bytes(1 << 20)));
        let acme = || Scope::Tenant(TenantName::new("acme").unwrap());
        assert!(pool.insert(block(1, None, acme(), 3000), USED).added);
        assert!(pool.insert(block(2, Some(1), acme(), 1000), USED).added);
        let cache = Arc::new(Self {
            pool: Mutex::new(pool),
            tiers: Tiers::new(vec![host]),
        });
        let top: Arc<dyn Top> = Arc::<Self>::clone(&cache);
        cache.tiers.attach(Arc::downgrade(&top));
        cache
    }
}

fn block(n: u8, parent: Option<u8>, scope: Scope, size: usize) -> PoolBlock {
    PoolBlock {
        id: BlockId([n; 16]),
        parent: parent.map(|n| BlockId([n; 16])),
        hashes: vec![BlockHash(u64::from(n))],
        about: Arc::new(Provenance {
            scope,
            jurisdiction: "eu".to_owned(),
            ..Provenance::public(ModelName::new("fake").unwrap(), 3)
        }),
        rebuild: Duration::from_millis(2),
        kv: BlockKv {
            attention: vec![vec![n; size].into()],
            snapshot: None,
        },
    }
}

impl Top for Cache {
    fn would_forget(&self, what: &Selector, others: &[BlockId]) -> Vec<(BlockId, Bytes)> {
        self.pool.lock().would_forget(what, others)
    }
    fn invalidate(&self, what: &Selector, others: &[BlockId]) -> Vec<Left> {
        let mut pool = self.pool.lock();
        let mut gone = pool.invalidate(what);
        gone.extend(pool.forget(others));
        gone.iter().map(|block| block.as_ref().into()).collect()
    }
    fn holds(&self, id: &BlockId) -> bool {
        self.pool.lock().see(id).is_some()
    }
    fn left(&self, _: &[Left]) {}
}

impl KvCache for Cache {
    fn usage(&self) -> TierUse {
        TierUse::of(&self.pool.lock())
    }
    fn each(&self, show: &mut dyn FnMut(Card)) {
        self.pool.lock().iter().for_each(|seen| show(seen.into()));
    }
    fn tiers(&self) -> &Tiers {
        &self.tiers
    }
    fn now(&self) -> Moment {
        NOW
    }
}

/// A fake engine that keeps something.
pub(super) struct Keeping {
    pub(super) engine: Arc<FakeEngine>,
    pub(super) cache: Arc<Cache>,
}

#[async_trait]
impl Engine for Keeping {
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
    fn cache(&self) -> Option<&dyn KvCache> {
        Some(self.cache.as_ref())
    }
}

fn hex(n: u8) -> String {
    format!("{n:02x}").repeat(16)
}

async fn listed(app: &App, query: &str) -> Vec<String> {
    let list = app
        .get(OPERATOR, &format!("/v1/portolan/kv/blocks{query}"))
        .await
        .json();
    let blocks = list["data"].as_array().unwrap().iter();
    blocks
        .map(|block| block["id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn every_place_tells_what_it_holds_by_tenant() {
    let app = App::new();
    let stats = app.get(OPERATOR, "/v1/portolan/kv/stats").await.json();
    let place = |n: usize| &stats["data"][n];
    assert_eq!(stats["data"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&place(0)["tier"], &place(0)["blocks"]),
        (&json!("engine"), &json!(2))
    );
    assert_eq!(place(0)["site"], "paris");
    assert_eq!(place(0)["tenants"][0]["tenant"], "acme");
    assert_eq!(
        (&place(1)["tier"], &place(1)["instance"]),
        (&json!("host"), &Value::Null)
    );
    assert_eq!(place(1)["tenants"][0]["tenant"], "_public");
    let metrics = app.get("", "/metrics").await;
    let page = String::from_utf8_lossy(&metrics.body).into_owned();
    let instance = place(0)["instance"].as_str().unwrap();
    let line = format!("portolan_kv_blocks{{tier=\"engine\",instance=\"{instance}\",tenant=\"acme\"}} 2");
    assert!(page.contains(&line), "{line}\n{page}");
    assert!(page.contains("portolan_kv_hits_total{tier=\"host\""), "{page}");
}

#[tokio::test]
async fn blocks_are_listed_by_size_or_use_and_shown_without_tokens() {
    let app = App::new();
    assert_eq!(listed(&app, "?sort=size").await, [hex(9), hex(1), hex(2)]);
    assert_eq!(listed(&app, "?sort=size&limit=1").await, [hex(9)]);
    assert_eq!(listed(&app, "?tenant=acme&sort=size").await, [hex(1), hex(2)]);
    assert_eq!(listed(&app, "?tier=host").await, [hex(9)]);
    assert_eq!(listed(&app, "?instance=nobody").await, Vec::<String>::new());
    let shown = app
        .get(OPERATOR, &format!("/v1/portolan/kv/blocks/{}", hex(2)))
        .await
        .json();
    let block = &shown["data"][0];
    assert_eq!(
        (&block["parent"], &block["tenant"]),
        (&json!(hex(1)), &json!("acme"))
    );
    assert_eq!(
        (&block["jurisdiction"], &block["model_version"]),
        (&json!("eu"), &json!(3))
    );
    assert_eq!(
        (&block["idle_s"], &block["rebuild_us"]),
        (&json!(10), &json!(2000))
    );
    assert!(block.get("hashes").is_none() && block.get("tokens").is_none());
    let missing = app
        .get(OPERATOR, &format!("/v1/portolan/kv/blocks/{}", hex(7)))
        .await;
    assert_eq!(missing.status, 404);
    assert_eq!(app.get(OPERATOR, "/v1/portolan/kv/blocks/xyz").await.status, 400);
    assert_eq!(
        app.get(OPERATOR, "/v1/portolan/kv/blocks?sort=age").await.status,
        400
    );
}

#[tokio::test]
async fn a_tenant_that_the_host_does_not_know_is_a_typing_error() {
    let app = App::new();
    let reply = app
        .post_as(OPERATOR, "/v1/portolan/kv/evict", json!({"tenant": "acmee"}))
        .await;
    assert_eq!(reply.status, 404);
    let error = &reply.json()["error"];
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("tenant_not_found"), &json!("tenant"))
    );
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("is \"acme\" meant?"), "{message}");
    let far = json!({"tenant": "somebody-else"});
    let reply = app.post_as(OPERATOR, "/v1/portolan/kv/evict", far).await;
    let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("portolan tenant usage"), "{message}");
}

#[tokio::test]
async fn what_an_operator_evicts_is_gone_everywhere() {
    let evict = async |app: &App, order: Value| -> Reply {
        app.post_as(OPERATOR, "/v1/portolan/kv/evict", order).await
    };
    let app = App::new();
    assert_eq!(
        evict(&app, json!({"block": hex(1)})).await.json(),
        json!({"evicted": 2})
    );
    assert_eq!(
        listed(&app, "").await,
        [hex(9)],
        "what was computed on top of it went too"
    );
    assert_eq!(
        evict(&app, json!({"tenant": "_public"})).await.json(),
        json!({"evicted": 1})
    );
    assert!(listed(&app, "").await.is_empty());
    let app = App::new();
    assert_eq!(
        evict(&app, json!({"tenant": "acme"})).await.json(),
        json!({"evicted": 2})
    );
    assert_eq!(
        evict(&app, json!({"all": true})).await.json(),
        json!({"evicted": 1})
    );
    for bad in [
        json!({}),
        json!({"all": true, "tenant": "acme"}),
        json!({"block": "1"}),
        json!({"tenant": "A B"}),
    ] {
        assert_eq!(evict(&app, bad.clone()).await.status, 400, "{bad}");
    }
    for path in ["/v1/portolan/kv/stats", "/v1/portolan/kv/blocks"] {
        assert_eq!(app.get(ACME, path).await.status, 403, "{path}");
    }
    assert_eq!(
        app.post_as(ACME, "/v1/portolan/kv/evict", json!({"all": true}))
            .await
            .status,
        403
    );
}
