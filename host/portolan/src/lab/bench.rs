//! What calls cost: components with instances made ahead, the built-in policies, components that make an instance a
//! call, and components whose instance is kept warm, one after the other on the same inputs, so that whatever else the
//! machine does touches all alike.

use super::component::{ComponentFile, Workshop};
use super::error::LabError;
use super::situation::Situation;
use super::spread::percentile;
use super::traffic;
use portolan_policy::builtin::{self, BUILT_IN, default_for};
use portolan_policy::{Answer, Call, CostColumn, Matrix, NameTables, Policy, Question, QuestionKind};
use portolan_ports::Reuse;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Decisions before the clock counts: caches, branch predictors and the first instances settle.
pub const WARM_UP: usize = 200;

/// Timed decisions when nothing else is said: 40 of them lie beyond the 99th percentile.
pub const TIMED: usize = 4_000;

/// Different requests; they are gone through in turns.
const REQUESTS: usize = 64;

/// Longest wait for instances to be made ahead: a hundred times what the slowest shipped one takes.
const REFILL: Duration = Duration::from_millis(50);

/// The seed of the inputs.
const SEED: u64 = 1;

/// What was measured. Times of one decision, in µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The median decision, its instances made ahead.
    pub median_us: f64,
    /// What 99 of 100 decisions do not exceed.
    pub p99_us: f64,
    /// Decisions a second on one thread that also makes the instances.
    pub per_second: f64,
    /// The median of the built-in policies.
    pub native_median_us: f64,
    /// Fuel of the median decision.
    pub fuel_median: f64,
    /// Making one instance: what a call takes longer that has to make its own.
    pub instance_us: f64,
    /// The median decision when each instance is kept for further calls (`reuse: warm`).
    pub warm_median_us: f64,
    /// What 99 of 100 of those do not exceed.
    pub warm_p99_us: f64,
    /// Of those, decisions a second on one thread.
    pub warm_per_second: f64,
    /// Bytes of memory of the largest instance, each used once.
    pub memory_bytes: u64,
    /// The same of the largest instance that is kept.
    pub warm_memory_bytes: u64,
    /// Compiling every component, once.
    pub compile_us: f64,
    /// Policy calls in a decision.
    pub calls: usize,
    /// Candidate routes of each request.
    pub routes: usize,
    /// Timed decisions.
    pub decisions: usize,
    /// Whether the host was built with optimisation: without, only the built-in policies and the host's side of a
    /// call are slower.
    pub optimised: bool,
}

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Candidate routes of each request.
    pub routes: usize,
    /// Timed decisions.
    pub decisions: usize,
}

/// One call of a decision, in four forms.
struct Step {
    warm: Arc<dyn Policy>,
    ahead: Arc<dyn Policy>,
    alone: Arc<dyn Policy>,
    native: Arc<dyn Policy>,
}

/// Measures a decision of these components, asked in order. Each is bound to the platform; one that comes a second
/// time, to a tenant.
pub fn measure(
    workshop: &Workshop,
    files: &[ComponentFile],
    config: &str,
    effort: Effort,
) -> Result<Measured, LabError> {
    let (without, warm) = (
        workshop.without_instances_ahead()?,
        workshop.without_instances_ahead()?,
    );
    let (mut steps, mut compile_us) = (Vec::new(), 0.0);
    for (i, file) in files.iter().enumerate() {
        let again = files[..i].iter().any(|before| before.path == file.path);
        if !again {
            compile_us += without.time_to_compile(file)?.as_secs_f64() * 1e6;
        }
        let names = NameTables {
            tenant: if again { "tenant".to_owned() } else { String::new() },
            ..traffic::names()
        };
        steps.push(Step {
            ahead: workshop.load(file, config, &names)?,
            alone: without.load(file, config, &names)?,
            warm: warm.load_for(file, config, &names, Reuse::Warm)?,
            native: native(file, config, &names)?,
        });
    }
    let requests = traffic::requests(SEED, REQUESTS, effort.routes);
    let mut series = Series::default();
    for (n, request) in requests
        .iter()
        .cycle()
        .take(WARM_UP + effort.decisions)
        .enumerate()
    {
        wait_for_instances(workshop, steps.len());
        let ahead = timed(&steps, request, |step| step.ahead.as_ref())?;
        let native = timed(&steps, request, |step| step.native.as_ref())?;
        let alone = timed(&steps, request, |step| step.alone.as_ref())?;
        let warm = timed(&steps, request, |step| step.warm.as_ref())?;
        if n >= WARM_UP {
            series.ahead.push(ahead.micros);
            series.fuel.push(ahead.fuel as f64);
            series.native.push(native.micros);
            series.alone.push(alone.micros);
            series.warm.push(warm.micros);
        }
    }
    Ok(Measured {
        memory_bytes: workshop.memory_high_water(),
        warm_memory_bytes: warm.memory_high_water(),
        compile_us,
        ..series.measured(steps.len(), effort)
    })
}

/// The built-in policy of the component's name, or the default of its question.
pub fn native_name(file: &ComponentFile) -> &'static str {
    let same = BUILT_IN
        .iter()
        .find(|(q, name)| *q == file.question && *name == file.name);
    same.map_or_else(|| default_for(file.question), |(_, name)| name)
}

fn native(file: &ComponentFile, config: &str, names: &NameTables) -> Result<Arc<dyn Policy>, LabError> {
    let name = native_name(file);
    // Another policy's text means nothing to the default.
    let config = if name == file.name { config } else { "" };
    builtin::policy(file.question, name, config, names).map_err(|e| LabError::value("config", e.to_string()))
}

#[derive(Default)]
struct Series {
    ahead: Vec<f64>,
    native: Vec<f64>,
    alone: Vec<f64>,
    warm: Vec<f64>,
    fuel: Vec<f64>,
}

impl Series {
    fn measured(mut self, calls: usize, effort: Effort) -> Measured {
        let per_second = |times: &[f64]| {
            let total: f64 = times.iter().sum();
            if total > 0.0 {
                times.len() as f64 * 1e6 / total
            } else {
                0.0
            }
        };
        let (alone, warm) = (per_second(&self.alone), per_second(&self.warm));
        let times = [&mut self.ahead, &mut self.native, &mut self.alone, &mut self.warm];
        times
            .into_iter()
            .chain([&mut self.fuel])
            .for_each(|series| series.sort_by(f64::total_cmp));
        let median_us = percentile(&self.ahead, 50);
        Measured {
            median_us,
            p99_us: percentile(&self.ahead, 99),
            per_second: alone,
            native_median_us: percentile(&self.native, 50),
            fuel_median: percentile(&self.fuel, 50),
            instance_us: (percentile(&self.alone, 50) - median_us).max(0.0) / calls.max(1) as f64,
            warm_median_us: percentile(&self.warm, 50),
            warm_p99_us: percentile(&self.warm, 99),
            warm_per_second: warm,
            memory_bytes: 0,
            warm_memory_bytes: 0,
            compile_us: 0.0,
            calls,
            routes: effort.routes,
            decisions: effort.decisions,
            optimised: !cfg!(debug_assertions),
        }
    }
}

struct Decided {
    micros: f64,
    fuel: u64,
}

fn timed<'a>(
    steps: &'a [Step],
    request: &Situation,
    of: fn(&'a Step) -> &'a dyn Policy,
) -> Result<Decided, LabError> {
    let begun = Instant::now();
    let mut fuel = 0;
    let mut costs = None;
    for step in steps {
        let policy = of(step);
        let answered = policy.ask(&call(policy.descriptor().question, request, costs.as_deref()));
        fuel += answered.fuel.unwrap_or(0);
        match answered.result {
            Ok(Answer::Cost(cells)) => costs = Some(cells),
            Ok(_) => {}
            Err(fault) => {
                return Err(LabError::NoAnswer {
                    name: policy.descriptor().name.clone(),
                    fault: fault.to_string(),
                });
            }
        }
    }
    Ok(Decided {
        micros: begun.elapsed().as_secs_f64() * 1e6,
        fuel,
    })
}

/// The question of a step; a router gets what the cost policy before it said.
fn call<'a>(kind: QuestionKind, request: &'a Situation, costs: Option<&'a [u32]>) -> Call<'a> {
    let mut question = request.question(kind);
    if let (Question::Routing { costs: given, .. }, Some(said)) = (&mut question, costs) {
        *given = Matrix::new(CostColumn::COUNT as u32, said);
    }
    Call {
        question,
        labels: &request.labels,
        request_id: &request.request_id,
    }
}

/// Waits until every version has an instance ready, as it has in production between two requests.
fn wait_for_instances(workshop: &Workshop, versions: usize) {
    let begun = Instant::now();
    while begun.elapsed() < REFILL {
        let ready = workshop.loader().stats().versions;
        let with = ready
            .iter()
            .filter(|(_, stats)| stats.ready_instances > 0)
            .count();
        if with >= versions {
            return;
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::super::situation::priced;
    use super::*;

    #[test]
    fn the_series_make_the_figures() {
        let series = Series {
            ahead: vec![30.0, 10.0, 20.0],
            native: vec![2.0, 1.0, 3.0],
            alone: vec![50.0, 60.0, 40.0],
            warm: vec![5.0, 4.0, 3.0],
            fuel: vec![7.0, 9.0, 8.0],
        };
        let effort = Effort {
            routes: 16,
            decisions: 3,
        };
        let found = series.measured(3, effort);
        assert_eq!(
            (found.median_us, found.p99_us, found.native_median_us),
            (20.0, 30.0, 2.0)
        );
        assert_eq!(
            (found.fuel_median, found.instance_us, found.per_second),
            (8.0, 10.0, 20_000.0)
        );
        assert_eq!(
            (found.warm_median_us, found.warm_p99_us, found.warm_per_second),
            (4.0, 5.0, 250_000.0)
        );
    }

    #[test]
    fn a_router_gets_the_costs_of_the_step_before() {
        let request = &traffic::requests(SEED, 1, 2)[0];
        let said = vec![1; 12];
        let Question::Routing { costs, .. } = call(QuestionKind::Routing, request, Some(&said)).question
        else {
            panic!()
        };
        assert_eq!(costs.cells(), said);
        let Question::Routing { costs, .. } = call(QuestionKind::Routing, request, None).question else {
            panic!()
        };
        assert_eq!(costs.cells(), priced(&request.request, &request.routes));
    }
}
