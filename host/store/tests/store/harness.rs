//! What every test of the store writes.

use portolan_base::{Moment, Random, TenantName};
use portolan_decide::{Budget, Percent, TrialStage};
use portolan_policy::QuestionKind;
use portolan_ports::{
    BindingRecord, NewVersion, PolicyStore, Reuse, Scope, TenantRecord, TrialRecord, VersionRecord,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// SplitMix64: a small generator with a seed.
pub(crate) struct Dice(AtomicU64);

impl Dice {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Random for Dice {
    fn next_u64(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

pub(crate) fn version(scope: Scope, question: QuestionKind, name: &str, at: u64) -> NewVersion {
    NewVersion {
        scope,
        question,
        name: name.into(),
        component: format!("component {name}").into(),
        compiled: format!("artefact of {name}").into(),
        signatures: Vec::new(),
        actor: "op".into(),
        reason: "a test".into(),
        at: Moment(at),
    }
}

pub(crate) fn binding(version: &VersionRecord, at: u64) -> BindingRecord {
    BindingRecord {
        scope: version.scope.clone(),
        question: version.question,
        name: version.name.clone(),
        sha256: version.sha256.clone(),
        config: format!("{{\"at\":{at}}}"),
        budget: None,
        reuse: Reuse::ByClass,
        how: portolan_ports::BindingChange::Activate,
        in_place_of: None,
        ended: None,
        generation: 0,
        actor: "op".into(),
        reason: "a test".into(),
        at: Moment(at),
    }
}

/// A canary of a version.
pub(crate) fn trial_of(version: &VersionRecord, at: u64) -> TrialRecord {
    TrialRecord {
        name: version.name.clone(),
        sha256: version.sha256.clone(),
        config: format!("{{\"at\":{at}}}"),
        stage: TrialStage::Canary {
            percent: Percent::try_from(50).unwrap(),
        },
        budget: Budget::default(),
        reuse: Reuse::ByClass,
        actor: "op".into(),
        reason: "a test".into(),
        at: Moment(at),
    }
}

pub(crate) fn tenant(name: &str, jurisdiction: &str) -> TenantRecord {
    TenantRecord {
        name: TenantName::new(name).unwrap(),
        jurisdiction: jurisdiction.into(),
        user_class: "standard".into(),
    }
}

/// Asserts that the log has exactly the lines 1 to `lines`.
pub(crate) fn assert_audit_is_whole(store: &dyn PolicyStore, lines: usize) {
    let mut sequences: Vec<u64> = store
        .audit(usize::MAX)
        .unwrap()
        .iter()
        .map(|line| line.sequence)
        .collect();
    sequences.reverse();
    assert_eq!(sequences, (1..=lines as u64).collect::<Vec<_>>());
}

pub(crate) fn files_under(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files_under(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}
