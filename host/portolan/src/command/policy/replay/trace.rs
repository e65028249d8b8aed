//! A trace, played twice through the simulator.

use super::{ReplayArgs, Told, Tried};
use crate::lab::LabError;
use crate::lab::component::{ComponentFile, Workshop};
use crate::lab::fleet::Fleet;
use crate::lab::rehearsal::{self, Cast, Played};
use portolan_base::Clock;
use portolan_policy::builtin::{self, BUILT_IN, default_for};
use portolan_policy::{Policy, QuestionKind};
use portolan_sim::{Rehearsal, SimRequest, VirtualClock};
use std::path::Path;
use std::sync::Arc;

/// A median wait, in seconds, beyond which a fleet does not keep up with its trace.
const OVERLOADED_S: f64 = 30.0;

pub(super) fn replay(args: &ReplayArgs) -> Result<Told, LabError> {
    let workshop = Workshop::new()?;
    let tried = Tried::open(args, &workshop)?;
    let fleet = Fleet::read(args.fleet.as_deref())?;
    let against = Against::read(args, &workshop, tried.file.question)?;
    let trace = rehearsal::read_trace(args.trace.as_deref().unwrap_or(Path::new("")))?;

    let stage = Stage {
        workshop: &workshop,
        tried: &tried,
        fleet: &fleet,
        trace: &trace,
    };
    let incumbent = stage.play(|workshop| against.load(workshop, &fleet))?;
    let candidate = stage.play(|workshop| tried.load(args, workshop, &fleet.names).map(Some))?;
    let played = rehearsal::compare(&fleet, &trace, incumbent, candidate);
    Ok(Told {
        notes: notes(args, &tried, &against, &fleet, &played),
        ways: ("in force", "tried"),
        more: serde_json::json!({
            "simulated": { "in_force": played.incumbent, "tried": played.candidate }
        }),
        comparison: played.comparison,
    })
}

/// What both runs share.
struct Stage<'a> {
    workshop: &'a Workshop,
    tried: &'a Tried,
    fleet: &'a Fleet,
    trace: &'a [SimRequest],
}

impl Stage<'_> {
    /// Plays one run, on a clock and with state of its own.
    fn play(
        &self,
        load: impl FnOnce(&Workshop) -> Result<Option<Arc<dyn Policy>>, LabError>,
    ) -> Result<Rehearsal, LabError> {
        let clock = Arc::new(VirtualClock::default());
        let workshop = self.workshop.on(Arc::clone(&clock) as Arc<dyn Clock>)?;
        let cast = Cast {
            policy: load(&workshop)?,
            router: self.tried.load_router(&workshop, &self.fleet.names)?,
        };
        rehearsal::play(self.fleet, self.trace, &cast, &clock)
    }
}

/// What the policy is compared with.
enum Against {
    /// What decides when nothing is bound.
    Nothing(QuestionKind),
    /// A built-in policy.
    BuiltIn(QuestionKind, String, String),
    /// A component.
    Component(Box<ComponentFile>, String),
}

impl Against {
    fn read(args: &ReplayArgs, workshop: &Workshop, question: QuestionKind) -> Result<Self, LabError> {
        let config = args.against_config.clone().unwrap_or_default();
        let Some(against) = &args.against else {
            return Ok(Self::Nothing(question));
        };
        if BUILT_IN.contains(&(question, against.as_str())) {
            return Ok(Self::BuiltIn(question, against.clone(), config));
        }
        let path = Path::new(against);
        if !path.exists() {
            let of_question = BUILT_IN.iter().filter(|(kind, _)| *kind == question);
            let names: Vec<_> = of_question.map(|(_, name)| *name).collect();
            let problem = format!(
                "{against:?} is no file, nor a built-in {question} policy; those are {}",
                names.join(", ")
            );
            return Err(LabError::value("--against", problem));
        }
        let file = workshop.open(path, Some(question))?;
        Ok(Self::Component(Box::new(file), config))
    }

    fn load(&self, workshop: &Workshop, fleet: &Fleet) -> Result<Option<Arc<dyn Policy>>, LabError> {
        match self {
            Self::Nothing(_) => Ok(None),
            Self::BuiltIn(question, name, config) => builtin::policy(*question, name, config, &fleet.names)
                .map(Some)
                .map_err(|e| LabError::value("--against-config", e.to_string())),
            Self::Component(file, config) => workshop.load(file, config, &fleet.names).map(Some),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Nothing(question) => format!("the built-in {}", default_for(*question)),
            Self::BuiltIn(_, name, _) => format!("the built-in {name}"),
            Self::Component(file, _) => file.path.display().to_string(),
        }
    }
}

fn notes(args: &ReplayArgs, tried: &Tried, against: &Against, fleet: &Fleet, played: &Played) -> Vec<String> {
    let of = args
        .fleet
        .as_ref()
        .map_or("the two sites of the demo".to_owned(), |path| {
            path.display().to_string()
        });
    let mut notes = vec![format!(
        "simulated on {of}; in force: {}, tried: {}",
        against.name(),
        args.file.display()
    )];
    notes.push(
        "the two runs drift apart: a request that goes elsewhere changes the queues and caches of those after it"
            .to_owned(),
    );
    if let Some(router) = tried.routed_by() {
        notes.push(format!("the routes are chosen by {router} in both runs"));
    }
    if played.comparison.faults > 0 {
        notes.push(format!(
            "{} calls gave no usable answer, and the built-in rule decided in their place",
            played.comparison.faults
        ));
    }
    let states_one = fleet
        .scenario
        .origins
        .iter()
        .any(|origin| origin.jurisdiction != 0);
    if tried.file.question == QuestionKind::Residency && !states_one {
        notes.push(
            "no request states a jurisdiction; a fleet says so by `data_jurisdiction` at a site".to_owned(),
        );
    }
    for (which, report) in [("in force", &played.incumbent), ("tried", &played.candidate)] {
        if report.ttft.p50 >= OVERLOADED_S {
            notes.push(format!(
                "{which}: half of all requests wait {:.0} s or longer; the fleet is too small for this trace, and the \
                 figures show its queues",
                report.ttft.p50
            ));
        }
    }
    notes
}
