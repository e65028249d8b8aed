//! The fleet that a trace is played on, as people write it.

use super::error::LabError;
use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Bytes, InstanceName, Permille, Role, SiteName, Tokens};
use portolan_decide::{RequestPolicies, SiteIndex};
use portolan_planner::PrefillProfile;
use portolan_policy::{NameTables, SiteEntry};
use portolan_sim::{
    FirstToken, MOONCAKE_BLOCK_TOKENS, Origin, Queueing, Scenario, SimInstance, SimLink, SimSite,
    ThresholdSource,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The fleet when none is given.
const TWO_SITES: &str = include_str!("fleet/two-sites.yaml");

/// Most instances: each is looked at for every request.
const MOST_INSTANCES: usize = 1024;

/// Most sites.
const MOST_SITES: usize = 64;

/// A fleet: sites with their instances, and the links between them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetText {
    /// Seed of every choice.
    #[serde(default = "one")]
    pub seed: u64,
    /// The model that all instances serve.
    pub model: ModelText,
    /// The sites, in index order.
    pub sites: Vec<FleetSiteText>,
    /// Directed links; a site without one to another serves only itself.
    #[serde(default)]
    pub links: Vec<LinkText>,
    /// Tokens in a block of the trace.
    #[serde(default = "block_tokens")]
    pub block_tokens: u32,
    /// Uncached length above which offloading pays, as the planner would say.
    #[serde(default = "offload_threshold")]
    pub offload_threshold_tokens: u32,
    /// Link utilisation from which a link counts as congested.
    #[serde(default = "congested")]
    pub congested_permille: u32,
    /// Share of a transfer that runs while the prompt is computed.
    #[serde(default = "overlap")]
    pub overlap_permille: u32,
}

/// A model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelText {
    /// Its name.
    #[serde(default = "model_name")]
    pub name: String,
    /// KV of one token.
    pub kv_bytes_per_token: u64,
    /// KV whatever the length: recurrent states.
    #[serde(default)]
    pub kv_fixed_bytes: u64,
}

/// A site.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetSiteText {
    /// Its name.
    pub name: SiteName,
    /// Its region, free text.
    #[serde(default)]
    pub region: String,
    /// Its jurisdiction; none when left out.
    pub jurisdiction: Option<String>,
    /// Whether requests come in here.
    #[serde(default = "yes")]
    pub takes_requests: bool,
    /// The jurisdiction that their data states; none when left out.
    pub data_jurisdiction: Option<String>,
    /// Its instances.
    #[serde(default)]
    pub instances: Vec<InstanceText>,
}

/// Some equal instances.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceText {
    /// Their name; a number follows it when there are several.
    pub name: String,
    /// How many.
    #[serde(default = "single")]
    pub count: u32,
    /// `prefill`, `decode` or `both`.
    pub role: Role,
    /// How fast a prompt is computed.
    pub prefill: PrefillText,
    /// One step of all answers together.
    pub decode_step_ms: f64,
    /// Answers generated at once.
    pub decode_slots: u32,
    /// Tokens whose KV it keeps.
    pub cache_tokens: u32,
    /// Price of a thousand computed tokens, in millionths of your unit.
    #[serde(default)]
    pub price_micros_per_kilotoken: u32,
}

/// Time to compute a prompt: a quadratic in its uncached length.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefillText {
    /// Whatever the length.
    #[serde(default)]
    pub fixed_ms: f64,
    /// A token.
    pub us_per_token: f64,
    /// A token squared.
    #[serde(default)]
    pub ns_per_token_squared: f64,
}

/// A directed link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkText {
    /// Where KV is sent from: the prefill site.
    pub from: String,
    /// Where it is sent to: the decode site.
    pub to: String,
    /// What it carries, in Mbit/s.
    pub capacity_mbps: u64,
    /// Round-trip time.
    pub rtt_ms: f64,
    /// Price of a GiB, in millionths of your unit.
    #[serde(default)]
    pub price_micros_per_gib: u32,
}

fn one() -> u64 {
    1
}
fn single() -> u32 {
    1
}
fn yes() -> bool {
    true
}
fn block_tokens() -> u32 {
    MOONCAKE_BLOCK_TOKENS
}
fn offload_threshold() -> u32 {
    16_384
}
fn congested() -> u32 {
    700
}
fn overlap() -> u32 {
    930
}
fn model_name() -> String {
    "model".to_owned()
}

/// A fleet that can be simulated.
#[derive(Clone)]
pub struct Fleet {
    /// Everything but the policies.
    pub scenario: Scenario,
    /// What policies are told of it.
    pub names: NameTables,
}

impl Fleet {
    /// Reads a file; the two sites of the demo when there is none.
    pub fn read(path: Option<&Path>) -> Result<Self, LabError> {
        let Some(path) = path else {
            return Self::of(TWO_SITES);
        };
        let text = std::fs::read_to_string(path).map_err(|source| LabError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::of(&text).map_err(|wrong| LabError::Parse {
            path: path.to_owned(),
            detail: wrong.to_string(),
        })
    }

    /// Reads a text.
    pub fn of(text: &str) -> Result<Self, LabError> {
        let text: FleetText =
            serde_saphyr::from_str(text).map_err(|e| LabError::value("fleet", e.to_string()))?;
        Self::made(&text)
    }

    /// The fleet that was written down.
    pub fn made(text: &FleetText) -> Result<Self, LabError> {
        let names = text.names()?;
        let scenario = text.scenario(&names)?;
        scenario.check()?;
        Ok(Self { scenario, names })
    }
}

impl FleetText {
    fn names(&self) -> Result<NameTables, LabError> {
        if self.sites.is_empty() || self.sites.len() > MOST_SITES {
            let problem = format!("{} sites; a fleet has 1 to {MOST_SITES}", self.sites.len());
            return Err(LabError::value("sites", problem));
        }
        let mut jurisdictions = vec!["any".to_owned()];
        let mut sites: Vec<SiteEntry> = Vec::new();
        for (i, site) in self.sites.iter().enumerate() {
            if sites.iter().any(|known| known.name == site.name.as_str()) {
                return Err(LabError::value(
                    format!("sites[{i}].name"),
                    "another site has this name",
                ));
            }
            sites.push(SiteEntry {
                name: site.name.as_str().to_owned(),
                region: site.region.clone(),
                jurisdiction: index_of(&mut jurisdictions, site.jurisdiction.as_deref()),
            });
            index_of(&mut jurisdictions, site.data_jurisdiction.as_deref());
        }
        Ok(NameTables {
            tenant: String::new(),
            sites,
            jurisdictions,
            models: vec![self.model.name.clone()],
            user_classes: vec!["standard".to_owned()],
        })
    }

    fn scenario(&self, names: &NameTables) -> Result<Scenario, LabError> {
        let mut jurisdictions = names.jurisdictions.clone();
        let (mut instances, mut origins) = (Vec::new(), Vec::new());
        for (site, text) in (0..).map(SiteIndex).zip(&self.sites) {
            for (i, like) in text.instances.iter().enumerate() {
                let place = format!("sites[{}].instances[{i}]", site.0);
                instances.extend(like.at(site).map_err(|wrong| wrong.within(&place))?);
            }
            if text.takes_requests {
                origins.push(Origin {
                    site,
                    jurisdiction: index_of(&mut jurisdictions, text.data_jurisdiction.as_deref()),
                });
            }
        }
        if instances.len() > MOST_INSTANCES {
            let problem = format!("{} altogether, at most {MOST_INSTANCES}", instances.len());
            return Err(LabError::value("instances", problem));
        }
        let sites = names.sites.iter().zip(&self.sites);
        Ok(Scenario {
            sites: sites
                .map(|(entry, text)| SimSite {
                    name: text.name.clone(),
                    jurisdiction: entry.jurisdiction,
                })
                .collect(),
            instances,
            links: self.links()?,
            origins,
            block_tokens: Tokens(self.block_tokens),
            kv: KvSize {
                fixed: Bytes(within(
                    "model.kv_fixed_bytes",
                    self.model.kv_fixed_bytes,
                    1 << 40,
                )?),
                per_token: Bytes(within(
                    "model.kv_bytes_per_token",
                    self.model.kv_bytes_per_token,
                    1 << 30,
                )?),
            },
            overlap: Permille(within("overlap_permille", self.overlap_permille, 1000)?),
            threshold: ThresholdSource::Static(Tokens(self.offload_threshold_tokens)),
            congestion_mark: Permille(self.congested_permille),
            policies: RequestPolicies::default(),
            seed: self.seed,
            queueing: Queueing::default(),
            first_token: FirstToken::default(),
            changes: Vec::new(),
            slow_loop: None,
            ttft_slo: None,
            warm_up: Duration::ZERO,
        })
    }

    fn links(&self) -> Result<BTreeMap<(SiteIndex, SiteIndex), SimLink>, LabError> {
        let mut links = BTreeMap::new();
        for (i, link) in self.links.iter().enumerate() {
            let key = |end: &str| format!("links[{i}].{end}");
            let site = |end: &str, name: &str| {
                let known = (0..).map(SiteIndex).zip(&self.sites);
                let mut found = known.filter(|(_, site)| site.name.as_str() == name);
                found.next().map(|(index, _)| index).ok_or_else(|| {
                    let names: Vec<_> = self.sites.iter().map(|site| site.name.as_str()).collect();
                    LabError::value(
                        key(end),
                        format!("no site is called {name:?}; there are {}", names.join(", ")),
                    )
                })
            };
            let ends = (site("from", &link.from)?, site("to", &link.to)?);
            if ends.0 == ends.1 {
                return Err(LabError::value(key("to"), "a link joins two different sites"));
            }
            let made = SimLink {
                capacity: BitsPerSecond(
                    within(&key("capacity_mbps"), link.capacity_mbps, 10_000_000)? * 1_000_000,
                ),
                rtt: duration(&key("rtt_ms"), link.rtt_ms, 1e-3)?,
                price_micros_per_gib: link.price_micros_per_gib,
            };
            if made.capacity.0 == 0 {
                return Err(LabError::value(
                    key("capacity_mbps"),
                    "0 carries nothing; leave the link out instead",
                ));
            }
            links.insert(ends, made);
        }
        Ok(links)
    }
}

impl InstanceText {
    fn at(&self, site: SiteIndex) -> Result<Vec<SimInstance>, LabError> {
        let count = within("count", self.count as usize, MOST_INSTANCES)?;
        let PrefillText {
            fixed_ms,
            us_per_token,
            ns_per_token_squared,
        } = self.prefill;
        let prefill = PrefillProfile {
            fixed_s: duration("prefill.fixed_ms", fixed_ms, 1e-3)?.as_secs_f64(),
            per_token_s: seconds("prefill.us_per_token", us_per_token, 1e-6)?,
            per_token_squared_s: seconds("prefill.ns_per_token_squared", ns_per_token_squared, 1e-9)?,
        };
        let decode_step = duration("decode_step_ms", self.decode_step_ms, 1e-3)?;
        let named = |i: usize| {
            let name = match count {
                1 => self.name.clone(),
                _ => format!("{}-{}", self.name, i + 1),
            };
            InstanceName::new(&name).map_err(|wrong| LabError::value("name", wrong.to_string()))
        };
        (0..count)
            .map(|i| {
                Ok(SimInstance {
                    name: named(i)?,
                    site,
                    role: self.role,
                    prefill,
                    decode_step,
                    decode_slots: self.decode_slots,
                    cache: Tokens(self.cache_tokens),
                    price_micros_per_kilotoken: self.price_micros_per_kilotoken,
                })
            })
            .collect()
    }
}

/// The index of a jurisdiction, which is added when it is new; 0 for none.
fn index_of(table: &mut Vec<String>, name: Option<&str>) -> u32 {
    let Some(name) = name else { return 0 };
    let known = table.iter().position(|known| known == name);
    let at = known.unwrap_or_else(|| {
        table.push(name.to_owned());
        table.len() - 1
    });
    u32::try_from(at).unwrap_or(0)
}

fn within<N: PartialOrd + std::fmt::Display + Copy>(key: &str, value: N, most: N) -> Result<N, LabError> {
    if value > most {
        return Err(LabError::value(key, format!("{value} is more than {most}")));
    }
    Ok(value)
}

/// A time in seconds: not negative, and so short that times of long prompts stay far from the largest there is.
fn seconds(key: &str, value: f64, unit: f64) -> Result<f64, LabError> {
    let seconds = value * unit;
    if (0.0..=3600.0).contains(&seconds) {
        return Ok(seconds);
    }
    Err(LabError::value(
        key,
        format!("{value} is no time from 0 to an hour"),
    ))
}

fn duration(key: &str, value: f64, unit: f64) -> Result<Duration, LabError> {
    seconds(key, value, unit).map(Duration::from_secs_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(from: &str, to: &str) -> String {
        assert!(TWO_SITES.contains(from), "{from}");
        match Fleet::of(&TWO_SITES.replacen(from, to, 1)) {
            Ok(_) => panic!("{to} is accepted"),
            Err(wrong) => wrong.to_string(),
        }
    }

    #[test]
    fn the_fleet_of_the_demo() {
        let fleet = Fleet::read(None).unwrap();
        let names: Vec<_> = fleet.scenario.instances.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["h20-1", "h20-2", "h20-3", "h200-1", "h200-2", "h200-3"]);
        assert_eq!(fleet.names.jurisdictions, ["any", "eu", "us"]);
        assert_eq!((fleet.scenario.links.len(), fleet.scenario.origins.len()), (2, 2));
        assert_eq!(fleet.scenario.origins[0].jurisdiction, 0);
        let data = TWO_SITES.replacen(
            "jurisdiction: eu",
            "jurisdiction: eu\n    data_jurisdiction: us",
            1,
        );
        assert_eq!(Fleet::of(&data).unwrap().scenario.origins[0].jurisdiction, 2);
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (from, to, says) in [
            (
                "from: virginia",
                "from: viginia",
                "links[0].from: no site is called \"viginia\"; there are paris, virginia",
            ),
            ("to: paris", "to: virginia", "two different sites"),
            (
                "capacity_mbps: 25000",
                "capacity_mbps: 0",
                "links[0].capacity_mbps: 0 carries nothing",
            ),
            ("rtt_ms: 80", "rtt_ms: -1", "links[0].rtt_ms"),
            (
                "us_per_token: 130.75",
                "us_per_token: .nan",
                "prefill.us_per_token",
            ),
            (
                "count: 3",
                "count: 5000",
                "sites[0].instances[0].count: 5000 is more than 1024",
            ),
            ("name: virginia", "name: paris", "sites[1].name: another site"),
            ("seed: 1", "sed: 1", "sed"),
            ("role: both", "role: bath", "bath"),
            ("decode_slots: 64", "decode_slots: 0", "decode slot"),
            ("kv_bytes_per_token: 17280, ", "", "kv_bytes_per_token"),
        ] {
            let said = fails(from, to);
            assert!(said.contains(says), "{to}: {said}");
        }
    }
}
