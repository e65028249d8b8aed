//! Brings a service to a place: the parts that are not there yet, then the manifest that names them.

use super::collect::{Bytes, Snapshot};
use super::error::DrError;
use super::manifest::{Backup, Manifest, Part, Probe};
use super::target::Target;
use portolan_base::Moment;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;

/// The size of a part. A backup that was cut goes on with the part it was at; a part is held in memory.
const PART_BYTES: usize = 64 << 20;

/// What a backup did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Backed {
    /// Its name at the place.
    pub backup: String,
    /// Files of the service.
    pub files: usize,
    /// Bytes of the service.
    pub bytes: u64,
    /// Bytes that went; the others were there.
    pub sent_bytes: u64,
    /// Parts that were there in another size, as a torn upload leaves them, and were sent again.
    pub torn: usize,
    /// Parts that were there with other bytes, and were sent again.
    pub damaged: usize,
}

/// What is done about parts that are at the place already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// They are read and compared: a backup that succeeded verifies.
    #[default]
    Read,
    /// They are taken for good where their size is right: for a place that is far away or bills what is read.
    Trust,
}

/// Backs `snapshot` up. Run again after it was cut, it sends what is not there.
///
/// # Errors
/// When the place cannot be used; and when a file changed while it was read, for then the backup would be of nothing.
pub(super) fn backup(
    snapshot: &Snapshot,
    probes: Vec<Probe>,
    (target, existing): (&dyn Target, Existing),
    at: Moment,
) -> Result<Backed, DrError> {
    let mut done = Backed {
        backup: name_at(at),
        files: snapshot.manifest.items.len(),
        bytes: snapshot.manifest.bytes(),
        sent_bytes: 0,
        torn: 0,
        damaged: 0,
    };
    let mut parts = BTreeMap::new();
    for (item, bytes) in snapshot.manifest.items.iter().zip(&snapshot.bytes) {
        if parts.contains_key(&item.sha256) {
            continue;
        }
        let (sent, whole) = match bytes {
            Bytes::Made(bytes) => send(&mut bytes.as_slice(), (target, existing), &mut done)?,
            Bytes::File(path) => {
                let mut file = File::open(path).map_err(DrError::file(path))?;
                send(&mut file, (target, existing), &mut done)?
            }
        };
        if whole != item.sha256 {
            let detail = "it changed while it was read; run the backup again".to_owned();
            return Err(DrError::Damaged {
                what: item.path.clone(),
                detail,
            });
        }
        parts.insert(item.sha256.clone(), sent);
    }
    let backup = Backup {
        at,
        manifest: snapshot.manifest.clone(),
        parts,
        probes,
    };
    let text = serde_json::to_vec(&backup).map_err(|error| DrError::Damaged {
        what: "the manifest".to_owned(),
        detail: error.to_string(),
    })?;
    target.put(&format!("backups/{}.json", done.backup), &text)?;
    Ok(done)
}

/// Answers of the latest backup whose models are what they were then: they need not be asked again.
pub(super) fn still_known(manifest: &Manifest, target: &dyn Target) -> Vec<Probe> {
    let Ok((_, before)) = latest(target) else {
        return Vec::new();
    };
    let of = |manifest: &Manifest, path: &str| -> Vec<(String, String)> {
        let items = manifest.items.iter().filter(|item| item.path.starts_with(path));
        items
            .map(|item| (item.path.clone(), item.sha256.clone()))
            .collect()
    };
    let same = |path: &str| of(manifest, path) == of(&before.manifest, path);
    // A window or another prompt is in the configuration.
    let settings = same("config/portolan.yaml");
    let holds = |probe: &Probe| settings && same(&format!("models/{}/", probe.model));
    before
        .probes
        .iter()
        .filter(|probe| holds(probe))
        .cloned()
        .collect()
}

/// Names sort as the moments do.
fn name_at(at: Moment) -> String {
    format!("{:020}", at.0)
}

/// Sends what is not there, or not as it should be, of a file; gives its parts, and its SHA-256 as it was read.
fn send(
    from: &mut dyn Read,
    (target, existing): (&dyn Target, Existing),
    done: &mut Backed,
) -> Result<(Vec<Part>, String), DrError> {
    let (mut parts, mut whole) = (Vec::new(), Sha256::new());
    loop {
        let mut bytes = Vec::new();
        let read = from.take(PART_BYTES as u64).read_to_end(&mut bytes);
        read.map_err(DrError::file("a file of the service"))?;
        if bytes.is_empty() {
            return Ok((parts, hex::encode(whole.finalize())));
        }
        whole.update(&bytes);
        let part = Part {
            sha256: hex::encode(Sha256::digest(&bytes)),
            bytes: bytes.len() as u64,
        };
        let key = part_key(&part);
        let there = look(&key, (&part, &bytes), (target, existing))?;
        done.torn += usize::from(there == There::Torn);
        done.damaged += usize::from(there == There::Damaged);
        if there != There::Whole {
            target.put(&key, &bytes)?;
            done.sent_bytes += part.bytes;
        }
        parts.push(part);
    }
}

/// How a part is found at the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    Whole,
    Missing,
    Torn,
    Damaged,
}

fn look(
    key: &str,
    (part, bytes): (&Part, &[u8]),
    (target, existing): (&dyn Target, Existing),
) -> Result<There, DrError> {
    Ok(match (target.size(key)?, existing) {
        (None, _) => There::Missing,
        (Some(size), _) if size != part.bytes => There::Torn,
        (Some(_), Existing::Trust) => There::Whole,
        (Some(_), Existing::Read) => match target.get(key)? {
            Some(found) if found == bytes => There::Whole,
            Some(_) => There::Damaged,
            // Somebody took it away meanwhile.
            None => There::Missing,
        },
    })
}

pub(super) fn part_key(part: &Part) -> String {
    format!("parts/{}", part.sha256)
}

/// The latest backup at a place.
///
/// # Errors
/// When there is none, or it cannot be read.
pub(super) fn latest(target: &dyn Target) -> Result<(String, Backup), DrError> {
    let keys = target.list("backups/")?;
    let key = keys.last().ok_or_else(|| DrError::Target {
        place: target.name(),
        detail: "there is no backup; make one with `portolan dr backup`".to_owned(),
    })?;
    let bytes = target.get(key)?.unwrap_or_default();
    let backup = serde_json::from_slice(&bytes).map_err(|error| DrError::Damaged {
        what: key.clone(),
        detail: error.to_string(),
    })?;
    let name = key.trim_start_matches("backups/").trim_end_matches(".json");
    Ok((name.to_owned(), backup))
}

/// Reads a part and checks it.
pub(super) fn read_part(part: &Part, target: &dyn Target) -> Result<Vec<u8>, DrError> {
    let damaged = |detail: &str| DrError::Damaged {
        what: part_key(part),
        detail: detail.to_owned(),
    };
    let bytes = target
        .get(&part_key(part))?
        .ok_or_else(|| damaged("it is not there"))?;
    if bytes.len() as u64 != part.bytes {
        return Err(damaged(&format!(
            "{} bytes of {} are there: a torn upload",
            bytes.len(),
            part.bytes
        )));
    }
    match hex::encode(Sha256::digest(&bytes)) == part.sha256 {
        true => Ok(bytes),
        false => Err(damaged("its bytes are not those that were sent")),
    }
}
