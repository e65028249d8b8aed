//! KV kept for reuse in a running host: public prefixes, tiers, the operator's orders, a restart.

use super::*;

const MODEL: &str = "tiny-qwen3";

/// A host with one instance of a tiny model, which has room for seven blocks of KV in its own pool.
fn start(folder: &Path, kv: &str) -> Started {
    let model = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/conformance/oracle")
        .join(MODEL);
    let text = format!(
        "{{data_dir: '{}', models: [{{name: {MODEL}, path: '{}'}}], kv: {{{kv}}}, operator_keys: [op],
           sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0',
                     kv_tiers: {{disk_mib: 64, secure_delete: true}},
                     instances: [{{name: p1, model: {MODEL}, kv_pool_mib: 1}}]}}],
           tenants: [{{name: acme, keys: [ka], kv_share_permille: 500}}, {{name: globex, keys: [kg]}}]}}",
        folder.display(),
        model.display()
    );
    let runtime = Runtime::new().unwrap();
    let host = runtime
        .block_on(Host::start(Config::parse(&text).unwrap()))
        .unwrap();
    Started { runtime, host }
}

/// Asks for one token; gives how many of the prompt's were cached.
fn cached(host: &Started, key: &str, prompt: &str) -> u64 {
    let body = json!({ "model": MODEL, "prompt": prompt, "max_tokens": 1 });
    let reply = host.client(key).post("/v1/completions", &body).unwrap().body;
    reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap()
}

fn place(host: &Started, tier: &str) -> Value {
    let stats = host.client("op").get("/v1/portolan/kv/stats").unwrap().body;
    let mut places = stats["data"].as_array().unwrap().iter();
    places.find(|place| place["tier"] == tier).unwrap().clone()
}

/// A text of some hundred tokens or two.
fn text(word: &str) -> String {
    (0..40).map(|n| format!("{word} {n} ")).collect()
}

#[test]
fn tenants_share_a_public_prefix_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let shared = text("harbour");
    let host = start(
        folder.path(),
        &format!("public_prefixes: [{{model: {MODEL}, text: '{shared}'}}]"),
    );
    let own = format!("{shared}{}", text("secret"));
    assert_eq!(cached(&host, "ka", &own), 0);
    let all = cached(&host, "ka", &own);
    let public = cached(&host, "kg", &own);
    assert!(public >= 64 && public < all, "{public} of {all}");
    let tenants: Vec<Value> = place(&host, "engine")["tenants"].as_array().unwrap().clone();
    let names: Vec<&str> = tenants
        .iter()
        .filter_map(|tenant| tenant["tenant"].as_str())
        .collect();
    assert!(names.contains(&"_public") && names.contains(&"acme"), "{names:?}");
    host.stop();
    // Without the mark the same prompts share nothing.
    let folder = tempfile::tempdir().unwrap();
    let host = start(folder.path(), "");
    cached(&host, "ka", &own);
    assert_eq!(cached(&host, "kg", &own), 0);
    host.stop();
}

#[test]
fn kv_on_disk_survives_a_restart_and_not_an_order() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (text("harbour"), text("compass"));
    let host = start(folder.path(), "");
    cached(&host, "ka", &first);
    let whole = cached(&host, "ka", &first);
    // The pool holds seven blocks; the others push the first out, from its end on.
    for word in [
        "compass", "lantern", "sextant", "anchor", "rudder", "ballast", "gunwale", "topsail",
    ] {
        cached(&host, "ka", &text(word));
    }
    assert!(place(&host, "disk")["blocks"].as_u64().unwrap() > 0);
    host.stop();

    let host = start(folder.path(), "");
    assert_eq!(cached(&host, "ka", &first), whole, "from disk");
    assert!(place(&host, "disk")["hits"].as_u64().unwrap() > 0);
    let order = json!({ "tenant": "acme" });
    let evicted = host
        .client("op")
        .post("/v1/portolan/kv/evict", &order)
        .unwrap()
        .body;
    assert!(evicted["evicted"].as_u64().unwrap() > 0);
    assert_eq!(place(&host, "disk")["blocks"], 0);
    assert_eq!(cached(&host, "ka", &first), 0);
    host.stop();

    let host = start(folder.path(), "");
    assert_eq!(cached(&host, "ka", &second), 0);
    host.stop();
}

#[test]
fn a_host_that_is_stopped_finds_its_kv_at_the_next_start_and_one_that_is_killed_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = text("harbour");
    let host = start(folder.path(), "");
    cached(&host, "ka", &prompt);
    let whole = cached(&host, "ka", &prompt);
    assert!(whole >= 64);
    assert_eq!(place(&host, "disk")["blocks"], 0, "it all fits into the pool");
    let Started { runtime, mut host } = host;
    runtime.block_on(host.kill("paris"));
    runtime.block_on(host.stop());

    let host = start(folder.path(), "");
    assert_eq!(cached(&host, "ka", &prompt), 0, "after a kill");
    assert_eq!(cached(&host, "ka", &prompt), whole);
    host.stop();

    let host = start(folder.path(), "");
    assert!(place(&host, "disk")["blocks"].as_u64().unwrap() > 0);
    assert_eq!(cached(&host, "ka", &prompt), whole, "after a stop");
    host.stop();
}
