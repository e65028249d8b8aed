//! Compares a service with its latest backup, byte by byte.

use super::backup::{latest, read_part};
use super::error::DrError;
use super::manifest::{Item, Manifest, Part};
use super::target::Target;
use serde::Serialize;
use std::collections::BTreeMap;

/// A file that a backup has otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Its place.
    pub path: String,
    /// How it differs.
    pub why: String,
}

/// How a backup compares with the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Which backup.
    pub backup: String,
    /// Whether the service could be brought back from it as it is.
    pub ok: bool,
    /// Files that the backup lacks.
    pub missing: Vec<String>,
    /// Files that it has otherwise, or damaged.
    pub different: Vec<Difference>,
    /// Files that the service does not have.
    pub extra: Vec<String>,
}

/// Reads every part of the latest backup at `target` and compares it with what the service is.
///
/// # Errors
/// When there is no backup, or the place cannot be used.
pub fn verify(service: &Manifest, target: &dyn Target) -> Result<Verdict, DrError> {
    let (name, backup) = latest(target)?;
    let by_path = |items: &[Item]| -> BTreeMap<String, Item> {
        items
            .iter()
            .map(|item| (item.path.clone(), item.clone()))
            .collect()
    };
    let (ours, theirs) = (by_path(&service.items), by_path(&backup.manifest.items));
    let mut verdict = Verdict {
        backup: name,
        ok: false,
        missing: ours
            .keys()
            .filter(|path| !theirs.contains_key(*path))
            .cloned()
            .collect(),
        different: Vec::new(),
        extra: theirs
            .keys()
            .filter(|path| !ours.contains_key(*path))
            .cloned()
            .collect(),
    };
    let mut checked: BTreeMap<String, Option<String>> = BTreeMap::new();
    for (path, item) in &theirs {
        let Some(own) = ours.get(path) else { continue };
        if own.sha256 != item.sha256 {
            let why = format!("{} bytes there, {} here, and other ones", item.bytes, own.bytes);
            verdict.different.push(Difference {
                path: path.clone(),
                why,
            });
            continue;
        }
        let parts = backup.parts.get(&item.sha256);
        let damage = checked
            .entry(item.sha256.clone())
            .or_insert_with(|| damage(parts, target));
        if let Some(why) = damage {
            let (path, why) = (path.clone(), why.clone());
            verdict.different.push(Difference { path, why });
        }
    }
    verdict.ok = verdict.missing.is_empty() && verdict.different.is_empty() && verdict.extra.is_empty();
    Ok(verdict)
}

/// What is wrong with the parts of a file, if anything is.
fn damage(parts: Option<&Vec<Part>>, target: &dyn Target) -> Option<String> {
    let Some(parts) = parts else {
        return Some("the backup names no parts of it".to_owned());
    };
    parts
        .iter()
        .find_map(|part| read_part(part, target).err())
        .map(|error| error.to_string())
}
