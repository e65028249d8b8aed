//! The runtime's statistics as numbers for the metrics page.

use crate::stats::{RuntimeStats, VersionKey, VersionStats};
use portolan_policy::Scope;
use portolan_ports::{Reading, Sample};
use std::collections::BTreeMap;

/// Versions that have series of their own, the busiest first. What the others did is added up, so that no number of
/// tenants and uploads makes the page longer than a scraper takes.
const VERSIONS_SHOWN: usize = 512;

/// A number of each version: its name, its help and where it is read.
type VersionNumber = (&'static str, &'static str, fn(&VersionStats) -> Reading);

const OF_VERSION: [VersionNumber; 10] = [
    ("policy_runtime_calls", "Calls answered or failed", |s| {
        Reading::Counter(s.calls)
    }),
    ("policy_runtime_fuel", "Fuel that calls used", |s| {
        Reading::Counter(s.fuel)
    }),
    (
        "policy_runtime_call_duration",
        "Time of a call, waiting for the slow lane included",
        times,
    ),
    (
        "policy_runtime_slow_calls",
        "Calls that ran in the slow lane",
        |s| Reading::Counter(s.slow_calls),
    ),
    (
        "policy_runtime_made_ahead",
        "Instances made off the request path",
        |s| Reading::Counter(s.made_ahead),
    ),
    (
        "policy_runtime_made_inline",
        "Instances that a call waited for",
        |s| Reading::Counter(s.made_inline),
    ),
    ("policy_runtime_log_lines", "Log lines written", |s| {
        Reading::Counter(s.log_lines)
    }),
    (
        "policy_runtime_log_lines_dropped",
        "Log lines dropped because there were too many",
        |s| Reading::Counter(s.log_lines_dropped),
    ),
    ("policy_runtime_live_instances", "Instances that exist", |s| {
        Reading::Gauge(s.live_instances)
    }),
    (
        "policy_runtime_ready_instances",
        "Instances that wait for a call",
        |s| Reading::Gauge(s.ready_instances),
    ),
];

fn times(stats: &VersionStats) -> Reading {
    let last = stats.times.len() - 1;
    let bound = |i: usize| match i == last {
        true => f64::MAX,
        false => (1_u64 << i) as f64 / 1e6,
    };
    let buckets = stats.times.iter().enumerate();
    Reading::Times {
        buckets: buckets.map(|(i, count)| (bound(i), *count)).collect(),
        sum: stats.nanos as f64 / 1e9,
    }
}

impl RuntimeStats {
    /// Every number, once for each set of labels: versions that are loaded twice, as around a swap, are added up.
    pub fn samples(&self) -> Vec<Sample> {
        let mut versions: BTreeMap<&VersionKey, VersionStats> = BTreeMap::new();
        for (key, stats) in &self.versions {
            versions.entry(key).or_default().add(stats);
        }
        let mut versions: Vec<_> = versions.into_iter().collect();
        versions.sort_by_key(|(_, stats)| std::cmp::Reverse(stats.calls));
        let hidden = versions.split_off(versions.len().min(VERSIONS_SHOWN));
        let mut samples: Vec<_> = versions
            .iter()
            .flat_map(|(key, stats)| of_version(&labels(key), stats))
            .collect();
        if !hidden.is_empty() {
            let mut rest = VersionStats::default();
            hidden.iter().for_each(|(_, stats)| rest.add(stats));
            let others =
                ["tenant", "question", "policy", "version"].map(|label| (label, "_others".to_owned()));
            samples.extend(of_version(&others, &rest));
        }
        samples.extend(self.of_runtime());
        samples
    }

    fn of_runtime(&self) -> impl Iterator<Item = Sample> {
        let numbers = [
            (
                "policy_runtime_compiled",
                "Components compiled",
                Reading::Counter(self.compiled),
            ),
            (
                "policy_runtime_artefacts_used",
                "Compiled artefacts taken over",
                Reading::Counter(self.artefacts_used),
            ),
            (
                "policy_runtime_artefacts_refused",
                "Compiled artefacts that were stale or not ours",
                Reading::Counter(self.artefacts_refused),
            ),
            (
                "policy_runtime_instances",
                "Instances that exist, of unloaded versions too",
                Reading::Gauge(self.live_instances),
            ),
            (
                "policy_runtime_ticker_lateness_us",
                "The longest that a tick of the deadline clock came late, in microseconds",
                Reading::Gauge(self.ticker_lateness_us),
            ),
        ];
        numbers.into_iter().map(|(name, help, value)| Sample {
            name,
            help,
            labels: Vec::new(),
            value,
        })
    }
}

fn of_version(labels: &[(&'static str, String)], stats: &VersionStats) -> Vec<Sample> {
    let plain = OF_VERSION.iter().map(|(name, help, read)| Sample {
        name,
        help,
        labels: labels.to_vec(),
        value: read(stats),
    });
    let faults = stats.faults.iter().map(|(fault, count)| Sample {
        name: "policy_runtime_faults",
        help: "Calls that ended in a fault, which the question's fallback answered",
        labels: [labels, &[("fault", (*fault).to_owned())]].concat(),
        value: Reading::Counter(*count),
    });
    plain.chain(faults).collect()
}

fn labels(key: &VersionKey) -> [(&'static str, String); 4] {
    let tenant = match &key.scope {
        Scope::Platform => "_platform".to_owned(),
        Scope::Tenant(name) => name.to_string(),
    };
    [
        ("tenant", tenant),
        ("question", key.question.to_string()),
        ("policy", key.policy.clone()),
        ("version", key.version.clone()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Allocation;
    use portolan_policy::QuestionKind;

    fn key(policy: &str) -> VersionKey {
        VersionKey {
            scope: Scope::Platform,
            question: QuestionKind::Routing,
            policy: policy.into(),
            version: "v".into(),
        }
    }

    fn stats(calls: u64, traps: u64) -> VersionStats {
        let mut stats = VersionStats {
            calls,
            faults: [("trap", traps)].into_iter().collect(),
            ..VersionStats::default()
        };
        stats.times[3] = calls;
        stats
    }

    fn runtime(versions: Vec<(VersionKey, VersionStats)>) -> RuntimeStats {
        RuntimeStats {
            versions,
            live_instances: 0,
            pool_core_instances: None,
            allocation: Allocation::Pooled,
            compiled: 5,
            artefacts_used: 0,
            artefacts_refused: 0,
            ticker_lateness_us: 0,
        }
    }

    fn readings<'a>(samples: &'a [Sample], name: &str) -> Vec<&'a Reading> {
        let named = samples.iter().filter(|s| s.name == name);
        named.map(|s| &s.value).collect()
    }

    #[test]
    fn a_version_that_is_loaded_twice_is_one_series() {
        let samples = runtime(vec![(key("p"), stats(3, 1)), (key("p"), stats(4, 2))]).samples();
        assert_eq!(readings(&samples, "policy_runtime_calls"), [&Reading::Counter(7)]);
        assert_eq!(
            readings(&samples, "policy_runtime_faults"),
            [&Reading::Counter(3)]
        );
        assert_eq!(
            readings(&samples, "policy_runtime_compiled"),
            [&Reading::Counter(5)]
        );
        let [Reading::Times { buckets, .. }] = &readings(&samples, "policy_runtime_call_duration")[..] else {
            panic!("one histogram")
        };
        assert_eq!((buckets[3], buckets.last().unwrap().0), ((8e-6, 7), f64::MAX));
    }

    #[test]
    fn many_versions_are_added_up_beyond_the_bound() {
        let versions = (0..VERSIONS_SHOWN + 3).map(|i| (key(&i.to_string()), stats(i as u64, 0)));
        let samples = runtime(versions.collect()).samples();
        assert_eq!(
            readings(&samples, "policy_runtime_calls").len(),
            VERSIONS_SHOWN + 1
        );
        let others = samples
            .iter()
            .find(|s| s.name == "policy_runtime_calls" && s.labels[0].1 == "_others")
            .unwrap();
        assert_eq!(
            others.value,
            Reading::Counter(3),
            "the three least busy: 0 + 1 + 2"
        );
    }
}
