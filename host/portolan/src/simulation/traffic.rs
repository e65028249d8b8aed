//! The traffic of a scenario file.

use super::scenario::time;
use crate::lab::LabError;
use crate::lab::rehearsal::read_trace;
use portolan_base::{Moment, Tokens};
use portolan_planner::{LengthsError, TruncatedLogNormal};
use portolan_sim::{Burst, Prefixes, SimRequest, Surge, Synthetic, Tenant};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Most requests that are made up.
const MOST_REQUESTS: usize = 5_000_000;

/// Share of the distribution that lies between the shortest and the longest prompt at least: the draws of one length find it.
const LEAST_WITHIN: f64 = 0.001;

/// What comes in: a trace, or made-up requests.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficText {
    /// A trace's file: Mooncake's JSON lines, or Azure's CSV.
    pub trace: Option<PathBuf>,
    /// How many requests are made up, or read.
    pub requests: Option<usize>,
    /// Arrivals a second.
    pub rate_rps: Option<f64>,
    /// Lengths of prompts.
    pub prompt: Option<PromptText>,
    /// Length of every answer.
    pub output_tokens: Option<u32>,
    /// Arrivals in bursts.
    pub burst: Option<BurstText>,
    /// Who sends them.
    #[serde(default)]
    pub tenants: Vec<TenantText>,
    /// What prompts have in common.
    pub prefixes: Option<PrefixesText>,
}

/// Log-normal lengths.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptText {
    /// The median length.
    pub median_tokens: f64,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
    /// The shortest.
    pub shortest_tokens: u32,
    /// The longest.
    pub longest_tokens: u32,
}

/// Arrivals `factor` times as fast for `lasting_s` out of each `every_s`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BurstText {
    /// From the beginning of one to that of the next.
    pub every_s: f64,
    /// How long each lasts.
    pub lasting_s: f64,
    /// How many times as fast.
    pub factor: f64,
}

/// One who sends requests.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantText {
    /// Its part of the requests, in any unit.
    pub weight: f64,
    /// A time in which it sends more.
    pub surge: Option<SurgeText>,
}

/// A time in which more is sent.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SurgeText {
    /// When it begins.
    pub from_s: f64,
    /// When it ends.
    pub to_s: f64,
    /// How many times as much.
    pub factor: f64,
}

/// Beginnings that prompts share.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixesText {
    /// How many there are.
    pub count: u32,
    /// Zipf's exponent; 0: all alike.
    pub skew: f64,
    /// Length of each.
    pub tokens: u32,
}

impl TrafficText {
    /// The requests.
    pub fn draw(&self, folder: &Path, seed: u64, block_tokens: Tokens) -> Result<Vec<SimRequest>, LabError> {
        if let Some(trace) = &self.trace {
            let made_up = [
                self.rate_rps.is_some(),
                self.prompt.is_some(),
                self.output_tokens.is_some(),
                self.burst.is_some(),
                self.prefixes.is_some(),
                !self.tenants.is_empty(),
            ];
            if made_up.contains(&true) {
                let problem = "a trace has its own arrivals and lengths; leave out what makes requests up";
                return Err(LabError::value("traffic.trace", problem));
            }
            let mut requests = read_trace(&folder.join(trace))?;
            requests.truncate(self.requests.unwrap_or(usize::MAX));
            return Ok(requests);
        }
        Ok(self.synthetic(block_tokens)?.draw(seed))
    }

    fn synthetic(&self, block_tokens: Tokens) -> Result<Synthetic, LabError> {
        let missing =
            |key: &str| LabError::value(format!("traffic.{key}"), "it is missing, and there is no trace");
        let requests = self.requests.ok_or_else(|| missing("requests"))?;
        if !(1..=MOST_REQUESTS).contains(&requests) {
            return Err(LabError::value(
                "traffic.requests",
                format!("1 to {MOST_REQUESTS}"),
            ));
        }
        let prompt = self.prompt.ok_or_else(|| missing("prompt"))?;
        let factor = |key: &str, value: f64| positive(&format!("traffic.{key}"), value);
        Ok(Synthetic {
            requests,
            rate: factor("rate_rps", self.rate_rps.ok_or_else(|| missing("rate_rps"))?)?,
            mu: factor("prompt.median_tokens", prompt.median_tokens)?.ln(),
            sigma: factor("prompt.sigma", prompt.sigma)?,
            lengths: lengths(prompt)?,
            output_tokens: self.output_tokens.ok_or_else(|| missing("output_tokens"))?,
            burst: self.burst.map(burst).transpose()?,
            tenants: self
                .tenants
                .iter()
                .enumerate()
                .map(tenant)
                .collect::<Result<_, _>>()?,
            prefixes: self
                .prefixes
                .map(|text| prefixes(text, block_tokens))
                .transpose()?,
        })
    }
}

fn burst(text: BurstText) -> Result<Burst, LabError> {
    let (every, lasting) = (
        time("traffic.burst.every_s", text.every_s, 1.0)?,
        time("traffic.burst.lasting_s", text.lasting_s, 1.0)?,
    );
    if lasting >= every {
        let problem = format!(
            "{} s of every {} s leave no time between bursts",
            text.lasting_s, text.every_s
        );
        return Err(LabError::value("traffic.burst.lasting_s", problem));
    }
    Ok(Burst {
        every,
        lasting,
        factor: positive("traffic.burst.factor", text.factor)?,
    })
}

/// The shortest and the longest prompt.
fn lengths(prompt: PromptText) -> Result<(u32, u32), LabError> {
    let (shortest, longest) = (prompt.shortest_tokens, prompt.longest_tokens);
    if shortest == 0 || shortest > longest || longest > 1 << 24 {
        let problem = format!("from 1 token up to longest_tokens, which is {longest}; at most 16,777,216");
        return Err(LabError::value("traffic.prompt.shortest_tokens", problem));
    }
    // One length for all needs no distribution.
    if shortest < longest {
        enough_within(prompt).map_err(|problem| LabError::value("traffic.prompt.median_tokens", problem))?;
    }
    Ok((shortest, longest))
}

/// Lengths outside are drawn again: enough of the distribution has to lie within.
fn enough_within(prompt: PromptText) -> Result<(), String> {
    let PromptText {
        median_tokens: median,
        sigma,
        shortest_tokens: shortest,
        longest_tokens: longest,
    } = prompt;
    match TruncatedLogNormal::new(median.ln(), sigma, Tokens(shortest), Tokens(longest)) {
        Ok(lengths) if lengths.mass() >= LEAST_WITHIN => Ok(()),
        Ok(_) | Err(LengthsError::Interval { .. }) => Err(format!(
            "hardly a prompt of a median of {median} tokens and a sigma of {sigma} has {shortest} to {longest} tokens"
        )),
        Err(wrong) => Err(wrong.to_string()),
    }
}

fn tenant((i, text): (usize, &TenantText)) -> Result<Tenant, LabError> {
    let place = format!("traffic.tenants[{i}]");
    let surge = |text: SurgeText| {
        let key = |end: &str| format!("{place}.surge.{end}");
        Ok::<_, LabError>(Surge {
            from: Moment(0) + time(&key("from_s"), text.from_s, 1.0)?,
            to: Moment(0) + time(&key("to_s"), text.to_s, 1.0)?,
            factor: positive(&key("factor"), text.factor)?,
        })
    };
    Ok(Tenant {
        weight: positive(&format!("{place}.weight"), text.weight)?,
        surge: text.surge.map(surge).transpose()?,
    })
}

fn prefixes(text: PrefixesText, block_tokens: Tokens) -> Result<Prefixes, LabError> {
    if !(1..=1_000_000).contains(&text.count) || !(0.0..=10.0).contains(&text.skew) {
        return Err(LabError::value(
            "traffic.prefixes",
            "a count up to a million, and a skew from 0 to 10",
        ));
    }
    Ok(Prefixes {
        count: text.count,
        skew: text.skew,
        tokens: text.tokens,
        block_tokens: block_tokens.0,
    })
}

fn positive(key: &str, value: f64) -> Result<f64, LabError> {
    if value > 0.0 && value <= 1e9 {
        Ok(value)
    } else {
        Err(LabError::value(
            key,
            format!("{value} is not above 0 and at most a billion"),
        ))
    }
}
