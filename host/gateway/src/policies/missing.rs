//! Which bindings do not answer at present, and why: for the admin API and the metrics page.

use super::{DeskError, PolicyDesk, PolicySlot};
use portolan_ports::{Reading, Sample};

/// Why a bound policy does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is compiled for this host first.
    Compiling,
    /// It cannot be used here.
    Failed(String),
}

impl Missing {
    pub(super) fn for_want_of(error: &DeskError) -> Self {
        match error {
            DeskError::NotCompiled => Self::Compiling,
            error => Self::Failed(error.to_string()),
        }
    }
}

impl PolicyDesk {
    /// Why the slot's bound policy does not answer, if it does not. The question's fallback answers in its place.
    pub fn missing(&self, slot: &PolicySlot) -> Option<String> {
        self.missing.lock().get(slot).map(|missing| match missing {
            Missing::Compiling => DeskError::NotCompiled.to_string(),
            Missing::Failed(why) => why.clone(),
        })
    }

    /// How many bindings do not answer, by why.
    pub(super) fn missing_samples(&self) -> [Sample; 2] {
        let missing = self.missing.lock();
        let compiling = missing
            .values()
            .filter(|missing| matches!(missing, Missing::Compiling))
            .count();
        let failed = missing.len() - compiling;
        [("compiling", compiling), ("failed", failed)].map(|(why, count)| Sample {
            name: "policy_bindings_unavailable",
            help: "Bindings whose policy does not answer at present, so that the fallback does",
            labels: vec![("why", why.to_owned())],
            value: Reading::Gauge(count as u64),
        })
    }
}
