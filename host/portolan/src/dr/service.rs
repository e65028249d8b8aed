//! A whole backup of a service: its store is copied, its files are found, its models are asked, all of it is sent.

use super::backup::{Backed, Existing, backup, still_known};
use super::collect::{collect, snapshot_folder};
use super::error::DrError;
use super::probe;
use super::target::Target;
use crate::config::Config;
use portolan_base::Clock;
use portolan_store::SledStore;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Copies a store that is in use to where [`snapshot_folder`] says, in place of an earlier copy.
///
/// # Errors
/// When it cannot be read, or the copy not be written.
pub fn make_snapshot(config: &Config, store: &SledStore) -> Result<PathBuf, DrError> {
    let folder = snapshot_folder(config);
    let beside = folder.with_extension("new");
    remove(&beside)?;
    store.snapshot(&beside)?;
    remove(&folder)?;
    std::fs::rename(&beside, &folder).map_err(DrError::file(&folder))?;
    Ok(folder)
}

fn remove(folder: &Path) -> Result<(), DrError> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(DrError::file(folder)(error)),
        _ => Ok(()),
    }
}

/// Backs a service up, of whose store there is a copy in `store`.
///
/// # Errors
/// When something that is needed is missing, a model does not run, or the place cannot be used.
pub async fn backup_service(
    config: Config,
    store: PathBuf,
    (target, existing): (Arc<dyn Target>, Existing),
    clock: &dyn Clock,
) -> Result<Backed, DrError> {
    let at = clock.now();
    let broken = |error: tokio::task::JoinError| DrError::Damaged {
        what: "the backup".to_owned(),
        detail: error.to_string(),
    };
    let (place, looked) = (Arc::clone(&target), config.clone());
    let found = tokio::task::spawn_blocking(move || {
        let snapshot = collect(&looked, &store)?;
        let known = still_known(&snapshot.manifest, place.as_ref());
        Ok::<_, DrError>((snapshot, known))
    });
    let (snapshot, known) = found.await.map_err(broken)??;
    let probes = probe::ask_all(&config, &known).await?;
    let sent =
        tokio::task::spawn_blocking(move || backup(&snapshot, probes, (target.as_ref(), existing), at));
    sent.await.map_err(broken)?
}
