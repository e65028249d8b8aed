//! Engines that are not ours behind the gateway: the client's words in, the engine's out, whoever serves.

mod fleet;
mod left;
mod parted;
mod passed;
mod salted;
mod slotted;
mod stored;
mod vllm;

use portolan::config::Config;
use portolan::host::Host;
use portolan::system::{OsRandom, SystemClock};
use portolan_decide::PathRecord;
use portolan_engine::ModelFiles;
use portolan_engine::modelled::{EventPorts, ModelledConfig, ModelledEngine, ModelledText, Profile};
use portolan_gateway::Site;
use portolan_tests::oracle_folder;
use portolan_tests::world::{ACME, ADMIN, GLOBEX, MODEL};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(30);

/// A modelled engine with the tests' model's tokenizer.
async fn engine(events: bool) -> ModelledEngine {
    engine_like(Profile::shipped("quick").unwrap(), events).await
}

async fn engine_like(profile: Profile, events: bool) -> ModelledEngine {
    let files = ModelFiles::read(&oracle_folder("tiny-qwen3")).unwrap();
    let any = || "tcp://127.0.0.1:0".to_owned();
    let config = ModelledConfig {
        profile: Profile {
            context_tokens: 512,
            ..profile
        },
        model: MODEL.to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        text: Some(ModelledText {
            text: files.text(),
            vocabulary: files.vocabulary(),
        }),
        events: events.then(|| EventPorts {
            publish: any(),
            replay: Some(any()),
            topic: String::new(),
        }),
        clock: Arc::new(SystemClock::start()),
        random: Arc::new(OsRandom),
    };
    ModelledEngine::start(config).await.unwrap()
}

/// One site, `paris`, with these instances.
struct Paris {
    host: Host,
    address: SocketAddr,
    _folder: TempDir,
}

impl Paris {
    async fn start(instances: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (data, model) = (folder.path().join("data"), oracle_folder("tiny-qwen3"));
        let config = Config::parse(&format!(
            "data_dir: {}\noperator_keys: [{ADMIN}]\nmodels: [{{name: {MODEL}, path: {}}}]\nsites:\n  - name: paris\n    \
             jurisdiction: eu\n    listen: '127.0.0.1:0'\n    instances: [{}]\n\
             tenants: [{{name: acme, keys: [{ACME}]}}, {{name: globex, keys: [{GLOBEX}]}}]\n",
            data.display(),
            model.display(),
            instances.join(", ")
        ))
        .unwrap();
        let host = Host::start(config).await.unwrap();
        let address = host.sites()[0].http();
        Self {
            host,
            address,
            _folder: folder,
        }
    }

    async fn stop(self) {
        self.host.stop().await;
    }

    async fn raw(&self, key: &str, path: &str, body: &str) -> (String, Vec<u8>) {
        Client(self.address).raw(key, path, body).await
    }

    async fn send(&self, key: &str, path: &str, body: &str) -> TcpStream {
        Client(self.address).send(key, path, body).await
    }

    async fn complete(&self, key: &str, body: Value) -> Value {
        Client(self.address).complete(key, &body).await
    }

    /// The request's record, once it has ended.
    async fn record(&self, id: &str) -> PathRecord {
        record_at(self.host.sites()[0].gateway().unwrap(), id).await
    }

    /// Asks under an id, and gives answer and record.
    async fn ask(&self, key: &str, id: &str, mut body: Value) -> (Value, PathRecord) {
        body["request_id"] = json!(id);
        let answer = self.complete(key, body).await;
        (answer, self.record(id).await)
    }
}

/// Asks one site.
struct Client(SocketAddr);

impl Client {
    /// The head and the body of an answer, framing taken off.
    async fn raw(&self, key: &str, path: &str, body: &str) -> (String, Vec<u8>) {
        let mut stream = self.send(key, path, body).await;
        let mut bytes = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes))
            .await
            .unwrap()
            .unwrap();
        parts(&bytes)
    }

    async fn send(&self, key: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.0).await.unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
             connection: close\r\nx-own: 7\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    async fn complete(&self, key: &str, body: &Value) -> Value {
        let (head, bytes) = self.raw(key, "/v1/completions", &body.to_string()).await;
        let text = String::from_utf8(bytes).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{text}");
        serde_json::from_str(&text).unwrap()
    }
}

/// A request's record, once it has ended.
async fn record_at(site: &Site, id: &str) -> PathRecord {
    let until = Instant::now() + PATIENCE;
    loop {
        let newest = site.records.newest(100);
        let record = newest
            .into_iter()
            .find(|r| r.request_id.as_str() == id && r.status != "running");
        if let Some(record) = record {
            return (*record).clone();
        }
        assert!(Instant::now() < until, "{id} never ended");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn parts(raw: &[u8]) -> (String, Vec<u8>) {
    let end = raw.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(raw[..end].to_vec()).unwrap();
    let mut rest = &raw[end + 4..];
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return (head, rest.to_vec());
    }
    let mut body = Vec::new();
    while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        body.extend_from_slice(&rest[line + 2..line + 2 + size]);
        rest = &rest[line + 4 + size..];
    }
    (head, body)
}

fn found(name: &str, engine: &ModelledEngine, more: &str) -> String {
    let events = match (engine.events(), engine.replay()) {
        (Some(events), Some(replay)) => format!(", kv_events: {{endpoint: '{events}', replay: '{replay}'}}"),
        _ => String::new(),
    };
    let (role, hand_over) = more.split_once('|').unwrap_or(("", ""));
    format!(
        "{{name: {name}, model: {MODEL}, engine: vllm, {role} server: {{url: 'http://{}'{events}{hand_over}}}}}",
        engine.address()
    )
}

fn native(name: &str) -> String {
    format!("{{name: {name}, model: {MODEL}}}")
}

/// A prompt of so many tokens that begins with `first`.
fn prompt(first: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|n| 300 + (first * 97 + n * 7) % 1500).collect()
}

/// A request that only engines which answer whole ones understand.
fn theirs(prompt: &[u32]) -> Value {
    json!({"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true, "length_penalty": 0.9})
}

/// A request that any engine can answer.
fn anyones(prompt: &[u32]) -> Value {
    json!({"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true})
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

async fn metric(engine: &ModelledEngine, name: &str) -> f64 {
    let mut stream = TcpStream::connect(engine.address()).await.unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let page = String::from_utf8(parts(&bytes).1).unwrap();
    let line = page.lines().find(|line| line.starts_with(name)).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}
