//! The file that says what a set-up of several regions is designed from.

use super::error::PlanError;
use super::profile::{CurveText, DecodeText, KvText, gbps};
use portolan_base::kv::KvSize;
use portolan_base::{Bytes, Tokens};
use portolan_planner::DecodeProfile;
use portolan_planner::regions::{
    Failover, Objective, Region, RegionIndex, RegionLink, RegionalWork, RegionsCase, SiteOffer,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Most instances that a site can be said to have room for.
const MOST_ROOM: u32 = 10_000;

/// Regions, the ways between them, rules and an objective.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionsText {
    /// What requests are promised.
    pub objective: ObjectiveText,
    /// What they are like.
    pub workload: RegionalWorkText,
    /// How fast an instance is.
    pub instance: InstanceText,
    /// Size of the model's KV.
    pub kv: KvText,
    /// Where requests come from, and where sites can be.
    pub regions: Vec<RegionText>,
    /// Ways between them, each once.
    #[serde(default)]
    pub links: Vec<WayText>,
    /// Where the data of a jurisdiction's regions may be processed; anywhere where nothing is said.
    #[serde(default)]
    pub residency: BTreeMap<String, Vec<String>>,
    /// Whether each region must have a second site to go to.
    #[serde(default)]
    pub failover: FailoverText,
}

/// What requests are promised.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectiveText {
    /// Time to first token.
    pub ttft_ms: f64,
    /// The share of requests it is kept for.
    #[serde(default = "nine_of_ten")]
    pub quantile: f64,
    /// Round trips before the first token.
    #[serde(default = "one")]
    pub round_trips: u32,
    /// Most of an instance's time that load may take.
    #[serde(default = "seven_of_ten")]
    pub utilisation: f64,
}

/// What requests are like.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionalWorkText {
    /// Mean uncached length.
    pub mean_tokens: f64,
    /// Standard deviation of the uncached length; as large as the mean when left out.
    pub deviation_tokens: Option<f64>,
    /// Uncached length that the objective is kept for.
    pub objective_tokens: u32,
    /// Mean length of a prompt with its cached part; the uncached one when left out.
    pub prompt_tokens: Option<f64>,
    /// Mean length of an answer.
    pub output_tokens: f64,
    /// KV that is fetched from another site instead of computed.
    #[serde(default)]
    pub fetched: FetchedText,
}

/// KV that is fetched.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchedText {
    /// For which share of the requests.
    pub share: f64,
    /// Of how many tokens.
    pub tokens: f64,
}

/// How fast an instance is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceText {
    /// How fast it computes a prompt.
    pub prefill: CurveText,
    /// How fast it generates.
    pub decode: DecodeText,
}

/// A region.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionText {
    /// Its name.
    pub name: String,
    /// The law it is under.
    pub jurisdiction: String,
    /// Requests a second that come in here.
    #[serde(default)]
    pub load_rps: f64,
    /// What a site here can be; none when left out.
    pub site: Option<SiteText>,
}

/// What a site can be.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteText {
    /// Price of an instance for an hour.
    #[serde(default)]
    pub price_per_hour: f64,
    /// Most instances.
    pub room: u32,
}

/// The way between two regions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WayText {
    /// The two.
    pub between: [String; 2],
    /// Round-trip time.
    pub rtt_ms: f64,
    /// What it carries, in Gbit/s.
    pub gbps: f64,
    /// Price of a GiB.
    #[serde(default)]
    pub price_per_gib: f64,
}

/// Whether each region must have a second site to go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailoverText {
    /// Each must.
    Required,
    /// Where there is one, it has room.
    #[default]
    WherePossible,
    /// Instances are counted for undisturbed days.
    None,
}

fn nine_of_ten() -> f64 {
    0.9
}
fn seven_of_ten() -> f64 {
    0.7
}
fn one() -> u32 {
    1
}

impl RegionsText {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<RegionsCase, PlanError> {
        let text = std::fs::read_to_string(path).map_err(|source| PlanError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|wrong| wrong.of_file(path))
    }

    /// Reads a document.
    pub fn parse(text: &str) -> Result<RegionsCase, PlanError> {
        let text: Self =
            serde_saphyr::from_str(text).map_err(|e| PlanError::value("regions", e.to_string()))?;
        text.case()
    }

    fn case(&self) -> Result<RegionsCase, PlanError> {
        let regions = self.regions()?;
        let decode = self.instance.decode;
        if decode.slots == 0 {
            return Err(PlanError::value("instance.decode.slots", "at least 1 is needed"));
        }
        Ok(RegionsCase {
            links: self.ways()?,
            work: self.workload.work()?,
            objective: self.objective.objective()?,
            prefill: self.instance.prefill.profile("instance.prefill")?,
            decode: DecodeProfile {
                batch: decode.slots,
                step_s: within("instance.decode.step_ms", decode.step_ms, 0.001..=3.6e6)? / 1e3,
                output_tokens: within("workload.output_tokens", self.workload.output_tokens, 1.0..=1e7)?,
            },
            kv: KvSize {
                fixed: Bytes(self.kv.fixed_bytes),
                per_token: Bytes(self.kv.bytes_per_token),
            },
            failover: match self.failover {
                FailoverText::Required => Failover::Required,
                FailoverText::WherePossible => Failover::WherePossible,
                FailoverText::None => Failover::None,
            },
            regions,
        })
    }

    fn regions(&self) -> Result<Vec<Region>, PlanError> {
        let jurisdictions = || self.regions.iter().map(|region| region.jurisdiction.as_str());
        for (of, may_go) in &self.residency {
            for named in may_go.iter().chain([of]) {
                if !jurisdictions().any(|known| known == named) {
                    let known = jurisdictions().collect::<Vec<_>>().join(", ");
                    let problem = format!("no region is in {named:?}; there are {known}");
                    return Err(PlanError::value(format!("residency.{of}"), problem));
                }
            }
        }
        let mut regions: Vec<Region> = Vec::new();
        for text in &self.regions {
            let key = |field: &str| format!("regions.{}.{field}", text.name);
            if regions.iter().any(|known| known.name == text.name) {
                return Err(PlanError::value(key("name"), "another region has the same name"));
            }
            let offer = |site: SiteText| {
                if site.room > MOST_ROOM {
                    let problem = format!("{} is more than {MOST_ROOM}", site.room);
                    return Err(PlanError::value(key("site.room"), problem));
                }
                Ok(SiteOffer {
                    price_per_hour: within(key("site.price_per_hour"), site.price_per_hour, 0.0..=1e6)?,
                    room: site.room,
                })
            };
            regions.push(Region {
                name: text.name.clone(),
                jurisdiction: text.jurisdiction.clone(),
                data_may_go: self.residency.get(&text.jurisdiction).cloned(),
                load_rps: within(key("load_rps"), text.load_rps, 0.0..=1e6)?,
                site: text.site.map(offer).transpose()?,
            });
        }
        Ok(regions)
    }

    fn ways(&self) -> Result<BTreeMap<(RegionIndex, RegionIndex), RegionLink>, PlanError> {
        let mut ways = BTreeMap::new();
        for text in &self.links {
            let key = |field: &str| format!("links.{}-{}.{field}", text.between[0], text.between[1]);
            let index = |name: &String| {
                self.regions
                    .iter()
                    .position(|region| region.name == *name)
                    .ok_or_else(|| {
                        let known = self.regions.iter().map(|region| region.name.as_str());
                        let known = known.collect::<Vec<_>>().join(", ");
                        PlanError::value(
                            key("between"),
                            format!("no region is called {name:?}; there are {known}"),
                        )
                    })
            };
            let (a, b) = (index(&text.between[0])?, index(&text.between[1])?);
            let link = RegionLink {
                rtt: Duration::from_secs_f64(within(key("rtt_ms"), text.rtt_ms, 0.0..=60_000.0)? / 1e3),
                capacity: gbps(&key("gbps"), text.gbps)?,
                price_per_gib: within(key("price_per_gib"), text.price_per_gib, 0.0..=1e6)?,
            };
            if a == b || ways.insert((a.min(b), a.max(b)), link).is_some() {
                let problem = "two different regions are expected, each pair once";
                return Err(PlanError::value(key("between"), problem));
            }
        }
        Ok(ways)
    }
}

impl RegionalWorkText {
    fn work(&self) -> Result<RegionalWork, PlanError> {
        let mean = within("workload.mean_tokens", self.mean_tokens, 1.0..=1e7)?;
        let deviation = self.deviation_tokens.unwrap_or(mean);
        let deviation = within("workload.deviation_tokens", deviation, 0.0..=1e7)?;
        let prompt = self.prompt_tokens.unwrap_or(mean);
        Ok(RegionalWork {
            mean_tokens: mean,
            mean_square_tokens: mean * mean + deviation * deviation,
            objective_tokens: Tokens(self.objective_tokens),
            prompt_tokens: within("workload.prompt_tokens", prompt, mean..=1e7)?,
            fetched_share: within("workload.fetched.share", self.fetched.share, 0.0..=1.0)?,
            // What is fetched is a part of a prompt.
            fetched_tokens: within("workload.fetched.tokens", self.fetched.tokens, 0.0..=prompt)?,
        })
    }
}

impl ObjectiveText {
    fn objective(&self) -> Result<Objective, PlanError> {
        let ttft_ms = within("objective.ttft_ms", self.ttft_ms, 1.0..=3.6e6)?;
        if !(1..=10).contains(&self.round_trips) {
            let problem = format!("{} is not 1 to 10", self.round_trips);
            return Err(PlanError::value("objective.round_trips", problem));
        }
        Ok(Objective {
            ttft: Duration::from_secs_f64(ttft_ms / 1e3),
            quantile: within("objective.quantile", self.quantile, 0.0..=0.9999)?,
            round_trips: self.round_trips,
            utilisation: within("objective.utilisation", self.utilisation, 0.01..=0.99)?,
        })
    }
}

fn within(
    key: impl Into<String>,
    value: f64,
    range: std::ops::RangeInclusive<f64>,
) -> Result<f64, PlanError> {
    if range.contains(&value) {
        return Ok(value);
    }
    let problem = format!("{value} is not from {} to {}", range.start(), range.end());
    Err(PlanError::value(key, problem))
}
