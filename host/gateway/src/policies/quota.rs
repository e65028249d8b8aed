//! Quotas at the desk: how often a tenant may upload, how much of it is kept, and which old version makes room.

use super::{By, DeskError, PolicyDesk, PolicySlot};
use portolan_base::{Moment, TenantName};
use portolan_policy::QuestionKind;
use portolan_ports::{Quotas, Removal, RemovalCause, UploadTurn, VersionRecord};
use std::collections::HashSet;

/// How many of a slot's last bindings are never pruned: the one in force, and two steps to go back.
const KEPT_BINDINGS: usize = 3;

/// An upload that counts against its tenant's hour.
#[derive(Debug)]
pub struct CountedUpload {
    tenant: TenantName,
    at: Moment,
}

/// A stored version, and whether it may go.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    record: VersionRecord,
    is_needed: bool,
}

impl PolicyDesk {
    /// Counts an upload that a tenant sends with its own key; refused ones count, as they cost the same.
    pub fn count_upload(&self, tenant: &TenantName) -> Result<CountedUpload, DeskError> {
        let most = self.quotas_of_tenant(tenant).uploads_per_hour;
        let at = self.parts.clock.now();
        match self.parts.store.count_upload(tenant, most, at)? {
            UploadTurn::Counted => Ok(CountedUpload {
                tenant: tenant.clone(),
                at,
            }),
            UploadTurn::Full(frees_in) => Err(DeskError::TooManyUploads { most, frees_in }),
        }
    }

    /// Takes back an upload that counted, when it was refused because this host had no room for it.
    pub fn excuse_upload(&self, counted: &CountedUpload, refused: &DeskError) {
        let CountedUpload { tenant, at } = counted;
        if !refused.is_want_of_room() {
            return;
        }
        if let Err(error) = self.parts.store.take_upload_back(tenant, *at) {
            tracing::warn!(%tenant, %error, "an upload that found no room counts all the same");
        }
    }

    /// Forgets a stored version that is neither bound nor on trial.
    pub fn remove(&self, slot: &PolicySlot, sha256: &str, by: &By) -> Result<(), DeskError> {
        let _changing = self.changing.lock();
        self.forget(slot, (sha256, RemovalCause::Asked), by)
    }

    /// The versions that have to go before one more of so many bytes fits, oldest first. Only called while `changing` is
    /// held, and before the store is told of the new one: what is refused changes nothing.
    pub(super) fn room_for(
        &self,
        slot: &PolicySlot,
        (sha256, bytes): (&str, u64),
    ) -> Result<Vec<VersionRecord>, DeskError> {
        let quotas = self.quotas.of(&slot.scope);
        let kept = self.kept(slot)?;
        let is_known = |kept: &Kept| kept.record.sha256 == sha256 && kept.record.question == slot.question;
        if kept.iter().any(is_known) {
            return Ok(Vec::new());
        }
        room(kept, (1, bytes), quotas)
    }

    /// Forgets what is beyond the quota, oldest first, without regard to what may come. Only called while `changing` is
    /// held.
    pub(super) fn prune_to_quota(&self, slot: &PolicySlot) -> Result<(), DeskError> {
        let quotas = self.quotas.of(&slot.scope);
        self.prune(room(self.kept(slot)?, (0, 0), quotas)?);
        Ok(())
    }

    /// Forgets versions that made room. One that cannot go is left for the next upload.
    pub(super) fn prune(&self, versions: Vec<VersionRecord>) {
        for version in versions {
            let slot = PolicySlot::new(version.scope, version.question);
            let by = By::new("quota", "a newer version needed its place");
            if let Err(error) = self.forget(&slot, (&version.sha256, RemovalCause::Quota), &by) {
                tracing::warn!(%slot, version = version.sha256, %error, "a version could not be pruned");
            }
        }
    }

    fn forget(
        &self,
        slot: &PolicySlot,
        (sha256, cause): (&str, RemovalCause),
        by: &By,
    ) -> Result<(), DeskError> {
        Ok(self.parts.store.remove_version(Removal {
            scope: slot.scope.clone(),
            question: slot.question,
            sha256: sha256.to_owned(),
            cause,
            actor: by.actor.clone(),
            reason: by.reason.clone(),
            at: self.parts.clock.now(),
        })?)
    }

    /// Every version of the slot's scope, oldest first.
    fn kept(&self, slot: &PolicySlot) -> Result<Vec<Kept>, DeskError> {
        let mut kept = Vec::new();
        for question in QuestionKind::ALL {
            let slot = PolicySlot::new(slot.scope.clone(), question);
            let versions = self.versions(&slot)?;
            let needed = self.needed(&slot, &versions)?;
            kept.extend(versions.into_iter().map(|record| Kept {
                is_needed: needed.contains(&record.sha256),
                record,
            }));
        }
        kept.sort_by_key(|kept| kept.record.at);
        Ok(kept)
    }

    /// Versions that are bound, on trial, or what a roll-back would go to.
    fn needed(&self, slot: &PolicySlot, versions: &[VersionRecord]) -> Result<HashSet<String>, DeskError> {
        if versions.is_empty() {
            return Ok(HashSet::new());
        }
        let history = self.history(slot)?.into_iter().rev().take(KEPT_BINDINGS);
        let trial = self.rollout(slot)?.trial.map(|trial| trial.sha256);
        let bound = self.bound(slot)?.map(|bound| bound.sha256);
        let history = history.map(|binding| binding.sha256);
        Ok(history.chain(trial).chain(bound).collect())
    }
}

/// Which versions go so that so many more fit, of so many bytes.
fn room(kept: Vec<Kept>, (more, bytes): (u64, u64), quotas: Quotas) -> Result<Vec<VersionRecord>, DeskError> {
    let mut count = kept.len() as u64;
    let mut stored: u64 = kept.iter().map(|kept| kept.record.bytes).sum();
    let fits = |count: u64, stored: u64| {
        count + more <= u64::from(quotas.stored_versions)
            && stored.saturating_add(bytes) <= quotas.stored_bytes
    };
    let mut gone = Vec::new();
    let mut candidates = kept.into_iter().filter(|kept| !kept.is_needed);
    while !fits(count, stored) {
        let Some(oldest) = candidates.next() else {
            return Err(DeskError::StoreFull {
                bytes,
                needed: (count, stored),
                quotas,
            });
        };
        count -= 1;
        stored -= oldest.record.bytes;
        gone.push(oldest.record);
    }
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::Moment;
    use portolan_policy::Scope;

    fn kept(versions: &[(u64, bool)]) -> Vec<Kept> {
        let version = |(i, (bytes, is_needed)): (usize, &(u64, bool))| Kept {
            is_needed: *is_needed,
            record: VersionRecord {
                scope: Scope::Platform,
                question: QuestionKind::Cost,
                name: format!("v{i}"),
                sha256: format!("{i}"),
                bytes: *bytes,
                signatures: Vec::new(),
                actor: "op".into(),
                reason: String::new(),
                at: Moment(i as u64),
            },
        };
        versions.iter().enumerate().map(version).collect()
    }

    fn gone(versions: &[(u64, bool)], bytes: u64) -> Option<Vec<String>> {
        let quotas = Quotas {
            stored_versions: 4,
            stored_bytes: 100,
            ..Quotas::default()
        };
        let gone = room(kept(versions), (1, bytes), quotas).ok()?;
        Some(gone.into_iter().map(|version| version.name).collect())
    }

    #[test]
    fn the_oldest_that_nothing_needs_go_and_no_more_than_must() {
        let three = [(10, true), (10, false), (10, false)];
        assert_eq!(gone(&three, 70), Some(vec![]), "just inside both quotas");
        assert_eq!(gone(&three, 71), Some(vec!["v1".into()]));
        assert_eq!(gone(&three, 81), Some(vec!["v1".into(), "v2".into()]));
        assert_eq!(
            gone(&three, 91),
            None,
            "what is needed stays, and the new one is refused"
        );
        let four = [(1, false), (1, true), (1, false), (1, false)];
        assert_eq!(
            gone(&four, 1),
            Some(vec!["v0".into()]),
            "one version more than allowed"
        );
        assert_eq!(gone(&[(1, true); 4], 1), None);
        assert_eq!(gone(&[], 101), None, "larger than the quota by itself");
    }
}
