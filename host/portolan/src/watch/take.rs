//! Reading a complete file and handing it to the desk.

use super::place;
use super::scan::{error, signature_of};
use super::settle::{Sighting, Signature};
use bytes::Bytes;
use portolan_base::TenantName;
use portolan_gateway::policies::{By, DeskError, PolicyDesk, PolicySlot, Upload};
use portolan_policy::Scope;
use portolan_ports::{BindingRecord, Finding, StoreError};
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
    Active(BindingRecord),
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
    let (component, config) = match read_both(root, slot, sighting) {
        Ok(files) => files,
        Err(Unread::Again(why)) => return Outcome::Again(why),
        Err(Unread::Refused(finding)) => return Outcome::Refused(vec![finding]),
    };
    match hand_over(desk, slot, (component, config), (sighting, occasion)) {
        Ok(outcome) => outcome,
        Err(DeskError::Rejected(report)) => Outcome::Refused(report.findings),
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
    (component, config): (Bytes, String),
    (sighting, occasion): (Sighting, Occasion),
) -> Result<Outcome, DeskError> {
    if let Some(version) = desk.version_of(slot, &component)? {
        let in_force = desk
            .list()?
            .into_iter()
            .find(|b| b.scope == slot.scope && b.question == slot.question);
        if in_force.is_some_and(|binding| binding.sha256 == version.sha256 && binding.config == config) {
            return Ok(Outcome::Unchanged);
        }
        let last = desk.history(slot)?.pop();
        if occasion == Occasion::Start && last.is_some_and(|binding| binding.at >= sighting.modified()) {
            return Ok(Outcome::Older);
        }
    }
    let name = slot.question.to_string();
    let by = By::new(ACTOR, &format!("{name}.wasm of {} changed", slot.scope));
    let upload = Upload {
        slot: slot.clone(),
        name,
        component,
        config,
    };
    Ok(Outcome::Active(desk.upload(upload, &by)?.binding))
}

fn read_both(root: &Path, slot: &PolicySlot, sighting: Sighting) -> Result<(Bytes, String), Unread> {
    let component = read(
        &place::component(root, slot),
        sighting.component,
        COMPONENT_MAX_BYTES,
    )?;
    let Some(signature) = sighting.config else {
        return Ok((component.into(), String::new()));
    };
    let config = read(&place::config(root, slot), signature, CONFIG_MAX_BYTES)?;
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
    Ok((component.into(), config))
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
