//! Health, load and restarts of a foreign engine, twice a second; and what is tried before it is given work.

use super::hand_over::Handing;
use super::scrape::{Scraped, scrape};
use super::{Shared, agree};
use bytes::Bytes;
use http_body_util::BodyExt;
use portolan_base::INDEX_BLOCK_TOKENS;
use portolan_ports::{Reading, Sample};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// How often it is looked at: as often as every other figure of the fast loop.
const EVERY: Duration = Duration::from_millis(500);

/// How long a look may take. A busy Python server answers late; one that needs longer than this cannot be told from one
/// that hangs.
const LOOK: Duration = Duration::from_secs(2);

/// Looks that fail before it is given no more work: one may meet a pause.
const FAILURES: u32 = 2;

/// How long after an engine could not be tried the next try comes.
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// The try's prompt and answer, in tokens.
const TRIED_PROMPT: u32 = 256;
const TRIED_ANSWER: u32 = 16;

/// The bootstrap server by which SGLang tries a prefill or decode engine out by itself (`FAKE_BOOTSTRAP_HOST` there);
/// either refuses a request that names none.
const NO_TRANSFER: &str = "2.2.2.2";

/// How long the try may take: a first request may compile kernels.
const TRIAL: Duration = Duration::from_secs(60);

/// Requests that fill blocks and are followed by no event, before that is an alarm, and for how long.
const UNHEARD: u32 = 5;
const UNHEARD_FOR: Duration = Duration::from_secs(10);

/// Fewest tokens to compute that certainly fill a block.
const FILLS_A_BLOCK: u32 = 64;

/// What was seen of an engine.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(super) load: Scraped,
    started: Option<f64>,
    /// Requests that filled blocks since the last cache event.
    unheard: u32,
    /// Since when.
    unheard_since: Option<Instant>,
}

/// Looks for as long as the instance is there.
pub(super) async fn run(shared: Arc<Shared>, restarts: watch::Sender<u64>) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watcher = Watcher {
        shared,
        restarts,
        failures: 0,
        met: false,
        introduced: false,
        not_before: Instant::now(),
    };
    loop {
        ticks.tick().await;
        watcher.look().await;
    }
}

struct Watcher {
    shared: Arc<Shared>,
    restarts: watch::Sender<u64>,
    failures: u32,
    /// Whether it ever answered.
    met: bool,
    /// Whether this process of it was tried.
    introduced: bool,
    not_before: Instant,
}

impl Watcher {
    async fn look(&mut self) {
        let name = &self.shared.description.instance;
        match self.seen().await {
            Ok(scraped) => {
                let gone = std::mem::take(&mut self.failures) >= FAILURES;
                self.take(scraped, gone);
                if !self.introduced && Instant::now() >= self.not_before {
                    self.introduce().await;
                }
                self.shared.up.store(self.introduced, Ordering::Release);
            }
            Err(reason) => {
                self.failures += 1;
                if self.failures == FAILURES && self.shared.up.swap(false, Ordering::AcqRel) {
                    tracing::warn!(instance = %name, reason, "does not answer; it is given no work");
                }
            }
        }
        self.mind_silence();
    }

    async fn seen(&self) -> Result<Scraped, String> {
        let upstream = &self.shared.upstream;
        let (status, _) = upstream.get("/health", LOOK).await.map_err(|e| e.to_string())?;
        if !status.is_success() {
            return Err(format!("its health is {status}"));
        }
        let (status, page) = upstream.get("/metrics", LOOK).await.map_err(|e| e.to_string())?;
        Ok(match status.is_success() {
            true => scrape(self.shared.make, &String::from_utf8_lossy(&page)),
            // A server may be started without them; then only what is sent from here is known.
            false => Scraped::default(),
        })
    }

    /// Notes what was seen of it, after it was `gone` or not.
    fn take(&mut self, scraped: Scraped, gone: bool) {
        let mut seen = self.shared.seen.lock();
        let restarted = match (seen.started, scraped.started) {
            (Some(before), Some(now)) => before != now,
            // Without a start time on its page, one that was gone is taken for another process.
            _ => gone && self.met,
        };
        seen.load = scraped;
        seen.started = scraped.started.or(seen.started);
        drop(seen);
        self.met = true;
        if restarted {
            self.introduced = false;
            if !self.shared.supervised {
                self.shared.counts.starts.fetch_add(1, Ordering::Relaxed);
            }
            tracing::warn!(instance = %self.shared.description.instance, "its process is another one: what it held is gone");
            self.restarts.send_modify(|n| *n += 1);
        }
    }

    /// Sends it a request of our own before it gets a client's: the model's name is right, text is cut as it is cut here,
    /// and its speed is known.
    async fn introduce(&mut self) {
        let name = &self.shared.description.instance;
        let tried = tokio::time::timeout(TRIAL, self.shared.try_out()).await;
        let tried = tried.unwrap_or_else(|_| Err(format!("nothing came for {TRIAL:?}")));
        match tried {
            Ok(()) => {
                agree::check(&self.shared).await;
                if let Some(kept) = &self.shared.kept_slots {
                    self.shared.learn_form(kept).await;
                }
                self.mind_blocks();
                self.introduced = true;
                tracing::info!(instance = %name, make = self.shared.make.as_str(), "is up");
            }
            Err(reason) => {
                tracing::warn!(instance = %name, reason, "is there and cannot be used yet");
                self.not_before = Instant::now() + TRY_AGAIN;
            }
        }
    }

    /// Says so where its blocks are of a size that the index cannot cut: its cache events come, and none can be used.
    fn mind_blocks(&self) {
        let uncut = |tokens: &u32| !(*tokens as usize).is_multiple_of(INDEX_BLOCK_TOKENS);
        let tokens = self.shared.seen.lock().load.block_tokens.filter(uncut);
        if let Some(tokens) = tokens.filter(|_| self.shared.listening) {
            tracing::warn!(instance = %self.shared.description.instance, tokens,
                "its blocks are no multiple of {INDEX_BLOCK_TOKENS} tokens: its cache events cannot be used; \
                 start it with --block-size or --page-size of such a multiple");
        }
    }

    /// Says so, once, when requests run and no cache event comes: prefixes are computed again and again then, and
    /// nothing else shows it.
    fn mind_silence(&self) {
        if !self.shared.listening {
            return;
        }
        let seen = self.shared.seen.lock();
        let silent =
            seen.unheard >= UNHEARD && seen.unheard_since.is_some_and(|at| at.elapsed() >= UNHEARD_FOR);
        let count = &self.shared.counts.silent;
        if silent && count.swap(1, Ordering::Relaxed) == 0 {
            tracing::warn!(instance = %self.shared.description.instance, requests = seen.unheard,
                "requests run and no cache event comes; is its publisher on, and at this address?");
        }
    }
}

impl Shared {
    /// A cache event came.
    pub(super) fn heard(&self) {
        self.counts.batches.fetch_add(1, Ordering::Relaxed);
        self.counts.silent.store(0, Ordering::Relaxed);
        let mut seen = self.seen.lock();
        seen.unheard = 0;
        seen.unheard_since = None;
    }

    /// A request was answered that had so many tokens to compute.
    pub(super) fn computed(&self, tokens: u32) {
        if tokens < FILLS_A_BLOCK {
            return;
        }
        let mut seen = self.seen.lock();
        seen.unheard += 1;
        seen.unheard_since.get_or_insert_with(Instant::now);
    }

    /// The name it knows the model by.
    pub(super) fn model_name(&self) -> &str {
        self.served_name
            .as_deref()
            .unwrap_or(self.description.model.as_str())
    }

    /// A prompt that nobody asked before.
    pub(super) fn drawn_prompt(&self, tokens: u32) -> Vec<u32> {
        let (vocabulary, drawn) = (self.description.vocabulary.max(2), self.random.next_u64());
        // Ids from the middle of the vocabulary: its first may be tokens that steer.
        let id = |i: u32| vocabulary / 4 + (i.wrapping_mul(7919) ^ drawn as u32) % (vocabulary / 2).max(1);
        (0..tokens).map(id).collect()
    }

    /// One request, timed.
    async fn try_out(&self) -> Result<(), String> {
        let tokens = TRIED_PROMPT.min(self.description.context_tokens.0 / 2).max(1);
        let mut body = json!({
            "model": self.model_name(),
            "prompt": self.drawn_prompt(tokens),
            "max_tokens": TRIED_ANSWER,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
        });
        if self.make.salts() {
            // Nobody finds these blocks again.
            body["cache_salt"] = json!(format!("{:016x}", self.random.next_u64()));
        }
        if let Some(Handing::Bootstrap { .. }) = self.handing {
            // Either instance alone: it computes, and the transfer is taken for done.
            body["bootstrap_host"] = json!(NO_TRANSFER);
            body["bootstrap_room"] = json!(self.random.next_u64() >> 1);
        }
        let begun = Instant::now();
        let body = Bytes::from(body.to_string());
        let answer = self
            .upstream
            .post("/v1/completions", &[], body)
            .await
            .map_err(|e| e.to_string())?;
        let status = answer.status();
        let mut body = answer.into_body();
        let (mut first, mut last, mut pieces, mut said) = (None, begun, 0u32, Vec::new());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| e.to_string())?;
            let Some(data) = frame.data_ref() else { continue };
            last = Instant::now();
            first.get_or_insert(last);
            pieces += 1;
            said.extend_from_slice(&data[..data.len().min(300)]);
        }
        if !status.is_success() {
            let said = String::from_utf8_lossy(&said[..said.len().min(300)]).into_owned();
            return Err(format!("it answered {status}: {said}"));
        }
        let first = first.ok_or_else(|| "it answered nothing".to_owned())?;
        let step = (pieces > 4).then(|| (last - first) / (pieces - 1));
        self.meter.measured(tokens, first - begun, step);
        Ok(())
    }

    /// Numbers for the metrics page.
    pub(super) fn samples(&self) -> Vec<Sample> {
        let labels = vec![("instance", self.description.instance.as_str().to_owned())];
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let sample = |name, help, value| Sample {
            name,
            help,
            labels: labels.clone(),
            value,
        };
        let counts = &self.counts;
        let up = u64::from(self.up.load(Ordering::Relaxed));
        let mut samples = vec![
            sample(
                "engine_up",
                "whether an engine that is not ours answers",
                Reading::Gauge(up),
            ),
            sample(
                "engine_events_silent",
                "whether requests run at an engine and no cache event comes",
                Reading::Gauge(count(&counts.silent)),
            ),
            sample(
                "engine_event_batches",
                "batches of cache events that were taken from an engine",
                Reading::Counter(count(&counts.batches)),
            ),
            sample(
                "engine_event_replays",
                "replays of cache events that were asked for",
                Reading::Counter(count(&counts.replays)),
            ),
            sample(
                "engine_event_errors",
                "cache event messages that could not be used",
                Reading::Counter(count(&counts.bad_messages)),
            ),
            sample(
                "engine_event_refusals",
                "cache events and blocks that the index could not use, such as blocks of no multiple of 16 tokens",
                Reading::Counter(count(&counts.refused_events)),
            ),
            sample(
                "engine_starts",
                "starts of an engine's process after the first that was seen",
                Reading::Counter(count(&counts.starts)),
            ),
            sample(
                "engine_unusable_offers",
                "prefills whose answer did not name the KV for a decode engine",
                Reading::Counter(count(&counts.unusable_offers)),
            ),
            sample(
                "engine_released_offers",
                "KV that was taken from a prefill engine only so that it is freed",
                Reading::Counter(count(&counts.released_offers)),
            ),
            sample(
                "engine_token_mismatches",
                "texts of the start-up check that an engine cuts into other tokens than the host",
                Reading::Counter(count(&counts.token_mismatches)),
            ),
        ];
        if let Some(store) = &self.store {
            let counts = &store.counts;
            samples.extend([
                sample(
                    "engine_kv_store_bytes",
                    "KV that an engine handed to the host, or that came for it",
                    Reading::Gauge(store.used()),
                ),
                sample(
                    "engine_kv_store_saved_blocks",
                    "blocks that an engine handed to the host",
                    Reading::Counter(count(&counts.saved)),
                ),
                sample(
                    "engine_kv_store_received_blocks",
                    "blocks that came for an engine from other sites",
                    Reading::Counter(count(&counts.received)),
                ),
                sample(
                    "engine_kv_store_loaded_blocks",
                    "blocks that an engine took from the host",
                    Reading::Counter(count(&counts.loaded)),
                ),
                sample(
                    "engine_kv_store_waiting_parts",
                    "blocks of which a worker of the engine has handed over its part and another has not",
                    Reading::Gauge(store.waiting() as u64),
                ),
                sample(
                    "engine_kv_store_unkept_blocks",
                    "blocks that came and were not kept: nobody may find them again, or there is no room for one",
                    Reading::Counter(count(&counts.unkept)),
                ),
                sample(
                    "engine_kv_store_aside_requests",
                    "requests whose KV an engine did not offer to the host: adapters, images, no salt",
                    Reading::Counter(count(&counts.aside)),
                ),
                sample(
                    "engine_kv_store_idle",
                    "whether an engine has said that it hands no KV to the host; its log and the host's say why",
                    Reading::Gauge(count(&counts.idle)),
                ),
                sample(
                    "engine_kv_store_refused_blocks",
                    "blocks that were damaged, or gone when they were asked for",
                    Reading::Counter(count(&counts.refused)),
                ),
            ]);
        }
        samples
    }
}
