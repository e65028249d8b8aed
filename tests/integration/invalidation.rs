//! What is invalidated at one site is used at no site any more, once whoever ordered it was told that it is done.

use portolan::client::{Client, ClientError};
use portolan::config::{Config, PressureConfig};
use portolan_base::{BlockHash, Dependency, ModelName, TenantKey};
use portolan_ports::{CacheValidity, Invalidated, Order, Patience, Running};
use portolan_tests::world::{ACME, ADMIN, GLOBEX, MODEL, record_of, shipped};
use portolan_tests::{Ask, Link, World, oracle_folder};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

const FAST: Link = Link {
    delay_ms: 0,
    rate_mbps: 0,
};

/// Tokens of a prompt; 448 of them fill whole blocks.
const PROMPT: u32 = 500;
const BLOCKS: u32 = 448;

fn prompt(salt: u32) -> Vec<u32> {
    (0..PROMPT).map(|i| (i * 6007 + 5 + salt * 31) % 2000).collect()
}

fn world(change: impl FnOnce(&mut Config)) -> World {
    World::start_changed(&oracle_folder("tiny-qwen3"), FAST, |config| {
        let instances = config.sites.iter_mut().flat_map(|site| &mut site.instances);
        instances.for_each(|instance| instance.kv_pool_mib = 64);
        change(config);
    })
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "every caller makes its order in place"
)]
fn invalidate(world: &World, key: &str, order: Value) -> Result<Value, ClientError> {
    let reply = world.client(key).post("/v1/portolan/invalidate", &order);
    reply.map(|reply| reply.body)
}

/// Asks for a prompt that depends on things; gives the tokens found in a cache, and the answer's.
fn ask(world: &World, key: &str, salt: u32, dependencies: &Value) -> (u32, Vec<u32>) {
    let mut body = Ask::tokens(&prompt(salt)).local().max(4).body(false);
    body["portolan"] = json!({ "dependencies": dependencies });
    let client = world.client(key);
    let reply = client.post("/v1/completions", &body).unwrap();
    let record = record_of(&client, reply.request_id.as_deref().unwrap());
    let tokens = serde_json::from_value(reply.body["choices"][0]["token_ids"].clone()).unwrap();
    (record.kv.cached_tokens, tokens)
}

fn cached(world: &World, key: &str, salt: u32) -> u32 {
    ask(world, key, salt, &json!([])).0
}

fn document(name: &str, version: &str) -> Value {
    json!({ "kind": "document", "name": name, "version": version })
}

#[test]
fn a_models_version_rises_at_every_site_and_over_a_restart() {
    let world = world(|_| {});
    let none = json!([]);
    let (before, tokens) = ask(&world, ACME, 1, &none);
    assert_eq!((before, cached(&world, ACME, 1)), (0, BLOCKS));
    let remote = Ask::tokens(&prompt(1)).remote().max(4);
    assert_eq!(world.ask(&remote).tokens, tokens);

    let would = invalidate(&world, ADMIN, json!({"model": MODEL, "dry_run": true})).unwrap();
    assert!(
        would["blocks"].as_u64().unwrap() >= 7 && would["bytes"].as_u64().unwrap() > 0,
        "{would}"
    );
    let sites: Vec<_> = would["sites"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["site"].as_str().unwrap())
        .collect();
    assert_eq!(sites, ["paris", "virginia"]);
    assert_eq!(cached(&world, ACME, 1), BLOCKS, "asking changes nothing");

    let done = invalidate(
        &world,
        ADMIN,
        json!({"model": MODEL, "wait": true, "reason": "new weights"}),
    )
    .unwrap();
    assert_eq!(
        (&done["blocks"], &done["bytes"]),
        (&would["blocks"], &would["bytes"])
    );
    let sites = done["sites"].as_array().unwrap();
    assert!(
        sites.len() == 2 && sites.iter().all(|site| site["applied_ms"].is_number()),
        "{done}"
    );
    let stats = world.client(ADMIN).get("/v1/portolan/kv/stats").unwrap().body;
    assert!(
        stats["data"]
            .as_array()
            .unwrap()
            .iter()
            .all(|place| place["blocks"] == 0),
        "{stats}"
    );

    let (after, again) = ask(&world, ACME, 1, &none);
    assert_eq!((after, &again), (0, &tokens), "computed anew, to the same answer");
    assert_eq!(cached(&world, ACME, 1), BLOCKS);
    assert_eq!(world.ask(&remote).tokens, tokens);
    let version = |world: &World| {
        let blocks = world
            .client(ADMIN)
            .get("/v1/portolan/kv/blocks?limit=1")
            .unwrap()
            .body;
        blocks["data"][0]["model_version"].as_u64().unwrap()
    };
    let raised = 1 + done["id"].as_u64().unwrap();
    assert_eq!(version(&world), raised);

    let world = world.restart();
    assert_eq!(ask(&world, ACME, 1, &none), (0, tokens));
    assert_eq!(version(&world), raised);
    let log = world.client(ADMIN).get("/v1/portolan/audit").unwrap().body;
    let line = log["data"]
        .as_array()
        .unwrap()
        .iter()
        .find(|line| line["action"] == "kv.invalidate");
    let line = line.expect("it is in the audit log");
    assert_eq!(line["subject"], format!("all KV of model {MODEL}"));
    assert_eq!(line["reason"], "new weights");
    let metrics = world.client(ADMIN).get("/metrics").unwrap().body;
    let metrics = metrics.as_str().unwrap();
    for name in [
        "portolan_invalidation_seconds_bucket",
        "portolan_cache_lease_left_milliseconds",
        "portolan_control_applied_sequence",
    ] {
        assert!(metrics.contains(name), "{name} is missing");
    }
}

#[test]
fn a_changed_dependency_kills_its_dependants_alone_and_a_tenants_key_reaches_its_own() {
    let world = world(|_| {});
    let of = |key, salt, name| ask(&world, key, salt, &json!([document(name, "1")])).0;
    for _ in 0..2 {
        of(ACME, 1, "a");
        of(ACME, 2, "b");
        of(GLOBEX, 1, "a");
    }
    let changed = json!({"dependency": document("a", "2"), "wait": true});
    invalidate(&world, ACME, changed.clone()).unwrap();
    assert_eq!([cached(&world, ACME, 1), cached(&world, ACME, 2)], [0, BLOCKS]);
    assert_eq!(of(GLOBEX, 1, "a"), BLOCKS, "another tenant's");
    invalidate(&world, ADMIN, changed).unwrap();
    assert_eq!(of(GLOBEX, 1, "a"), 0);

    let refused = |order| match invalidate(&world, ACME, order) {
        Err(ClientError::Refused { status, .. }) => status,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(json!({"model": MODEL})), 403);
    assert_eq!(refused(json!({"tenant": "globex"})), 403);
    assert_eq!(refused(json!({})), 400);
    assert_eq!(refused(json!({"tenant": "acme", "prefix": "00"})), 400);
    assert_eq!(refused(json!({"prefix": "xyz"})), 400);

    let blocks = world
        .client(ADMIN)
        .get("/v1/portolan/kv/blocks?tenant=globex&limit=1000")
        .unwrap()
        .body;
    let first = blocks["data"]
        .as_array()
        .unwrap()
        .iter()
        .find(|block| block["parent"].is_null());
    let first = first.expect("a prompt's first block")["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let prefix = json!({"prefix": first, "wait": true});
    assert_eq!(invalidate(&world, ACME, prefix.clone()).unwrap()["blocks"], 0);
    assert_eq!(of(GLOBEX, 1, "a"), BLOCKS);
    assert_eq!(invalidate(&world, GLOBEX, prefix).unwrap()["blocks"], 7);
    assert_eq!(of(GLOBEX, 1, "a"), 0);
    invalidate(&world, ACME, json!({"tenant": "acme", "wait": true})).unwrap();
    assert_eq!(cached(&world, ACME, 2), 0);
    assert_eq!(of(GLOBEX, 1, "a"), BLOCKS);
}

#[test]
fn a_version_that_is_named_before_its_order_finds_nothing_older() {
    let world = world(|config| {
        // So fast that no model is too small for a fetch to pay.
        config
            .links
            .iter_mut()
            .for_each(|link| link.capacity_mbps = 100_000);
    });
    let asked = |site: &str, ask: Ask, dependencies: Value| {
        let http = world.host.site(site).unwrap().http();
        let client = Client::new(&format!("http://{http}"), ACME);
        let mut body = ask.max(4).body(false);
        body["portolan"] = json!({ "dependencies": dependencies });
        let reply = client.post("/v1/completions", &body).unwrap();
        let record = record_of(&client, reply.request_id.as_deref().unwrap());
        let fetched: u32 = record.fetches.iter().map(|fetch| fetch.tokens).sum();
        (record.kv.cached_tokens, fetched)
    };
    let local = |salt| Ask::tokens(&prompt(salt)).local();
    let abroad = |salt| Ask::tokens(&prompt(salt)).remote();
    let of = |version| json!([document("a", version)]);
    // Where it was computed, and by a prefill there.
    assert_eq!(asked("virginia", local(1), of("1")), (0, 0));
    assert_eq!(asked("virginia", local(1), of("1")), (BLOCKS, 0));
    assert_eq!(
        asked("virginia", local(1), json!([document("b", "5")])),
        (BLOCKS, 0),
        "another document"
    );
    assert_eq!(asked("paris", abroad(1), of("2")), (0, 0), "by a prefill abroad");
    assert_eq!(
        asked("virginia", local(1), of("2")),
        (BLOCKS, 0),
        "it took the place of the older"
    );
    assert_eq!(asked("virginia", local(1), of("1")), (0, 0));

    // By a fetch: paris knows that virginia holds it, and gets nothing.
    asked("virginia", local(2), of("1"));
    let gateway = world.host.site("paris").unwrap().gateway().unwrap();
    let model = ModelName::new(MODEL).unwrap();
    let version = gateway.parts.models[&model].description.layout.model_version;
    let key = TenantKey::derive(&gateway.parts.secret, "acme", MODEL, version);
    let chain = BlockHash::chain(&key, &prompt(2));
    world.wait("paris was told", || {
        gateway.parts.fleet.held(&model, &chain).iter().max() >= Some(&BLOCKS)
    });
    assert_eq!(asked("paris", local(2), of("2")), (0, 0), "by a fetch");
    let order = json!({"dependency": document("a", "2"), "wait": true});
    invalidate(&world, ADMIN, order).unwrap();
    assert_eq!(
        asked("paris", local(2), of("2")),
        (BLOCKS, 0),
        "it is of this version"
    );
    assert_eq!(asked("virginia", local(2), json!([])), (0, 0), "the older went");
}

#[test]
fn a_tenants_policy_decides_what_a_change_kills_of_its_own() {
    let world = world(|_| {});
    let slot = ("acme", "invalidation");
    let ignoring = r#"{"ignore_kinds": ["document"]}"#;
    world.push(ACME, slot, &shipped("dependency"), ignoring).unwrap();
    let of = |key, salt| ask(&world, key, salt, &json!([document("a", "1")])).0;
    for _ in 0..2 {
        of(ACME, 1);
        of(GLOBEX, 1);
    }
    let changed = |version: &str| json!({"dependency": document("a", version), "wait": true});
    invalidate(&world, ADMIN, changed("2")).unwrap();
    assert_eq!(
        [of(ACME, 1), of(GLOBEX, 1)],
        [BLOCKS, 0],
        "acme said that documents do not matter"
    );
    let of_models = json!({"dependency": {"kind": "prompt", "name": "p", "version": "2"}, "wait": true});
    invalidate(&world, ADMIN, of_models).unwrap();
    assert_eq!(of(ACME, 1), BLOCKS, "nothing depends on it");

    world
        .push(
            "key-admin",
            ("_platform", "invalidation"),
            &shipped("version"),
            "{}",
        )
        .unwrap();
    invalidate(&world, ADMIN, changed("3")).unwrap();
    assert_eq!(
        [of(ACME, 1), of(GLOBEX, 1)],
        [0, 0],
        "the platform's answer is about all blocks"
    );
    invalidate(&world, ADMIN, json!({"model": MODEL, "wait": true})).unwrap();
    assert_eq!(
        [of(ACME, 1), of(GLOBEX, 1)],
        [0, 0],
        "nobody lets an older version live"
    );
}

#[test]
fn where_room_runs_out_a_tenants_policy_chooses_what_goes_of_its_own() {
    let world = world(|config| {
        let instances = config.sites.iter_mut().flat_map(|site| &mut site.instances);
        instances.for_each(|instance| instance.kv_pool_mib = 16);
        config.invalidation.pressure = PressureConfig {
            high_percent: 90,
            low_percent: 80,
            pause_s: 1,
        };
    });
    let used = |tenant: &str| {
        let stats = world.client(ADMIN).get("/v1/portolan/kv/stats").unwrap().body;
        let tenants = stats["data"][0]["tenants"].as_array().unwrap().clone();
        let of = |part: &&Value| part["tenant"] == tenant;
        let part = tenants.iter().find(of).cloned().unwrap_or_default();
        [&part["bytes"], &part["evicted"]].map(|number| number.as_u64().unwrap_or_default())
    };
    let decisions = |key| {
        let said = world.client(key).get("/v1/portolan/kv/decisions").unwrap().body;
        said["data"].as_array().unwrap().clone()
    };
    cached(&world, GLOBEX, 1);
    let globex = used("globex")[0];
    let mut latest = 1;
    while used("acme")[1] == 0 {
        assert!(latest < 500, "a pool of 16 MiB has no end: {:?}", used("acme"));
        latest += 1;
        cached(&world, ACME, latest);
    }
    let full = used("acme")[0];
    std::thread::sleep(std::time::Duration::from_millis(1200));
    assert_eq!(
        (used("acme")[0], decisions(ADMIN).len()),
        (full, 0),
        "nobody is bound"
    );

    let half = r#"{"keep_permille": 500}"#;
    world
        .push(ACME, ("acme", "invalidation"), &shipped("idle"), half)
        .unwrap();
    world.wait("acme's policy made room", || used("acme")[0] < full * 6 / 10);
    let said = decisions(ACME);
    let one = said.last().expect("it is written down");
    assert_eq!(
        (&one["whose"], &one["policy"]["source"], &one["policy"]["outcome"]),
        (&"acme".into(), &"tenant".into(), &"ok".into()),
        "{one}"
    );
    assert!(
        one["event"]["capacity-pressure"]["used_mib"].as_u64() > Some(0),
        "{one}"
    );
    assert!(
        one["blocks"].as_u64() > Some(0) && one["place"]["instance"] == "p1",
        "{one}"
    );
    assert_eq!(
        (used("globex")[0], decisions(GLOBEX).len()),
        (globex, 0),
        "it is about its own"
    );
    assert_eq!(
        [
            cached(&world, GLOBEX, 1),
            cached(&world, ACME, latest),
            cached(&world, ACME, 2)
        ],
        [BLOCKS, BLOCKS, 0],
        "what was used last stayed"
    );
}

#[test]
fn an_order_may_end_the_requests_that_run_on_it() {
    let world = world(|_| {});
    // Eight answers at a time: it goes on for seconds.
    let mut body = Ask::tokens(&prompt(1)).local().max(1500).body(false);
    body["n"] = json!(8);
    let client = world.client(ACME);
    let running = std::thread::spawn(move || client.post("/v1/completions", &body));
    let gateway = world.host.site("paris").unwrap().gateway().unwrap();
    world.wait("it decodes", || {
        let engines = gateway.parts.engines.values();
        let decoding = engines.map(|engine| engine.load().decode_running).sum::<u32>() > 0;
        decoding || running.is_finished()
    });
    assert!(!running.is_finished(), "{:?}", running.join());
    invalidate(
        &world,
        ADMIN,
        json!({"tenant": "globex", "wait": true, "abort_running": true}),
    )
    .unwrap();
    assert!(!running.is_finished(), "it runs on another tenant's");
    invalidate(
        &world,
        ADMIN,
        json!({"tenant": "acme", "wait": true, "abort_running": true}),
    )
    .unwrap();
    let ended = running.join().unwrap();
    // The answer had begun: it breaks off, or says why it ended.
    let error = ended.expect_err("it was ended").to_string();
    assert!(
        error.contains("invalidated") || error.contains("broke off"),
        "{error}"
    );
}

/// One site as a process of its own: the real binary.
struct Process {
    child: std::process::Child,
    client: Client,
}

impl Process {
    fn start(folder: &Path) -> Self {
        let mut child = Command::new(portolan_tests::processes::binary())
            .args(["--json", "serve", "--config"])
            .arg(folder.join("portolan.yaml"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let out = child.stdout.take().expect("it was piped");
        BufReader::new(out).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        let http = format!("http://{}", said["listen"].as_str().unwrap());
        Self {
            child,
            client: Client::new(&http, ADMIN),
        }
    }
}

impl Drop for Process {
    /// As a power cut would, but for what the operating system has in hand.
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn an_acknowledged_invalidation_survives_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "data_dir: data\noperator_keys: [{ADMIN}]\nmodels: [{{name: {MODEL}, path: '{}'}}]\n\
         tenants: [{{name: acme, keys: [{ACME}]}}]\nsites:\n\
         - {{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: [{{name: p1, model: {MODEL}, kv_pool_mib: 8}}]}}\n",
        oracle_folder("tiny-qwen3").display()
    );
    std::fs::write(folder.path().join("portolan.yaml"), config).unwrap();
    let mut raised = 0;
    for _ in 0..4 {
        let process = Process::start(folder.path());
        let tenant = Client::new(process.client.server(), ACME);
        tenant
            .post(
                "/v1/completions",
                &Ask::tokens(&prompt(1)).local().max(1).body(false),
            )
            .unwrap();
        let blocks = process.client.get("/v1/portolan/kv/blocks?limit=1").unwrap().body;
        assert_eq!(blocks["data"][0]["model_version"], 1 + raised);
        let order = json!({"model": MODEL});
        let given = process
            .client
            .post("/v1/portolan/invalidate", &order)
            .unwrap()
            .body;
        let id = given["id"].as_u64().unwrap();
        assert!(id > raised, "{given}");
        raised = id;
    }
}

/// Prints how long orders take through the real agents of two sites, from when they are given until both have applied
/// them, with the flush that makes them survive a crash.
#[test]
fn how_long_orders_take_in_one_process() {
    let world = world(|_| {});
    let gateway = Arc::clone(world.host.site("paris").unwrap().gateway().unwrap());
    let order = |n: u32| Order {
        what: Invalidated::Dependency {
            by: Dependency {
                kind: "document".to_owned(),
                name: format!("d{n}"),
                version: "2".to_owned(),
            },
            of: None,
        },
        actor: "test".to_owned(),
        reason: String::new(),
        running: Running::Finish,
    };
    let validity: Arc<dyn CacheValidity> = Arc::clone(&gateway.parts.validity);
    let mut times = world.runtime.block_on(async {
        let mut times = Vec::new();
        // Until every lease is known that could have been given before this process began.
        validity.invalidate(order(0), Patience::Everywhere).await.unwrap();
        for n in 1..=1000 {
            let given = validity.invalidate(order(n), Patience::Everywhere).await.unwrap();
            let slowest = given
                .sites
                .iter()
                .map(|site| site.applied_ms.expect("it was applied"));
            times.push(slowest.fold(0.0, f64::max));
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        times
    });
    times.sort_by(f64::total_cmp);
    let at = |permille: usize| times[(times.len() * permille / 1000).min(times.len() - 1)];
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!(
        "invalidation, embedded, 2 sites, 1,000 orders: P50 {:.2} ms, P90 {:.2} ms, P99 {:.2} ms, max {:.2} ms; load {}",
        at(500),
        at(900),
        at(990),
        at(1000),
        load.split(' ').next().unwrap_or_default()
    );
    assert!(at(500) < 20.0, "far beyond what a busy machine explains");
    assert!(gateway.parts.validity.version(&ModelName::new(MODEL).unwrap(), 1) == 1);
}
