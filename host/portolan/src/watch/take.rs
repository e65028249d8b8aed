//! Reading a complete file and handing it to the desk.

use super::place;
use super::scan::{error, signature_of};
use super::settle::{Sighting, Signature};
use bytes::Bytes;
use portolan_base::TenantName;
use portolan_gateway::policies::{By, DeskError, Done, PolicyDesk, PolicySlot, Sender, Upload};
use portolan_policy::Scope;
use portolan_ports::{
    BindingRecord, Finding, ProposalRecord, ProposalState, ProposedChange, Reuse, SIGNATURES_MAX_BYTES,
    StoreError, VersionSignature,
};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Who the audit log says it was.
const ACTOR: &str = "policy-folder";

/// Largest component read. The largest that make sense, interpreters with their libraries, have 37 MB.
const COMPONENT_MAX_BYTES: u64 = 64 << 20;

/// Longest configuration, as the policy contract says.
const CONFIG_MAX_BYTES: u64 = 64 << 10;

/// What became of a file.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is active.
    Active(Box<BindingRecord>),
    /// It waits for an operator's approval.
    Proposed(u64),
    /// It was active before, with the same configuration.
    Unchanged,
    /// The store knows it, and bound something later than the file was written.
    Older,
    /// It cannot be used.
    Refused(Vec<Finding>),
    /// It could not be taken at this moment, through no fault of its own.
    Again(String),
}

/// How a file is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// It was there when the host started.
    Start,
    /// It changed while the host was looking.
    Change,
}

enum Unread {
    /// It changed, or the disk failed.
    Again(String),
    Refused(Finding),
}

/// Hands the files of a slot to the desk.
pub(super) fn take(desk: &PolicyDesk, root: &Path, slot: &PolicySlot, seen: (Sighting, Occasion)) -> Outcome {
    let (sighting, occasion) = seen;
    if let Scope::Tenant(tenant) = &slot.scope {
        match desk.knows(tenant) {
            Ok(true) => {}
            Ok(false) => return Outcome::Refused(vec![unknown_tenant(tenant)]),
            Err(error) => return Outcome::Again(error.to_string()),
        }
    }
    let files = match read_all(root, slot, sighting) {
        Ok(files) => files,
        Err(Unread::Again(why)) => return Outcome::Again(why),
        Err(Unread::Refused(finding)) => return Outcome::Refused(vec![finding]),
    };
    match hand_over(desk, slot, files, (sighting, occasion)) {
        Ok(outcome) => outcome,
        Err(DeskError::Rejected(report) | DeskError::CompileLimit(report)) => {
            Outcome::Refused(report.findings)
        }
        Err(error @ DeskError::CompilerBusy(_)) => Outcome::Again(error.to_string()),
        Err(DeskError::Store(error @ StoreError::Invalid { .. })) => refused(error.to_string()),
        Err(DeskError::Store(error)) => Outcome::Again(error.to_string()),
        Err(error) => refused(error.to_string()),
    }
}

/// A policy bound to nobody would look active and protect nothing.
fn unknown_tenant(tenant: &TenantName) -> Finding {
    error(
        "unknown-tenant",
        format!("there is no tenant {tenant}"),
        "name the folder after a tenant of the configuration, or `_platform` for the platform's policies",
    )
}

fn refused(message: String) -> Outcome {
    Outcome::Refused(vec![error(
        "refused",
        message,
        "mend it, and put the file in its place again",
    )])
}

fn hand_over(
    desk: &PolicyDesk,
    slot: &PolicySlot,
    files: Files,
    (sighting, occasion): (Sighting, Occasion),
) -> Result<Outcome, DeskError> {
    let Files {
        component,
        config,
        signature,
    } = files;
    let name = slot.question.to_string();
    let by = By::new(ACTOR, &format!("{name}.wasm of {} changed", slot.scope));
    let known = desk.version_of(slot, &component)?;
    let upload = Upload {
        slot: slot.clone(),
        name,
        component,
        // No file beside the component says that there is no configuration.
        config: Some(config.clone()),
        signature: signature.clone(),
        budget: None,
        reuse: Reuse::ByClass,
    };
    if let Some(version) = known {
        let in_force = desk
            .list()?
            .into_iter()
            .find(|b| b.scope == slot.scope && b.question == slot.question);
        if in_force.is_some_and(|binding| binding.sha256 == version.sha256 && binding.config == config) {
            if is_news(&signature, &version.signatures) {
                desk.push(upload, &by)?;
            }
            return Ok(Outcome::Unchanged);
        }
        let last = desk.history(slot)?.pop();
        if occasion == Occasion::Start && last.is_some_and(|binding| binding.at >= sighting.modified()) {
            return Ok(Outcome::Older);
        }
        if let Some(outcome) = proposed(desk, slot, (&version.sha256, &config), (sighting, occasion))? {
            return Ok(outcome);
        }
    }
    Ok(match desk.submit_upload(upload, &by, &Sender::Stays)?.done {
        Done::Bound(binding) => Outcome::Active(binding),
        Done::Proposed(proposal) => Outcome::Proposed(proposal.id),
        Done::Rollout(_) | Done::Unbound => Outcome::Unchanged,
    })
}

/// Whether a signature file holds anything that is not kept with the version.
fn is_news(text: &str, kept: &[VersionSignature]) -> bool {
    match VersionSignature::read_all(text) {
        Ok(signatures) => signatures.iter().any(|signature| !kept.contains(signature)),
        // Refused with its reason, unless there is nothing in it.
        Err(_) => !text.trim().is_empty(),
    }
}

/// What is known of a proposal that this very file made: it waits, or at a start, was decided on or forgotten.
fn proposed(
    desk: &PolicyDesk,
    slot: &PolicySlot,
    (sha256, config): (&str, &str),
    (sighting, occasion): (Sighting, Occasion),
) -> Result<Option<Outcome>, DeskError> {
    let same = |proposal: &ProposalRecord| {
        let ours = proposal.actor == ACTOR;
        let here = proposal.scope == slot.scope && proposal.question == slot.question;
        let what = matches!(&proposal.change, ProposedChange::Activate { sha256: s, config: c, .. } if s == sha256 && c == config);
        ours && here && what
    };
    let mut proposals = desk.proposals()?.into_iter();
    Ok(match proposals.find(|(proposal, _)| same(proposal)) {
        Some((proposal, ProposalState::Pending)) => Some(Outcome::Proposed(proposal.id)),
        Some((proposal, _)) if occasion == Occasion::Start && proposal.at >= sighting.modified() => {
            Some(Outcome::Older)
        }
        _ => None,
    })
}

/// The files of a slot, read.
struct Files {
    component: Bytes,
    config: String,
    signature: String,
}

fn read_all(root: &Path, slot: &PolicySlot, sighting: Sighting) -> Result<Files, Unread> {
    let component = read(
        &place::component(root, slot),
        sighting.component,
        COMPONENT_MAX_BYTES,
    )?;
    let signature = match sighting.signature {
        None => String::new(),
        Some(seen) => {
            let limit = SIGNATURES_MAX_BYTES as u64;
            let text = read(&place::signature(root, slot), seen, limit)?;
            // What is no text is no signature either: the desk says so.
            String::from_utf8_lossy(&text).into_owned()
        }
    };
    let config = match sighting.config {
        None => String::new(),
        Some(seen) => read_config(root, slot, seen)?,
    };
    Ok(Files {
        component: component.into(),
        config,
        signature,
    })
}

fn read_config(root: &Path, slot: &PolicySlot, seen: Signature) -> Result<String, Unread> {
    let config = read(&place::config(root, slot), seen, CONFIG_MAX_BYTES)?;
    let bad = |message: String| {
        let help = "write JSON, or remove the file to bind without a configuration";
        Unread::Refused(error(
            "bad-config",
            format!("{}.json: {message}", slot.question),
            help,
        ))
    };
    let config = String::from_utf8(config).map_err(|_| bad("it is not UTF-8".into()))?;
    serde_json::from_str::<serde::de::IgnoredAny>(&config).map_err(|e| bad(e.to_string()))?;
    Ok(config)
}

/// Reads a file that looks as it was seen, before and after.
fn read(path: &Path, seen: Signature, limit: u64) -> Result<Vec<u8>, Unread> {
    let again = |what: &str| Unread::Again(format!("{}: {what}", path.display()));
    let io = |error: std::io::Error| again(&error.to_string());
    if seen.len > limit {
        let message = format!(
            "{} has {} bytes, at most {limit} are read",
            path.display(),
            seen.len
        );
        return Err(Unread::Refused(error("too-large", message, "send a smaller one")));
    }
    let mut file = File::open(path).map_err(io)?;
    // The file that was opened is the one that was seen: a link put in its place meanwhile leads to another inode.
    if signature_of(&file.metadata().map_err(io)?) != seen {
        return Err(again("it changed before it was read"));
    }
    let mut bytes = Vec::new();
    Read::by_ref(&mut file)
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    if signature_of(&file.metadata().map_err(io)?) != seen || bytes.len() as u64 != seen.len {
        return Err(again("it changed while it was read"));
    }
    Ok(bytes)
}
