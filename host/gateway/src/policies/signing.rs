//! Whom a component comes from, asked at every door: at an upload of what comes with it, at every later activation,
//! trial and roll-back of what is kept with it. A restart asks nobody: what is bound stays bound, and is reported.

use super::{DeskError, PolicyDesk, PolicySlot, Upload};
use portolan_ports::{
    Finding, PolicyReport, RolloutRecord, Severity, Signed, VersionRecord, VersionSignature,
};

impl PolicyDesk {
    /// Reads and judges the signatures of an upload, together with those that are kept for the same bytes. What there
    /// is to say goes into the report.
    pub(super) fn check_upload(
        &self,
        upload: &Upload,
        report: &mut PolicyReport,
    ) -> Result<Vec<VersionSignature>, DeskError> {
        let sent = match upload.signature.trim() {
            "" => Vec::new(),
            text => match VersionSignature::read_all(text) {
                Ok(sent) => sent,
                Err(error) => {
                    report.findings.push(unreadable(&error.to_string()));
                    return Err(rejected(report.clone()));
                }
            },
        };
        let known = self.versions(&upload.slot)?.into_iter();
        let known = known.filter(|version| version.sha256 == report.sha256);
        let kept = known.map(|version| version.signatures).next().unwrap_or_default();
        let all = VersionSignature::merged(&kept, &sent);
        let findings = self.judge(&upload.slot, &report.sha256, &all);
        let bad = findings.iter().any(is_error);
        report.findings.extend(findings);
        match bad {
            true => Err(rejected(report.clone())),
            false => Ok(sent),
        }
    }

    /// Refuses a stored version that may not be bound.
    pub(super) fn check_stored(&self, slot: &PolicySlot, sha256: &str) -> Result<(), DeskError> {
        let mut versions = self.versions(slot)?.into_iter();
        let Some(version) = versions.find(|version| version.sha256 == sha256) else {
            return Err(DeskError::NotFound(format!("version {sha256:?} of {slot}")));
        };
        let findings = self.signature_findings(slot, &version);
        if !findings.iter().any(is_error) {
            return Ok(());
        }
        Err(rejected(PolicyReport {
            ok: false,
            question: Some(slot.question),
            findings,
            sha256: version.sha256,
            bytes: version.bytes,
        }))
    }

    /// Refuses to let versions answer again that may not be bound.
    pub(super) fn check_enabled(&self, slot: &PolicySlot, rollout: &RolloutRecord) -> Result<(), DeskError> {
        let bound = self.bound(slot)?.map(|binding| binding.sha256);
        let on_trial = rollout.trial.as_ref().map(|trial| trial.sha256.clone());
        for sha256 in bound.into_iter().chain(on_trial) {
            self.check_stored(slot, &sha256)?;
        }
        Ok(())
    }

    /// What there is to say about the signatures of a stored version, as of this moment; an error among it: it may not
    /// be made active again.
    pub fn signature_findings(&self, slot: &PolicySlot, version: &VersionRecord) -> Vec<Finding> {
        self.judge(slot, &version.sha256, &version.signatures)
    }

    /// Whether a version that is bound could not be bound today. Says so in the log.
    pub(super) fn is_distrusted(&self, slot: &PolicySlot, sha256: &str) -> bool {
        match self.check_stored(slot, sha256) {
            Err(error @ DeskError::Rejected(_)) => {
                tracing::warn!(%slot, version = sha256, %error, "a bound policy stays, and could not be bound again");
                true
            }
            _ => false,
        }
    }

    fn judge(&self, slot: &PolicySlot, sha256: &str, signatures: &[VersionSignature]) -> Vec<Finding> {
        self.signatures.judge(&Signed {
            scope: &slot.scope,
            sha256,
            signatures,
            at: self.parts.clock.now(),
        })
    }
}

fn is_error(finding: &Finding) -> bool {
    finding.severity == Severity::Error
}

fn rejected(report: PolicyReport) -> DeskError {
    DeskError::Rejected(PolicyReport { ok: false, ..report })
}

fn unreadable(why: &str) -> Finding {
    Finding {
        code: "bad-signature".to_owned(),
        severity: Severity::Error,
        message: format!("the signature cannot be read: {why}"),
        help: "send what `portolan policy sign FILE --key KEY` wrote to FILE.sig, whole".to_owned(),
    }
}

#[cfg(test)]
mod tests;
