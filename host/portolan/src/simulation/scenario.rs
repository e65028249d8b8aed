//! Scenario files: a fleet, its traffic, what happens on the way.

use super::cast::Player;
use super::table::Table;
use super::traffic::TrafficText;
use crate::lab::LabError;
use crate::lab::component::Workshop;
use crate::lab::fleet::{Fleet, FleetText};
use portolan_base::{BitsPerSecond, Moment, Permille};
use portolan_decide::SiteIndex;
use portolan_policy::NameTables;
use portolan_sim::{
    Change, Happening, Queueing, Report, Scenario, SimRequest, SlowLoop, ThresholdSource, VirtualClock,
    simulate_on,
};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A scenario as people write it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioText {
    /// Sites, instances, links.
    pub fleet: FleetText,
    /// What comes in.
    pub traffic: TrafficText,
    /// What happens on the way.
    #[serde(default)]
    pub changes: Vec<ChangeText>,
    /// `adaptive` or `static`: where the offload threshold in force comes from.
    #[serde(default)]
    pub threshold: ThresholdText,
    /// `instance` or `pool`: whose the prefill queues are.
    #[serde(default)]
    pub queues: QueuesText,
    /// How often the slow loop divides instances anew, in seconds; never when left out.
    pub slow_loop_s: Option<f64>,
    /// Time to first token that is aimed at.
    pub ttft_slo_ms: Option<f64>,
    /// Requests that come in before this are played and not counted.
    #[serde(default)]
    pub warm_up_s: f64,
}

/// Where the threshold in force comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThresholdText {
    /// The host's control keeps it.
    #[default]
    Adaptive,
    /// It is the fleet's `offload_threshold_tokens`, whatever happens.
    Static,
}

/// Whose the prefill queues are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueuesText {
    /// Each instance has its own.
    #[default]
    Instance,
    /// Prefill instances of a site share one.
    Pool,
}

/// Something that happens.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeText {
    /// When, in seconds.
    pub at_s: f64,
    /// A link becomes another.
    pub link: Option<LinkChangeText>,
    /// A site that is gone from then on.
    pub site_lost: Option<String>,
    /// A site that is back, with empty caches.
    pub site_back: Option<String>,
}

/// What a link becomes. What is left out stays as the fleet has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkChangeText {
    /// Where KV is sent from.
    pub from: String,
    /// Where it is sent to.
    pub to: String,
    /// What it carries.
    pub capacity_mbps: Option<u64>,
    /// Its round-trip time.
    pub rtt_ms: Option<f64>,
    /// What it loses, in thousandths.
    #[serde(default)]
    pub loss_permille: u32,
}

/// A scenario that can be played.
pub struct Stage {
    scenario: Scenario,
    names: NameTables,
    traffic: Vec<SimRequest>,
}

/// What came of one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Which.
    pub policy: String,
    /// Share of the blocks of all prompts that did not have to be computed.
    pub hit_rate: f64,
    /// Price of all requests, in the operator's unit.
    pub bill: f64,
    /// Everything else.
    pub report: Report,
}

impl Stage {
    /// Reads a scenario file; a trace it names lies where the file does.
    pub fn read(path: &Path, seed: Option<u64>) -> Result<Self, LabError> {
        let text = std::fs::read_to_string(path).map_err(|source| LabError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::of(&text, path.parent().unwrap_or(Path::new(".")), seed).map_err(|wrong| LabError::Parse {
            path: path.to_owned(),
            detail: wrong.to_string(),
        })
    }

    /// Reads a text; a trace it names lies in `folder`.
    pub fn of(text: &str, folder: &Path, seed: Option<u64>) -> Result<Self, LabError> {
        let text: ScenarioText = serde_saphyr::from_str(text)
            .map_err(|wrong| LabError::value("scenario", suggesting(&wrong.to_string())))?;
        let fleet = Fleet::made(&text.fleet)?;
        let seed = seed.unwrap_or(fleet.scenario.seed);
        let scenario = Scenario {
            changes: text.changes(&fleet)?,
            threshold: match text.threshold {
                ThresholdText::Static => fleet.scenario.threshold,
                ThresholdText::Adaptive => ThresholdSource::Adaptive,
            },
            queueing: match text.queues {
                QueuesText::Instance => Queueing::PerInstance,
                QueuesText::Pool => Queueing::PerPool,
            },
            slow_loop: text.slow_loop()?,
            ttft_slo: text
                .ttft_slo_ms
                .map(|ms| time("ttft_slo_ms", ms, 1e-3))
                .transpose()?,
            warm_up: time("warm_up_s", text.warm_up_s, 1.0)?,
            seed,
            ..fleet.scenario
        };
        scenario.check()?;
        let traffic = text.traffic.draw(folder, seed, scenario.block_tokens)?;
        let last = traffic.iter().map(|request| request.arrival).max();
        if let Some(last) = last.filter(|last| *last < Moment(0) + scenario.warm_up) {
            let problem = format!(
                "the last request comes in after {:.0} s: none would be counted",
                last.since(Moment(0)).as_secs_f64()
            );
            return Err(LabError::value("warm_up_s", problem));
        }
        Ok(Self {
            traffic,
            names: fleet.names,
            scenario,
        })
    }

    /// Plays it with each of the policies.
    pub fn play(&self, policies: &[String], workshop: &Workshop) -> Result<Vec<Outcome>, LabError> {
        let run = |policy: &String| {
            let player = Player::find(policy, workshop)?;
            let clock = Arc::new(VirtualClock::default());
            let scenario = Scenario {
                policies: player.load(workshop, &self.names, &clock)?,
                ..self.scenario.clone()
            };
            let report = simulate_on(&scenario, &self.traffic, &clock)?;
            Ok(Outcome {
                policy: player.name().to_owned(),
                hit_rate: report.hit_rate(),
                bill: report.price_micros as f64 / 1e6,
                report,
            })
        };
        policies.iter().map(run).collect()
    }
}

impl ScenarioText {
    fn slow_loop(&self) -> Result<Option<SlowLoop>, LabError> {
        let made = self.slow_loop_s.map(|seconds| {
            let period = time("slow_loop_s", seconds, 1.0)?;
            if period < Duration::from_secs(1) {
                return Err(LabError::value("slow_loop_s", "at least 1; minutes are usual"));
            }
            Ok(SlowLoop {
                period,
                ..portolan_sim::case_study::SLOW_LOOP
            })
        });
        made.transpose()
    }

    fn changes(&self, fleet: &Fleet) -> Result<Vec<Change>, LabError> {
        let numbered = self.changes.iter().enumerate();
        numbered
            .map(|(i, change)| {
                change
                    .made(fleet)
                    .map_err(|wrong| wrong.within(&format!("changes[{i}]")))
            })
            .collect()
    }
}

impl ChangeText {
    fn made(&self, fleet: &Fleet) -> Result<Change, LabError> {
        let what = match (&self.link, &self.site_lost, &self.site_back) {
            (Some(link), None, None) => link.made(fleet)?,
            (None, Some(site), None) => Happening::SiteLost(site_of(fleet, "site_lost", site)?),
            (None, None, Some(site)) => Happening::SiteBack(site_of(fleet, "site_back", site)?),
            _ => {
                return Err(LabError::value(
                    "link",
                    "one of link, site_lost and site_back says what happens",
                ));
            }
        };
        Ok(Change {
            at: Moment(0) + time("at_s", self.at_s, 1.0)?,
            what,
        })
    }
}

impl LinkChangeText {
    fn made(&self, fleet: &Fleet) -> Result<Happening, LabError> {
        let ends = (
            site_of(fleet, "link.from", &self.from)?,
            site_of(fleet, "link.to", &self.to)?,
        );
        let Some(link) = fleet.scenario.links.get(&ends) else {
            let problem = format!("the fleet has no link from {} to {}", self.from, self.to);
            return Err(LabError::value("link", problem));
        };
        let capacity = match self.capacity_mbps {
            Some(0) => return Err(LabError::value("link.capacity_mbps", "at least 1")),
            Some(mbps) => BitsPerSecond(mbps.saturating_mul(1_000_000)),
            None => link.capacity,
        };
        if self.loss_permille > 900 {
            return Err(LabError::value("link.loss_permille", "at most 900"));
        }
        Ok(Happening::Link {
            ends,
            capacity,
            rtt: self
                .rtt_ms
                .map_or(Ok(link.rtt), |ms| time("link.rtt_ms", ms, 1e-3))?,
            loss: Permille(self.loss_permille),
        })
    }
}

fn site_of(fleet: &Fleet, key: &str, name: &str) -> Result<SiteIndex, LabError> {
    let names = || fleet.names.sites.iter().map(|site| site.name.as_str());
    fleet.names.site(name).map(SiteIndex).ok_or_else(|| {
        let hint = closest(name, names()).map_or_else(String::new, |known| format!("did you mean {known}? "));
        let known: Vec<_> = names().collect();
        LabError::value(
            key,
            format!("no site is called {name:?}; {hint}there are {}", known.join(", ")),
        )
    })
}

/// A time: not negative, and at most a year.
pub(super) fn time(key: &str, value: f64, unit: f64) -> Result<Duration, LabError> {
    let seconds = value * unit;
    if (0.0..=31_536_000.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(LabError::value(
            key,
            format!("{value} is no time from 0 to a year"),
        ))
    }
}

/// The known word that is most like one that is not, if any is like it.
pub(super) fn closest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let like = known.map(|candidate| (strsim::jaro_winkler(word, candidate), candidate));
    let (likeness, candidate) = like.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (likeness >= 0.8).then_some(candidate)
}

/// A parser's complaint about an unknown key, with the key that was probably meant.
fn suggesting(complaint: &str) -> String {
    let meant = complaint.split_once("unknown field `").and_then(|(_, rest)| {
        let (unknown, rest) = rest.split_once('`')?;
        let (_, known) = rest.lines().next()?.split_once("expected ")?;
        let known = known
            .trim_start_matches("one of ")
            .split(", ")
            .flat_map(|part| part.split(" or "));
        closest(unknown, known.map(|name| name.trim().trim_matches('`')))
    });
    match meant {
        Some(meant) => format!("{complaint}\ndid you mean {meant}?"),
        None => complaint.to_owned(),
    }
}

/// The outcomes in columns.
pub fn describe(played: &[Outcome]) -> Vec<String> {
    let mut table = Table::new(&[
        "policy",
        "done",
        "refused",
        "rps",
        "TTFT mean",
        "P50",
        "P90",
        "P99",
        "TPOT ms",
        "E2E P99",
        "hits",
        "away",
        "across GiB",
        "bill",
        "in time",
        "fairness",
    ]);
    for Outcome {
        policy,
        hit_rate,
        bill,
        report,
    } in played
    {
        table.row([
            policy.clone(),
            report.completed.to_string(),
            report.refused.values().sum::<u64>().to_string(),
            format!("{:.2}", report.throughput_rps),
            format!("{:.3}", report.ttft.mean),
            format!("{:.3}", report.ttft.p50),
            format!("{:.3}", report.ttft.p90),
            format!("{:.3}", report.ttft.p99),
            format!("{:.1}", report.tpot.mean * 1e3),
            format!("{:.2}", report.end_to_end.p99),
            format!("{:.1} %", hit_rate * 100.0),
            format!("{:.1} %", report.offloaded_share * 100.0),
            format!("{:.1}", report.cross_site_bytes.0 as f64 / f64::from(1 << 30)),
            format!("{bill:.2}"),
            format!("{:.1} %", report.slo_attainment * 100.0),
            format!("{:.3}", report.fairness),
        ]);
    }
    let mut lines = table.lines();
    lines.extend(tenants(played));
    lines.push("times in seconds but for TPOT; away: prefilled at another site than answered".to_owned());
    lines
}

/// Each tenant's times, where there are several.
fn tenants(played: &[Outcome]) -> Vec<String> {
    let mut table = Table::new(&[
        "policy",
        "tenant",
        "done",
        "refused",
        "TTFT mean",
        "P99",
        "in time",
    ]);
    for outcome in played {
        for tenant in &outcome.report.tenants {
            table.row([
                outcome.policy.clone(),
                tenant.tenant.to_string(),
                tenant.completed.to_string(),
                tenant.refused.to_string(),
                format!("{:.3}", tenant.ttft.mean),
                format!("{:.3}", tenant.ttft.p99),
                format!("{:.1} %", tenant.slo_attainment * 100.0),
            ]);
        }
    }
    let lines = table.lines();
    if lines.len() > 1 { lines } else { Vec::new() }
}

#[cfg(test)]
mod tests;
