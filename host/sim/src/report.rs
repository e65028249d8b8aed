//! What came of a simulation.

use crate::fate::Served;
use crate::samples::{Latency, Samples};
use crate::scenario::Scenario;
use crate::traffic::SimRequest;
use portolan_base::{Bytes, Moment};
use portolan_decide::{DecisionRecord, SiteIndex};
use portolan_policy::QuestionKind;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Requests answered to the end.
    pub completed: u64,
    /// Requests refused, by the reason given.
    pub refused: BTreeMap<String, u64>,
    /// Requests answered a second, from the end of the warm-up to the last arrival.
    pub throughput_rps: f64,
    /// Requests a second that prefill got through, from the first arrival until none was left: with more than enough
    /// requests on offer, the capacity.
    pub prefilled_rps: f64,
    /// Time to first token.
    pub ttft: Latency,
    /// Time for each further token.
    pub tpot: Latency,
    /// Time to last token.
    pub end_to_end: Latency,
    /// Share of all requests, refused ones too, whose first token came in the time aimed at; 1 where none is aimed at.
    pub slo_attainment: f64,
    /// Blocks of all prompts that were prefilled.
    pub blocks: u64,
    /// Those found in the prefilling instance's cache.
    pub hit_blocks: u64,
    /// KV sent between sites.
    pub cross_site_bytes: Bytes,
    /// Mean traffic between sites from the first arrival to the last, in Gbit/s.
    pub cross_site_gbps: f64,
    /// Share of the requests that were prefilled at another site than the one that answered.
    pub offloaded_share: f64,
    /// Price of all requests by the routes taken, in millionths of the operator's unit.
    pub price_micros: u64,
    /// When the last answer ended.
    pub ended: Moment,
    /// Requests by (prefill site → decode site).
    pub routes: BTreeMap<String, u64>,
    /// Policy calls by `question name: outcome`.
    pub policy_calls: BTreeMap<String, u64>,
    /// Each tenant's part, where there is more than one.
    pub tenants: Vec<TenantReport>,
    /// Jain's index over the tenants' mean times to first token: 1 when all wait alike, 1/n when one of n waits alone.
    pub fairness: f64,
    /// Instances that changed between prefill and decode.
    pub conversions: u64,
    /// The times by percentile, for curves.
    #[serde(skip)]
    pub spread: Spread,
}

/// Times by percentile: (percentile, seconds), rising.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    /// Time to first token.
    pub ttft: Vec<(f64, f64)>,
    /// Time to last token.
    pub end_to_end: Vec<(f64, f64)>,
}

/// One tenant's part.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TenantReport {
    /// Its number.
    pub tenant: u32,
    /// Requests answered to the end.
    pub completed: u64,
    /// Requests refused.
    pub refused: u64,
    /// Time to first token.
    pub ttft: Latency,
    /// See [`Report::slo_attainment`].
    pub slo_attainment: f64,
}

impl Report {
    /// The share of blocks that did not have to be computed, 0 to 1.
    pub fn hit_rate(&self) -> f64 {
        if self.blocks == 0 {
            0.0
        } else {
            self.hit_blocks as f64 / self.blocks as f64
        }
    }
}

#[derive(Default)]
struct TenantTally {
    ttft: Samples,
    refused: u64,
    in_time: u64,
}

/// Counts while a simulation runs.
pub(crate) struct Tally {
    report: Report,
    ttft: Samples,
    tpot: Samples,
    end_to_end: Samples,
    tenants: Vec<TenantTally>,
    answered_tokens: u64,
    answered: u64,
    prefills: u64,
    first_arrival: Moment,
    last_arrival: Moment,
    last_prefill: Moment,
    in_window: u64,
    offloaded: u64,
    served: u64,
    in_time: u64,
    routes: BTreeMap<(SiteIndex, SiteIndex), u64>,
    calls: Vec<(QuestionKind, String, String, u64)>,
    slo: Option<Duration>,
    warm_up: Moment,
    /// Requests that a policy holds back.
    pub(crate) deferred: u64,
}

impl Tally {
    pub(crate) fn new(scenario: &Scenario, traffic: &[SimRequest]) -> Self {
        let tenants = traffic
            .iter()
            .map(|request| request.tenant)
            .max()
            .map_or(0, |last| last + 1);
        let arrivals = || traffic.iter().map(|request| request.arrival);
        Self {
            report: Report::default(),
            ttft: Samples::default(),
            tpot: Samples::default(),
            end_to_end: Samples::default(),
            tenants: (0..tenants).map(|_| TenantTally::default()).collect(),
            answered_tokens: 0,
            answered: 0,
            prefills: 0,
            first_arrival: arrivals().min().unwrap_or_default(),
            last_arrival: arrivals().max().unwrap_or_default(),
            last_prefill: Moment(0),
            in_window: 0,
            offloaded: 0,
            served: 0,
            in_time: 0,
            routes: BTreeMap::new(),
            calls: Vec::new(),
            slo: scenario.ttft_slo,
            warm_up: Moment(0) + scenario.warm_up,
            deferred: 0,
        }
    }

    pub(crate) fn decided(&mut self, record: &DecisionRecord) {
        for call in &record.policies {
            let same = |known: &&mut (QuestionKind, String, String, u64)| {
                known.0 == call.question && known.1 == call.name && known.2 == call.outcome
            };
            match self.calls.iter_mut().find(same) {
                Some(known) => known.3 += 1,
                None => self
                    .calls
                    .push((call.question, call.name.clone(), call.outcome.clone(), 1)),
            }
        }
    }

    /// The mean answer so far, in tokens.
    pub(crate) fn mean_answer(&self) -> u32 {
        let mean = self.answered_tokens.checked_div(self.answered).unwrap_or(0);
        u32::try_from(mean).unwrap_or(u32::MAX)
    }

    fn counts(&self, request: &SimRequest) -> bool {
        request.arrival >= self.warm_up
    }

    pub(crate) fn refused(&mut self, request: &SimRequest, reason: &str) {
        *self.report.refused.entry(reason.to_owned()).or_default() += 1;
        if self.counts(request) {
            self.tenants[request.tenant as usize].refused += 1;
        }
    }

    pub(crate) fn looked_up(&mut self, blocks: usize, hits: usize) {
        self.report.blocks += blocks as u64;
        self.report.hit_blocks += hits as u64;
    }

    pub(crate) fn prefilled(&mut self, now: Moment) {
        self.prefills += 1;
        self.last_prefill = now;
    }

    pub(crate) fn sent(&mut self, size: Bytes) {
        self.report.cross_site_bytes += size;
    }

    pub(crate) fn converted(&mut self) {
        self.report.conversions += 1;
    }

    pub(crate) fn finished(
        &mut self,
        request: &SimRequest,
        served: &Served,
        ends: (SiteIndex, SiteIndex),
        now: Moment,
    ) {
        self.report.completed += 1;
        self.report.ended = now;
        self.answered += 1;
        self.answered_tokens += u64::from(request.output_tokens);
        *self.routes.entry(ends).or_default() += 1;
        self.report.price_micros += u64::from(served.price_micros);
        if !self.counts(request) {
            return;
        }
        let (ttft, whole) = (served.ttft(), now.since(request.arrival));
        self.served += 1;
        self.offloaded += u64::from(ends.0 != ends.1);
        let in_time = u64::from(self.slo.is_none_or(|slo| ttft <= slo));
        self.in_time += in_time;
        self.ttft.add(ttft);
        self.end_to_end.add(whole);
        if request.output_tokens > 1 {
            self.tpot
                .add(whole.saturating_sub(ttft) / (request.output_tokens - 1));
        }
        let tenant = &mut self.tenants[request.tenant as usize];
        tenant.ttft.add(ttft);
        tenant.in_time += in_time;
        if request.arrival + ttft <= self.last_arrival {
            self.in_window += 1;
        }
    }

    pub(crate) fn report(mut self, scenario: &Scenario) -> Report {
        let seconds = |from: Moment, to: Moment| to.since(from).as_secs_f64();
        let site = |index: SiteIndex| scenario.sites[index.0 as usize].name.as_str();
        let mut report = std::mem::take(&mut self.report);
        report.ttft = self.ttft.latency();
        report.tpot = self.tpot.latency();
        report.end_to_end = self.end_to_end.latency();
        report.spread = Spread {
            ttft: self.ttft.curve(),
            end_to_end: self.end_to_end.curve(),
        };
        report.throughput_rps = ratio(
            self.in_window as f64,
            seconds(self.warm_up.max(self.first_arrival), self.last_arrival),
        );
        report.prefilled_rps = ratio(
            self.prefills as f64,
            seconds(self.first_arrival, self.last_prefill),
        );
        let all: u64 = self.served + self.tenants.iter().map(|tenant| tenant.refused).sum::<u64>();
        report.slo_attainment = attained(self.slo, self.in_time, all);
        let bits = report.cross_site_bytes.0 as f64 * 8.0;
        report.cross_site_gbps = ratio(bits / 1e9, seconds(self.first_arrival, self.last_prefill));
        report.offloaded_share = ratio(self.offloaded as f64, self.served as f64);
        report.routes = self
            .routes
            .iter()
            .map(|(ends, count)| (format!("{} → {}", site(ends.0), site(ends.1)), *count))
            .collect();
        report.policy_calls = self
            .calls
            .iter()
            .map(|(question, name, outcome, count)| (format!("{question} {name}: {outcome}"), *count))
            .collect();
        report.fairness = fairness(&self.tenants);
        if self.tenants.len() > 1 {
            report.tenants = self.tenant_reports();
        }
        report
    }

    fn tenant_reports(&self) -> Vec<TenantReport> {
        let numbered = (0u32..).zip(&self.tenants);
        numbered
            .map(|(tenant, tally)| TenantReport {
                tenant,
                completed: tally.ttft.count(),
                refused: tally.refused,
                ttft: tally.ttft.latency(),
                slo_attainment: attained(self.slo, tally.in_time, tally.ttft.count() + tally.refused),
            })
            .collect()
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn attained(slo: Option<Duration>, in_time: u64, all: u64) -> f64 {
    if slo.is_none() || all == 0 {
        1.0
    } else {
        in_time as f64 / all as f64
    }
}

/// Jain's index over the mean times to first token of the tenants that were served.
fn fairness(tenants: &[TenantTally]) -> f64 {
    let means: Vec<f64> = tenants
        .iter()
        .filter(|tenant| tenant.ttft.count() > 0)
        .map(|tenant| tenant.ttft.mean())
        .collect();
    let (sum, squares) = means.iter().fold((0.0, 0.0), |(s, q), m| (s + m, q + m * m));
    if squares > 0.0 {
        sum * sum / squares / means.len() as f64
    } else {
        1.0
    }
}
