//! Where backups lie.
//!
//! ```text
//! parts/<sha256>           a part of a file, at most 64 MiB, named by its content
//! backups/<moment>.json    a backup: what it is of, and which parts make which file. Written last
//! ```

use super::error::DrError;
use super::s3::{S3, S3Place};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A place for backups. Objects are written whole or not at all, and never changed.
pub trait Target: Send + Sync {
    /// What it is called, for people.
    fn name(&self) -> String;
    /// The size of an object; none: it is not there.
    fn size(&self, key: &str) -> Result<Option<u64>, DrError>;
    /// Writes an object. On the medium when this returns.
    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), DrError>;
    /// Reads an object; none: it is not there.
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, DrError>;
    /// The keys that begin with `prefix`, in order.
    fn list(&self, prefix: &str) -> Result<Vec<String>, DrError>;
}

/// The place that an operator named: a folder, or `s3://BUCKET/PREFIX`.
pub fn open_target(place: &str, s3: &S3Place) -> Result<Box<dyn Target>, DrError> {
    match place.strip_prefix("s3://") {
        Some(bucket) => Ok(Box::new(S3::open(bucket, s3)?)),
        None => Ok(Box::new(Folder(PathBuf::from(place)))),
    }
}

/// A folder, perhaps on another machine's disk.
struct Folder(PathBuf);

impl Folder {
    fn write(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let folder = path.parent().unwrap_or(&self.0);
        std::fs::create_dir_all(folder)?;
        let mut beside = path.as_os_str().to_owned();
        beside.push(".writing");
        let written = Self::write_beside(Path::new(&beside), bytes);
        if let Err(error) = written {
            // Half of an object would take the room that is lacking.
            drop(std::fs::remove_file(&beside));
            return Err(error);
        }
        std::fs::rename(&beside, path)?;
        std::fs::File::open(folder)?.sync_all()
    }

    fn write_beside(beside: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        // Keys and certificates are in it.
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(beside)?;
        file.write_all(bytes)?;
        file.sync_all()
    }
}

impl Target for Folder {
    fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn size(&self, key: &str) -> Result<Option<u64>, DrError> {
        let path = self.0.join(key);
        match std::fs::metadata(&path) {
            Ok(about) => Ok(Some(about.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(DrError::file(path)(source)),
        }
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), DrError> {
        let path = self.0.join(key);
        self.write(&path, bytes).map_err(|error| match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DrError::Full {
                place: self.name(),
                key: key.to_owned(),
                bytes: bytes.len(),
            },
            _ => DrError::file(path)(error),
        })
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, DrError> {
        let path = self.0.join(key);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(DrError::file(path)(source)),
        }
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>, DrError> {
        let folder = self.0.join(prefix);
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(DrError::file(folder)(source)),
        };
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            (!name.ends_with(".writing")).then(|| format!("{prefix}{name}"))
        };
        let mut keys: Vec<String> = entries.filter_map(name).collect();
        keys.sort();
        Ok(keys)
    }
}
