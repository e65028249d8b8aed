//! Every metric of a site: name, unit and help in [`Metrics::new`], values from the path record of each request.
//!
//! Labels come from the configuration (tenants, models, sites, questions, stages) or from fixed lists of words, so
//! that no client can make the number of series grow.

mod fleet;
mod labels;
mod runtime;

use crate::error::ErrorKind;
use fleet::FleetGauges;
use labels::{Error, Fallback, Policy, Request, Shadow, Stage, Work};
use portolan_decide::{FleetView, PathRecord, PolicyRecord, ShadowRecord};
use portolan_policy::QuestionKind;
use portolan_ports::{Enforced, Sample};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use runtime::RuntimeNumbers;

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Counters, gauges and histograms of one site.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Request, Counter>,
    in_flight: Gauge,
    fleet: FleetGauges,
    runtime: RuntimeNumbers,
    ttft: Histograms<Work>,
    duration: Histograms<Work>,
    stages: Histograms<Stage>,
    prompt_tokens: Family<Work, Counter>,
    completion_tokens: Family<Work, Counter>,
    cached_tokens: Family<Work, Counter>,
    kv_bytes: Family<Work, Counter>,
    fetched_tokens: Family<Work, Counter>,
    chunks_resent: Counter,
    kv_quantised: Family<Work, Counter>,
    policy_calls: Family<Policy, Counter>,
    policy_time: Histograms<labels::Question>,
    shadows: Family<Shadow, Counter>,
    enforced: Family<labels::Enforced, Counter>,
    fallbacks: Family<Fallback, Counter>,
    errors: Family<Error, Counter>,
}

impl Metrics {
    /// All metrics at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("portolan");
        let r = &mut registry;
        Self {
            requests: register(r, "requests", "Requests that were settled", Family::default()),
            fleet: FleetGauges::register(r),
            runtime: RuntimeNumbers::register(r),
            in_flight: register(
                r,
                "requests_in_flight",
                "Requests between admit and settle",
                Gauge::default(),
            ),
            ttft: timed(
                r,
                "time_to_first_token",
                "From accept to the first token",
                seconds,
            ),
            duration: timed(r, "request_duration", "From accept to settle", seconds),
            stages: timed(r, "stage_duration", "Time a request spent in each stage", seconds),
            prompt_tokens: register(r, "prompt_tokens", "Tokens of prompts", Family::default()),
            completion_tokens: register(
                r,
                "completion_tokens",
                "Tokens generated (decode)",
                Family::default(),
            ),
            cached_tokens: register(
                r,
                "cached_tokens",
                "Prompt tokens whose KV was reused",
                Family::default(),
            ),
            kv_bytes: counted(
                r,
                "kv_moved",
                "KV that crossed between sites, resends not counted",
                Unit::Bytes,
            ),
            fetched_tokens: register(
                r,
                "kv_fetched_tokens",
                "Prompt tokens whose KV was fetched from another site instead of computed",
                Family::default(),
            ),
            chunks_resent: register(
                r,
                "kv_chunks_resent",
                "Chunks of KV that failed their checksum or were lost, and were sent again",
                Counter::default(),
            ),
            kv_quantised: register(
                r,
                "kv_quantised_requests",
                "Requests whose KV was quantised on its way between sites",
                Family::default(),
            ),
            policy_calls: register(
                r,
                "policy_calls",
                "Policy calls by what came of them",
                Family::default(),
            ),
            policy_time: timed(r, "policy_call_duration", "Time of one policy call", microseconds),
            shadows: register(
                r,
                "policy_shadow_calls",
                "Calls of versions that are asked and not obeyed, by whether they agree",
                Family::default(),
            ),
            enforced: register(
                r,
                "policy_budgets_spent",
                "Versions taken out of force because their budget was spent",
                Family::default(),
            ),
            fallbacks: register(
                r,
                "fallbacks",
                "Times something else was done than planned",
                Family::default(),
            ),
            errors: register(
                r,
                "http_errors",
                "HTTP requests answered with an error",
                Family::default(),
            ),
            registry,
        }
    }

    /// Counts a request that came to its end. Everything is taken from its record.
    pub fn observe(&self, record: &PathRecord) {
        let work = Work {
            tenant: record.tenant.to_string(),
            model: record.model.clone(),
        };
        self.requests.get_or_create(&Request::of(record)).inc();
        if let Some(ms) = record.ttft_ms {
            self.ttft.get_or_create(&work).observe(ms / 1000.0);
        }
        let end_ms = record.stages.iter().map(|stage| stage.end_ms).fold(0.0, f64::max);
        self.duration.get_or_create(&work).observe(end_ms / 1000.0);
        for stage in &record.stages {
            let seconds = (stage.end_ms - stage.start_ms).max(0.0) / 1000.0;
            self.stages
                .get_or_create(&Stage::of(&stage.name))
                .observe(seconds);
        }
        self.prompt_tokens
            .get_or_create(&work)
            .inc_by(u64::from(record.prompt_tokens));
        self.completion_tokens
            .get_or_create(&work)
            .inc_by(u64::from(record.completion_tokens));
        self.cached_tokens
            .get_or_create(&work)
            .inc_by(u64::from(record.kv.cached_tokens));
        self.kv_bytes.get_or_create(&work).inc_by(record.kv.bytes_moved);
        let fetched = record.fetches.iter().map(|fetch| u64::from(fetch.tokens)).sum();
        self.fetched_tokens.get_or_create(&work).inc_by(fetched);
        self.chunks_resent.inc_by(u64::from(record.kv.chunks_resent));
        if record.kv.quantised.is_some() {
            self.kv_quantised.get_or_create(&work).inc();
        }
        self.decided(&record.policies, &record.fallbacks);
    }

    /// Counts the policy calls of a request, and its fallbacks.
    pub fn decided(&self, calls: &[PolicyRecord], fallbacks: &[portolan_decide::Fallback]) {
        for call in calls {
            self.policy_calls.get_or_create(&Policy::of(call)).inc();
            let question = labels::Question {
                question: call.question.as_str().to_owned(),
            };
            self.policy_time
                .get_or_create(&question)
                .observe(call.micros as f64 / 1e6);
        }
        for fallback in fallbacks {
            self.fallbacks.get_or_create(&Fallback::of(fallback)).inc();
        }
    }

    /// Counts what a version on trial would have done.
    pub fn shadow(&self, shadow: &ShadowRecord) {
        self.shadows.get_or_create(&Shadow::of(shadow)).inc();
    }

    /// Counts a request whose shadow was not asked, since too many were.
    pub fn shadow_dropped(&self, question: QuestionKind) {
        self.shadows.get_or_create(&Shadow::dropped(question)).inc();
    }

    /// Counts a version that was taken out of force.
    pub fn enforced(&self, question: QuestionKind, done: Enforced) {
        let label = labels::Enforced {
            question: question.as_str(),
            change: done.word(),
        };
        self.enforced.get_or_create(&label).inc();
    }

    /// Counts an HTTP request that was answered with an error.
    pub fn refused(&self, kind: ErrorKind) {
        self.errors.get_or_create(&Error::of(kind)).inc();
    }

    /// All values as OpenMetrics text, with the number of requests that are in flight, the fleet and the policy
    /// runtime as they are at this moment.
    pub fn render(&self, in_flight: usize, fleet: &FleetView, policies: Vec<Sample>) -> String {
        self.fleet.read(fleet);
        self.runtime.read(policies);
        self.in_flight.set(i64::try_from(in_flight).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a String cannot fail.
        if encode(&mut text, &self.registry).is_err() {
            text.clear();
        }
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// 1 ms to 65 s in doublings: a cached first token on one machine to a cold prompt of 100k tokens on another continent.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

/// 1 µs to 32 ms in doublings: a built-in policy takes 1 µs, the slowest interpreted one is stopped after some 20 ms.
fn microseconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-6, 2.0, 16))
}

fn register<M>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M
where
    M: prometheus_client::registry::Metric + Clone,
{
    registry.register(name, help, metric.clone());
    metric
}

fn counted<L>(registry: &mut Registry, name: &str, help: &str, unit: Unit) -> Family<L, Counter>
where
    Family<L, Counter>: prometheus_client::registry::Metric + Clone + Default,
{
    let family = Family::<L, Counter>::default();
    registry.register_with_unit(name, help, unit, family.clone());
    family
}

fn timed<L>(registry: &mut Registry, name: &str, help: &str, buckets: fn() -> Histogram) -> Histograms<L>
where
    L: Clone + std::hash::Hash + Eq,
    Histograms<L>: prometheus_client::registry::Metric + Clone,
{
    let family = Family::new_with_constructor(buckets);
    registry.register_with_unit(name, help, Unit::Seconds, Histograms::clone(&family));
    family
}

#[cfg(test)]
mod tests;
