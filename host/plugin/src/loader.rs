//! Checks, compiles and loads components: the [`PolicyLoader`] of the live host.

use crate::artefact::{ArtefactKey, Sealer};
use crate::check::{self, Remark, Report, kind, structure};
use crate::compiler::{Compilation, Compiled, Compiler};
use crate::contract;
use crate::engine::{EngineError, Runtime};
use crate::filler::Filler;
use crate::guest::Blueprint;
use crate::host::{self, GuestState, Tenancy};
use crate::lane::Lane;
use crate::limits::{Limits, SizeClass, TenantLimits};
use crate::log::{LogBook, LogQuota};
use crate::probing;
use crate::question::Setup;
use crate::slots::ScopeSlots;
use crate::stats::{Counted, Counters, Registry, RuntimeStats, bump};
use crate::stock::Shelf;
use crate::version::{Parts, Services, Version};
use portolan_base::{Clock, TenantName};
use portolan_policy::{BoundAs, Policy, PolicyDescriptor, PolicySource, QuestionKind, Scope};
use portolan_ports::{
    Binding, COMPILE_TIME, LogOccasion, PolicyLoader, PolicyLogLine, PolicyRejection, PolicyReport,
    PolicyState, Rehearsal, Reuse, Sample, StateSpace,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wasmtime::component::{Component, Linker};

/// What a loader is made of.
pub struct LoaderConfig {
    /// What components may use.
    pub limits: Limits,
    /// Seals compiled artefacts.
    pub key: ArtefactKey,
    /// What policies keep between calls.
    pub state: Arc<dyn PolicyState>,
    /// Where components are compiled.
    pub compilation: Compilation,
}

/// Turns components into policies.
pub struct ComponentLoader {
    limits: Limits,
    /// Of tenants that have none of their own.
    usual: Limits,
    tenants: HashMap<TenantName, Limits>,
    runtime: Runtime,
    linker: Linker<GuestState>,
    compiler: Compiler,
    sealer: Sealer,
    services: Arc<Services>,
    slots: ScopeSlots,
    state: Arc<dyn PolicyState>,
    clock: Arc<dyn Clock>,
    registry: Registry,
    book: Arc<LogBook>,
    live: Arc<AtomicU64>,
    artefacts_used: AtomicU64,
    artefacts_refused: AtomicU64,
}

/// A component that passed the checks before compiling.
struct Inspected {
    question: QuestionKind,
    class: SizeClass,
}

impl ComponentLoader {
    /// Builds the engine, reserves the instance pool and starts the runtime's threads.
    pub fn new(config: LoaderConfig, clock: Arc<dyn Clock>) -> Result<Self, EngineError> {
        let LoaderConfig {
            limits,
            key,
            state,
            compilation,
        } = config;
        let runtime = Runtime::new(&limits)?;
        let mut linker = Linker::new(&runtime.engine);
        host::link(&mut linker).map_err(EngineError::Engine)?;
        let services = Services {
            lane: Lane::start(&limits)?,
            filler: Filler::start(limits.pool_instances)?,
            shelf: Shelf::new(limits.pool_instances),
        };
        Ok(Self {
            limits,
            usual: limits,
            tenants: HashMap::new(),
            compiler: Compiler::new(runtime.engine.clone(), compilation, limits.compile),
            sealer: Sealer::new(key, runtime.code_key.clone()),
            runtime,
            linker,
            services: Arc::new(services),
            slots: ScopeSlots::default(),
            state,
            clock,
            registry: Registry::default(),
            book: Arc::default(),
            live: Arc::default(),
            artefacts_used: AtomicU64::new(0),
            artefacts_refused: AtomicU64::new(0),
        })
    }

    /// Narrows what tenants may use: each of `tenants` to its own limits, the others to `usual`.
    #[must_use]
    pub fn with_tenant_limits(
        mut self,
        usual: TenantLimits,
        tenants: impl IntoIterator<Item = (TenantName, TenantLimits)>,
    ) -> Self {
        let narrowed = |(name, own): (TenantName, TenantLimits)| (name, self.limits.narrowed(&own));
        self.usual = self.limits.narrowed(&usual);
        self.tenants = tenants.into_iter().map(narrowed).collect();
        self
    }

    /// The log lines that policies wrote since this was last asked.
    pub fn take_log_lines(&self) -> Vec<PolicyLogLine> {
        self.book.take_all()
    }

    fn limits_of(&self, scope: &Scope) -> &Limits {
        match scope {
            Scope::Platform => &self.limits,
            Scope::Tenant(name) => self.tenants.get(name).unwrap_or(&self.usual),
        }
    }

    /// The state of the runtime, for metrics.
    pub fn stats(&self) -> RuntimeStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let pool = self.runtime.engine.pooling_allocator_metrics();
        RuntimeStats {
            versions: self.registry.read(),
            live_instances: read(&self.live),
            pool_core_instances: pool.map(|m| m.core_instances()),
            allocation: self.runtime.allocation,
            compiled: self.compiler.compiled(),
            artefacts_used: read(&self.artefacts_used),
            artefacts_refused: read(&self.artefacts_refused),
            ticker_lateness_us: self.runtime.ticker.lateness_us(),
        }
    }

    /// All checks that need no compiling. `None` when one of them found an error.
    fn inspect(
        &self,
        asked: Option<QuestionKind>,
        component: &[u8],
        report: &mut Report,
    ) -> Option<Inspected> {
        if let Some(remark) = kind::refuse(component, &self.limits) {
            report.error(remark);
            return None;
        }
        let structure = match structure::read(component) {
            Ok(structure) => structure,
            Err(remark) => {
                report.error(remark);
                return None;
            }
        };
        let question = structure.question(asked);
        if let Some(question) = question {
            report.answers(question);
        }
        for objection in structure.objections(asked, &self.limits) {
            report.error(objection);
        }
        let question = question.filter(|_| report.ok())?;
        if let Err(difference) = contract::fits(question, component) {
            report.error(wrong_types(question, &difference));
            return None;
        }
        Some(Inspected {
            question,
            class: SizeClass::of(component.len()),
        })
    }

    fn blueprint(
        &self,
        inspected: &Inspected,
        component: &Component,
        limits: &Limits,
    ) -> Result<Blueprint, Remark> {
        let Inspected { question, class } = inspected;
        Blueprint::new(
            (&self.linker, &self.runtime.ticker),
            component,
            *question,
            *class,
            limits,
        )
        .map_err(|error| wrong_types(*question, &format!("{error:#}")))
    }

    /// A component from its compiled artefact where that is ours and fits, else compiled anew.
    fn component(&self, sha256: &str, bytes: &[u8], sealed: Option<&[u8]>) -> Result<Component, Remark> {
        if let Some(sealed) = sealed {
            match self.sealer.load(&self.runtime.engine, sha256, sealed) {
                Ok(component) => {
                    bump(&self.artefacts_used);
                    return Ok(component);
                }
                Err(why) => {
                    bump(&self.artefacts_refused);
                    tracing::info!(version = sha256, %why, "a compiled policy is not used; compiling it anew");
                }
            }
        }
        self.compiler.compile(bytes).map(|compiled| compiled.component)
    }

    fn tenancy(&self, binding: &Binding) -> Arc<Tenancy> {
        Arc::new(Tenancy {
            question: binding.question,
            version: binding.version.clone(),
            space: StateSpace {
                scope: binding.scope.clone(),
                policy: binding.name.clone(),
            },
            state: self.state.clone(),
            clock: self.clock.clone(),
            log: LogQuota::new(
                self.limits_of(&binding.scope).log_lines_per_second,
                self.clock.now(),
            ),
            book: self.book.clone(),
            during: LogOccasion::Serving,
        })
    }

    fn parts(&self, binding: &Binding, class: SizeClass, blueprint: Blueprint) -> Parts {
        Parts {
            descriptor: PolicyDescriptor {
                question: binding.question,
                name: binding.name.clone(),
                version: binding.version.clone(),
                source: match binding.scope {
                    Scope::Platform => PolicySource::Platform,
                    Scope::Tenant(_) => PolicySource::Tenant,
                },
                bound: BoundAs::default(),
            },
            scope: binding.scope.clone(),
            limits: *self.limits_of(&binding.scope),
            class,
            blueprint,
            tenancy: self.tenancy(binding),
            setup: Setup {
                config: binding.config.clone(),
                names: binding.names.clone(),
            },
            counters: Counters::new(&self.live),
            slots: self.slots.of(&binding.scope, self.limits_of(&binding.scope)),
            keeps_warm: match binding.reuse {
                Reuse::Fresh => false,
                Reuse::Warm => true,
                Reuse::ByClass => class != SizeClass::Compact,
            },
        }
    }

    fn start(
        &self,
        binding: &Binding,
        inspected: &Inspected,
        component: &Component,
    ) -> Result<Arc<Version>, Remark> {
        let limits = self.limits_of(&binding.scope);
        let blueprint = self.blueprint(inspected, component, limits)?;
        let parts = self.parts(binding, inspected.class, blueprint);
        let version = Version::start(parts, self.services.clone()).map_err(check::setup_remark)?;
        let counted: Arc<dyn Counted> = version.clone();
        self.registry.add(Arc::downgrade(&counted));
        Ok(version)
    }

    fn binding_remark(&self, binding: &Binding, sha256: &str) -> Option<Remark> {
        if binding.version != sha256 {
            return Some(Remark::new(
                "other-version",
                format!(
                    "the binding names version {}, but the component's SHA-256 is {sha256}",
                    binding.version
                ),
                "bind the version whose bytes these are",
            ));
        }
        self.config_remark(&binding.config)
    }

    fn config_remark(&self, config: &str) -> Option<Remark> {
        let (found, most) = (config.len(), self.limits.config_bytes);
        (found > most).then(|| {
            Remark::new(
                "configuration-too-large",
                format!("the configuration has {found} bytes, at most {most} are handed to a policy"),
                "move tables into the component, or split the policy",
            )
        })
    }
}

impl PolicyLoader for ComponentLoader {
    fn check(
        &self,
        question: Option<QuestionKind>,
        component: &[u8],
        rehearsal: Option<Rehearsal<'_>>,
    ) -> PolicyReport {
        let mut report = Report::new(component);
        let too_large = rehearsal.and_then(|rehearsal| self.config_remark(rehearsal.config));
        if let Some(remark) = too_large {
            report.error(remark);
            return report.done();
        }
        let Some(inspected) = self.inspect(question, component, &mut report) else {
            return report.done();
        };
        let Compiled {
            component: compiled,
            took,
        } = match self.compiler.compile(component) {
            Ok(compiled) => compiled,
            Err(remark) => {
                report.error(remark);
                return report.done();
            }
        };
        report.note(
            "class",
            format!(
                "{} bytes: the {} class",
                component.len(),
                inspected.class.as_str()
            ),
        );
        report.note(COMPILE_TIME, format!("compiled in {} ms", took.as_millis()));
        match self.blueprint(&inspected, &compiled, &self.limits) {
            Err(remark) => report.error(remark),
            Ok(blueprint) => {
                let subject = probing::Subject {
                    blueprint: &blueprint,
                    question: inspected.question,
                    class: inspected.class,
                    limits: &self.limits,
                    clock: &self.clock,
                    version: report.sha256().to_owned(),
                    book: &self.book,
                    rehearsal,
                };
                subject.probe(&mut report);
            }
        }
        report.done()
    }

    fn compile(&self, component: &[u8]) -> Result<Vec<u8>, PolicyRejection> {
        let report = Report::new(component);
        if let Some(remark) = kind::refuse(component, &self.limits) {
            return Err(report.reject(remark));
        }
        let serialized = self.compiler.compile(component).and_then(|compiled| {
            let failed = |e| {
                Remark::new(
                    "not-compiled",
                    format!("the code could not be stored: {e:#}"),
                    "try again",
                )
            };
            compiled.component.serialize().map_err(failed)
        });
        match serialized {
            Ok(code) => Ok(self.sealer.seal(report.sha256(), &code)),
            Err(remark) => Err(report.reject(remark)),
        }
    }

    fn accepts(&self, sha256: &str, compiled: &[u8]) -> bool {
        self.sealer.fits(sha256, compiled)
    }

    fn load(
        &self,
        binding: &Binding,
        component: &[u8],
        compiled: Option<&[u8]>,
    ) -> Result<Arc<dyn Policy>, PolicyRejection> {
        let mut report = Report::new(component);
        let Some(inspected) = self.inspect(Some(binding.question), component, &mut report) else {
            return Err(PolicyRejection(report.done()));
        };
        if let Some(remark) = self.binding_remark(binding, report.sha256()) {
            return Err(report.reject(remark));
        }
        let version = self
            .component(report.sha256(), component, compiled)
            .and_then(|component| self.start(binding, &inspected, &component));
        match version {
            Ok(version) => Ok(version),
            Err(remark) => Err(report.reject(remark)),
        }
    }

    fn samples(&self) -> Vec<Sample> {
        self.stats().samples()
    }

    fn log_lines(&self, scope: &Scope) -> Vec<PolicyLogLine> {
        self.book.lines(scope)
    }
}

fn wrong_types(question: QuestionKind, difference: &str) -> Remark {
    Remark::new(
        "wrong-types",
        format!("the component does not fit the world `{question}`: {difference}"),
        "build it against the wit/policy.wit of this host's release, or with that release's SDK (plugins/sdk)",
    )
}
