//! The means of the tour: asking, showing, checking.

use super::narrator::Narrator;
use crate::client::Client;
use crate::command::output::{Failure, line};
use crate::command::request::{short, timeline};
use crate::host::Host;
use portolan_base::Bytes;
use portolan_decide::PathRecord;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// The model of the demo.
pub(super) const MODEL: &str = "smollm2-135m-instruct";

/// How long a record may take to be settled after its answer ended.
const SETTLE_PATIENCE: Duration = Duration::from_secs(5);

/// A tour under way.
pub(super) struct Tour<'a> {
    pub(super) host: &'a mut Host,
    pub(super) runtime: Arc<Runtime>,
    server: String,
    plugins: PathBuf,
    narrator: Narrator,
}

/// What one question came to.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) text: String,
    pub(super) record: PathRecord,
}

/// One question.
pub(super) struct Ask<'a> {
    pub(super) key: &'a str,
    pub(super) prompt: &'a str,
    pub(super) max_tokens: u32,
    /// Where the client wants its prompt computed; empty leaves it to the policies.
    pub(super) prefill_policy: &'a str,
}

impl<'a> Tour<'a> {
    pub(super) fn new(host: &'a mut Host, runtime: Arc<Runtime>, plugins: PathBuf) -> Result<Self, Failure> {
        let server = host.sites().first().map(|site| format!("http://{}", site.http()));
        let server = server.ok_or_else(|| Failure::new("the demo's configuration has no site"))?;
        Ok(Self {
            host,
            runtime,
            server,
            plugins,
            narrator: Narrator::new(),
        })
    }

    /// Ends the tour; how many things were not as told.
    pub(super) fn close(self) -> u32 {
        self.narrator.close()
    }

    pub(super) fn scene(&mut self, title: &str) {
        self.narrator.scene(title);
    }

    pub(super) fn tell(&self, text: &str) {
        self.narrator.tell(text);
    }

    /// Says that something is so, and checks it.
    pub(super) fn check(&mut self, what: &str, holds: bool) {
        self.narrator.check(what, holds);
    }

    pub(super) fn client(&self, key: &str) -> Client {
        Client::new(&self.server, key)
    }

    /// Uploads a shipped component and makes it active.
    pub(super) fn push(
        &self,
        key: &str,
        slot: (&str, &str),
        name: &str,
        config: &str,
    ) -> Result<Value, Failure> {
        let (tenant, question) = slot;
        let file = self.plugins.join(format!("{name}.wasm"));
        let bytes = std::fs::read(&file).map_err(|e| Failure::new(format!("{}: {e}", file.display())))?;
        let path = format!("/v1/portolan/tenants/{tenant}/policies/{question}");
        let began = Instant::now();
        let reply = self
            .client(key)
            .put(&path, &[("name", name), ("config", config)], &bytes);
        let body = reply.map_err(Failure::new)?.body;
        self.tell(&format!(
            "{tenant:<9} {question:<9} ← {name:<12} {:>5.1} kB, sha256 {}, active after {} ms {config}",
            bytes.len() as f64 / 1000.0,
            short(body["version"].as_str().unwrap_or("?")),
            began.elapsed().as_millis()
        ));
        Ok(body)
    }

    /// Asks, showing the answer as it streams.
    pub(super) fn ask(&self, ask: &Ask<'_>) -> Result<Asked, Failure> {
        self.ask_and(ask, &mut |_, _| Ok(()))
    }

    /// Asks, and calls `on_piece` after each piece, with how many there were; it ends the printer's line before it says
    /// anything itself.
    pub(super) fn ask_and(
        &self,
        ask: &Ask<'_>,
        on_piece: &mut dyn FnMut(usize, &mut Printer) -> Result<(), Failure>,
    ) -> Result<Asked, Failure> {
        let mut text = String::new();
        let mut trouble = None;
        let mut pieces = 0;
        let mut out = Printer::new();
        let id = self
            .client(ask.key)
            .stream("/v1/chat/completions", &body(ask), &mut |data| {
                let event: Value = serde_json::from_str(data).unwrap_or_default();
                if let Some(message) = event.pointer("/error/message") {
                    trouble = Some(Failure::new(format!("the stream broke off: {message}")));
                    return false;
                }
                let Some(delta) = event.pointer("/choices/0/delta/content").and_then(Value::as_str) else {
                    return true;
                };
                if delta.is_empty() {
                    return true;
                }
                text.push_str(delta);
                out.piece(delta);
                pieces += 1;
                match on_piece(pieces, &mut out) {
                    Ok(()) => true,
                    Err(failure) => {
                        trouble = Some(failure);
                        false
                    }
                }
            });
        out.end();
        if let Some(failure) = trouble {
            return Err(failure);
        }
        let id = id
            .map_err(Failure::new)?
            .ok_or_else(|| Failure::new("the response names no request id"))?;
        Ok(Asked {
            text,
            record: self.settled(&id)?,
        })
    }

    /// The path record of a request, once it is settled.
    pub(super) fn settled(&self, id: &str) -> Result<PathRecord, Failure> {
        let client = self.client("demo-admin");
        let began = Instant::now();
        loop {
            let reply = client
                .get(&format!("/v1/portolan/requests/{id}"))
                .map_err(Failure::new)?;
            let record: PathRecord = serde_json::from_value(reply.body).map_err(Failure::new)?;
            if record.status != "running" || began.elapsed() > SETTLE_PATIENCE {
                return Ok(record);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Says where a request went, what each policy took, and when each stage ran.
    pub(super) fn why(&self, record: &PathRecord) {
        if let Some(route) = &record.route {
            self.tell(&self.dim(&format!(
                "prompt of {} tokens computed at {}, answer generated at {}; {} of KV crossed, {} tokens reused",
                record.prompt_tokens,
                route.prefill_site,
                route.decode_site,
                Bytes(record.kv.bytes_moved),
                record.kv.cached_tokens
            )));
        }
        let calls = record.policies.iter();
        let calls: Vec<_> = calls
            .map(|p| format!("{} {} {} µs", p.question, p.name, p.micros))
            .collect();
        self.tell(&self.dim(&format!("decided by {}", calls.join(" · "))));
        for candidate in &record.candidates {
            let cost = candidate
                .cost
                .map_or("–".to_owned(), |c| format!("{} ms", c.total_us / 1000));
            let verdict = candidate
                .excluded
                .clone()
                .or(candidate.rank.map(|r| format!("rank {r}")));
            self.tell(&self.dim(&format!(
                "  route via {:<9} cost {cost:>8}  {}",
                candidate.route.prefill_site,
                verdict.unwrap_or_default()
            )));
        }
    }

    /// Shows the stages to scale.
    pub(super) fn stages(&self, record: &PathRecord) {
        let wanted = ["prefill", "transfer", "decode"];
        for bar in timeline(record) {
            if wanted.iter().any(|name| bar.contains(name)) {
                self.tell(&self.dim(bar.trim_start_matches("stage").trim_start()));
            }
        }
    }

    fn dim(&self, text: &str) -> String {
        self.narrator.dim(text)
    }
}

/// The body of a question.
pub(super) fn body(ask: &Ask<'_>) -> Value {
    let mut body = json!({
        "model": MODEL,
        "messages": [{ "role": "user", "content": ask.prompt }],
        "max_tokens": ask.max_tokens,
        "temperature": 0,
        "stream": true,
    });
    if !ask.prefill_policy.is_empty() {
        body["prefill_policy"] = json!(ask.prefill_policy);
    }
    body
}

/// Prints an answer piece by piece, indented and wrapped.
pub(super) struct Printer {
    column: usize,
}

impl Printer {
    const WIDTH: usize = 100;

    fn new() -> Self {
        Self { column: 0 }
    }

    #[expect(clippy::print_stdout, reason = "an answer is shown while it streams")]
    fn piece(&mut self, text: &str) {
        for part in text.split_inclusive(['\n', ' ']) {
            if self.column == 0 || self.column + part.len() > Self::WIDTH {
                print!("{}   │ ", if self.column == 0 { "" } else { "\n" });
                self.column = 1;
            }
            let plain = part.trim_end_matches('\n');
            print!("{plain}");
            self.column += plain.len();
            if plain.len() != part.len() {
                println!();
                self.column = 0;
            }
        }
        drop(std::io::stdout().flush());
    }

    pub(super) fn end(&mut self) {
        if self.column > 0 {
            line("");
            self.column = 0;
        }
    }
}
