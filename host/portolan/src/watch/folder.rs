//! One look at the folder: what is complete is taken, what is refused is told so beside itself.

use super::place;
use super::scan::{Scan, scan};
use super::settle::{Settling, Sighting};
use super::take::{Occasion, Outcome, take};
use portolan_base::Moment;
use portolan_gateway::policies::{PolicyDesk, PolicySlot};
use portolan_ports::{Finding, Severity};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A watched folder, and what is known about its files.
pub(super) struct PolicyFolder {
    root: PathBuf,
    desk: Arc<PolicyDesk>,
    /// Set when nobody watches any more: no further file is taken.
    over: Arc<AtomicBool>,
    settling: Settling,
    /// Slots whose files were there when the host started, until they are dealt with.
    from_start: Option<BTreeSet<PolicySlot>>,
    /// Oddities that were logged, so that each is logged once.
    told: BTreeMap<PathBuf, String>,
}

impl PolicyFolder {
    /// `over` ends a look between two files once it is set.
    pub(super) fn new(root: PathBuf, desk: Arc<PolicyDesk>, over: Arc<AtomicBool>) -> Self {
        Self {
            root,
            desk,
            over,
            settling: Settling::default(),
            from_start: None,
            told: BTreeMap::new(),
        }
    }

    /// Whether the watching has ended.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether a file is waiting to be complete.
    pub(super) fn is_settling(&self) -> bool {
        self.settling.is_settling()
    }

    /// Looks at the folder. `renamed` holds the paths that appeared by a rename since the last look.
    pub(super) fn look(&mut self, now: Moment, renamed: &BTreeSet<PathBuf>) {
        let found = scan(&self.root);
        let at_start = |found: &Scan| found.slots.keys().cloned().collect();
        self.from_start.get_or_insert_with(|| at_start(&found));
        self.tell(&found);
        let renamed = found
            .slots
            .keys()
            .filter(|slot| renamed.contains(&place::component(&self.root, slot)));
        let renamed = renamed.cloned().collect();
        for (slot, sighting) in self.settling.observe(now, &found.slots, &renamed) {
            if self.is_over() {
                return;
            }
            self.take(&slot, sighting, now);
        }
    }

    fn take(&mut self, slot: &PolicySlot, sighting: Sighting, now: Moment) {
        let there = self.from_start.as_ref().is_some_and(|slots| slots.contains(slot));
        let occasion = if there { Occasion::Start } else { Occasion::Change };
        let outcome = take(&self.desk, &self.root, slot, (sighting, occasion));
        let component = place::component(&self.root, slot);
        match &outcome {
            Outcome::Again(why) => {
                tracing::warn!(%slot, why, "a policy file is tried again");
                self.settling.again(slot, now);
                return;
            }
            Outcome::Active(binding) => {
                tracing::info!(%slot, version = binding.sha256, generation = binding.generation, "policy activated");
                withdraw(&place::report(&component));
            }
            Outcome::Proposed(id) => {
                tracing::info!(%slot, proposal = id, "the policy file waits for an operator's approval");
                withdraw(&place::report(&component));
            }
            Outcome::Unchanged => withdraw(&place::report(&component)),
            Outcome::Older => {
                tracing::info!(%slot, "the policy file is older than the last binding and is left alone");
            }
            Outcome::Refused(findings) => report(&component, findings),
        }
        self.settling.done(slot);
        if let Some(slots) = &mut self.from_start {
            slots.remove(slot);
        }
    }

    /// Reports what needs no reading to be refused.
    fn tell(&mut self, found: &Scan) {
        for (component, finding) in &found.refused {
            report(component, std::slice::from_ref(finding));
        }
        for path in &found.stale_reports {
            withdraw(path);
        }
        for (path, what) in &found.odd {
            if self.told.get(path) != Some(what) {
                tracing::warn!(path = %path.display(), what, "ignored in the policy folder");
            }
        }
        self.told.clone_from(&found.odd);
    }
}

/// Writes what is wrong with a component beside it, unless it says so already.
fn report(component: &Path, findings: &[Finding]) {
    let path = place::report(component);
    let text = text(component, findings);
    if fs::read(&path).is_ok_and(|before| before == text.as_bytes()) {
        return;
    }
    tracing::warn!(component = %component.display(), report = text, "a policy file was refused");
    // Renamed into place: a link that lies there is replaced and not written through.
    let temporary = path.with_file_name(format!(".{}", path.file_name().unwrap_or_default().display()));
    let written = remove(&temporary)
        .and_then(|()| fs::File::create_new(&temporary))
        .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
        .and_then(|()| fs::rename(&temporary, &path));
    if let Err(error) = written {
        tracing::warn!(path = %path.display(), %error, "the report could not be written");
    }
}

fn text(component: &Path, findings: &[Finding]) -> String {
    let name = component.file_name().unwrap_or_default().display();
    let mut text = format!("{name} was not activated; what was active before stays active.\n");
    for finding in findings {
        let severity = match finding.severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{severity}[{}]: {}", finding.code, finding.message);
        if !finding.help.is_empty() {
            let _ = writeln!(text, "  help: {}", finding.help);
        }
    }
    text
}

/// Removes a report.
fn withdraw(report: &Path) {
    if let Err(error) = remove(report) {
        tracing::warn!(path = %report.display(), %error, "the report could not be removed");
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
