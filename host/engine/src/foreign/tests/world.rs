//! What the tests start: instances, engines for them, servers that say what they are told to.

use super::*;
use crate::modelled::{EventPorts, ModelledConfig, ModelledEngine, Profile};
use bytes::Bytes;
use portolan_base::kv::{KvDtype, KvLayout};
use portolan_base::{BlockHash, InstanceName, ModelName, Moment, RequestId, Role, Tokens};
use portolan_ports::{FAKE_VOCABULARY, FakeText};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(super) struct Wall;

impl Clock for Wall {
    fn now(&self) -> Moment {
        Moment(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64)
    }
}

pub(super) struct Dice;

impl Random for Dice {
    fn next_u64(&self) -> u64 {
        use std::hash::{BuildHasher, Hasher};
        std::collections::hash_map::RandomState::new()
            .build_hasher()
            .finish()
    }
}

pub(super) fn quick() -> Profile {
    Profile::shipped("quick").unwrap()
}

pub(super) async fn modelled(profile: Profile, listen: &str, events: Option<EventPorts>) -> ModelledEngine {
    let config = || ModelledConfig {
        profile: profile.clone(),
        model: "tiny".to_owned(),
        listen: listen.parse().unwrap(),
        text: None,
        events: events.clone(),
        clock: Arc::new(Wall),
        random: Arc::new(Dice),
    };
    // Ports of one that was dropped a moment ago are free a moment later.
    for _ in 0..100 {
        if let Ok(engine) = ModelledEngine::start(config()).await {
            return engine;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ModelledEngine::start(config()).await.unwrap()
}

pub(super) fn any_ports() -> EventPorts {
    EventPorts {
        publish: "tcp://127.0.0.1:0".to_owned(),
        replay: Some("tcp://127.0.0.1:0".to_owned()),
        topic: "kv@v@tiny".to_owned(),
    }
}

pub(super) fn config(address: SocketAddr) -> ForeignConfig {
    let model = ModelName::new("tiny").unwrap();
    ForeignConfig {
        description: EngineDescription {
            instance: InstanceName::new("v1").unwrap(),
            model: model.clone(),
            role: Role::Both,
            layout: Arc::new(KvLayout {
                model,
                model_version: 1,
                dtype: KvDtype::F32,
                block_tokens: 16,
                window: None,
                layers: Vec::new(),
            }),
            context_tokens: Tokens(8192),
            vocabulary: FAKE_VOCABULARY,
            decode_slots: 8,
        },
        make: Make::Vllm,
        url: EngineUrl::parse(&format!("http://{address}")).unwrap(),
        served_name: None,
        command: None,
        key: None,
        events: None,
        connector: None,
        kv_store: None,
        text: Arc::new(FakeText::new()),
        random: Arc::new(Dice),
        clock: Arc::new(Wall),
    }
}

pub(super) async fn up(config: ForeignConfig) -> ForeignInstance {
    let instance = ForeignInstance::start(config).unwrap();
    assert!(
        instance.until_up(Duration::from_secs(10)).await,
        "the engine does not come up"
    );
    instance
}

/// An instance over a modelled engine of its own.
pub(super) async fn pair(profile: Profile) -> (ModelledEngine, ForeignInstance) {
    let engine = modelled(profile, "127.0.0.1:0", None).await;
    let instance = up(config(engine.address())).await;
    (engine, instance)
}

pub(super) fn salt(name: &str) -> CacheSalt {
    CacheSalt {
        text: name.into(),
        root: Some(root(name)),
    }
}

pub(super) fn root(name: &str) -> BlockHash {
    BlockHash::root(&key(name))
}

pub(super) fn key(name: &str) -> TenantKey {
    TenantKey::derive(&[7; 32], name, "tiny", 1)
}

pub(super) fn job(body: &str) -> WholeJob {
    WholeJob {
        request: RequestId::from_client("req-1").unwrap(),
        path: WholePath::Completions,
        body: Bytes::copy_from_slice(body.as_bytes()),
        remove: Arc::from(["portolan"]),
        headers: Arc::from([("traceparent".to_owned(), "00-abc".to_owned())]),
        salt: salt("acme"),
        prompt: Arc::from([]),
        uncached: 1000,
        cancel: Cancel::new(),
    }
}

pub(super) fn completion(prompt: &str, more: Value) -> String {
    let mut body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0});
    let Value::Object(more) = more else {
        panic!("fields are an object: {more}");
    };
    body.as_object_mut().unwrap().extend(more);
    body.to_string()
}

pub(super) async fn all(answer: WholeAnswer) -> Result<(AnswerHead, Vec<u8>), EngineError> {
    let WholeAnswer { head, mut body } = answer;
    let mut bytes = Vec::new();
    while let Some(more) = body.next().await {
        bytes.extend_from_slice(&more?);
    }
    Ok((head, bytes))
}

pub(super) async fn answered(instance: &ForeignInstance, body: &str) -> Value {
    let (head, bytes) = all(instance.answer(job(body), None).await.unwrap())
        .await
        .unwrap();
    assert_eq!(head.status, 200, "{}", String::from_utf8_lossy(&bytes));
    serde_json::from_slice(&bytes).unwrap()
}

/// Waits until something holds, at most 10 s.
pub(super) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: not within 10 s");
}

/// A request as a server gets it.
#[derive(Clone, Debug)]
pub(super) struct Got {
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

/// Serves one connection after the other with `answer`; ends with the returned set.
pub(super) async fn server<A, F>(answer: A) -> (SocketAddr, JoinSet<()>)
where
    A: Fn(Got, TcpStream) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    let answer = Arc::new(answer);
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            connections.spawn(async move {
                if let Some(got) = read(&mut stream).await {
                    answer(got, stream).await;
                }
            });
        }
    });
    (address, tasks)
}

/// Reads one request.
async fn read(stream: &mut TcpStream) -> Option<Got> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let n = stream.read(&mut piece).await.ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&piece[..n]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let length = head.lines().find_map(|line| {
            line.to_ascii_lowercase()
                .strip_prefix("content-length: ")?
                .parse()
                .ok()
        });
        let body = &bytes[end + 4..];
        if body.len() >= length.unwrap_or(0) {
            return Some(Got {
                head,
                body: body.to_vec(),
            });
        }
    }
}

pub(super) async fn write(stream: &mut TcpStream, bytes: &[u8]) {
    drop(stream.write_all(bytes).await);
    drop(stream.flush().await);
}

/// What every server of these tests answers to the adapter's own questions; none for a client's request.
pub(super) fn housekeeping(got: &Got) -> Option<&'static [u8]> {
    const EMPTY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    const NONE: &[u8] = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    const TRIED: &[u8] =
        b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\nconnection: close\r\n\r\ndata: [DONE]\n\n";
    let asks = |path: &str| got.head.lines().next().is_some_and(|line| line.contains(path));
    match () {
        () if asks("/health") || asks("/metrics") => Some(EMPTY),
        () if asks("/tokenize") => Some(NONE),
        () if got.body.windows(12).any(|w| w == b"\"ignore_eos\"") && !got.head.contains("x-request-id") => {
            Some(TRIED)
        }
        () => None,
    }
}
