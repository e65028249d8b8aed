//! What lies in the folder. Nothing is followed out of it.

use super::place::{self, Kind};
use super::settle::{Sighting, Signature};
use portolan_base::Moment;
use portolan_gateway::policies::PolicySlot;
use portolan_policy::{QuestionKind, Scope};
use portolan_ports::{Finding, Severity};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirEntry, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Everything one look at the folder found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Slots with a component that may be read.
    pub(super) slots: BTreeMap<PolicySlot, Sighting>,
    /// Components that are refused for what or where they are.
    pub(super) refused: BTreeMap<PathBuf, Finding>,
    /// Other things that an operator should know of.
    pub(super) odd: BTreeMap<PathBuf, String>,
    /// Reports whose component is gone.
    pub(super) stale_reports: Vec<PathBuf>,
}

/// An error finding.
pub(super) fn error(code: &str, message: String, help: &str) -> Finding {
    Finding {
        code: code.into(),
        severity: Severity::Error,
        message,
        help: help.into(),
    }
}

/// Looks at the folder.
pub(super) fn scan(root: &Path) -> Scan {
    let mut scan = Scan::default();
    for (name, entry) in scan.entries(root) {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => match place::scope(&name) {
                Ok(scope) => scan.scope(&path, &scope),
                Err(_) if name.starts_with('.') => {}
                Err(error) => drop(scan.odd.insert(path, format!("no tenant's folder: {error}"))),
            },
            Ok(kind) if kind.is_file() && name.ends_with(".wasm") => {
                let message = format!("{name} lies outside a tenant's folder");
                let help = "move it to TENANT/QUESTION.wasm, or to _platform/QUESTION.wasm for every tenant";
                scan.refused.insert(path, error("no-tenant", message, help));
            }
            Ok(kind) if kind.is_symlink() => {
                drop(scan.odd.insert(path, "a symbolic link: not followed".into()));
            }
            _ => {}
        }
    }
    scan
}

impl Scan {
    /// The entries of a folder with their names. What cannot be read is odd; what vanished meanwhile is not there.
    fn entries(&mut self, folder: &Path) -> Vec<(String, DirEntry)> {
        let mut entries = Vec::new();
        let read = std::fs::read_dir(folder).and_then(|listing| listing.collect::<io::Result<Vec<_>>>());
        match read {
            Ok(listing) => {
                for entry in listing {
                    match entry.file_name().into_string() {
                        Ok(name) => entries.push((name, entry)),
                        Err(_) => drop(self.odd.insert(entry.path(), "its name is not UTF-8".into())),
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => drop(self.odd.insert(folder.to_owned(), error.to_string())),
        }
        entries
    }

    /// The folder of one scope.
    fn scope(&mut self, folder: &Path, scope: &Scope) {
        let (mut components, mut configs) = (BTreeMap::new(), BTreeMap::new());
        let mut signatures = BTreeMap::new();
        let (mut names, mut reports) = (BTreeSet::new(), Vec::new());
        for (name, entry) in self.entries(folder) {
            match place::kind(&name) {
                Kind::Component(question) => drop(components.insert(question, entry)),
                Kind::Config(question) => drop(configs.insert(question, entry)),
                Kind::Signature(question) => drop(signatures.insert(question, entry)),
                Kind::Report(component) => reports.push((component, entry.path())),
                Kind::Misnamed if name.ends_with(".wasm") => {
                    let finding = error(
                        "no-question",
                        format!("{name} names no policy question"),
                        "call it residency.wasm, cost.wasm, routing.wasm or invalidation.wasm",
                    );
                    self.refused.insert(entry.path(), finding);
                }
                Kind::Misnamed => drop(self.odd.insert(
                    entry.path(),
                    "the configuration or signature of no question".into(),
                )),
                Kind::Other => {}
            }
            names.insert(name);
        }
        let stale = reports
            .into_iter()
            .filter(|(component, _)| !names.contains(component));
        self.stale_reports.extend(stale.map(|(_, path)| path));
        for (question, component) in components {
            let beside = (configs.get(&question), signatures.get(&question));
            self.slot(scope, question, (&component, beside));
        }
    }

    fn slot(
        &mut self,
        scope: &Scope,
        question: QuestionKind,
        (component, (config, signed)): (&DirEntry, (Option<&DirEntry>, Option<&DirEntry>)),
    ) {
        let seen = signature(component).and_then(|component| {
            Ok(Sighting {
                component,
                config: config.map(signature).transpose()?,
                signature: signed.map(signature).transpose()?,
            })
        });
        match seen {
            Ok(sighting) => drop(
                self.slots
                    .insert(PolicySlot::new(scope.clone(), question), sighting),
            ),
            Err(Unfit::Vanished) => {}
            Err(Unfit::Refused(finding)) => drop(self.refused.insert(component.path(), finding)),
        }
    }
}

enum Unfit {
    /// It was there when the folder was listed.
    Vanished,
    /// It is no file that may be read.
    Refused(Finding),
}

fn signature(entry: &DirEntry) -> Result<Signature, Unfit> {
    let name = entry.file_name().to_string_lossy().into_owned();
    let refused = |message: String| {
        Err(Unfit::Refused(error(
            "no-file",
            message,
            "put a regular file in its place; links are not followed",
        )))
    };
    // Metadata of the entry itself: a symbolic link is not followed.
    match entry.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(signature_of(&metadata)),
        Ok(metadata) if metadata.is_symlink() => refused(format!("{name} is a symbolic link")),
        Ok(_) => refused(format!("{name} is no regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Unfit::Vanished),
        Err(error) => refused(format!("{name} cannot be looked at: {error}")),
    }
}

/// What a file looks like from outside.
pub(super) fn signature_of(metadata: &Metadata) -> Signature {
    let micros = metadata
        .mtime()
        .saturating_mul(1_000_000)
        .saturating_add(metadata.mtime_nsec() / 1000);
    let modified = Moment(u64::try_from(micros).unwrap_or(0));
    Signature {
        len: metadata.len(),
        modified,
        inode: metadata.ino(),
    }
}
