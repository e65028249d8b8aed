//! A trace, played twice on the same fleet: with the policies in force, and with the one that is tried. Both runs are
//! the simulator's, on the virtual clock and with the production decisions; only what the policies answer differs.

use super::comparison::{Comparison, Decided, Estimate, Tally, Way};
use super::error::LabError;
use super::fleet::Fleet;
use portolan_decide::{InstanceIndex, RequestPolicies, Route, RouteRecord};
use portolan_policy::{Policy, QuestionKind};
use portolan_sim::{
    Fate, Rehearsal, Report, Scenario, Served, SimRequest, TraceError, VirtualClock, rehearse,
};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What decides in one run; where there is no policy, the built-in rules do.
#[derive(Clone, Default)]
pub struct Cast {
    /// The policy that is compared.
    pub policy: Option<Arc<dyn Policy>>,
    /// The router, in both runs, when that policy is none.
    pub router: Option<Arc<dyn Policy>>,
}

/// What came of both runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Played {
    /// Request by request.
    pub comparison: Comparison,
    /// The run with the policies in force.
    pub incumbent: Report,
    /// The run with the policy that is tried.
    pub candidate: Report,
}

/// Reads a trace: JSON lines in Mooncake's form, or CSV in Azure's.
pub fn read_trace(path: &Path) -> Result<Vec<SimRequest>, LabError> {
    let file = File::open(path).map_err(|source| LabError::Read {
        path: path.to_owned(),
        source,
    })?;
    let mut trace = BufReader::new(file);
    let is_csv = path
        .extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("csv"));
    let read: Result<Vec<SimRequest>, TraceError> = if is_csv {
        portolan_sim::read_azure(trace.by_ref())
    } else {
        portolan_sim::read_mooncake(trace.by_ref())
    };
    let requests = read.map_err(|source| LabError::Trace {
        path: path.to_owned(),
        source,
    })?;
    if requests.is_empty() {
        return Err(LabError::Parse {
            path: path.to_owned(),
            detail: "the trace holds no request".to_owned(),
        });
    }
    Ok(requests)
}

/// Plays one run.
pub fn play(
    fleet: &Fleet,
    trace: &[SimRequest],
    cast: &Cast,
    clock: &VirtualClock,
) -> Result<Rehearsal, LabError> {
    let scenario = Scenario {
        policies: cast.policies(),
        ..fleet.scenario.clone()
    };
    Ok(rehearse(&scenario, trace, clock)?)
}

/// Compares two runs of the same trace.
pub fn compare(fleet: &Fleet, trace: &[SimRequest], incumbent: Rehearsal, candidate: Rehearsal) -> Played {
    let scenario = &fleet.scenario;
    let mut tally = Tally::default();
    let fates = incumbent.fates.into_iter().zip(candidate.fates);
    for (i, (request, (before, after))) in trace.iter().zip(fates).enumerate() {
        tally.add(Decided {
            request_id: format!("request {}", i + 1),
            prompt_tokens: request.prompt_tokens,
            recorded: way(scenario, &before),
            replayed: way(scenario, &after),
            fallbacks: after.faults,
        });
    }
    Played {
        comparison: tally.finish(),
        incumbent: incumbent.report,
        candidate: candidate.report,
    }
}

impl Cast {
    fn policies(&self) -> RequestPolicies {
        let mut policies = RequestPolicies {
            routing: self.router.clone(),
            ..RequestPolicies::default()
        };
        if let Some(policy) = &self.policy {
            let slot = match policy.descriptor().question {
                QuestionKind::Residency => &mut policies.platform_residency,
                QuestionKind::Cost => &mut policies.cost,
                QuestionKind::Routing | QuestionKind::Invalidation => &mut policies.routing,
            };
            *slot = Some(Arc::clone(policy));
        }
        policies
    }
}

fn way(scenario: &Scenario, fate: &Fate) -> Way {
    match &fate.outcome {
        Ok(served) => Way::Route(named(scenario, served.route), Some(estimate(served))),
        Err(why) => Way::Nowhere(why.clone()),
    }
}

/// A route by names.
fn named(scenario: &Scenario, route: Route) -> RouteRecord {
    let names = |index: InstanceIndex| {
        let instance = scenario.instances.get(index.0 as usize);
        let site = instance.and_then(|i| scenario.sites.get(i.site.0 as usize));
        (
            site.map_or("-", |site| site.name.as_str()).to_owned(),
            instance.map_or("-", |i| i.name.as_str()).to_owned(),
        )
    };
    let ((prefill_site, prefill_instance), (decode_site, decode_instance)) =
        (names(route.prefill), names(route.decode));
    RouteRecord {
        prefill_site,
        prefill_instance,
        decode_site,
        decode_instance,
    }
}

fn estimate(served: &Served) -> Estimate {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let simulated = Estimate {
        queue_us: micros(served.queue),
        prefill_us: micros(served.prefill),
        transfer_us: micros(served.transfer),
        decode_us: micros(served.decode),
        cached_tokens: served.cached_tokens,
        cross_site_bytes: served.cross_site_bytes.0,
        price_micros: u64::from(served.price_micros),
        ..Estimate::default()
    };
    simulated.summed()
}

#[cfg(test)]
mod tests {
    use super::super::replay::tests::says;
    use super::*;
    use portolan_policy::{Answer, PolicyFault, RoutingDecision};

    const TRACE: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../sim/tests/data/conversation_trace_1000.jsonl"
    );

    fn built_in(name: &str) -> Cast {
        let names = Fleet::read(None).unwrap().names;
        let policy = portolan_policy::builtin::policy(QuestionKind::Routing, name, "", &names).unwrap();
        Cast {
            policy: Some(policy),
            router: None,
        }
    }

    fn played(incumbent: &Cast, candidate: &Cast) -> Played {
        let (fleet, trace) = (Fleet::read(None).unwrap(), read_trace(Path::new(TRACE)).unwrap());
        let trace = &trace[..200];
        let play = |cast| play(&fleet, trace, cast, &VirtualClock::default()).unwrap();
        compare(&fleet, trace, play(incumbent), play(candidate))
    }

    #[test]
    fn the_same_policy_changes_nothing_and_another_one_the_same_each_time() {
        let same = played(&Cast::default(), &built_in("lowest-cost"));
        assert_eq!((same.comparison.decided, same.comparison.changed), (200, 0));
        assert_eq!(same.comparison.ttft_us.recorded, same.comparison.ttft_us.replayed);

        let other = played(&Cast::default(), &built_in("region-cache-aware"));
        assert_eq!(other, played(&Cast::default(), &built_in("region-cache-aware")));
        let found = &other.comparison;
        assert!(found.changed > 0 && found.moved_site > 0, "{found:?}");
        assert_eq!(found.cross_site_bytes.replayed.sum, 0.0);
        let mean = other.candidate.ttft.mean * 1e6;
        assert!(
            (found.ttft_us.replayed.mean - mean).abs() < 1.0,
            "{mean} {found:?}"
        );
        let first = &found.differences[0];
        assert!(first.request_id.starts_with("request "), "{first:?}");
        let (before, after) = (first.recorded.unwrap(), first.replayed.unwrap());
        assert_eq!(first.ttft_us, Some(after.ttft_us as i64 - before.ttft_us as i64));
    }

    #[test]
    fn refusals_and_faults_show() {
        let refuses = says(
            QuestionKind::Routing,
            Ok(Answer::Routing(RoutingDecision::Refuse("not today".into()))),
        );
        let refuses = Cast {
            policy: Some(refuses),
            router: None,
        };
        let found = played(&Cast::default(), &refuses).comparison;
        assert_eq!((found.newly_unserved, found.changed), (200, 200));
        assert_eq!(found.differences[0].to, "not today");

        let fails = Cast {
            policy: Some(says(QuestionKind::Cost, Err(PolicyFault::Saturated))),
            router: None,
        };
        let found = played(&Cast::default(), &fails).comparison;
        assert_eq!(
            (found.changed, found.faults),
            (0, 200),
            "the built-in cost answered"
        );
    }

    #[test]
    fn traces_are_told_by_their_ending() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            read_trace(&path)
                .map(|trace| trace.len())
                .map_err(|wrong| wrong.to_string())
        };
        let csv = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n";
        assert_eq!(write("azure.csv", csv), Ok(1));
        assert!(
            write("azure.jsonl", csv)
                .unwrap_err()
                .contains("line 1 of the trace")
        );
        assert!(
            write("empty.jsonl", "\n")
                .unwrap_err()
                .contains("holds no request")
        );
        assert!(write("torn.jsonl", "\u{0}{").unwrap_err().contains("torn.jsonl"));
    }
}
