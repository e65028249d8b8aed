//! Runs a component on made-up questions before anybody relies on it.

use crate::check::probe::{self, Probe};
use crate::check::{Remark, Report, setup_remark};
use crate::guest::{Blueprint, Budget, Made, SetupFault};
use crate::host::{LiveCounters, Tenancy};
use crate::limits::{Limits, SizeClass};
use crate::log::{LogBook, LogQuota};
use crate::question::Setup;
use portolan_base::Clock;
use portolan_policy::{Answer, PolicyFault, QuestionKind, Scope};
use portolan_ports::{LogOccasion, MemoryState, Rehearsal, StateSpace};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Configurations tried in turn: many policies have defaults for everything, and JSON readers want an object.
const CONFIGS: [&str; 2] = ["", "{}"];

/// What is probed.
pub(crate) struct Subject<'a> {
    pub(crate) blueprint: &'a Blueprint,
    pub(crate) question: QuestionKind,
    pub(crate) class: SizeClass,
    pub(crate) limits: &'a Limits,
    pub(crate) clock: &'a Arc<dyn Clock>,
    /// SHA-256 of the component, for its log lines.
    pub(crate) version: String,
    pub(crate) book: &'a Arc<LogBook>,
    /// What it is configured with; defaults when `None`.
    pub(crate) rehearsal: Option<Rehearsal<'a>>,
}

/// What came of one probe: result, fuel.
type Outcome = (Result<Answer, PolicyFault>, u64);

impl Subject<'_> {
    /// Starts, configures and asks, and adds what is seen to the report.
    pub(crate) fn probe(&self, report: &mut Report) {
        match self.rehearsal {
            Some(rehearsal) => {
                let tried = self.try_with(&setup_of(rehearsal), report);
                if let Err(fault) = tried {
                    report.error(rehearsal_remark(fault, rehearsal));
                }
            }
            None => self.probe_with_defaults(report),
        }
    }

    fn probe_with_defaults(&self, report: &mut Report) {
        let mut refusal = None;
        for config in CONFIGS {
            let setup = setup_of(Rehearsal {
                config,
                names: None,
                owner: None,
            });
            match self.try_with(&setup, report) {
                Ok(()) => return,
                Err(SetupFault::Refused(why)) => refusal = Some(why),
                Err(fault) => return report.error(setup_remark(fault)),
            }
        }
        report.warning(Remark::new(
            "not-probed",
            format!(
                "configure refused an empty configuration: {}",
                refusal.unwrap_or_default()
            ),
            "name the configuration it will be bound with, which is then tried (`portolan policy check \
             policy.wasm --config @config.json`); better, give every setting a default",
        ));
    }

    /// Starts, configures and asks.
    fn try_with(&self, setup: &Setup, report: &mut Report) -> Result<(), SetupFault> {
        let first = self.make(setup, &self.tenancy())?;
        self.judge_start(&first, report);
        drop(first);
        self.ask_all(setup, report);
        Ok(())
    }

    fn judge_start(&self, first: &Made, report: &mut Report) {
        report.note(
            "start-fuel",
            format!("starting and configuring takes {} fuel", first.fuel),
        );
        report.note(
            "memory",
            format!(
                "an instance begins with {} of at most {} bytes of memory",
                first.guest.memory(),
                self.limits.memory_for(self.class)
            ),
        );
        if self.class != SizeClass::Compact {
            return;
        }
        let most = self.limits.setup_inline_fuel;
        if first.fuel > most {
            report.warning(Remark::new(
                "slow-start",
                format!(
                    "starting takes {} fuel; above {most} calls wait for other threads",
                    first.fuel
                ),
                "do less in configure: parse what is needed, build tables when compiling",
            ));
        }
        let (memory, most) = (first.guest.memory(), self.limits.inline_memory_bytes);
        if memory > most {
            report.warning(Remark::new(
                "much-memory",
                format!("an instance begins with {memory} bytes of memory; above {most} calls wait for other threads"),
                "lower the initial memory and the stack (for Rust: -C link-arg=-zstack-size=65536)",
            ));
        }
    }

    fn ask_all(&self, setup: &Setup, report: &mut Report) {
        let mut faults = BTreeMap::new();
        let mut most = (0, 0);
        for probe in probe::probes(self.question, &setup.names) {
            let (Some(first), Some(second)) = (self.ask(&probe, setup), self.ask(&probe, setup)) else {
                continue;
            };
            if first != second {
                report.warning(Remark::new(
                    "nondeterministic",
                    format!("two equal calls ({}) were answered differently", probe.name),
                    "take time and randomness from the request row (now-ms, seed), so that decisions can be replayed",
                ));
            }
            let rows = probe.call().question.rows();
            if first.1 > most.0 {
                most = (first.1, rows);
            }
            if let Err(fault) = first.0 {
                faults
                    .entry(fault.word())
                    .or_insert_with(|| failed(&probe, &fault));
            }
        }
        faults.into_values().for_each(|remark| report.warning(remark));
        let (fuel, rows) = most;
        let allowed = self.limits.call_fuel(self.class, rows);
        report.note(
            "call-fuel",
            format!("the dearest probe, {rows} rows, took {fuel} of {allowed} fuel"),
        );
    }

    fn ask(&self, probe: &Probe, setup: &Setup) -> Option<Outcome> {
        let mut made = self.make(setup, &self.tenancy()).ok()?;
        let call = probe.call();
        let fuel = self.limits.call_fuel(self.class, call.question.rows());
        let told = made.guest.ask(
            &call,
            Budget {
                fuel,
                deadline_ms: self.limits.setup_deadline_ms,
                memory_bytes: usize::MAX,
            },
        );
        Some((told.result, told.fuel))
    }

    fn make(&self, setup: &Setup, tenancy: &Arc<Tenancy>) -> Result<Made, SetupFault> {
        let budget = Budget {
            fuel: self.limits.setup_fuel,
            deadline_ms: self.limits.setup_deadline_ms,
            memory_bytes: usize::MAX,
        };
        self.blueprint
            .make(tenancy, &LiveCounters::default(), setup, budget)
    }

    /// A fresh store of state each time, so that equal calls can be answered equally.
    fn tenancy(&self) -> Arc<Tenancy> {
        let owner = self.rehearsal.and_then(|rehearsal| rehearsal.owner);
        let (scope, policy) = owner.map_or((&Scope::Platform, "probe"), |owner| (owner.scope, owner.name));
        Arc::new(Tenancy {
            question: self.question,
            version: self.version.clone(),
            space: StateSpace {
                scope: scope.clone(),
                policy: policy.to_owned(),
            },
            state: Arc::new(MemoryState::default()),
            clock: self.clock.clone(),
            log: LogQuota::new(self.limits.log_lines_per_second, self.clock.now()),
            book: self.book.clone(),
            during: LogOccasion::Check,
        })
    }
}

fn setup_of(rehearsal: Rehearsal<'_>) -> Setup {
    let names = rehearsal.names.cloned();
    Setup {
        config: rehearsal.config.into(),
        names: names.unwrap_or_else(|| Arc::new(probe::names())),
    }
}

/// As [`setup_remark`]; a name that is missing may only be missing among the made-up ones.
fn rehearsal_remark(fault: SetupFault, rehearsal: Rehearsal<'_>) -> Remark {
    let is_refused = matches!(fault, SetupFault::Refused(_));
    let mut remark = setup_remark(fault);
    if is_refused && rehearsal.names.is_none() {
        remark.help.push_str(
            "; it was tried with made-up names (sites site-0 to site-2, jurisdictions any and eu), so name the host's \
             with --names where it speaks of others",
        );
    }
    remark
}

fn failed(probe: &Probe, fault: &PolicyFault) -> Remark {
    Remark::new(
        "probe-failed",
        format!("a probe ({}) was not answered: {fault}", probe.name),
        "in production the fallback would answer such a call; handle no rows, huge values and unknown columns",
    )
}
