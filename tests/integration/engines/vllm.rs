//! Two real vLLMs with Portolan's connector at two sites: KV that one computed is taken by the other, over a link and a
//! socket that damage and break it. Runs where `PORTOLAN_VLLM` names a Python with both, as `make test-vllm` sees to.

use super::*;
use portolan_base::{BlockHash, InstanceName, ModelName, SiteName, TenantKey};
use portolan_transport::fault_proxy::{Direction, Fault, FaultKind, FaultPlan, FaultProxy};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// How long two engines may take to start on a small machine that does other things.
const START: Duration = Duration::from_secs(1500);

/// Tokens in a block: what vLLM's kernels for CPUs take.
const BLOCK: u32 = 32;

/// What happens to the next answer of the host that holds blocks.
const PASS: u8 = 0;
const FLIP: u8 = 1;
const CUT: u8 = 2;

/// A local socket in front of the host's, which damages what the host says.
struct Between {
    next: Arc<AtomicU8>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Between {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Between {
    fn start(at: &Path, host: PathBuf) -> Self {
        let listener = UnixListener::bind(at).unwrap();
        let next = Arc::new(AtomicU8::new(PASS));
        let faults = Arc::clone(&next);
        let task = tokio::spawn(async move {
            while let Ok((engine, _)) = listener.accept().await {
                if let Ok(host) = UnixStream::connect(&host).await {
                    tokio::spawn(pass(engine, host, Arc::clone(&faults)));
                }
            }
        });
        Self { next, task }
    }

    fn fail(&self, how: u8) {
        self.next.store(how, Ordering::SeqCst);
    }

    fn happened(&self) -> bool {
        self.next.load(Ordering::SeqCst) == PASS
    }
}

async fn pass(engine: UnixStream, host: UnixStream, faults: Arc<AtomicU8>) {
    let (mut from_engine, mut to_engine) = engine.into_split();
    let (mut from_host, mut to_host) = host.into_split();
    let asking = tokio::spawn(async move { tokio::io::copy(&mut from_engine, &mut to_host).await });
    let mut bytes = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from_host.read(&mut bytes).await {
        // Only blocks are so long.
        let fault = match n > 8192 {
            true => faults.swap(PASS, Ordering::SeqCst),
            false => PASS,
        };
        if fault == FLIP {
            bytes[n / 2] ^= 0x10;
        }
        if fault == CUT || to_engine.write_all(&bytes[..n]).await.is_err() {
            break;
        }
    }
    asking.abort();
}

/// The two sites.
struct Fleet {
    host: Host,
    /// The way from virginia's KV to paris.
    link: FaultProxy,
    /// The way from paris's host to its engine.
    socket: Between,
    /// Paris's engine for whoever else finds it, as an instance's configuration.
    found: Value,
    folder: TempDir,
}

async fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
}

/// The model's files alone: vLLM loads every tensor file of a folder.
fn model(folder: &Path) -> PathBuf {
    let (from, to) = (oracle_folder("tiny-qwen3"), folder.join("model"));
    std::fs::create_dir(&to).unwrap();
    for file in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    to
}

impl Fleet {
    /// Paris's engine has so many tensor parallel workers.
    async fn start(python: &str, workers: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let model = model(folder.path());
        let transport = free().await;
        let link = FaultProxy::start(FaultPlan::clear(transport)).await.unwrap();
        let socket = Between::start(&at("p-engine.sock"), at("p.sock"));
        let (mut instances, mut found) = (Vec::new(), Value::Null);
        for (name, given, workers) in [("p", "p-engine.sock", workers), ("v", "v.sock", 1)] {
            let (url, given) = (free().await, at(given));
            let (publish, replay) = (free().await.port(), free().await.port());
            let events = json!({"enable_kv_cache_events": true, "publisher": "zmq", "topic": "",
                "endpoint": format!("tcp://*:{publish}"), "replay_endpoint": format!("tcp://*:{replay}")});
            let told = json!({"endpoint": format!("tcp://127.0.0.1:{publish}"),
                "replay": format!("tcp://127.0.0.1:{replay}")});
            if name == "p" {
                found = json!({"name": "real", "model": MODEL, "engine": "vllm",
                    "server": {"url": format!("http://{url}"), "kv_events": told}});
            }
            let connector = json!({"kv_connector": "PortolanConnector", "kv_connector_module_path": "portolan_vllm",
                "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"socket": given}});
            let command = json!([
                python,
                "-m",
                "vllm.entrypoints.openai.api_server",
                "--model",
                model,
                "--served-model-name",
                MODEL,
                "--dtype",
                "float32",
                "--max-model-len",
                "512",
                "--enforce-eager",
                "--host",
                "127.0.0.1",
                "--port",
                url.port().to_string(),
                "--tensor-parallel-size",
                workers.to_string(),
                "--block-size",
                BLOCK.to_string(),
                "--num-gpu-blocks-override",
                "64",
                "--gpu-memory-utilization",
                "0.2",
                "--enable-prompt-tokens-details",
                "--kv-events-config",
                events.to_string(),
                "--kv-transfer-config",
                connector.to_string()
            ]);
            let mut env = json!({"PYTHONHASHSEED": "0", "VLLM_CPU_KVCACHE_SPACE": "1"});
            if workers > 1 {
                // Each worker wants a processor core of its own.
                let cores: Vec<String> = (0..workers).map(|core| core.to_string()).collect();
                env["VLLM_CPU_OMP_THREADS_BIND"] = json!(cores.join("|"));
            }
            instances.push(
                json!({"name": name, "model": MODEL, "engine": "vllm", "server": {"url": format!("http://{url}"),
                "command": command, "env": env, "log": at(&format!("{name}.log")),
                "ready_within_s": START.as_secs(),
                "kv_store": {"socket": at(&format!("{name}.sock")), "block_tokens": BLOCK}}}),
            );
        }
        let config = json!({
            "data_dir": at("data"), "operator_keys": [ADMIN], "models": [{"name": MODEL, "path": model}],
            "sites": [
                {"name": "paris", "jurisdiction": "eu", "listen": "127.0.0.1:0", "instances": [instances[0]]},
                {"name": "virginia", "jurisdiction": "us", "listen": "127.0.0.1:0", "transport": transport,
                    "instances": [instances[1]]},
            ],
            "links": [{"from": "virginia", "to": "paris", "capacity_mbps": 100_000, "rtt_ms": 1, "lanes": 1,
                "compression": "none", "paths": [{"to": link.address()}]}],
            "tenants": [{"name": "acme", "keys": [ACME]}, {"name": "globex", "keys": [GLOBEX]}],
        });
        let host = Host::start(Config::parse(&config.to_string()).unwrap())
            .await
            .unwrap();
        let fleet = Self {
            host,
            link,
            socket,
            found,
            folder,
        };
        fleet.up().await;
        fleet
    }

    async fn up(&self) {
        let until = Instant::now() + START;
        for (site, instance) in [("paris", "p"), ("virginia", "v")] {
            let engine = self.site(site).parts.engines[&InstanceName::new(instance).unwrap()].clone();
            while !engine.is_up() {
                let said = std::fs::read_to_string(self.folder.path().join(format!("{instance}.log")));
                let said = said.unwrap_or_default();
                let tail: String = said
                    .chars()
                    .rev()
                    .take(3000)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .rev()
                    .collect();
                assert!(Instant::now() < until, "{instance} is not up; it said: {tail}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }

    fn site(&self, name: &str) -> Arc<Site> {
        Arc::clone(self.host.site(name).unwrap().gateway().unwrap())
    }

    async fn ask(&self, site: &str, key: &str, id: &str, prompt: &[u32], tokens: u32) -> Said {
        let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
            "return_token_ids": true, "request_id": id});
        let begun = Instant::now();
        let answer = Client(self.host.site(site).unwrap().http())
            .complete(key, &body)
            .await;
        Said {
            tokens: serde_json::from_value(answer["choices"][0]["token_ids"].clone()).unwrap(),
            cached: answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                .as_u64()
                .unwrap_or(0),
            took: begun.elapsed(),
            record: record_at(&self.site(site), id).await,
        }
    }

    /// Has the connection between the sites made anew, so that it has carried nothing.
    async fn connect_anew(&self) {
        let (paris, virginia) = (self.site("paris"), SiteName::new("virginia").unwrap());
        let is_up = |up: bool| {
            paris
                .parts
                .transport
                .link(&virginia)
                .is_some_and(|link| link.up == up)
        };
        let until = Instant::now() + PATIENCE;
        self.link.cut();
        while !is_up(false) {
            assert!(Instant::now() < until, "the link stays up");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // So long that whoever plans fetches has seen it too, and sees it come back.
        tokio::time::sleep(Duration::from_millis(1200)).await;
        self.link.heal();
        let planned = || paris.parts.fleet.view().links.values().all(|link| link.up);
        while !(is_up(true) && planned()) {
            assert!(Instant::now() < until, "the link does not come up again");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// acme's prompt was computed in virginia and laid down there, and paris has been told.
    async fn computed_in_virginia(&self, id: &str, prompt: &[u32]) {
        self.ask("virginia", ACME, id, prompt, 1).await;
        let (paris, name) = (self.site("paris"), ModelName::new(MODEL).unwrap());
        let version = paris.parts.models[&name].description.layout.model_version;
        let key = TenantKey::derive(&paris.parts.secret, "acme", MODEL, version);
        let (chain, blocks) = (BlockHash::chain(&key, prompt), whole(prompt));
        let until = Instant::now() + PATIENCE;
        while paris.parts.fleet.held(&name, &chain).iter().max() < Some(&blocks) {
            assert!(
                Instant::now() < until,
                "paris was never told: {:?}",
                paris.parts.fleet.held(&name, &chain)
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Tokens of a prompt in whole blocks that are never the last to compute.
fn whole(prompt: &[u32]) -> u32 {
    (prompt.len() as u32 - 1) / BLOCK * BLOCK
}

struct Said {
    tokens: Vec<u32>,
    cached: u64,
    took: Duration,
    record: PathRecord,
}

impl Said {
    /// Tokens that came from the other site.
    fn fetched(&self) -> u32 {
        self.record.fetches.iter().map(|fetch| fetch.tokens).sum()
    }
}

/// What the oracle says of this model: prompts with their greedy answers.
fn oracle() -> Vec<(Vec<u32>, Vec<u32>)> {
    let text = std::fs::read_to_string(oracle_folder("tiny-qwen3").join("oracle.json")).unwrap();
    let oracle: Value = serde_json::from_str(&text).unwrap();
    let ids = |case: &Value, name: &str| serde_json::from_value(case[name].clone()).unwrap();
    let cases = oracle["prompts"].as_array().unwrap().iter();
    cases
        .map(|case| (ids(case, "prompt_ids"), ids(case, "greedy_ids")))
        .collect()
}

fn say(line: &str) {
    // To the real stderr, which the test runner shows.
    drop(std::io::Write::write_all(
        &mut std::io::stderr(),
        format!("{line}\n").as_bytes(),
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_real_vllms_at_two_sites_answer_as_a_single_one_whatever_happens_on_the_way() {
    let Ok(python) = std::env::var("PORTOLAN_VLLM") else {
        say("skipped: PORTOLAN_VLLM is not set; make test-vllm brings vLLM and runs this");
        return;
    };
    let begun = Instant::now();
    let fleet = Fleet::start(&python, 1).await;
    say(&format!("two vLLMs up after {:.0?}", begun.elapsed()));

    let mut all_of_it = 0;
    // The single instance's answers are the oracle's: another tenant asks, for whom nothing was fetched.
    for (n, (prompt, expected)) in oracle().into_iter().enumerate() {
        let alone = fleet
            .ask("paris", GLOBEX, &format!("alone-{n}"), &prompt, 32)
            .await;
        assert_eq!(alone.tokens, expected, "prompt {n}");
        if whole(&prompt) == 0 {
            continue;
        }
        fleet.computed_in_virginia(&format!("there-{n}"), &prompt).await;
        let said = fleet.ask("paris", ACME, &format!("here-{n}"), &prompt, 32).await;
        assert_eq!(said.tokens, expected, "prompt {n}");
        came(&format!("oracle prompt {n}"), &prompt, &said, &alone);
        // What came is what the engine did not compute; on a busy machine a fetch may be given up half-way.
        assert_eq!(said.cached, u64::from(said.fetched()), "prompt {n}");
        all_of_it += usize::from(said.fetched() == whole(&prompt));
    }
    assert!(all_of_it > 0, "no fetch ever came to its end");

    let flip = FaultKind::FlipBit(3);
    let cases: [(&str, Option<FaultKind>, u8); 7] = [
        ("nothing wrong", None, PASS),
        ("a bit flipped between the sites", Some(flip), PASS),
        (
            "the connection between the sites reset",
            Some(FaultKind::Reset),
            PASS,
        ),
        ("it ends in the middle", Some(FaultKind::Truncate), PASS),
        ("a bit flipped between host and engine", None, FLIP),
        ("the socket to the engine closed", None, CUT),
        ("both", Some(flip), FLIP),
    ];
    for (n, (what, on_the_link, on_the_socket)) in (0u32..).zip(cases) {
        let prompt = prompt(20 + n, 400);
        let alone = fleet
            .ask("paris", GLOBEX, &format!("f-alone-{n}"), &prompt, 32)
            .await;
        fleet.computed_in_virginia(&format!("f-there-{n}"), &prompt).await;
        if let Some(kind) = on_the_link {
            fleet.connect_anew().await;
            // A quarter of these 786 kB.
            fleet.link.inject(Fault {
                connection: None,
                direction: Direction::ToClient,
                after: 200_000,
                kind,
            });
        }
        fleet.socket.fail(on_the_socket);
        let said = fleet
            .ask("paris", ACME, &format!("f-here-{n}"), &prompt, 32)
            .await;
        assert_eq!(said.tokens, alone.tokens, "{what}");
        came(what, &prompt, &said, &alone);
        assert_eq!(fleet.link.pending(), 0, "{what}: it happened");
        assert!(fleet.socket.happened(), "{what}: it happened");
    }
    tokens_agree(&fleet).await;
    Box::pin(beside_other_makes(&fleet)).await;
    let Fleet { host, .. } = fleet;
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_real_vllms_of_other_numbers_of_workers_go_on_from_each_others_kv() {
    let Ok(python) = std::env::var("PORTOLAN_VLLM") else {
        say("skipped: PORTOLAN_VLLM is not set; make test-vllm brings vLLM and runs this");
        return;
    };
    let begun = Instant::now();
    let fleet = Fleet::start(&python, 2).await;
    say(&format!(
        "vLLMs of two workers and of one up after {:.0?}",
        begun.elapsed()
    ));
    let mut all_of_it = 0;
    for (n, (prompt, expected)) in oracle().into_iter().enumerate() {
        let alone = fleet
            .ask("paris", GLOBEX, &format!("w-alone-{n}"), &prompt, 32)
            .await;
        assert_eq!(alone.tokens, expected, "prompt {n}, two workers alone");
        if whole(&prompt) == 0 {
            continue;
        }
        fleet.computed_in_virginia(&format!("w-there-{n}"), &prompt).await;
        let said = fleet
            .ask("paris", ACME, &format!("w-here-{n}"), &prompt, 32)
            .await;
        assert_eq!(said.tokens, expected, "prompt {n}");
        came(
            &format!("one worker's KV at two, prompt {n}"),
            &prompt,
            &said,
            &alone,
        );
        assert_eq!(said.cached, u64::from(said.fetched()), "prompt {n}");
        all_of_it += usize::from(said.fetched() == whole(&prompt));
    }
    assert!(all_of_it > 0, "no fetch ever came to its end");
    // What two workers filled lies there in one piece, and nothing waits for a part.
    let until = Instant::now() + PATIENCE;
    let paris = ("paris", "p");
    while sample(&fleet, paris, "engine_kv_store_saved_blocks") == 0
        || sample(&fleet, paris, "engine_kv_store_waiting_parts") > 0
    {
        assert!(Instant::now() < until, "parts are not put together");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(sample(&fleet, paris, "engine_kv_store_idle"), 0);
    let Fleet { host, .. } = fleet;
    host.stop().await;
}

/// A number of an instance's own.
fn sample(fleet: &Fleet, (site, instance): (&str, &str), name: &str) -> u64 {
    let engine = Arc::clone(&fleet.site(site).parts.engines[&InstanceName::new(instance).unwrap()]);
    let samples = engine.samples();
    let found = samples.iter().find(|sample| sample.name == name);
    match found.map(|sample| &sample.value) {
        Some(portolan_ports::Reading::Gauge(n) | portolan_ports::Reading::Counter(n)) => *n,
        other => panic!("{name}: {other:?}"),
    }
}

/// What the engine cuts text into, asked of itself.
async fn tokens_agree(fleet: &Fleet) {
    for at in [("paris", "p"), ("virginia", "v")] {
        assert_eq!(sample(fleet, at, "engine_token_mismatches"), 0, "{at:?}");
    }
    let text = Arc::clone(&fleet.site("paris").parts.models[&ModelName::new(MODEL).unwrap()].text);
    let url = fleet.found["server"]["url"]
        .as_str()
        .unwrap()
        .trim_start_matches("http://");
    let url: SocketAddr = url.parse().unwrap();
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("texts/alice.txt");
    let book = std::fs::read_to_string(book).unwrap();
    let (mut compared, mut tokens) = (0, 0);
    for line in book.lines().filter(|line| !line.trim().is_empty()) {
        let ask = json!({"model": MODEL, "prompt": line}).to_string();
        let (head, said) = Client(url).raw("-", "/tokenize", &ask).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let said: Value = serde_json::from_slice(&said).unwrap();
        let theirs: Vec<u32> = serde_json::from_value(said["tokens"].clone()).unwrap();
        assert_eq!(text.encode(line, true).unwrap(), theirs, "{line}");
        compared += 1;
        tokens += theirs.len();
    }
    assert!(compared > 80, "{compared} lines");
    say(&format!(
        "{compared} lines are cut into the same {tokens} tokens by vLLM and the host"
    ));
}

/// The real engine, the host's own and a modelled one behind one gateway: whoever computed a prefix is found by its tokens.
async fn beside_other_makes(fleet: &Fleet) {
    let modelled = engine(true).await;
    let all = ["n1", "real", "m1"];
    let paris = Paris::start(&[native("n1"), fleet.found.to_string(), found("m1", &modelled, "")]).await;
    let until = Instant::now() + PATIENCE;
    let mut tries = 0;
    loop {
        tries += 1;
        let (_, record) = paris
            .ask(ACME, &format!("all-{tries}"), anyones(&prompt(60, 40)))
            .await;
        if all
            .iter()
            .all(|name| record.candidates.iter().any(|c| c.route.decode_instance == *name))
        {
            break;
        }
        assert!(Instant::now() < until, "not all are candidates: {record:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for (n, by) in (70..).zip(all) {
        for other in all.into_iter().filter(|other| *other != by) {
            fleet::service(&paris, other, "drain").await;
        }
        let (_, record) = paris
            .ask(ACME, &format!("mixed-{n}"), anyones(&prompt(n, 200)))
            .await;
        assert_eq!(record.route.unwrap().prefill_instance, by);
        let longer = [prompt(n, 200), prompt(n + 20, 20)].concat();
        let until = Instant::now() + PATIENCE;
        let mut tries = 0;
        let record = loop {
            tries += 1;
            let (_, record) = paris
                .ask(ACME, &format!("longer-{n}-{tries}"), anyones(&longer))
                .await;
            if fleet::held(&record, by) >= 192 {
                break record;
            }
            assert!(
                Instant::now() < until,
                "nobody learnt of {by}'s blocks: {record:?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        assert!(
            record.kv.cached_tokens >= 192,
            "{by} found {} itself",
            record.kv.cached_tokens
        );
        for other in all.into_iter().filter(|other| *other != by) {
            fleet::service(&paris, other, "resume").await;
        }
    }
    say(
        "a prefix that vLLM, the native engine or the modelled one computed is found where it is, behind one gateway",
    );
    paris.stop().await;
}

/// A line of the transcript; what was fetched has to be there.
fn came(what: &str, prompt: &[u32], said: &Said, alone: &Said) {
    let fetches: Vec<_> = said
        .record
        .fetches
        .iter()
        .map(|fetch| {
            format!(
                "{}/{} tokens, {} bytes, {:.1} ms{}",
                fetch.tokens,
                fetch.wanted_tokens,
                fetch.bytes,
                fetch.took_ms,
                fetch
                    .failed
                    .as_ref()
                    .map(|why| format!(" ({why})"))
                    .unwrap_or_default()
            )
        })
        .collect();
    assert!(
        !fetches.is_empty(),
        "{what}: nothing was fetched: {:?}",
        said.record
    );
    say(&format!(
        "{what}: {} prompt tokens, fetched {}, engine took {} from the host, {:.0?} (alone {:.0?}), 32 tokens equal",
        prompt.len(),
        fetches.join("; "),
        said.cached,
        said.took,
        alone.took
    ));
}
