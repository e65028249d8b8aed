//! A component file, loaded for a configuration and name tables by the loader of the running host.

use super::error::LabError;
use crate::host::{component_loader, component_loader_with};
use crate::system::{OsRandom, SystemClock};
use portolan_base::{Clock, TenantName};
use portolan_plugin::{ArtefactKey, ComponentLoader, Limits};
use portolan_policy::{NameTables, Policy, QuestionKind, Scope};
use portolan_ports::{Binding, PolicyLoader, PolicyRejection, Reuse, Severity};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A minute: far beyond what the fuel of any call buys, however busy the machine is.
const UNHURRIED_MS: u64 = 60_000;

/// A component that passed the check of every upload.
#[derive(Clone, Debug)]
pub struct ComponentFile {
    /// Where it lies.
    pub path: PathBuf,
    /// The file's name without its ending.
    pub name: String,
    /// The question it answers.
    pub question: QuestionKind,
    sha256: String,
    bytes: Vec<u8>,
    compiled: Vec<u8>,
}

/// Loads components.
pub struct Workshop {
    loader: ComponentLoader,
    clock: Arc<dyn Clock>,
    key: ArtefactKey,
}

fn unhurried() -> Limits {
    Limits {
        inline_deadline_ms: UNHURRIED_MS,
        slow_deadline_ms: UNHURRIED_MS,
        setup_deadline_ms: UNHURRIED_MS,
        ..Limits::default()
    }
}

impl Workshop {
    /// With the limits and the instances made ahead of the running host.
    pub fn new() -> Result<Self, LabError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let key = ArtefactKey::draw(&OsRandom);
        let loader = component_loader(key.clone(), Arc::clone(&clock))?;
        Ok(Self { loader, clock, key })
    }

    /// The same, but no instance is made ahead: each call makes its own, so that the cost of one shows.
    pub fn without_instances_ahead(&self) -> Result<Self, LabError> {
        let limits = Limits {
            ready_instances: 0,
            ..Limits::default()
        };
        Ok(Self {
            loader: component_loader_with(limits, self.key.clone(), Arc::clone(&self.clock))?,
            clock: Arc::clone(&self.clock),
            key: self.key.clone(),
        })
    }

    /// The same, but no call is stopped for the wall clock's sake: fuel alone bounds it, so that an answer does not
    /// depend on what else the machine does.
    pub fn unhurried() -> Result<Self, LabError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let key = ArtefactKey::draw(&OsRandom);
        let loader = component_loader_with(unhurried(), key.clone(), Arc::clone(&clock))?;
        Ok(Self { loader, clock, key })
    }

    /// Lives by `clock`, which is not the wall's: what policies keep ages by it, and no call is stopped for the wall
    /// clock's sake, so that fuel alone bounds it and every run is the same. A workshop of its own keeps its own state.
    pub fn on(&self, clock: Arc<dyn Clock>) -> Result<Self, LabError> {
        Ok(Self {
            loader: component_loader_with(unhurried(), self.key.clone(), Arc::clone(&clock))?,
            clock,
            key: self.key.clone(),
        })
    }

    /// Times calls.
    pub fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// The loader itself.
    pub fn loader(&self) -> &ComponentLoader {
        &self.loader
    }

    /// Bytes of memory of the largest instance that has answered a call here.
    pub fn memory_high_water(&self) -> u64 {
        let stats = self.loader.stats();
        let high = stats.versions.iter().map(|(_, version)| version.memory_bytes);
        high.max().unwrap_or(0)
    }

    /// Reads and checks a component; `question` is told from it when `None`.
    pub fn open(&self, path: &Path, question: Option<QuestionKind>) -> Result<ComponentFile, LabError> {
        let bytes = std::fs::read(path).map_err(|source| LabError::Read {
            path: path.to_owned(),
            source,
        })?;
        let refused = |report| LabError::Refused {
            path: path.to_owned(),
            report: Box::new(report),
        };
        let report = self.loader.check(question, &bytes, None);
        let Some(question) = report.question.filter(|_| report.ok) else {
            return Err(refused(report));
        };
        let compiled = self
            .loader
            .compile(&bytes)
            .map_err(|PolicyRejection(report)| refused(report))?;
        let name = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .unwrap_or("policy");
        Ok(ComponentFile {
            path: path.to_owned(),
            name: name.to_owned(),
            question,
            sha256: report.sha256,
            bytes,
            compiled,
        })
    }

    /// What compiling a component takes, in a workshop that has not met it: a loader compiles the same bytes once.
    pub fn time_to_compile(&self, file: &ComponentFile) -> Result<Duration, LabError> {
        let begun = Instant::now();
        let compiled = self.loader.compile(&file.bytes);
        let taken = begun.elapsed();
        compiled
            .map(|_| taken)
            .map_err(|PolicyRejection(report)| LabError::Refused {
                path: file.path.clone(),
                report: Box::new(report),
            })
    }

    /// Makes a component callable, bound to the tenant of `names`, or to the platform when that is empty. Each call
    /// has an instance of its own.
    pub fn load(
        &self,
        file: &ComponentFile,
        config: &str,
        names: &NameTables,
    ) -> Result<Arc<dyn Policy>, LabError> {
        self.load_for(file, config, names, Reuse::default())
    }

    /// The same, with instances used as `reuse` says.
    pub fn load_for(
        &self,
        file: &ComponentFile,
        config: &str,
        names: &NameTables,
        reuse: Reuse,
    ) -> Result<Arc<dyn Policy>, LabError> {
        let scope = match names.tenant.as_str() {
            "" => Scope::Platform,
            tenant => Scope::Tenant(
                TenantName::new(tenant).map_err(|e| LabError::value("names.tenant", e.to_string()))?,
            ),
        };
        let binding = Binding {
            scope,
            question: file.question,
            name: file.name.clone(),
            version: file.sha256.clone(),
            config: config.to_owned(),
            names: Arc::new(names.clone()),
            reuse,
        };
        let loaded = self.loader.load(&binding, &file.bytes, Some(&file.compiled));
        loaded.map_err(|PolicyRejection(mut report)| {
            report
                .findings
                .retain(|finding| finding.severity == Severity::Error);
            LabError::Refused {
                path: file.path.clone(),
                report: Box::new(report),
            }
        })
    }
}
