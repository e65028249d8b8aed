//! The runtime's statistics as numbers for a metrics page.

use crate::stats::{RuntimeStats, VersionKey, VersionStats};
use portolan_policy::Scope;
use std::collections::BTreeMap;

/// One number of a metrics page, named and labelled as Prometheus does. Names that end in `_total` are counters, the
/// others gauges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The metric.
    pub name: &'static str,
    /// What it says, with its unit.
    pub help: &'static str,
    /// Labels and their values.
    pub labels: Vec<(&'static str, String)>,
    /// The number.
    pub value: u64,
}

/// A metric of each version: its name, its help and where it is read.
type VersionMetric = (&'static str, &'static str, fn(&VersionStats) -> u64);

const VERSION_METRICS: [VersionMetric; 6] = [
    (
        "portolan_policy_runtime_calls_total",
        "Calls answered or failed.",
        |s| s.calls,
    ),
    (
        "portolan_policy_runtime_fuel_total",
        "Fuel that calls used.",
        |s| s.fuel,
    ),
    (
        "portolan_policy_runtime_slow_calls_total",
        "Calls that ran in the slow lane.",
        |s| s.slow_calls,
    ),
    (
        "portolan_policy_runtime_made_ahead_total",
        "Instances made off the request path.",
        |s| s.made_ahead,
    ),
    (
        "portolan_policy_runtime_made_inline_total",
        "Instances that a call waited for.",
        |s| s.made_inline,
    ),
    (
        "portolan_policy_runtime_live_instances",
        "Instances that exist.",
        |s| s.live_instances,
    ),
];

impl RuntimeStats {
    /// Every number, once for each set of labels: versions that are loaded twice, as around a swap, are added up.
    pub fn samples(&self) -> Vec<Sample> {
        let mut versions: BTreeMap<&VersionKey, Vec<&VersionStats>> = BTreeMap::new();
        for (key, stats) in &self.versions {
            versions.entry(key).or_default().push(stats);
        }
        let of_versions = versions
            .into_iter()
            .flat_map(|(key, stats)| of_version(key, &stats));
        of_versions.chain(self.of_runtime()).collect()
    }

    fn of_runtime(&self) -> impl Iterator<Item = Sample> {
        let numbers = [
            (
                "portolan_policy_runtime_compiled_total",
                "Components compiled.",
                self.compiled,
            ),
            (
                "portolan_policy_runtime_artefacts_used_total",
                "Compiled artefacts taken over.",
                self.artefacts_used,
            ),
            (
                "portolan_policy_runtime_artefacts_refused_total",
                "Compiled artefacts that were stale or not ours.",
                self.artefacts_refused,
            ),
            (
                "portolan_policy_runtime_ticker_lateness_us",
                "The longest that a tick of the deadline clock came late, in microseconds.",
                self.ticker_lateness_us,
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

fn of_version(key: &VersionKey, stats: &[&VersionStats]) -> Vec<Sample> {
    let labels = labels(key);
    let plain = VERSION_METRICS.iter().map(|(name, help, read)| Sample {
        name,
        help,
        labels: labels.clone(),
        value: stats.iter().map(|s| read(s)).sum(),
    });
    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    for (fault, count) in stats.iter().flat_map(|s| &s.faults) {
        *faults.entry(fault).or_default() += count;
    }
    let faults = faults.into_iter().map(|(fault, value)| Sample {
        name: "portolan_policy_runtime_faults_total",
        help: "Calls that ended in a fault.",
        labels: [labels.clone(), vec![("fault", fault.to_owned())]].concat(),
        value,
    });
    plain.chain(faults).collect()
}

fn labels(key: &VersionKey) -> Vec<(&'static str, String)> {
    let tenant = match &key.scope {
        Scope::Platform => "_platform".to_owned(),
        Scope::Tenant(name) => name.to_string(),
    };
    vec![
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

    #[test]
    fn a_version_that_is_loaded_twice_is_one_series() {
        let key = VersionKey {
            scope: Scope::Platform,
            question: QuestionKind::Routing,
            policy: "p".into(),
            version: "v".into(),
        };
        let stats = |calls, faults: &[(&'static str, u64)]| VersionStats {
            calls,
            faults: faults.iter().copied().collect(),
            ..VersionStats::default()
        };
        let runtime = RuntimeStats {
            versions: vec![
                (key.clone(), stats(3, &[("trap", 1)])),
                (key, stats(4, &[("trap", 2)])),
            ],
            live_instances: 0,
            pool_core_instances: None,
            allocation: Allocation::Pooled,
            compiled: 5,
            artefacts_used: 0,
            artefacts_refused: 0,
            ticker_lateness_us: 0,
        };
        let samples = runtime.samples();
        let value = |name: &str| {
            let found: Vec<u64> = samples
                .iter()
                .filter(|s| s.name == name)
                .map(|s| s.value)
                .collect();
            assert_eq!(found.len(), 1, "{name}");
            found[0]
        };
        assert_eq!(value("portolan_policy_runtime_calls_total"), 7);
        assert_eq!(value("portolan_policy_runtime_faults_total"), 3);
        assert_eq!(value("portolan_policy_runtime_compiled_total"), 5);
    }
}
