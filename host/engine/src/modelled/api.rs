//! The HTTP side of a modelled engine: vLLM's paths, its errors, its shapes.

mod fetch;
mod order;
mod reply;

use super::faults::Fate;
use super::hand_over::{Parked, TAKE, Transfer};
use super::metrics::Page;
use super::profile::Profile;
use super::schedule::{Ask, Scheduler};
use super::{ModelledError, ModelledText};
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use order::{Order, Reading};
use portolan_base::{Clock, Moment, Random};
use reply::{Pen, Refusal};
use serde_json::json;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// A body of either kind; one that fails is a connection that breaks.
type Answer = Response<BoxBody<Bytes, io::Error>>;

/// Longest body that is read.
const BODY_MOST: usize = 64 << 20;

/// What a server is made of.
pub(super) struct ServerParts {
    pub(super) profile: Profile,
    pub(super) model: String,
    pub(super) address: SocketAddr,
    pub(super) text: ModelledText,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) random: Arc<dyn Random>,
}

pub(super) struct Server {
    parts: ServerParts,
    parked: Parked,
    started: Moment,
    requests: AtomicU64,
}

impl Server {
    pub(super) fn new(parts: ServerParts) -> Arc<Self> {
        let engine = format!("modelled-{:016x}", parts.random.next_u64());
        Arc::new(Self {
            parked: Parked::new(&parts.scheduler, parts.profile.clone(), engine),
            started: parts.clock.now(),
            requests: AtomicU64::new(0),
            parts,
        })
    }

    /// Serves until the engine dies.
    pub(super) async fn run(self: Arc<Self>, listener: TcpListener) -> Result<(), ModelledError> {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                why = self.parts.scheduler.died() => return Err(ModelledError::Died(why)),
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => {
                    let Ok((stream, _)) = accepted else { continue };
                    // Small events must not wait for the client's delayed acknowledgement.
                    drop(stream.set_nodelay(true));
                    let server = Arc::clone(&self);
                    connections.spawn(async move {
                        let service = service_fn(move |request| {
                            let server = Arc::clone(&server);
                            async move { Ok::<_, Infallible>(server.answer(request).await) }
                        });
                        let connection = auto::Builder::new(TokioExecutor::new());
                        if let Err(error) = connection.serve_connection(TokioIo::new(stream), service).await {
                            tracing::debug!(%error, "a connection of the modelled engine ended");
                        }
                    });
                }
            }
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        if let Some(why) = self.parts.scheduler.death() {
            return Refusal::dead(&why).answer();
        }
        match (&head.method, path.as_str()) {
            (&Method::GET, "/health") => empty(StatusCode::OK),
            (&Method::GET, "/metrics") => self.metrics(),
            (&Method::GET, "/version") => {
                json_answer(&json!({"version": concat!("modelled-", env!("CARGO_PKG_VERSION"))}))
            }
            (&Method::GET, "/load") => {
                let (waiting, running, _) = self.parts.scheduler.load();
                json_answer(&json!({"server_load": waiting + running}))
            }
            (&Method::GET, "/query") => {
                json_answer(&json!({"0": {"engine_id": self.parked.engine(), "worker_addr": {}}}))
            }
            (&Method::GET, "/v1/models") => self.models(),
            (&Method::POST, "/reset_prefix_cache") => {
                self.parts.scheduler.reset();
                empty(StatusCode::OK)
            }
            (&Method::POST, "/tokenize" | "/v1/completions" | "/v1/chat/completions") => {
                let Some(body) = read(body).await else {
                    return Refusal::bad("the body ended early or is too long").answer();
                };
                let id = head.headers.get("x-request-id").and_then(|id| id.to_str().ok());
                match path.as_str() {
                    "/tokenize" => self.tokenize(&body),
                    "/v1/completions" => self.infer(order::Door::Completion, id, &body).await,
                    _ => self.infer(order::Door::Chat, id, &body).await,
                }
            }
            (&Method::POST, path) if path.starts_with(TAKE) => {
                match self.parked.take(&path[TAKE.len()..]).await {
                    Some(tokens) => json_answer(&json!({"tokens": tokens, "engine": self.parked.engine()})),
                    None => Refusal::not_found("no KV waits under this name").answer(),
                }
            }
            _ => plain(
                StatusCode::NOT_FOUND,
                "application/json",
                r#"{"detail":"Not Found"}"#.into(),
            ),
        }
    }

    fn reading(&self) -> Reading<'_> {
        Reading {
            model: &self.parts.model,
            text: &self.parts.text,
            context: self.parts.profile.context_tokens,
            at: self.parts.clock.now(),
        }
    }

    fn tokenize(&self, body: &[u8]) -> Answer {
        match self.reading().tokenize(body) {
            Ok(tokens) => json_answer(&json!({
                "count": tokens.len(),
                "max_model_len": self.parts.profile.context_tokens,
                "tokens": tokens,
                "token_strs": null,
            })),
            Err(refusal) => refusal.answer(),
        }
    }

    async fn infer(&self, door: order::Door, id: Option<&str>, body: &[u8]) -> Answer {
        let order = match self.reading().order(door, body) {
            Ok(order) => order,
            Err(refusal) => {
                if refusal.is_fatal() {
                    self.parts
                        .scheduler
                        .die("kv_transfer_params without the fields that name the KV");
                    return Refusal::dead("").answer();
                }
                return refusal.answer();
            }
        };
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let fate = self.parts.profile.faults.fate(number);
        match fate {
            Fate::Served | Fate::Broken => {}
            Fate::Refused => return Refusal::unavailable().answer(),
            Fate::Failed => return Refusal::internal("Internal server error").answer(),
            Fate::Stalled(time) => tokio::time::sleep(time).await,
            Fate::Fatal => {
                self.parts.scheduler.die("it was to die after so many requests");
                return Refusal::dead("").answer();
            }
        }
        let name = match id {
            Some(id) => id.to_owned(),
            None => format!("{:016x}", self.parts.random.next_u64()),
        };
        self.generate(order, &name, fate == Fate::Broken).await
    }

    async fn generate(&self, order: Order, name: &str, breaks: bool) -> Answer {
        let received = match &order.transfer {
            Transfer::Take(source) => match fetch::tokens(source).await {
                Some(tokens) => tokens,
                None => return Refusal::internal("Internal server error").answer(),
            },
            Transfer::None | Transfer::Offer { .. } => 0,
        };
        let park = matches!(order.transfer, Transfer::Offer { .. }) && !order.stream;
        let mut answers = Vec::new();
        for prompt in &order.prompts {
            for choice in 0..order.choices {
                answers.push(self.parts.scheduler.ask(Ask {
                    prompt: Arc::clone(prompt),
                    salt: order.salt.clone(),
                    max_tokens: order.max_tokens,
                    ignore_eos: order.ignore_eos,
                    choice: order.choice_seed(choice),
                    received,
                    park,
                }));
            }
        }
        let prefix = match order.door {
            order::Door::Chat => "chatcmpl-",
            order::Door::Completion => "cmpl-",
        };
        let pen = Pen {
            id: format!("{prefix}{name}"),
            created: self.parts.clock.now().millis() / 1000,
            model: self.parts.model.clone(),
            text: self.parts.text.text.clone(),
            breaks,
            order,
        };
        if pen.order.stream {
            return pen.stream(answers);
        }
        let offered = pen.order.transfer.clone();
        let prompt = pen.order.prompts.first().map_or(0, |p| p.len() as u32);
        let (written, parked) = match pen.whole(answers).await {
            Ok(done) => done,
            Err(refusal) => return refusal.answer(),
        };
        let params = match offered {
            Transfer::Offer { transfer } if park => {
                let key = transfer
                    .unwrap_or_else(|| format!("{prefix}{name}-{:08x}", self.parts.random.next_u64() as u32));
                let (blocks, cached) = (parked.blocks.len(), parked.cached);
                self.parked.park(key.clone(), parked.blocks, prompt);
                let address = self.parts.address;
                Some(self.parked.params(
                    &address.ip().to_string(),
                    address.port(),
                    &key,
                    blocks,
                    prompt,
                    cached,
                ))
            }
            _ => None,
        };
        plain(
            StatusCode::OK,
            "application/json",
            written.with_params(params.as_ref()),
        )
    }

    fn metrics(&self) -> Answer {
        let kv = &self.parts.profile.kv;
        let mut page = self.parts.scheduler.counters.page(&Page {
            model: &self.parts.model,
            load: self.parts.scheduler.load(),
            block_tokens: kv.block_tokens,
            blocks: kv.blocks,
            started: self.started,
        });
        page.push_str(&format!("modelled:kv_parked {}\n", self.parked.count()));
        plain(StatusCode::OK, "text/plain; version=1.0.0; charset=utf-8", page)
    }

    fn models(&self) -> Answer {
        json_answer(&json!({"object": "list", "data": [{
            "id": self.parts.model,
            "object": "model",
            "created": self.started.millis() / 1000,
            "owned_by": "portolan",
            "root": self.parts.model,
            "parent": null,
            "max_model_len": self.parts.profile.context_tokens,
        }]}))
    }
}

async fn read(body: Incoming) -> Option<Bytes> {
    let limited = http_body_util::Limited::new(body, BODY_MOST);
    limited
        .collect()
        .await
        .ok()
        .map(http_body_util::Collected::to_bytes)
}

fn json_answer(value: &serde_json::Value) -> Answer {
    plain(StatusCode::OK, "application/json", value.to_string())
}

fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(whole(Bytes::new()));
    *answer.status_mut() = status;
    answer
}

fn plain(status: StatusCode, kind: &'static str, body: String) -> Answer {
    let mut answer = Response::new(whole(Bytes::from(body)));
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    answer
}

fn whole(body: Bytes) -> BoxBody<Bytes, io::Error> {
    Full::new(body)
        .map_err(|never: Infallible| match never {})
        .boxed()
}
