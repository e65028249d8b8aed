//! llama.cpp's own server at two sites: what one computed, the other goes on from. Runs where `PORTOLAN_XLLAMACPP` names a
//! Python that has `xllamacpp`, as `make test` sees to.

use super::*;
use portolan_base::{BlockHash, InstanceName, ModelName, TenantKey};
use std::path::{Path, PathBuf};
use tokio::net::TcpListener;

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Tokens in a block.
const BLOCK: u32 = 16;

/// Two sites with a server each, both started by the host.
struct Sites {
    host: Host,
    folder: TempDir,
}

async fn instance(python: &str, name: &str, folder: &Path) -> Value {
    let free = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("engines/llama-server.py");
    let slots = folder.join(name);
    std::fs::create_dir(&slots).unwrap();
    json!({"name": name, "model": MODEL, "engine": "llama-cpp", "server": {"url": format!("http://{free}"),
        "command": [python, script, model(), free.port().to_string(), slots], "log": folder.join(format!("{name}.log")),
        "ready_within_s": 120, "kv_store": {"folder": slots, "block_tokens": BLOCK, "mib": 256}}})
}

fn model() -> PathBuf {
    let models =
        std::env::var_os("PORTOLAN_MODEL_DIR").expect("PORTOLAN_MODEL_DIR names the folder of models");
    Path::new(&models).join(FILE)
}

impl Sites {
    async fn start(python: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (p, v) = (
            instance(python, "p", folder.path()).await,
            instance(python, "v", folder.path()).await,
        );
        let config = json!({
            "data_dir": folder.path().join("data"), "operator_keys": [ADMIN],
            "models": [{"name": MODEL, "path": model()}],
            "sites": [
                {"name": "paris", "jurisdiction": "eu", "listen": "127.0.0.1:0", "instances": [p]},
                {"name": "virginia", "jurisdiction": "us", "listen": "127.0.0.1:0", "instances": [v]},
            ],
            "links": [{"from": "virginia", "to": "paris", "capacity_mbps": 100_000, "rtt_ms": 0}],
            "tenants": [{"name": "acme", "keys": [ACME]}],
        });
        let host = Host::start(Config::parse(&config.to_string()).unwrap())
            .await
            .unwrap();
        let sites = Self { host, folder };
        for (site, name) in [("paris", "p"), ("virginia", "v")] {
            let engine = Arc::clone(&sites.site(site).parts.engines[&InstanceName::new(name).unwrap()]);
            let until = Instant::now() + Duration::from_secs(120);
            while !engine.is_up() {
                let said = std::fs::read_to_string(sites.folder.path().join(format!("{name}.log")));
                assert!(
                    Instant::now() < until,
                    "{name} is not up: {}",
                    said.unwrap_or_default()
                );
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        sites
    }

    fn site(&self, name: &str) -> Arc<Site> {
        Arc::clone(self.host.site(name).unwrap().gateway().unwrap())
    }

    /// The answer, how many tokens the engine found in its slot, and the record.
    async fn ask(&self, site: &str, id: &str, prompt: &[u32]) -> (String, u64, PathRecord) {
        let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true,
            "cache_prompt": true, "request_id": id});
        let answer = Client(self.host.site(site).unwrap().http())
            .complete(ACME, &body)
            .await;
        let found = answer["timings"]["cache_n"].as_u64().unwrap_or(0);
        (
            text(&answer).to_owned(),
            found,
            record_at(&self.site(site), id).await,
        )
    }

    /// Waits until paris knows that so much of the prompt lies in virginia.
    async fn paris_knows(&self, prompt: &[u32], tokens: u32) {
        let (paris, model) = (self.site("paris"), ModelName::new(MODEL).unwrap());
        let version = paris.parts.models[&model].description.layout.model_version;
        let key = TenantKey::derive(&paris.parts.secret, "acme", MODEL, version);
        let chain = BlockHash::chain(&key, prompt);
        let until = Instant::now() + PATIENCE;
        while paris.parts.fleet.held(&model, &chain).iter().max() < Some(&tokens) {
            assert!(Instant::now() < until, "paris was never told");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_that_llama_cpp_computed_at_one_site_is_used_by_llama_cpp_at_another() {
    let Ok(python) = std::env::var("PORTOLAN_XLLAMACPP") else {
        let line = b"skipped: PORTOLAN_XLLAMACPP is not set; make test brings llama.cpp's server\n";
        drop(std::io::Write::write_all(&mut std::io::stderr(), line));
        return;
    };
    let sites = Sites::start(&python).await;
    let words = "A portolan is a chart of coasts and harbours, drawn from the bearings and distances that pilots kept. ";
    let text = Arc::clone(&sites.site("paris").parts.models[&ModelName::new(MODEL).unwrap()].text);
    let prompt = text.encode(&words.repeat(12), true).unwrap();
    let whole = (prompt.len() as u32 - 1) / BLOCK * BLOCK;
    assert!(whole > 200, "{whole}");
    let (_, found, record) = sites.ask("virginia", "v-1", &prompt).await;
    assert_eq!((found, record.fetches.len()), (0, 0));
    sites.paris_knows(&prompt, whole).await;
    // What virginia says from the same KV: the server rounds otherwise where it has less to compute, so an answer from its
    // slot is not the one it computed. A prompt that begins alike leaves the slot with what crosses.
    let at = whole as usize;
    let alike = [&prompt[..at], &[prompt[at] ^ 1]].concat();
    sites.ask("virginia", "v-2", &alike).await;
    let (expected, found, _) = sites.ask("virginia", "v-3", &prompt).await;
    assert_eq!(found, u64::from(whole));
    let begun = Instant::now();
    let (said, found, record) = sites.ask("paris", "p-1", &prompt).await;
    let took = begun.elapsed();
    assert_eq!(said, expected, "what came is what virginia has");
    let [fetch] = record.fetches.as_slice() else {
        panic!("one fetch: {record:?}")
    };
    assert_eq!((fetch.site.as_str(), fetch.instance.as_str()), ("virginia", "v"));
    assert_eq!(
        (fetch.tokens, u64::from(fetch.tokens)),
        (whole, found),
        "{fetch:?}"
    );
    let line = format!(
        "llama.cpp at two sites: {} prompt tokens, fetched {} of {}, {} bytes, {:.1} ms; answered in {took:.0?}\n",
        prompt.len(),
        fetch.tokens,
        fetch.wanted_tokens,
        fetch.bytes,
        fetch.took_ms
    );
    drop(std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()));
    let (again, _, record) = sites.ask("paris", "p-2", &prompt).await;
    assert_eq!((again, record.fetches.len()), (expected, 0), "it is here");
    sites.host.stop().await;
}
