//! KV of engines that keep it with the host: copied between sites as the host's own is.

use super::*;
use portolan_base::kv::{KvLayout, LayerKv, PieceId};
use portolan_base::{BlockHash, InstanceName, ModelName, Provenance, Scope, TenantKey, TenantName};
use portolan_ports::{Engine, KeepJob, KvPiece, KvSet};

/// Tokens in a block of the engines, and of what lies in virginia.
const BLOCK: u32 = 32;
const HELD: u32 = 96;

/// Two sites with a modelled engine each. No engine takes KV here: what is looked at is what the host brings.
struct Sites {
    host: Host,
    _engines: [ModelledEngine; 2],
    _folder: TempDir,
}

impl Sites {
    async fn start() -> Self {
        let engines = [engine(true).await, engine(true).await];
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let instance = |name: &str, engine: &ModelledEngine| {
            format!(
                "{{name: {name}, model: {MODEL}, engine: vllm, server: {{url: 'http://{}', kv_store: {{socket: '{}', \
                 block_tokens: {BLOCK}}}}}}}",
                engine.address(),
                at(&format!("{name}.sock")).display()
            )
        };
        // The link is said to be so fast that the smallest prompt pays.
        let config = Config::parse(&format!(
            "data_dir: {}\noperator_keys: [{ADMIN}]\nmodels: [{{name: {MODEL}, path: {}}}]\nsites:\n  - {{name: paris, \
             jurisdiction: eu, listen: '127.0.0.1:0', instances: [{}]}}\n  - {{name: virginia, jurisdiction: us, listen: \
             '127.0.0.1:0', instances: [{}]}}\nlinks: [{{from: virginia, to: paris, capacity_mbps: 100000, rtt_ms: 0}}]\n\
             tenants: [{{name: acme, keys: [{ACME}]}}, {{name: globex, keys: [{GLOBEX}], jurisdiction: eu}}]\n",
            at("data").display(),
            oracle_folder("tiny-qwen3").display(),
            instance("p", &engines[0]),
            instance("v", &engines[1])
        ))
        .unwrap();
        Self {
            host: Host::start(config).await.unwrap(),
            _engines: engines,
            _folder: folder,
        }
    }

    fn site(&self, name: &str) -> Arc<Site> {
        Arc::clone(self.host.site(name).unwrap().gateway().unwrap())
    }

    fn engine(&self, site: &str, instance: &str) -> Arc<dyn Engine> {
        let name = InstanceName::new(instance).unwrap();
        Arc::clone(&self.site(site).parts.engines[&name])
    }

    fn key(&self, tenant: &str) -> TenantKey {
        let site = self.site("paris");
        let model = ModelName::new(MODEL).unwrap();
        let version = site.parts.models[&model].description.layout.model_version;
        TenantKey::derive(&site.parts.secret, tenant, MODEL, version)
    }

    /// Lays down KV in virginia as an engine there does, and waits until paris knows.
    async fn computed_in_virginia(&self, tenant: &str, prompt: &[u32]) -> Vec<KvPiece> {
        let engine = self.engine("virginia", "v");
        let layout = Arc::clone(&engine.describe().layout);
        let key = self.key(tenant);
        let job = KeepJob {
            key,
            tokens: prompt[..HELD as usize].into(),
            kv: KvSet::assemble(Arc::clone(&layout), HELD, pieces(&layout)).unwrap(),
            about: Arc::new(Provenance {
                scope: Scope::Tenant(TenantName::new(tenant).unwrap()),
                ..Provenance::public(ModelName::new(MODEL).unwrap(), layout.model_version)
            }),
        };
        assert_eq!(engine.keep(&job).0, HELD);
        let (paris, model) = (self.site("paris"), ModelName::new(MODEL).unwrap());
        let chain = BlockHash::chain(&key, prompt);
        let until = Instant::now() + PATIENCE;
        while paris.parts.fleet.held(&model, &chain).iter().max() < Some(&HELD) {
            assert!(Instant::now() < until, "paris was never told");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        engine.kept(&key, prompt, &[]).pieces
    }

    async fn ask(&self, key: &str, id: &str, prompt: &[u32]) -> PathRecord {
        let paris = Client(self.host.site("paris").unwrap().http());
        let mut body = theirs(prompt);
        body["request_id"] = json!(id);
        paris.complete(key, &body).await;
        record_at(&self.site("paris"), id).await
    }
}

/// Values that are all apart.
fn pieces(layout: &KvLayout) -> Vec<KvPiece> {
    let mut fill = 0u8;
    let mut all = Vec::new();
    for (layer, shape) in (0u16..).zip(&layout.layers) {
        assert!(matches!(shape, LayerKv::FullAttention { .. }));
        for block in 0..HELD / BLOCK {
            fill += 1;
            let size = layout.piece_bytes(layer, portolan_base::Tokens(BLOCK)).unwrap().0;
            let tokens = block * BLOCK..(block + 1) * BLOCK;
            all.push(KvPiece {
                id: PieceId { layer, tokens },
                bytes: (0..size)
                    .map(|n| fill.wrapping_mul(n as u8))
                    .collect::<Vec<_>>()
                    .into(),
            });
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_engine_of_another_site_laid_down_lies_here_before_the_request_reaches_the_engine() {
    let sites = Sites::start().await;
    let prompt = prompt(1, 120);
    let there = sites.computed_in_virginia("acme", &prompt).await;
    let here = sites.engine("paris", "p");
    assert_eq!(here.kept(&sites.key("acme"), &prompt, &[]).tokens, 0);
    let record = sites.ask(ACME, "s-1", &prompt).await;
    let [fetch] = record.fetches.as_slice() else {
        panic!("one fetch: {record:?}")
    };
    assert_eq!((fetch.site.as_str(), fetch.instance.as_str()), ("virginia", "v"));
    assert_eq!((fetch.wanted_tokens, fetch.tokens), (HELD, HELD), "{fetch:?}");
    let kept = here.kept(&sites.key("acme"), &prompt, &[]);
    assert_eq!(kept.tokens, HELD);
    assert!(kept.pieces == there, "byte for byte");
    assert_eq!(
        here.kept(&sites.key("globex"), &prompt, &[]).tokens,
        0,
        "another tenant's"
    );
    let again = sites.ask(ACME, "s-2", &prompt).await;
    assert!(again.fetches.is_empty(), "it is here: {:?}", again.fetches);
    sites.host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_residency_denies_does_not_come() {
    let sites = Sites::start().await;
    let prompt = prompt(2, 120);
    sites.computed_in_virginia("globex", &prompt).await;
    let record = sites.ask(GLOBEX, "s-3", &prompt).await;
    assert_eq!(record.status, "ok");
    assert_eq!(record.kv.bytes_moved, 0);
    assert_eq!(
        sites
            .engine("paris", "p")
            .kept(&sites.key("globex"), &prompt, &[])
            .tokens,
        0
    );
    sites.host.stop().await;
}
