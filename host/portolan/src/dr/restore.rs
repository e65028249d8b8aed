//! Brings a backup back into a folder.

use super::backup::{latest, read_part};
use super::error::DrError;
use super::manifest::{Backup, Item};
use super::target::Target;
use crate::config::Config;
use portolan_store::SledStore;
use sha2::{Digest, Sha256};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

/// What was brought back.
pub struct Restored {
    /// The name of the backup.
    pub name: String,
    /// The backup.
    pub backup: Backup,
    /// The configuration, with the paths of the folder.
    pub config: Config,
}

/// Brings the latest backup at `target` into `folder`: the files at their places, and a store in `data/`. Every file is
/// checked against its SHA-256.
///
/// # Errors
/// When something of the backup is missing or damaged, and when the folder cannot be written to.
pub fn restore(target: &dyn Target, folder: &Path) -> Result<Restored, DrError> {
    if std::fs::read_dir(folder).is_ok_and(|mut there| there.next().is_some()) {
        return Err(DrError::Target {
            place: folder.display().to_string(),
            detail: "something lies there already; name a folder that is empty or not there".to_owned(),
        });
    }
    let (name, backup) = latest(target)?;
    for item in &backup.manifest.items {
        bring(item, &backup, target, folder)?;
    }
    SledStore::restore(&folder.join("store"), &folder.join("data"))?;
    let config = config(&backup, folder)?;
    Ok(Restored { name, backup, config })
}

fn bring(item: &Item, backup: &Backup, target: &dyn Target, folder: &Path) -> Result<(), DrError> {
    let damaged = |detail: String| DrError::Damaged {
        what: item.path.clone(),
        detail,
    };
    let relative = Path::new(&item.path);
    if !relative
        .components()
        .all(|part| matches!(part, Component::Normal(_)))
    {
        return Err(damaged("its place leads out of the folder".to_owned()));
    }
    let parts = backup.parts.get(&item.sha256);
    let parts = parts.ok_or_else(|| damaged("the backup names no parts of it".to_owned()))?;
    let path = folder.join(relative);
    let parent = path.parent().unwrap_or(folder);
    std::fs::create_dir_all(parent).map_err(DrError::file(parent))?;
    let mut options = std::fs::OpenOptions::new();
    let opened = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path);
    let mut file = opened.map_err(DrError::file(&path))?;
    let mut whole = Sha256::new();
    for part in parts {
        let bytes = read_part(part, target)?;
        whole.update(&bytes);
        file.write_all(&bytes).map_err(DrError::file(&path))?;
    }
    match hex::encode(whole.finalize()) == item.sha256 {
        true => file.sync_all().map_err(DrError::file(path)),
        false => Err(damaged(
            "its parts do not make the file that was backed up".to_owned(),
        )),
    }
}

/// The configuration that was backed up, pointed at the files in `folder`.
fn config(backup: &Backup, folder: &Path) -> Result<Config, DrError> {
    let path = folder.join("config/portolan.yaml");
    let mut config = Config::read(&path)?;
    config.data_dir = folder.join("data");
    config.policies_dir = config.policies_dir.as_ref().map(|_| folder.join("policies"));
    config.fleet.secret_file = config.fleet.secret_file.map(|_| folder.join("fleet/secret"));
    for model in &mut config.models {
        model.path = model_path(backup, folder, model.name.as_str());
    }
    for site in &mut config.sites {
        if let Some(tls) = &mut site.tls {
            let of = |kind: &str| folder.join(format!("tls/{}/{kind}.pem", site.name));
            (tls.ca, tls.certificate, tls.key) = (of("ca"), of("certificate"), of("key"));
        }
        site.kv_tiers.disk_dir = None;
    }
    Ok(config)
}

/// The folder of a model's files, or the one file that it is.
fn model_path(backup: &Backup, folder: &Path, model: &str) -> PathBuf {
    let prefix = format!("models/{model}/");
    let mut files = backup
        .manifest
        .items
        .iter()
        .filter(|item| item.path.starts_with(&prefix));
    match (files.next(), files.next()) {
        (Some(only), None) => folder.join(&only.path),
        _ => folder.join(prefix),
    }
}
