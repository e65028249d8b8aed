//! Clients of a world: what they send through the gateways' doors, and what they make of the answers.

use super::content::{MODEL, truth};
use super::plan::{About, Asking, Ordering, TENANTS};
use super::site::Running;
use super::world::World;
use crate::chaos::history::{Ask, Ordered, Outcome};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode};
use portolan_base::{RequestId, Scope, TenantName};
use portolan_decide::PathRecord;
use portolan_gateway::http::router;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tower::ServiceExt;

/// Tokens that all prompts of a family begin with.
const COMMON: u32 = 40;
/// How long a record may take to settle once the client has its answer.
const SETTLES: Duration = Duration::from_secs(3);

fn prompt(family: u32, more: u32) -> Vec<u32> {
    let common = (0..COMMON).map(|at| (family * 50 + at * 7) % 256);
    common
        .chain((0..more).map(|at| (more * 31 + at * 3) % 256))
        .collect()
}

fn scope(tenant: &str) -> Scope {
    Scope::Tenant(TenantName::new(tenant).unwrap())
}

/// Sends a body to a door; status and body of the answer.
async fn post(running: &Running, path: &str, key: &str, body: &Value) -> (StatusCode, Bytes) {
    let request = Request::post(path)
        .header("authorization", format!("Bearer {key}"))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_string())))
        .unwrap();
    let response = router(Arc::clone(&running.site)).oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await;
    (status, body.map(|body| body.to_bytes()).unwrap_or_default())
}

fn tokens_of(choice: &Value) -> Vec<u32> {
    serde_json::from_value(choice["token_ids"].clone()).unwrap_or_default()
}

/// What an answer says.
fn outcome(status: StatusCode, body: &[u8], streams: bool) -> Outcome {
    let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap_or_default();
    if status != StatusCode::OK {
        let said = json(body);
        let code = said["error"]["code"].as_str().or(said["error"]["type"].as_str());
        return Outcome::Refused(status.as_u16(), code.unwrap_or_default().to_owned());
    }
    if !streams {
        return Outcome::Answered(tokens_of(&json(body)["choices"][0]));
    }
    let (mut tokens, mut finished) = (Vec::new(), false);
    for data in String::from_utf8_lossy(body)
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
    {
        if data == "[DONE]" {
            return match finished {
                true => Outcome::Answered(tokens),
                false => Outcome::CutInSilence(tokens),
            };
        }
        let event = json(data.as_bytes());
        if !event["error"].is_null() {
            return Outcome::BrokenOff(tokens);
        }
        let choice = &event["choices"][0];
        tokens.extend(tokens_of(choice));
        finished |= !choice["finish_reason"].is_null();
    }
    Outcome::CutInSilence(tokens)
}

impl World {
    pub(super) async fn ask(self: Arc<Self>, number: usize, ask: Asking) {
        let Some(running) = self.running(ask.site) else {
            return;
        };
        let (tenant, request) = (TENANTS[ask.tenant], format!("ask-{number}"));
        let prompt = prompt(ask.family, ask.more);
        let (kind, name, version) = ("document", self.document(ask.family), self.version(ask.family));
        let body = json!({
            "model": MODEL, "prompt": prompt, "request_id": request, "max_tokens": ask.max_tokens,
            "temperature": 0, "ignore_eos": true, "return_token_ids": true, "stream": ask.streams,
            "prefill_policy": ask.mode,
            "portolan": {"dependencies": [{"kind": kind, "name": name, "version": version.to_string()}]},
        });
        self.under_way.lock().insert(request.clone());
        let sent = self.hub.ledger.stamp();
        let key = format!("key-{tenant}");
        let answered = async {
            let (status, body) = post(&running, "/v1/completions", &key, &body).await;
            outcome(status, &body, ask.streams)
        };
        let leaves = async {
            match ask.leaves {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            outcome = answered => outcome,
            () = running.life.over() => Outcome::Gone,
            () = leaves => Outcome::Gone,
        };
        let ended = self.hub.ledger.stamp();
        self.under_way.lock().remove(&request);
        let record = settled(&running, tenant, &request).await;
        self.seen.lock().asks.push(Ask {
            expected: truth(&scope(tenant), &prompt, ask.max_tokens),
            tenant: tenant.to_owned(),
            site: self.hub.names[ask.site].to_string(),
            family: ask.family,
            request,
            sent,
            ended,
            outcome,
            record,
            site_died: running.life.is_over(),
        });
    }

    pub(super) async fn order(self: Arc<Self>, number: usize, order: Ordering) {
        let Some(running) = self.running(order.site) else {
            return;
        };
        let reason = format!("order-{number}");
        let families = match order.about {
            About::Document(d) => (0..super::plan::FAMILIES)
                .filter(|f| self.document(*f) == self.document(d))
                .collect(),
            About::Prefix => BTreeSet::new(),
            About::Model | About::Tenant(_) => (0..super::plan::FAMILIES).collect(),
        };
        // Whoever names a version before its order has begun: KV of the one before may be computed until it is given.
        let sent = self.hub.ledger.stamp();
        let mut version = 0;
        let about = match order.about {
            About::Model => json!({"model": MODEL}),
            About::Tenant(tenant) => json!({"tenant": TENANTS[tenant]}),
            About::Document(document) => {
                version = self.next_version(document);
                if let Some(before) = order.named_before {
                    self.announce(document, version);
                    tokio::time::sleep(before).await;
                }
                let name = self.document(document);
                json!({"dependency": {"kind": "document", "name": name, "version": version.to_string()}})
            }
            About::Prefix => match self.some_block() {
                Some(block) => json!({"prefix": block}),
                None => return,
            },
        };
        let mut body = json!({"wait": order.waits, "abort_running": order.aborts, "reason": reason});
        body.as_object_mut()
            .unwrap()
            .extend(about.as_object().unwrap().clone());
        let own = order.tenant.map(|tenant| TENANTS[tenant]);
        let key = format!("key-{}", own.unwrap_or("operator"));
        self.under_way.lock().insert(reason.clone());
        let given = tokio::select! {
            given = post(&running, "/v1/portolan/invalidate", &key, &body) => Some(given),
            () = running.life.over() => None,
        };
        let answered = self.hub.ledger.stamp();
        self.under_way.lock().remove(&reason);
        let acknowledged = given
            .as_ref()
            .is_some_and(|(status, _)| *status == StatusCode::OK);
        if acknowledged && let About::Document(document) = order.about {
            self.announce(document, version);
        }
        let tenant = match order.about {
            About::Tenant(tenant) => Some(TENANTS[tenant].to_owned()),
            _ => own.map(str::to_owned),
        };
        self.seen.lock().orders.push(Ordered {
            reason,
            site: self.hub.names[order.site].to_string(),
            tenant,
            waited: order.waits,
            sent,
            answered,
            acknowledged,
            families,
        });
    }
}

/// The record of a request once it has settled; none where its process was killed, or never admitted it.
async fn settled(running: &Running, tenant: &str, request: &str) -> Option<PathRecord> {
    let (tenant, id) = (TenantName::new(tenant).unwrap(), RequestId::from_client(request)?);
    let began = Instant::now();
    loop {
        let record = running.site.records.get(&tenant, &id);
        if running.life.is_over() {
            return None;
        }
        let runs = record.as_ref().is_none_or(|record| record.status == "running");
        if !runs || began.elapsed() > SETTLES || (record.is_none() && began.elapsed() > SETTLES / 30) {
            return record.map(|record| PathRecord::clone(&record));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
