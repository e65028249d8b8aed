//! `/v1/portolan/kv`: what the site's instances and tiers keep for reuse, and orders to forget it. The operator's.

mod place;

pub(super) use place::samples;
pub(crate) use place::{each_place, word};

use super::models::List;
use super::{auth, body, errors, instances};
use crate::ahead::PrewarmsBody;
use crate::error::{ErrorKind, RequestError};
use crate::replicate::{ReplicaRecord, Replication};
use crate::site::Site;
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use place::{BlockBody, PlaceBody, caches, card_body};
use portolan_base::{BlockId, Dependency, Scope, TenantName};
use portolan_kv::Selector;
use portolan_kv::tier::{Card, Tiers};
use portolan_ports::{OperationKind, StoreError};
use serde::{Deserialize, Serialize};
use std::collections::BinaryHeap;
use std::sync::Arc;

/// Blocks listed when the client names no number: one screen.
const LIST_DEFAULT: usize = 20;

/// Most blocks of a list: one has some 500 bytes, so that the longest list stays near half a MB.
const LIST_MAX: usize = 1000;

/// What the site keeps, and what it ordered by itself.
#[derive(Debug, Serialize)]
pub(super) struct StatsBody {
    #[serde(flatten)]
    places: List<PlaceBody>,
    /// None: the site orders nothing by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    replicas: Option<ReplicasBody>,
    /// None: the site sends and takes nothing ahead of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    prewarms: Option<PrewarmsBody>,
}

#[derive(Debug, Serialize)]
struct ReplicasBody {
    ordered: u64,
    made: u64,
    useful: u64,
    failed: u64,
    forbidden: u64,
    held_back: u64,
    bytes: u64,
    under_way: usize,
    /// The latest, the newest first.
    recent: Vec<ReplicaRecord>,
}

impl ReplicasBody {
    fn of(replication: &Replication) -> Self {
        let (counts, under_way) = replication.counts();
        Self {
            ordered: counts.ordered,
            made: counts.made,
            useful: counts.useful,
            failed: counts.failed,
            forbidden: counts.forbidden,
            held_back: counts.held_back,
            bytes: counts.bytes,
            under_way,
            recent: replication.recent(),
        }
    }
}

/// Shows every block of the site, copies in several places each.
pub(crate) fn each_card(site: &Site, show: &mut dyn FnMut(Card)) {
    each_place(site, |place| place.each(show));
}

pub(super) async fn stats(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
) -> Result<Json<StatsBody>, RequestError> {
    auth::operator(&site, &headers)?;
    let mut all = Vec::new();
    each_place(&site, |place| all.push(place.body(&site)));
    Ok(Json(StatsBody {
        places: List::of(all),
        replicas: site.replication.as_ref().map(ReplicasBody::of),
        prewarms: site.ahead.as_ref().map(PrewarmsBody::from),
    }))
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Sort {
    #[default]
    Use,
    Size,
}

/// Which blocks are wanted.
#[derive(Debug, Default, Deserialize)]
pub(super) struct BlocksQuery {
    tenant: Option<String>,
    instance: Option<String>,
    tier: Option<String>,
    #[serde(default)]
    sort: Sort,
    limit: Option<usize>,
}

pub(super) async fn blocks(
    State(site): State<Arc<Site>>,
    query: Result<Query<BlocksQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Json<List<BlockBody>>, RequestError> {
    auth::operator(&site, &headers)?;
    let query = errors::query(query)?;
    // Going through a large pool takes a while.
    let listed = tokio::task::spawn_blocking(move || list(&site, &query)).await;
    listed
        .map(|blocks| Json(List::of(blocks)))
        .map_err(|error| broken(&error))
}

fn list(site: &Site, query: &BlocksQuery) -> Vec<BlockBody> {
    let limit = query.limit.unwrap_or(LIST_DEFAULT).min(LIST_MAX);
    let wanted = |asked: &Option<String>, found: &str| asked.as_deref().is_none_or(|asked| asked == found);
    let mut top: BinaryHeap<Ranked> = BinaryHeap::new();
    each_place(site, |place| {
        let instance = place.instance.unwrap_or_default();
        if !wanted(&query.instance, instance) || !wanted(&query.tier, word(place.tier)) {
            return;
        }
        place.each(&mut |card| {
            if wanted(&query.tenant, &card.about.scope.to_string()) {
                let rank = match query.sort {
                    Sort::Size => card.size.0,
                    Sort::Use => card.used_at.0,
                };
                top.push(Ranked {
                    rank: std::cmp::Reverse(rank),
                    body: card_body(&card, &place),
                });
                if top.len() > limit {
                    top.pop();
                }
            }
        });
    });
    top.into_sorted_vec()
        .into_iter()
        .map(|ranked| ranked.body)
        .collect()
}

pub(super) async fn block(
    State(site): State<Arc<Site>>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Json<List<BlockBody>>, RequestError> {
    auth::operator(&site, &headers)?;
    let id = block_id("the path", &errors::path(id)?)?;
    let found = tokio::task::spawn_blocking(move || {
        let mut copies = Vec::new();
        each_place(&site, |place| {
            place.each(&mut |card| {
                if card.id == id {
                    copies.push(card_body(&card, &place));
                }
            });
        });
        copies
    });
    let copies = found.await.map_err(|error| broken(&error))?;
    if copies.is_empty() {
        let message = "no pool or tier of this site holds a block of this id";
        return Err(RequestError::new(ErrorKind::NotFound, message).with_code("block_not_found"));
    }
    Ok(Json(List::of(copies)))
}

/// What to forget: exactly one of these.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EvictBody {
    tenant: Option<String>,
    block: Option<String>,
    dependency: Option<Dependency>,
    #[serde(default)]
    all: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct EvictedBody {
    evicted: u64,
}

/// Forgets blocks in every pool and tier of the site. They cannot be found when the answer comes, nor after a restart.
pub(super) async fn evict(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
    order: Body,
) -> Result<Json<EvictedBody>, RequestError> {
    let actor = auth::operator(&site, &headers)?.actor();
    let order = body::read(order, body::ORDER_MAX_BYTES).await?;
    let body: EvictBody = serde_json::from_slice(&order)
        .map_err(|error| RequestError::bad_field("body", format!("the order cannot be read: {error}")))?;
    let what = selector(body, &site)?;
    let subject = subject(&what, &site);
    instances::note(&site, actor, OperationKind::Evict, subject, String::new()).await?;
    let evicted = tokio::task::spawn_blocking(move || {
        let mut done: Vec<&Tiers> = Vec::new();
        let mut evicted = 0u64;
        for cache in caches(&site) {
            let tiers = cache.tiers();
            if !done.iter().any(|known| std::ptr::eq(*known, tiers)) {
                done.push(tiers);
                evicted += tiers.invalidate(&what).blocks;
            }
        }
        evicted
    });
    let evicted = evicted.await.map_err(|error| broken(&error))?;
    Ok(Json(EvictedBody { evicted }))
}

/// What is forgotten, for the audit log.
fn subject(what: &Selector, site: &Site) -> String {
    let what = match what {
        Selector::Scope(scope) => format!("the KV of {scope}"),
        Selector::Block(id) => format!("block {}", hex::encode(id.0)),
        Selector::Outdated { by, .. } => format!("KV that depends on {} {}", by.kind, by.name),
        Selector::Owned { block, of } => format!("block {} of {of}", hex::encode(block.0)),
        Selector::Blocks(ids) => format!("{} blocks", ids.len()),
        Selector::Except { what, .. } => return subject(what, site),
        Selector::Older { model, version } => format!("the KV of {model} below version {version}"),
        Selector::All => "all KV".to_owned(),
    };
    format!("{what} at {}", site.parts.name)
}

fn selector(body: EvictBody, site: &Site) -> Result<Selector, RequestError> {
    let several = || RequestError::bad_field("body", "give exactly one of tenant, block, dependency and all");
    match (body.tenant, body.block, body.dependency, body.all) {
        (Some(tenant), None, None, false) => scope_named(&tenant, site).map(Selector::Scope),
        (None, Some(block), None, false) => block_id("block", &block).map(Selector::Block),
        (None, None, Some(by), false) => Ok(Selector::Outdated { by, of: None }),
        (None, None, None, true) => Ok(Selector::All),
        _ => Err(several()),
    }
}

/// The scope that goes by this name. One that the host does not know has nothing here: it is a typing error.
pub(super) fn scope_named(name: &str, site: &Site) -> Result<Scope, RequestError> {
    if name == Scope::PUBLIC {
        return Ok(Scope::Public);
    }
    let tenant =
        TenantName::new(name).map_err(|error| RequestError::bad_field("tenant", error.to_string()))?;
    let broken = |error: StoreError| {
        RequestError::new(ErrorKind::Internal, "the tenants could not be looked up").with_detail(error)
    };
    if site.parts.store.tenant(&tenant).map_err(broken)?.is_some() {
        return Ok(Scope::Tenant(tenant));
    }
    let known = site.parts.store.tenants().map_err(broken)?;
    let near = known
        .iter()
        .map(|known| known.name.as_str())
        .find(|known| is_near(known, name));
    let hint = near.map_or_else(
        || "see `portolan tenant usage`, or `portolan kv stats` for whose KV is kept".to_owned(),
        |near| format!("is {near:?} meant?"),
    );
    let text = format!("this host knows no tenant {name:?}; nothing was done; {hint}");
    Err(RequestError {
        param: Some("tenant".to_owned()),
        ..RequestError::new(ErrorKind::NotFound, text).with_code("tenant_not_found")
    })
}

/// Whether one is the other with a letter or two typed otherwise.
fn is_near(known: &str, typed: &str) -> bool {
    let (known, typed): (Vec<char>, Vec<char>) = (known.chars().collect(), typed.chars().collect());
    let same = |(a, b): &(&char, &char)| a == b;
    let before = known.iter().zip(&typed).take_while(same).count();
    let after = known
        .iter()
        .rev()
        .zip(typed.iter().rev())
        .take_while(same)
        .count();
    let shorter = known.len().min(typed.len());
    known.len().abs_diff(typed.len()) <= 2 && (before + after + 2 >= shorter.max(3))
}

pub(super) fn block_id(field: &'static str, text: &str) -> Result<BlockId, RequestError> {
    let mut id = [0; 16];
    let refused = |_| RequestError::bad_field(field, "a block's id has 32 hexadecimal digits");
    hex::decode_to_slice(text, &mut id).map_err(refused)?;
    Ok(BlockId(id))
}

fn broken(error: &tokio::task::JoinError) -> RequestError {
    RequestError::new(ErrorKind::Internal, "the pools could not be gone through")
        .with_detail(error.to_string())
}

/// A block in the order of a list: the first to leave it is the greatest.
struct Ranked {
    rank: std::cmp::Reverse<u64>,
    body: BlockBody,
}

impl Ranked {
    fn key(&self) -> (std::cmp::Reverse<u64>, &str) {
        (self.rank, &self.body.id)
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
