//! The pools and tiers of a site, each once, and how they are shown.

use crate::site::Site;
use portolan_base::{Dependency, Moment};
use portolan_kv::index::Tier;
use portolan_kv::tier::{BlockTier, Card, TierUse};
use portolan_kv::{Counts, TenantUse};
use portolan_ports::{KvCache, Reading, Sample};
use serde::Serialize;
use std::sync::Arc;

/// What one place holds.
#[derive(Debug, Serialize)]
pub(in crate::http) struct PlaceBody {
    site: String,
    tier: &'static str,
    /// None: shared by the site's instances.
    instance: Option<String>,
    blocks: usize,
    bytes: u64,
    budget_bytes: u64,
    hits: u64,
    misses: u64,
    stored: u64,
    evicted: u64,
    expired: u64,
    invalidated: u64,
    damaged: u64,
    refused: u64,
    tenants: Vec<TenantBody>,
}

#[derive(Debug, Serialize)]
struct TenantBody {
    tenant: String,
    blocks: usize,
    bytes: u64,
    share_bytes: u64,
    hits: u64,
    misses: u64,
    stored: u64,
    evicted: u64,
    expired: u64,
    invalidated: u64,
}

/// What is known of a block; never its tokens or their KV.
#[derive(Debug, Serialize)]
pub(in crate::http) struct BlockBody {
    pub(super) id: String,
    parent: Option<String>,
    tier: &'static str,
    instance: Option<String>,
    tenant: String,
    model: String,
    model_version: u64,
    jurisdiction: String,
    dependencies: Vec<Dependency>,
    bytes: u64,
    has_snapshot: bool,
    rebuild_us: u64,
    idle_s: u64,
    reuses: u32,
    leased: bool,
}

/// One pool or tier.
pub(crate) struct Place<'s> {
    pub(crate) tier: Tier,
    /// None: shared by the site's instances.
    pub(crate) instance: Option<&'s str>,
    /// The present, by the clock of its blocks' last uses.
    pub(crate) now: Moment,
    of: &'s dyn PlaceOf,
}

trait PlaceOf {
    fn usage(&self) -> TierUse;
    fn each(&self, show: &mut dyn FnMut(Card));
}

struct Own<'s>(&'s dyn KvCache);

impl PlaceOf for Own<'_> {
    fn usage(&self) -> TierUse {
        self.0.usage()
    }
    fn each(&self, show: &mut dyn FnMut(Card)) {
        self.0.each(show);
    }
}

struct Below<'s>(&'s dyn BlockTier);

impl PlaceOf for Below<'_> {
    fn usage(&self) -> TierUse {
        self.0.usage()
    }
    fn each(&self, show: &mut dyn FnMut(Card)) {
        self.0.each(show);
    }
}

impl Place<'_> {
    pub(crate) fn each(&self, show: &mut dyn FnMut(Card)) {
        self.of.each(show);
    }

    /// What it holds, and of whom.
    pub(crate) fn usage(&self) -> TierUse {
        self.of.usage()
    }

    pub(super) fn body(&self, site: &Site) -> PlaceBody {
        let used = self.of.usage();
        let mut counts = Counts::default();
        used.tenants.iter().for_each(|tenant| counts += tenant.counts);
        PlaceBody {
            site: site.parts.name.to_string(),
            tier: word(self.tier),
            instance: self.instance.map(str::to_owned),
            blocks: used.blocks,
            bytes: used.used.0,
            budget_bytes: used.budget.0,
            hits: counts.hits,
            misses: counts.misses,
            stored: counts.stored,
            evicted: counts.evicted,
            expired: counts.expired,
            invalidated: counts.invalidated,
            damaged: used.damaged,
            refused: used.refused,
            tenants: used.tenants.iter().map(tenant_body).collect(),
        }
    }
}

fn tenant_body(tenant: &TenantUse) -> TenantBody {
    let counts = tenant.counts;
    TenantBody {
        tenant: tenant.scope.to_string(),
        blocks: tenant.blocks,
        bytes: tenant.used.0,
        share_bytes: tenant.share.0,
        hits: counts.hits,
        misses: counts.misses,
        stored: counts.stored,
        evicted: counts.evicted,
        expired: counts.expired,
        invalidated: counts.invalidated,
    }
}

pub(super) fn card_body(card: &Card, place: &Place<'_>) -> BlockBody {
    BlockBody {
        id: hex::encode(card.id.0),
        parent: card.parent.map(|parent| hex::encode(parent.0)),
        tier: word(place.tier),
        instance: place.instance.map(str::to_owned),
        tenant: card.about.scope.to_string(),
        model: card.about.model.to_string(),
        model_version: card.about.model_version,
        jurisdiction: card.about.jurisdiction.clone(),
        dependencies: card.about.dependencies.to_vec(),
        bytes: card.size.0,
        has_snapshot: card.has_snapshot,
        rebuild_us: u64::try_from(card.rebuild.as_micros()).unwrap_or(u64::MAX),
        idle_s: place.now.since(card.used_at).as_secs(),
        reuses: card.reuses,
        leased: card.leased,
    }
}

/// How a tier is called outside.
pub(crate) const fn word(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "engine",
        Tier::Host => "host",
        Tier::Disk => "disk",
    }
}

pub(super) fn caches(site: &Site) -> impl Iterator<Item = &dyn KvCache> {
    site.parts.engines.values().filter_map(|engine| engine.cache())
}

/// Goes through the instances' pools, then through the tiers below, each once however many share it.
pub(crate) fn each_place(site: &Site, mut visit: impl FnMut(Place<'_>)) {
    let mut below: Vec<(Arc<dyn BlockTier>, Moment)> = Vec::new();
    for (name, engine) in &site.parts.engines {
        let Some(cache) = engine.cache() else { continue };
        let now = cache.now();
        visit(Place {
            tier: Tier::Device,
            instance: Some(name.as_str()),
            now,
            of: &Own(cache),
        });
        for tier in cache.tiers().each() {
            if !below.iter().any(|(known, _)| Arc::ptr_eq(known, tier)) {
                below.push((Arc::clone(tier), now));
            }
        }
    }
    for (tier, now) in &below {
        visit(Place {
            tier: tier.tier(),
            instance: None,
            now: *now,
            of: &Below(tier.as_ref()),
        });
    }
}

/// The numbers of `/metrics`.
pub(in crate::http) fn samples(site: &Site) -> Vec<Sample> {
    let mut samples = Vec::new();
    each_place(site, |place| {
        let used = place.of.usage();
        let labels = vec![
            ("tier", word(place.tier).to_owned()),
            ("instance", place.instance.unwrap_or_default().to_owned()),
        ];
        let mut add = |name, help, labels: &[(&'static str, String)], value| {
            let labels = labels.to_vec();
            samples.push(Sample {
                name,
                help,
                labels,
                value,
            });
        };
        add(
            "kv_budget",
            "The most a pool or tier may hold, in bytes",
            &labels,
            Reading::Gauge(used.budget.0),
        );
        add(
            "kv_damaged",
            "Blocks found damaged in a tier and dropped",
            &labels,
            Reading::Counter(used.damaged),
        );
        let refused = "Blocks a tier did not take because too many were waiting to be written";
        add("kv_refused", refused, &labels, Reading::Counter(used.refused));
        for tenant in &used.tenants {
            let mut labels = labels.clone();
            labels.push(("tenant", tenant.scope.to_string()));
            let Counts {
                hits,
                misses,
                evicted,
                expired,
                invalidated,
                ..
            } = tenant.counts;
            add(
                "kv_held",
                "KV in a pool or tier, in bytes",
                &labels,
                Reading::Gauge(tenant.used.0),
            );
            add(
                "kv_blocks",
                "Blocks in a pool or tier",
                &labels,
                Reading::Gauge(tenant.blocks as u64),
            );
            add(
                "kv_hits",
                "Blocks asked for and found",
                &labels,
                Reading::Counter(hits),
            );
            add(
                "kv_misses",
                "Blocks asked for and not found",
                &labels,
                Reading::Counter(misses),
            );
            add(
                "kv_evicted",
                "Blocks gone to make room",
                &labels,
                Reading::Counter(evicted),
            );
            add(
                "kv_expired",
                "Blocks gone because nobody used them",
                &labels,
                Reading::Counter(expired),
            );
            add(
                "kv_invalidated",
                "Blocks gone by order",
                &labels,
                Reading::Counter(invalidated),
            );
        }
    });
    samples
}
