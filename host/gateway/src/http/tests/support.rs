//! A site of fakes, and the words the tests use to talk to it.

use super::kv::{Cache, Keeping};
use crate::http::{REQUEST_ID, router};
use crate::policies::{DeskParts, PolicyDesk};
use crate::site::{ExactKv, Limits, ServedModel, Site, SiteParts};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt;
use portolan_base::kv::{KvDtype, KvLayout, LayerKv};
use portolan_base::{
    Clock, InstanceName, ModelName, Moment, OperatorName, Permille, Random, SiteName, TenantName, Tokens,
};
use portolan_decide::{
    FleetView, InstanceView, ReplicaRules, RetryConfig, SiteIndex, SiteView, Standing, Timeouts,
};
use portolan_policy::{NameTables, SiteEntry};
use portolan_ports::{
    Engine, EngineDescription, FAKE_VOCABULARY, FakeEngine, FakeFleet, FakeLoader, FakeText, Fleet,
    KeyRecord, MemoryStore, NoLinks, PolicyStore, Principal, QuotaBook, Quotas, Role, TenantRecord,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tower::ServiceExt;

/// Context of the fake model, small so that a test can fill it.
pub(super) const CONTEXT: u32 = 512;

/// Keys: a tenant bound to nothing, a tenant bound to the EU and the class `sensitive`, the operator.
pub(super) const ACME: &str = "key-acme";
pub(super) const GLOBEX: &str = "key-globex";
pub(super) const OPERATOR: &str = "key-operator";

/// 2026-01-01T00:00:00Z in microseconds; each reading is one later.
pub(super) struct StepClock(AtomicU64);

impl StepClock {
    pub(super) fn from_2026() -> Self {
        Self(AtomicU64::new(1_767_225_600_000_000))
    }
}

impl Clock for StepClock {
    fn now(&self) -> Moment {
        Moment(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

pub(super) struct Counter(AtomicU64);

impl From<u64> for Counter {
    fn from(first: u64) -> Self {
        Self(AtomicU64::new(first))
    }
}

impl Random for Counter {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// A site with its doors.
pub(super) struct App {
    pub(super) site: Arc<Site>,
    pub(super) engine: Arc<FakeEngine>,
    pub(super) fleet: Arc<FakeFleet>,
    pub(super) store: Arc<MemoryStore>,
    router: Router,
}

type Change = Box<dyn FnOnce(&mut SiteParts)>;

/// What a site goes by.
#[derive(Default)]
struct Rules {
    limits: Limits,
    timeouts: Timeouts,
    retries: RetryConfig,
    /// What is changed of the site's parts before it is put together.
    change: Option<Change>,
}

impl Rules {
    fn of(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }
}

/// What came back.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl App {
    pub(super) fn new() -> Self {
        Self::with(FakeText::new(), Limits::default())
    }

    pub(super) fn with(text: FakeText, limits: Limits) -> Self {
        Self::made_of(text, Rules::of(limits), &["e1"], |desk| desk)
    }

    /// An app of several instances.
    pub(super) fn of_instances(instances: &[&str]) -> Self {
        Self::made_of(FakeText::new(), Rules::default(), instances, |desk| desk)
    }

    /// An app of several instances that waits and tries again as told.
    pub(super) fn patient(instances: &[&str], timeouts: Timeouts, retries: RetryConfig) -> Self {
        let rules = Rules {
            timeouts,
            retries,
            ..Rules::default()
        };
        Self::made_of(FakeText::new(), rules, instances, |desk| desk)
    }

    /// An app of other parts.
    pub(super) fn changed(change: impl FnOnce(&mut SiteParts) + 'static) -> Self {
        let rules = Rules {
            change: Some(Box::new(change)),
            ..Rules::default()
        };
        Self::made_of(FakeText::new(), rules, &["e1"], |desk| desk)
    }

    /// An app whose desk has further rules.
    pub(super) fn ruled(rules: impl FnOnce(PolicyDesk) -> PolicyDesk) -> Self {
        Self::made_of(FakeText::new(), Rules::default(), &["e1"], rules)
    }

    /// An app that holds every tenant to these quotas.
    pub(super) fn bounded(quotas: Quotas) -> Self {
        Self::ruled(|desk| desk.with_quotas(QuotaBook::new(quotas, BTreeMap::new())))
    }

    fn made_of(
        text: FakeText,
        Rules {
            limits,
            timeouts,
            retries,
            change,
        }: Rules,
        instances: &[&str],
        rules: impl FnOnce(PolicyDesk) -> PolicyDesk,
    ) -> Self {
        let description = description(instances[0]);
        let engine = Arc::new(FakeEngine::new(description.clone()));
        let keeping = Arc::new(Keeping {
            engine: Arc::clone(&engine),
            cache: Cache::filled(),
        });
        let others = instances[1..].iter().map(|name| {
            let engine = Arc::new(FakeEngine::new(self::description(name)));
            (InstanceName::new(name).unwrap(), engine as Arc<dyn Engine>)
        });
        let mut engines: BTreeMap<_, _> = others.collect();
        engines.insert(description.instance.clone(), keeping as Arc<dyn Engine>);
        let store = Arc::new(store());
        let names = names();
        let fleet = Arc::new(FakeFleet::new(view(instances), names.clone()));
        let clock: Arc<dyn Clock> = Arc::new(StepClock::from_2026());
        let tables = Arc::new(names);
        let desk = PolicyDesk::new(DeskParts {
            store: Arc::clone(&store) as Arc<dyn PolicyStore>,
            loader: Arc::new(FakeLoader),
            names: Arc::new(move || Arc::clone(&tables)),
            clock: Arc::clone(&clock),
        });
        let model = ServedModel {
            served: Default::default(),
            text: Arc::new(text),
            description: description.clone(),
            created: 1_700_000_000,
        };
        let mut parts = SiteParts {
            name: SiteName::new("paris").unwrap(),
            index: SiteIndex(0),
            engines,
            models: BTreeMap::from([(description.model, model)]),
            fleet: Arc::clone(&fleet) as Arc<dyn Fleet>,
            transport: Arc::new(NoLinks),
            store: Arc::clone(&store) as Arc<dyn PolicyStore>,
            desk: Arc::new(rules(desk)),
            clock,
            random: Arc::new(Counter::from(1)),
            secret: [7; 32],
            public: Arc::default(),
            limits,
            timeouts,
            retries,
            exact: ExactKv::default(),
            prewarm: None,
            validity: Arc::new(portolan_ports::AlwaysValid),
            replicate: Some(ReplicaRules {
                asks: 3,
                window: Duration::from_secs(3600),
                min_tokens: Tokens(64),
                bounds: portolan_decide::Bounds {
                    per_minute: portolan_base::Bytes(1 << 30),
                    at_once: 1,
                },
                pause: Duration::from_secs(3600),
            }),
        };
        if let Some(change) = change {
            change(&mut parts);
        }
        let site = Site::new(parts);
        Self {
            router: router(Arc::clone(&site)),
            site,
            fleet,
            engine,
            store,
        }
    }

    pub(super) async fn send(&self, request: Request<Body>) -> Reply {
        let response = self
            .router
            .clone()
            .oneshot(request)
            .await
            .expect("the router is infallible");
        let (parts, body) = response.into_parts();
        let body = body
            .collect()
            .await
            .expect("bodies of ours do not fail")
            .to_bytes();
        let reply = Reply {
            status: parts.status,
            headers: parts.headers,
            body,
        };
        assert!(
            reply.headers.contains_key(REQUEST_ID),
            "every response names its request: {reply:?}"
        );
        reply
    }

    pub(super) async fn get(&self, key: &str, path: &str) -> Reply {
        self.send(request(Method::GET, path, key, Body::empty())).await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Reply {
        self.post_as(ACME, path, body).await
    }

    pub(super) async fn post_as(&self, key: &str, path: &str, body: Value) -> Reply {
        self.send(request(Method::POST, path, key, Body::from(body.to_string())))
            .await
    }

    pub(super) async fn complete(&self, body: Value) -> Reply {
        self.post("/v1/completions", body).await
    }

    pub(super) async fn chat(&self, body: Value) -> Reply {
        self.post("/v1/chat/completions", body).await
    }
}

impl Reply {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The `data:` values of a stream, which has to consist of nothing else.
    pub(super) fn events(&self) -> Vec<&str> {
        let text = std::str::from_utf8(&self.body).unwrap();
        let mut events: Vec<_> = text.split("\n\n").collect();
        assert_eq!(events.pop(), Some(""), "a stream ends with a blank line");
        let strip = |event: &'_ str| event.strip_prefix("data: ").map(str::len);
        for event in &events {
            assert!(strip(event).is_some() && !event.contains('\n'), "{event:?}");
        }
        events.into_iter().map(|event| &event["data: ".len()..]).collect()
    }

    /// The JSON events of a stream that ends with `[DONE]`.
    pub(super) fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop(), Some("[DONE]"));
        events
            .into_iter()
            .map(|event| serde_json::from_str(event).unwrap())
            .collect()
    }
}

/// Checks a failure: status, type, param, a phrase of the message, and OpenAI's shape.
pub(super) fn expect_error(
    what: &str,
    reply: &Reply,
    (status, kind, param, phrase): (u16, &str, Option<&str>, &str),
) {
    assert_eq!(reply.status.as_u16(), status, "{what}: {reply:?}");
    assert_eq!(reply.header("content-type"), "application/json", "{what}");
    let json = reply.json();
    let error = json["error"]
        .as_object()
        .unwrap_or_else(|| panic!("{what}: {json}"));
    let mut fields: Vec<_> = error.keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["code", "message", "param", "type"], "{what}");
    assert_eq!(error["type"], kind, "{what}: {json}");
    assert_eq!(error["param"].as_str(), param, "{what}: {json}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(phrase), "{what}: {message:?} lacks {phrase:?}");
    assert!(
        message.len() < 600,
        "{what}: a message must not echo the request: {} bytes",
        message.len()
    );
}

/// `base` with some fields changed; a null removes the field.
pub(super) fn merged(mut base: Value, changes: Value) -> Value {
    let (Value::Object(fields), Value::Object(changes)) = (&mut base, changes) else {
        panic!("not objects")
    };
    for (name, value) in changes {
        match value {
            Value::Null => drop(fields.remove(&name)),
            value => drop(fields.insert(name, value)),
        }
    }
    base
}

pub(super) fn request(method: Method, path: &str, key: &str, body: Body) -> Request<Body> {
    let builder = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json");
    let builder = if key.is_empty() {
        builder
    } else {
        builder.header("authorization", format!("Bearer {key}"))
    };
    builder.body(body).unwrap()
}

pub(super) fn description(instance: &str) -> EngineDescription {
    let model = ModelName::new("fake").unwrap();
    let layers = vec![LayerKv::FullAttention {
        kv_heads: 1,
        head_dim: 2,
    }];
    EngineDescription {
        instance: InstanceName::new(instance).unwrap(),
        model: model.clone(),
        role: Role::Both,
        layout: Arc::new(KvLayout {
            model,
            model_version: 1,
            dtype: KvDtype::F32,
            block_tokens: 16,
            window: None,
            layers,
        }),
        context_tokens: Tokens(CONTEXT),
        vocabulary: FAKE_VOCABULARY,
        decode_slots: 8,
    }
}

fn names() -> NameTables {
    NameTables {
        tenant: String::new(),
        sites: vec![SiteEntry {
            name: "paris".into(),
            region: "europe".into(),
            jurisdiction: 1,
        }],
        jurisdictions: ["any", "eu", "us"].map(Into::into).to_vec(),
        models: vec!["fake".into()],
        user_classes: ["standard", "sensitive", "secret"].map(Into::into).to_vec(),
    }
}

fn view(instances: &[&str]) -> FleetView {
    let instance = |name: &&str| InstanceView {
        name: InstanceName::new(name).unwrap(),
        site: SiteIndex(0),
        model: 0,
        role: Role::Both,
        serving: Default::default(),
        standing: Standing::Ready,
        prefill_queued_requests: 0,
        prefill_queued_tokens: 0,
        decode_running: 0,
        decode_slots: 8,
        kv_used: Permille(0),
        prefill_busy: Permille(0),
        decode_busy: Permille(0),
        prefill_ns_per_token: 1000,
        prefill_curve: Default::default(),
        decode_step_us: 100,
        price_micros_per_kilotoken: 1,
    };
    FleetView {
        sites: vec![SiteView {
            name: SiteName::new("paris").unwrap(),
            jurisdiction: 1,
        }],
        instances: instances.iter().map(instance).collect(),
        links: BTreeMap::new(),
        elsewhere: Default::default(),
        offload_threshold: Tokens(4096),
        congestion_mark: Permille(700),
        bandwidth: Default::default(),
    }
}

fn store() -> MemoryStore {
    let store = MemoryStore::new();
    let tenant = |name: &str, jurisdiction: &str, class: &str| TenantRecord {
        name: TenantName::new(name).unwrap(),
        jurisdiction: jurisdiction.into(),
        user_class: class.into(),
    };
    for record in [
        tenant("acme", "", "standard"),
        tenant("globex", "eu", "sensitive"),
        tenant("lost", "mars", ""),
    ] {
        let key = format!("key-{}", record.name);
        let let_in = KeyRecord {
            principal: Principal::Tenant(record.name.clone()),
            label: "test".into(),
            holder: None,
        };
        store.put_tenant(record, "test", Moment(1)).unwrap();
        store.put_key(&key, let_in, "test", Moment(1)).unwrap();
    }
    let operator = KeyRecord {
        principal: Principal::Operator,
        label: "test".into(),
        holder: None,
    };
    for name in ["alice", "bob"] {
        let named = KeyRecord {
            holder: Some(OperatorName::new(name).unwrap()),
            ..operator.clone()
        };
        store
            .put_key(&format!("key-{name}"), named, "test", Moment(1))
            .unwrap();
    }
    store.put_key(OPERATOR, operator, "test", Moment(1)).unwrap();
    store
}
