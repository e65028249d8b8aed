//! Files that are either whole or not there: written beside their place, flushed, renamed into it, never changed.

use portolan_ports::StoreError;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Prefix of files that are being written. Component and artefact names begin with a hexadecimal digit, so nothing
/// that is kept looks like this.
const TEMPORARY_PREFIX: &str = ".writing-";

/// Tells the temporary files of concurrent writers apart. The store's lock keeps other processes out.
static NEXT_TEMPORARY: AtomicU64 = AtomicU64::new(0);

/// The I/O error with the path at fault.
pub(crate) fn io(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Io(format!("{}: {error}", path.display()))
}

/// Creates a folder that only this user may enter, and flushes its name to disk.
pub(crate) fn create_folder(path: &Path) -> Result<(), StoreError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|e| io(path, &e))?;
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent),
        _ => Ok(()),
    }
}

/// Puts `bytes` at `path`, readable by this user only. When this returns, the file survives a power cut; when it
/// fails or the process dies, what was at `path` before is still there.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let number = NEXT_TEMPORARY.fetch_add(1, Ordering::Relaxed);
    let temporary = folder.join(format!("{TEMPORARY_PREFIX}{number}"));
    let written = write_new(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        // Best effort: what cannot be removed is swept when the store is opened next.
        let _ = fs::remove_file(&temporary);
        return Err(io(path, &error));
    }
    sync_folder(folder)
}

fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Writes as many bytes as a file in `folder` and removes it again: fails where there is no room for them.
pub(crate) fn try_room(folder: &Path, bytes: usize) -> Result<(), StoreError> {
    let number = NEXT_TEMPORARY.fetch_add(1, Ordering::Relaxed);
    let temporary = folder.join(format!("{TEMPORARY_PREFIX}{number}"));
    let written = write_new(&temporary, &vec![0x55; bytes]);
    // Best effort, as above.
    let _ = fs::remove_file(&temporary);
    written.map_err(|error| io(folder, &error))
}

/// Flushes the names of the files in a folder to disk.
pub(crate) fn sync_folder(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .map_err(|e| io(path, &e))
}

/// The bytes of a file, or `None` when there is none.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io(path, &error)),
    }
}

/// Removes a file, if it is there.
pub(crate) fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io(path, &error)),
        _ => Ok(()),
    }
}

/// Removes the files in `folder` that a writer left half-written.
pub(crate) fn sweep_temporary(folder: &Path) -> Result<(), StoreError> {
    sweep(folder, |name| {
        name.to_string_lossy().starts_with(TEMPORARY_PREFIX)
    })
}

/// Removes the files in `folder` that `unwanted` picks by name.
pub(crate) fn sweep(folder: &Path, unwanted: impl Fn(&OsStr) -> bool) -> Result<(), StoreError> {
    for path in paths(folder)? {
        if path.file_name().is_some_and(&unwanted) {
            fs::remove_file(&path).map_err(|e| io(&path, &e))?;
            tracing::info!(file = %path.display(), "removed a file that nothing refers to");
        }
    }
    Ok(())
}

/// What is in a folder.
pub(crate) fn paths(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = fs::read_dir(folder).map_err(|e| io(folder, &e))?;
    entries
        .map(|entry| entry.map(|entry| entry.path()).map_err(|e| io(folder, &e)))
        .collect()
}
