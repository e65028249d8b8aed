//! Requests to a foreign engine, and its answers.

mod body;

use super::hand_over::{self, FIELD, Handing};
use super::meter::Delivery;
use super::slots::{Coming, Slot};
use super::{EngineUrl, ForeignInstance, Make, Shared};
use crate::splice::{Edit, field, splice};
use crate::wire::{WireError, whole};
use async_trait::async_trait;
use body::{Body, Taken};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{HeaderMap, Response, StatusCode};
use portolan_base::Role;
use portolan_ports::{
    AnswerHead, CacheSalt, EngineError, Handed, Offer, WholeAnswer, WholeJob, WholeRequests,
};
use serde_json::Value;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How headers begin by which SGLang is told rooms, ranks, ids and priorities beside the body.
const OVERRIDES: &str = "x-override-";

/// How much of an engine's failure is kept for the log.
const FAILURE_BYTES: usize = 500;

/// How long a bootstrap server may take.
const BOOTSTRAP: Duration = Duration::from_secs(5);

/// How long an offer that nobody needs is worked on: as long as an engine keeps KV that nobody takes.
const RELEASE: Duration = Duration::from_secs(30);

/// Response headers that belong to one connection, or that the gateway writes itself.
const NOT_PASSED: [&str; 11] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "server",
    "date",
    "x-request-id",
];

#[async_trait]
impl WholeRequests for ForeignInstance {
    async fn answer(&self, job: WholeJob, params: Option<Arc<str>>) -> Result<WholeAnswer, EngineError> {
        let shared = &self.shared;
        if params.is_none() && shared.is_half() {
            let why = "it goes on from a prefill instance, and there is none".to_owned();
            return Err(EngineError::Full(why));
        }
        let cancel = job.cancel.clone();
        let mut in_flight = shared.meter.sent(job.uncached, delivery(&job));
        // Before anything is waited for: a request that is cancelled already takes its file with it.
        let coming = match &shared.handing {
            Some(Handing::Slots(_)) => params.as_deref().and_then(Coming::of),
            _ => None,
        };
        let sent = async {
            let (edits, taken) = shared.taking(&job, params.as_deref(), coming).await;
            Ok::<_, EngineError>((shared.send(&job, edits).await?, taken))
        };
        let (answer, mut taken) = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(EngineError::Cancelled),
            answer = sent => answer?,
        };
        let head = AnswerHead {
            status: answer.status().as_u16(),
            headers: passed(answer.headers()),
        };
        match answer.status().is_success() {
            true => shared.computed(job.uncached),
            false => {
                // The engine has begun nothing.
                in_flight.piece();
                taken = Taken::Nothing;
            }
        }
        let body = Body::new(answer.into_body(), (in_flight, taken), cancel, shared);
        Ok(WholeAnswer {
            head,
            body: Box::new(body),
        })
    }

    async fn offer(&self, job: WholeJob) -> Result<Offer, EngineError> {
        match &self.shared.handing {
            Some(pulled @ (Handing::Nixl | Handing::Slots(_))) => {
                let said = match pulled {
                    Handing::Slots(slots) => self.shared.slot_leg(slots, &job).await?,
                    _ => self.shared.prefill_leg(&job, None).await?,
                };
                if said.unusable {
                    self.shared.counts.unusable_offers.fetch_add(1, Relaxed);
                    tracing::warn!(instance = %self.shared.description.instance, request = %job.request,
                        "a prefill answered with nothing that a decode engine can use; it computes instead");
                }
                let handed = Handed { cached: said.cached };
                Ok(Offer {
                    params: said.params,
                    prefilling: Box::pin(async move { Ok(handed) }),
                })
            }
            Some(Handing::Mooncake { .. }) => self.shared.push_leg(job).await,
            Some(Handing::Bootstrap { server }) => Ok(self.shared.room_leg(job, server)),
            None => Err(EngineError::BadJob(
                "this instance hands its KV to no other".to_owned(),
            )),
        }
    }

    fn release(&self, job: WholeJob, params: Arc<str>) {
        let shared = Arc::clone(&self.shared);
        shared.counts.released_offers.fetch_add(1, Relaxed);
        match shared.handing {
            Some(Handing::Slots(_)) => return drop(Coming::of(&params)),
            // Both legs were begun together, and end together.
            Some(Handing::Bootstrap { .. }) => return,
            _ => {}
        }
        // What is taken now may have been overwritten at the other instance: nobody finds it again.
        let job = WholeJob {
            salt: CacheSalt::once(self.shared.random.as_ref()),
            ..job
        };
        tokio::spawn(async move {
            // The least that makes an engine take the KV: what it generates is thrown away.
            let mut edits = hand_over::prefill_edits(Some(&params));
            edits.push(Edit::Remove("n"));
            let work = async { whole(shared.send(&job, edits).await.ok()?).await.ok() };
            if tokio::time::timeout(RELEASE, work).await.is_err() {
                tracing::warn!(request = %job.request, "KV that nobody needs was not taken; its engine frees it in time");
            }
        });
    }

    fn expect(&self, salt: &CacheSalt) {
        self.shared.salts.learn(salt);
    }

    fn is_parted(&self, job: &WholeJob, prompt_tokens: u32) -> bool {
        let may = match &self.shared.handing {
            None => false,
            // Neither of its instances answers alone.
            Some(Handing::Bootstrap { .. }) => return true,
            // What may not be kept is not written to a disk.
            Some(Handing::Slots(_)) => job.salt.root.is_some(),
            Some(_) => true,
        };
        may && hand_over::is_parted(job, prompt_tokens)
    }
}

impl Shared {
    /// Whether it is one of the two that answer an SGLang request together, and refuses one that names no room.
    fn is_half(&self) -> bool {
        matches!(self.handing, Some(Handing::Bootstrap { .. })) && self.description.role != Role::Both
    }

    /// What a request is told of KV that another instance has or the host, and the slot that it was restored into.
    async fn taking<'p>(
        &self,
        job: &WholeJob,
        params: Option<&'p str>,
        coming: Option<Coming>,
    ) -> (Vec<Edit<'p>>, Taken) {
        if let Some(kept) = &self.kept_slots {
            let (edits, keeping) = self.seated(kept, job).await;
            return (edits, keeping.map_or(Taken::Nothing, Taken::Kept));
        }
        match (&self.handing, params) {
            (_, None) => (vec![Edit::Remove(FIELD)], Taken::Nothing),
            (Some(Handing::Slots(slots)), Some(_)) => {
                let slot = match coming {
                    Some(coming) => self.restored(slots, coming).await,
                    None => None,
                };
                let mut edits = vec![Edit::Remove(FIELD)];
                edits.extend(slot.iter().flat_map(Slot::edits));
                (edits, slot.map_or(Taken::Nothing, Taken::Slot))
            }
            (Some(Handing::Bootstrap { .. }), Some(room)) => {
                let mut edits = hand_over::room_edits(room);
                edits.push(Edit::Remove(FIELD));
                (edits, Taken::Nothing)
            }
            (_, Some(params)) => (vec![Edit::Set(FIELD, Cow::Borrowed(params))], Taken::Nothing),
        }
    }

    /// Sends a request with the changes that every leg has, and `edits`. What the engine says is wrong with the request
    /// is an answer; what is wrong with the engine is an error.
    pub(super) async fn send(
        &self,
        job: &WholeJob,
        mut edits: Vec<Edit<'_>>,
    ) -> Result<Response<Incoming>, EngineError> {
        self.salts.learn(&job.salt);
        edits.extend(hand_over::smuggled_edits(&job.body));
        edits.extend(job.remove.iter().map(|name| Edit::Remove(name)));
        edits.push(match self.make.salts() {
            true => Edit::Set(
                "cache_salt",
                Value::from(job.salt.text.as_ref()).to_string().into(),
            ),
            false => Edit::Remove("cache_salt"),
        });
        if self.make == Make::Sglang {
            // Of a client's own: a room that nobody comes to is waited in. What was set before counts.
            edits.extend(hand_over::ROOM.map(Edit::Remove));
        }
        if self.make == Make::LlamaCpp && job.salt.root.is_none() {
            // What nobody may find again is not kept for the next request of its slot.
            edits.push(Edit::Set("cache_prompt", "false".into()));
        }
        if let Some(name) = &self.served_name {
            edits.push(Edit::Set("model", Value::from(name.as_str()).to_string().into()));
        }
        let body = splice(&job.body, &edits).map_err(|e| EngineError::BadJob(e.to_string()))?;
        let mut headers = job.headers.to_vec();
        if self.make == Make::Sglang {
            // They count for more than the body's fields.
            headers.retain(|(name, _)| !name.starts_with(OVERRIDES));
        }
        headers.push(("x-request-id".to_owned(), job.request.as_str().to_owned()));
        let answer = self.upstream.post(job.path.as_str(), &headers, body.into()).await;
        let answer = answer.map_err(|e| broken(&e))?;
        match answer.status() {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Err(EngineError::Full(failure(answer).await))
            }
            // A request that it cannot serve at all, and no other instance of it: the client's to know.
            StatusCode::NOT_IMPLEMENTED => Ok(answer),
            status if status.is_server_error() => Err(EngineError::Broken(failure(answer).await)),
            _ => Ok(answer),
        }
    }

    /// Has a prompt computed, and reads what the other leg is to know.
    async fn prefill_leg(
        &self,
        job: &WholeJob,
        params: Option<&str>,
    ) -> Result<hand_over::Said, EngineError> {
        let mut in_flight = self.meter.sent(job.uncached, Delivery::Streamed);
        let work = async {
            let answer = self.send(job, hand_over::prefill_edits(params)).await?;
            whole(answer).await.map_err(|e| broken(&e))
        };
        let (status, body) = tokio::select! {
            biased;
            () = job.cancel.cancelled() => return Err(EngineError::Cancelled),
            answered = work => answered?,
        };
        in_flight.piece();
        match status.is_success() {
            true => {
                self.computed(job.uncached);
                Ok(hand_over::read_answer(&body))
            }
            false => Err(EngineError::BadJob(shorten(&body))),
        }
    }

    /// Both legs at once, each with the client's own request: SGLang's prefill engines end it when the prompt is computed.
    fn room_leg(self: &Arc<Self>, job: WholeJob, server: &EngineUrl) -> Offer {
        let room = hand_over::room(server, self.random.next_u64());
        let (shared, told) = (Arc::clone(self), room.clone());
        let prefilling = async move {
            let mut in_flight = shared.meter.sent(job.uncached, delivery(&job));
            let mut edits = hand_over::room_edits(&told);
            edits.push(Edit::Remove(FIELD));
            let work = async {
                let answer = shared.send(&job, edits).await?;
                whole(answer).await.map_err(|e| broken(&e))
            };
            let (status, body) = tokio::select! {
                biased;
                () = job.cancel.cancelled() => return Err(EngineError::Cancelled),
                answered = work => answered?,
            };
            in_flight.piece();
            match status.is_success() {
                true => {
                    shared.computed(job.uncached);
                    Ok(Handed {
                        cached: hand_over::read_answer(&body).cached,
                    })
                }
                false => Err(EngineError::BadJob(shorten(&body))),
            }
        };
        Offer {
            params: Some(room.into()),
            prefilling: Box::pin(prefilling),
        }
    }

    /// Both legs at once: the transfer is named here, and the prefill runs on while the other leg is asked.
    async fn push_leg(self: &Arc<Self>, job: WholeJob) -> Result<Offer, EngineError> {
        let Some(Handing::Mooncake { bootstrap }) = self.handing.clone() else {
            return Err(EngineError::BadJob("this instance pushes to no other".to_owned()));
        };
        // Asked for each request: the engine has another name after a restart, and an old one makes the other leg wait.
        let server = crate::wire::Upstream::new(bootstrap.clone(), None);
        let (_, said) = server.get("/query", BOOTSTRAP).await.map_err(|e| broken(&e))?;
        let ranks = hand_over::ranks(&said);
        let drawn = self.random.next_u64() as usize % ranks.len().max(1);
        let nobody = || EngineError::Broken("its bootstrap server names no engine".to_owned());
        let (rank, engine) = ranks.get(drawn).ok_or_else(nobody)?;
        let job = match ranks.len() {
            1 => job,
            // The other leg asks the rank that is named to it: the prompt has to be computed there.
            _ => hand_over::at_rank(job, *rank),
        };
        let transfer = format!(
            "xfer-{:016x}{:016x}",
            self.random.next_u64(),
            self.random.next_u64()
        );
        let (mine, theirs) = hand_over::named_transfer(&transfer, &bootstrap, engine);
        let shared = Arc::clone(self);
        let prefilling = async move {
            let said = shared.prefill_leg(&job, Some(&mine)).await?;
            Ok(Handed { cached: said.cached })
        };
        Ok(Offer {
            params: Some(theirs.into()),
            prefilling: Box::pin(prefilling),
        })
    }
}

fn delivery(job: &WholeJob) -> Delivery {
    match field(&job.body, "stream") {
        Some("true") => Delivery::Streamed,
        _ => Delivery::Whole,
    }
}

fn passed(headers: &HeaderMap) -> Vec<(String, Bytes)> {
    let own = |name: &str| NOT_PASSED.contains(&name);
    let named: Vec<String> = headers
        .get_all("connection")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    headers
        .iter()
        .filter(|(name, _)| !own(name.as_str()) && !named.iter().any(|n| n == name.as_str()))
        .map(|(name, value)| (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())))
        .collect()
}

async fn failure(answer: Response<Incoming>) -> String {
    let status = answer.status();
    let said = tokio::time::timeout(Duration::from_secs(1), whole(answer)).await;
    let said = said
        .ok()
        .and_then(Result::ok)
        .map(|(_, body)| shorten(&body))
        .unwrap_or_default();
    format!("it answered {status}: {said}")
}

pub(super) fn shorten(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(FAILURE_BYTES)]).into_owned()
}

pub(super) fn broken(error: &WireError) -> EngineError {
    match error {
        WireError::Unreachable(_) => EngineError::Unreachable(error.to_string()),
        _ => EngineError::Broken(error.to_string()),
    }
}
