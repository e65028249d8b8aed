//! How KV is kept for reuse, as the file says it.

use super::{Config, ConfigError};
use portolan_base::{Bytes, ModelName, Permille, Scope, Tokens};
use portolan_decide::replicate::ASKS_KEPT;
use portolan_decide::{Bounds, PrewarmRules, ReplicaRules};
use portolan_disk::LandingConfig;
use portolan_engine::CacheConfig;
use portolan_kv::{PoolConfig, Shares};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// What lands has an eighth of a disk tier: it is needed only while links are poor.
const LANDING_PART: u64 = 8;

/// Thousandths of a pool.
const WHOLE: u32 = 1000;

/// Rules for KV kept for reuse, the same at every site.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KvConfig {
    /// Seconds that KV stays when nobody uses it; none: until its room is needed.
    pub time_to_live_s: Option<u64>,
    /// Beginnings of prompts whose KV all tenants share: `{model: NAME, system: TEXT}` for a system message, `{model:
    /// NAME, text: TEXT}` for `/v1/completions`.
    pub public_prefixes: Vec<PublicPrefix>,
    /// Copies of prefixes that are asked for often and held elsewhere ([kv-pool.md](kv-pool.md#copies)); `{}` takes
    /// every default, without it nothing is copied.
    pub replicate: Option<ReplicateConfig>,
    /// What a site sends ahead to the site that is likely to be asked next, and takes from others; none: nothing.
    pub prewarm: Option<PrewarmConfig>,
}

/// Bounds of what a site orders by itself.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReplicateConfig {
    /// Requests within the window that have to ask for a prefix.
    pub asks: u32,
    /// The window, in seconds.
    pub window_s: u64,
    /// Tokens that a copy adds at least.
    pub min_tokens: u32,
    /// Most that a site orders in any minute, in MiB.
    pub mib_per_minute: u64,
    /// Most orders under way at a site.
    pub at_once: u32,
    /// Seconds that a prefix is left alone after an order.
    pub pause_s: u64,
}

impl Default for ReplicateConfig {
    fn default() -> Self {
        Self {
            // Three are no chance, and a prefix that is asked for every twenty seconds is worth its room.
            asks: 3,
            window_s: 60,
            // Fewer are computed within a round trip or two.
            min_tokens: 256,
            // 36 Mbit/s, a few percent of a link of 1 Gbit/s.
            mib_per_minute: 256,
            // One for each of two tenants, or two for one.
            at_once: 2,
            // A copy that was evicted within minutes would be evicted again.
            pause_s: 300,
        }
    }
}

/// Bounds of what goes ahead of its request.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PrewarmConfig {
    /// The share of a conversation's, user's or path's last hundred requests, in percent, that has to have gone from this
    /// site to the other.
    pub likely_percent: u32,
    /// Tokens that the other site has to lack at least.
    pub min_tokens: u32,
    /// MiB ordered in a minute at most.
    pub mib_per_minute: u64,
    /// Orders under way at most, and orders of other sites that are taken at once.
    pub at_once: u32,
    /// Seconds that the same prefix is not sent again to the same site.
    pub pause_s: u64,
}

impl Default for PrewarmConfig {
    fn default() -> Self {
        Self {
            // What is sent is wrong at most as often as it is right.
            likely_percent: 50,
            // Fewer are computed within a round trip or two.
            min_tokens: 256,
            // 36 Mbit/s, a few percent of a link of 1 Gbit/s.
            mib_per_minute: 256,
            // Two of each of two tenants.
            at_once: 4,
            // Evicted within a minute, it would be evicted again.
            pause_s: 60,
        }
    }
}

impl PrewarmConfig {
    /// As the planner of prewarms takes it.
    pub fn rules(&self) -> PrewarmRules {
        PrewarmRules {
            likely: Permille(self.likely_percent * 10),
            min_tokens: Tokens(self.min_tokens),
            bounds: Bounds {
                per_minute: Bytes(self.mib_per_minute << 20),
                at_once: self.at_once,
            },
            pause: Duration::from_secs(self.pause_s),
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        for (field, value, possible) in [
            ("likely_percent", u64::from(self.likely_percent), 1..=100),
            ("mib_per_minute", self.mib_per_minute, 1..=u64::from(u32::MAX)),
            ("at_once", u64::from(self.at_once), 1..=64),
            ("pause_s", self.pause_s, 1..=86_400),
        ] {
            within(&format!("kv.prewarm.{field}"), value, possible)?;
        }
        Ok(())
    }
}

/// Refuses a value outside of what is possible.
fn within(key: &str, value: u64, possible: RangeInclusive<u64>) -> Result<(), ConfigError> {
    if possible.contains(&value) {
        return Ok(());
    }
    let problem = format!("{} to {} are possible", possible.start(), possible.end());
    Err(ConfigError::value(key.to_owned(), problem))
}

impl ReplicateConfig {
    /// As the planner of replicas takes it.
    pub fn rules(&self) -> ReplicaRules {
        ReplicaRules {
            asks: self.asks,
            window: Duration::from_secs(self.window_s),
            min_tokens: Tokens(self.min_tokens),
            bounds: Bounds {
                per_minute: Bytes(self.mib_per_minute << 20),
                at_once: self.at_once,
            },
            pause: Duration::from_secs(self.pause_s),
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let key = |field| format!("kv.replicate.{field}");
        let most = u32::try_from(ASKS_KEPT).unwrap_or(u32::MAX);
        if !(1..=most).contains(&self.asks) {
            return Err(ConfigError::value(
                key("asks"),
                format!("1 to {most} are possible"),
            ));
        }
        let mib = 1..=u64::from(u32::MAX);
        for (field, value, possible) in [
            ("window_s", self.window_s, 1..=86_400),
            ("mib_per_minute", self.mib_per_minute, mib),
            ("at_once", u64::from(self.at_once), 1..=64),
            ("pause_s", self.pause_s, 1..=86_400),
        ] {
            within(&key(field), value, possible)?;
        }
        Ok(())
    }
}

/// The beginning of prompts that nobody minds to share.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublicPrefix {
    /// The model it is for.
    #[schemars(with = "super::schema::Name")]
    pub model: ModelName,
    /// A system message, as the model's chat template renders it.
    #[serde(default)]
    pub system: Option<String>,
    /// The beginning of a prompt of `/v1/completions`.
    #[serde(default)]
    pub text: Option<String>,
}

/// Tiers below the pools of a site's instances.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TiersConfig {
    /// Memory that the site's instances share, in MiB.
    pub host_mib: u64,
    /// Disk for each model, in MiB.
    pub disk_mib: u64,
    /// Where the files lie, in `SITE/MODEL/`.
    pub disk_dir: Option<PathBuf>,
    /// Blocks that may wait to be written, in MiB; further ones are not kept.
    pub disk_queue_mib: u64,
    /// Part of it for what transfers brought that a poor link cut ([transport.md](transport.md#store-and-forward)); 0:
    /// none.
    pub landing_mib: Option<u64>,
    /// Seconds that it waits for the next transfer of the same KV.
    pub landing_ttl_s: u64,
    /// Whether files are overwritten before they are unlinked.
    pub secure_delete: bool,
}

impl Default for TiersConfig {
    fn default() -> Self {
        Self {
            host_mib: 0,
            disk_mib: 0,
            disk_dir: None,
            // A burst of evictions of some seconds at the speed of a common SSD, without filling the memory.
            disk_queue_mib: 64,
            landing_mib: None,
            // A link that is down for longer is repaired by hand, and a prompt that waits for longer is not asked again.
            landing_ttl_s: 3600,
            secure_delete: false,
        }
    }
}

impl TiersConfig {
    /// What may land on the disk of one model.
    pub fn landing(&self) -> LandingConfig {
        let mib = self.landing_mib.unwrap_or(self.disk_mib / LANDING_PART);
        LandingConfig {
            budget: Bytes(mib << 20),
            time_to_live: Duration::from_secs(self.landing_ttl_s),
        }
    }

    /// What is left of the disk for blocks, in MiB.
    pub fn blocks_mib(&self) -> u64 {
        self.disk_mib.saturating_sub(self.landing().budget.0 >> 20)
    }
}

impl Config {
    pub(super) fn check_kv(&self) -> Result<(), ConfigError> {
        if self.kv.time_to_live_s == Some(0) {
            let problem = "at least 1 is needed; leave it out to keep KV until its room is needed";
            return Err(ConfigError::value("kv.time_to_live_s", problem));
        }
        for site in &self.sites {
            let tiers = &site.kv_tiers;
            if tiers
                .landing_mib
                .is_some_and(|mib| mib > 0 && mib >= tiers.disk_mib)
            {
                let key = format!("sites.{}.kv_tiers.landing_mib", site.name);
                let problem = "it is part of `disk_mib`, and has to leave some of it to blocks";
                return Err(ConfigError::value(key, problem));
            }
            if tiers.landing_ttl_s == 0 {
                let key = format!("sites.{}.kv_tiers.landing_ttl_s", site.name);
                return Err(ConfigError::value(
                    key,
                    "at least 1 is needed; set `landing_mib` to 0 to keep nothing",
                ));
            }
        }
        if let Some(replicate) = &self.kv.replicate {
            replicate.check()?;
        }
        if let Some(prewarm) = &self.kv.prewarm {
            prewarm.check()?;
        }
        let models: BTreeSet<&ModelName> = self.models.iter().map(|model| &model.name).collect();
        for prefix in &self.kv.public_prefixes {
            let key = |field| format!("kv.public_prefixes.{}.{field}", prefix.model);
            if !models.contains(&prefix.model) {
                return Err(ConfigError::value(key("model"), "there is no model of this name"));
            }
            let said = [&prefix.system, &prefix.text].map(|text| text.as_deref().unwrap_or_default());
            if said.iter().filter(|text| !text.is_empty()).count() != 1 {
                return Err(ConfigError::value(key("text"), "give either `system` or `text`"));
            }
        }
        let promised: u32 = self
            .tenants
            .iter()
            .filter_map(|tenant| tenant.kv_share_permille)
            .sum();
        if promised > WHOLE {
            let problem =
                format!("the tenants' shares are {promised} together; at most {WHOLE} can be promised");
            return Err(ConfigError::value("tenants.kv_share_permille", problem));
        }
        Ok(())
    }

    /// What each tenant is promised of a pool: its share where one is stated; the others, and the public prefixes, have
    /// equal parts of what is left.
    pub fn shares(&self, pool: Bytes) -> Shares {
        let part = |permille: u32| Bytes(pool.0 / u64::from(WHOLE) * u64::from(permille));
        let stated = self
            .tenants
            .iter()
            .filter_map(|t| t.kv_share_permille.map(|share| (&t.name, share)));
        let promised: u32 = stated.clone().map(|(_, share)| share).sum();
        let named: std::collections::HashMap<_, _> = stated
            .map(|(name, share)| (Scope::Tenant(name.clone()), part(share)))
            .collect();
        let public = usize::from(!self.kv.public_prefixes.is_empty());
        let others = (self.tenants.len() - named.len() + public).max(1) as u64;
        Shares {
            usual: Bytes(part(WHOLE.saturating_sub(promised)).0 / others),
            named,
        }
    }

    /// What a tier of a site is to be.
    pub fn tier(&self, mib: u64) -> PoolConfig {
        let budget = Bytes(mib << 20);
        PoolConfig {
            shares: self.shares(budget),
            time_to_live: self.kv.time_to_live_s.map(Duration::from_secs),
            ..PoolConfig::of(budget)
        }
    }

    /// How an instance keeps KV.
    pub fn cache(&self, pool: Bytes, snapshot_blocks: NonZeroU32) -> CacheConfig {
        CacheConfig {
            shares: Some(self.shares(pool)),
            snapshot_blocks,
            time_to_live: self.kv.time_to_live_s.map(Duration::from_secs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::TenantName;

    fn parse(kv: &str, tenants: &str) -> Result<Config, ConfigError> {
        Config::parse(&format!(
            "{{data_dir: data, operator_keys: [op], models: [{{name: m, path: m.gguf}}], kv: {{{kv}}},
               sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0',
                         instances: [{{name: p1, model: m, kv_snapshot_blocks: 4}}]}}], tenants: [{tenants}]}}"
        ))
    }

    #[test]
    fn who_states_no_share_has_an_equal_part_of_what_is_left() {
        let tenants =
            "{name: a, keys: [ka], kv_share_permille: 400}, {name: b, keys: [kb]}, {name: c, keys: [kc]}";
        let shares = |kv: &str| parse(kv, tenants).unwrap().shares(Bytes(1000));
        let a = Scope::Tenant(TenantName::new("a").unwrap());
        assert_eq!(shares("").usual, Bytes(300));
        assert_eq!(shares("").named.get(&a), Some(&Bytes(400)));
        let public = shares("public_prefixes: [{model: m, text: Hello}]");
        assert_eq!(public.usual, Bytes(200), "the public prefixes have a part too");
        assert_eq!(parse("", "").unwrap().shares(Bytes(1000)).usual, Bytes(1000));
        let config = parse("time_to_live_s: 60", tenants).unwrap();
        let cache = config.cache(Bytes(1000), config.sites[0].instances[0].kv_snapshot_blocks);
        assert_eq!(
            (cache.snapshot_blocks.get(), cache.time_to_live),
            (4, Some(Duration::from_secs(60)))
        );
    }

    #[test]
    fn what_lands_has_a_part_of_the_disk() {
        let tiers = |landing_mib| TiersConfig {
            disk_mib: 800,
            landing_mib,
            ..TiersConfig::default()
        };
        let parts = |landing_mib| {
            let tiers = tiers(landing_mib);
            (tiers.landing().budget.0 >> 20, tiers.blocks_mib())
        };
        assert_eq!(parts(None), (100, 700));
        assert_eq!(parts(Some(0)), (0, 800));
        assert_eq!(parts(Some(300)), (300, 500));
        for (tiers, named) in [
            ("disk_mib: 8, landing_mib: 8", "disk_mib"),
            ("landing_mib: 1", "disk_mib"),
            ("landing_ttl_s: 0", "landing_ttl_s"),
        ] {
            let text = format!(
                "{{data_dir: data, operator_keys: [op], models: [{{name: m, path: m.gguf}}],
                   sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', kv_tiers: {{{tiers}}},
                             instances: [{{name: p1, model: m}}]}}]}}"
            );
            let refused = Config::parse(&text).unwrap_err().to_string();
            assert!(refused.contains(named), "{refused}");
        }
    }

    #[test]
    fn nothing_is_replicated_unless_it_is_asked_for() {
        assert!(parse("", "").unwrap().kv.replicate.is_none());
        let rules = |kv: &str| parse(kv, "").unwrap().kv.replicate.unwrap().rules();
        let usual = rules("replicate: {}");
        assert_eq!((usual.asks, usual.bounds.per_minute), (3, Bytes(256 << 20)));
        let own = rules("replicate: {asks: 64, window_s: 5, mib_per_minute: 1, pause_s: 9}");
        assert_eq!(
            (own.asks, own.window, own.pause),
            (64, Duration::from_secs(5), Duration::from_secs(9))
        );
        assert_eq!(
            (own.bounds.per_minute, own.min_tokens),
            (Bytes(1 << 20), Tokens(256))
        );
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        let half =
            "{name: a, keys: [ka], kv_share_permille: 600}, {name: b, keys: [kb], kv_share_permille: 500}";
        for (kv, tenants, named) in [
            ("", half, "1100"),
            ("time_to_live_s: 0", "", "time_to_live_s"),
            ("replicate: {asks: 0}", "", "kv.replicate.asks"),
            ("replicate: {asks: 65}", "", "1 to 64"),
            ("replicate: {window_s: 0}", "", "kv.replicate.window_s"),
            (
                "replicate: {mib_per_minute: 0}",
                "",
                "kv.replicate.mib_per_minute",
            ),
            ("replicate: {at_once: 65}", "", "1 to 64"),
            ("replicate: {pause_s: 0}", "", "kv.replicate.pause_s"),
            ("replicate: {often: 1}", "", "often"),
            ("prewarm: {likely_percent: 0}", "", "kv.prewarm.likely_percent"),
            ("prewarm: {likely_percent: 101}", "", "1 to 100"),
            ("prewarm: {at_once: 0}", "", "kv.prewarm.at_once"),
            ("public_prefixes: [{model: n, text: x}]", "", "no model"),
            ("public_prefixes: [{model: m}]", "", "either"),
            ("public_prefixes: [{model: m, text: x, system: y}]", "", "either"),
        ] {
            let refused = parse(kv, tenants).unwrap_err().to_string();
            assert!(refused.contains(named), "{refused}");
        }
    }
}
