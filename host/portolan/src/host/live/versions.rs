//! Versions of the configuration, a file each in the data folder: `config/00000001.json`.

use portolan_base::Moment;
use portolan_ports::{Changer, ConfigRefusal, ConfigVersion};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Versions of one host.
pub(super) struct Versions {
    folder: PathBuf,
}

/// A version with the text of its file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) version: u64,
    at: Moment,
    actor: String,
    reason: String,
    sha256: String,
    changes: Vec<String>,
    pub(super) text: String,
}

impl Versions {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The number of the version in force; 0 when there is none.
    pub(super) fn newest(&self) -> Result<u64, ConfigRefusal> {
        Ok(self.numbers()?.last().copied().unwrap_or(0))
    }

    /// The version in force.
    pub(super) fn last(&self) -> Result<Option<Kept>, ConfigRefusal> {
        self.numbers()?
            .last()
            .map(|number| self.read(*number))
            .transpose()
    }

    /// An earlier version; none is named: the one before the one in force.
    pub(super) fn earlier(&self, version: Option<u64>) -> Result<Kept, ConfigRefusal> {
        let numbers = self.numbers()?;
        let wanted = match version {
            Some(version) => numbers.iter().find(|number| **number == version),
            None => numbers.iter().rev().nth(1),
        };
        let missing = || {
            let kept: Vec<String> = numbers.iter().map(ToString::to_string).collect();
            let which = version.map_or("no version before this one".to_owned(), |v| {
                format!("no version {v}")
            });
            ConfigRefusal::Missing(format!("there is {which}; kept are: {}", kept.join(", ")))
        };
        self.read(*wanted.ok_or_else(missing)?)
    }

    /// Every version that is kept, newest first.
    pub(super) fn history(&self) -> Result<Vec<ConfigVersion>, ConfigRefusal> {
        let shown = |kept: Kept| ConfigVersion {
            version: kept.version,
            at: kept.at,
            actor: kept.actor,
            reason: kept.reason,
            sha256: kept.sha256,
            changes: kept.changes,
        };
        self.numbers()?
            .into_iter()
            .rev()
            .map(|number| self.read(number).map(shown))
            .collect()
    }

    /// Writes the next version beside its place, on disk when this returns: it does not count yet.
    pub(super) fn stage(
        &self,
        text: &str,
        changes: &[String],
        by: &Changer,
        at: Moment,
    ) -> Result<StagedVersion, ConfigRefusal> {
        let number = self.newest()? + 1;
        let kept = Kept {
            version: number,
            at,
            actor: by.actor.clone(),
            reason: by.reason.clone(),
            sha256: hex::encode(Sha256::digest(text.as_bytes())),
            changes: changes.to_vec(),
            text: text.to_owned(),
        };
        let bytes =
            serde_json::to_vec_pretty(&kept).map_err(|error| ConfigRefusal::Broken(error.to_string()))?;
        std::fs::create_dir_all(&self.folder).map_err(|error| self.broken(&error))?;
        let staged =
            Staged::beside(&self.path(number), &bytes, 0o600).map_err(|error| self.broken(&error))?;
        Ok(StagedVersion { number, staged })
    }

    /// Has a staged version be the newest.
    pub(super) fn put(&self, version: StagedVersion) -> Result<u64, ConfigRefusal> {
        version.staged.put().map_err(|error| self.broken(&error))?;
        Ok(version.number)
    }

    /// Takes the newest version back, which never counted.
    pub(super) fn take_back(&self, version: u64) -> io::Result<()> {
        std::fs::remove_file(self.path(version))?;
        sync_folder(&self.path(version))
    }

    /// Forgets the oldest versions beyond `most`.
    pub(super) fn prune(&self, most: usize) -> Result<(), ConfigRefusal> {
        let mut numbers = self.numbers()?;
        let surplus = numbers.len().saturating_sub(most);
        for number in numbers.drain(..surplus) {
            // One that cannot be removed takes room and does no harm.
            drop(std::fs::remove_file(self.path(number)));
        }
        Ok(())
    }

    fn read(&self, number: u64) -> Result<Kept, ConfigRefusal> {
        let bytes = std::fs::read(self.path(number)).map_err(|error| self.broken(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            ConfigRefusal::Broken(format!("{} cannot be read: {error}", self.path(number).display()))
        })
    }

    /// The numbers of all that are kept, oldest first.
    fn numbers(&self) -> Result<Vec<u64>, ConfigRefusal> {
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.broken(&error)),
        };
        let number = |entry: io::Result<std::fs::DirEntry>| {
            let name = entry.ok()?.file_name();
            name.to_str()?.strip_suffix(".json")?.parse().ok()
        };
        let mut numbers: Vec<u64> = entries.filter_map(number).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:08}.json"))
    }

    fn broken(&self, error: &io::Error) -> ConfigRefusal {
        ConfigRefusal::Broken(format!("{}: {error}", self.folder.display()))
    }
}

/// A version that does not count yet.
pub(super) struct StagedVersion {
    number: u64,
    staged: Staged,
}

/// The text that the operator's file is to hold, beside it; none where it holds it already, or there is no file.
pub(super) fn stage_file(file: Option<&Path>, text: &str) -> io::Result<Option<Staged>> {
    let Some(file) = file else { return Ok(None) };
    // A link stays one: what it leads to is written.
    let file = &std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    if std::fs::read_to_string(file).is_ok_and(|there| there == text) {
        return Ok(None);
    }
    let mode = std::fs::metadata(file).map_or(0o600, |about| about.permissions().mode());
    Staged::beside(file, text.as_bytes(), mode & 0o777).map(Some)
}

/// Writes a file so that after a crash it is there in whole or as it was.
pub(super) fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    Staged::beside(path, bytes, mode)?.put()
}

/// A file that lies beside its place, on disk, and takes it when it is put there. Dropped, it is removed.
pub(super) struct Staged {
    beside: PathBuf,
    path: PathBuf,
}

impl Staged {
    /// Writes `bytes` beside `path`, as `path` with `.new`.
    fn beside(path: &Path, bytes: &[u8], mode: u32) -> io::Result<Self> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        // Half of a file would take the room that is lacking: whatever fails, it goes.
        let staged = Self {
            beside: path.with_file_name(name),
            path: path.to_owned(),
        };
        let mut options = std::fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(mode);
        let mut file = options.open(&staged.beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(staged)
    }

    /// Has it take its place: needs no room on the disk.
    pub(super) fn put(self) -> io::Result<()> {
        std::fs::rename(&self.beside, &self.path)?;
        sync_folder(&self.path)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // After it was put there is nothing to remove.
        drop(std::fs::remove_file(&self.beside));
    }
}

/// Flushes the name of a file to disk.
fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => std::fs::File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}
