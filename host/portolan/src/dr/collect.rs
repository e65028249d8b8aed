//! Finds every file of a service.

use super::error::DrError;
use super::family;
use super::manifest::{Item, Manifest, Role};
use crate::config::Config;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// Where the bytes of an item come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bytes {
    /// A file.
    File(PathBuf),
    /// Made here.
    Made(Vec<u8>),
}

/// An item before it was read.
#[derive(Clone, Debug)]
struct Source {
    path: String,
    roles: Vec<Role>,
    bytes: Bytes,
}

/// A service as it is at the moment: what belongs to it, and where its bytes are.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What belongs to it.
    pub manifest: Manifest,
    pub(super) bytes: Vec<Bytes>,
}

/// Bytes read at once when a file is hashed.
const BUFFER: usize = 1 << 20;

/// Finds and hashes everything. `store` is a copy of the store, made by [`portolan_store::SledStore::snapshot`].
///
/// # Errors
/// [`DrError::Lacks`] names what is needed and not there.
pub fn collect(config: &Config, store: &Path) -> Result<Snapshot, DrError> {
    let mut sources = Vec::new();
    host_files(config, &mut sources)?;
    fleet_files(config, &mut sources)?;
    for model in &config.models {
        let root = match model.path.is_dir() {
            true => model.path.as_path(),
            false => model.path.parent().unwrap_or(Path::new(".")),
        };
        for (file, roles) in family::files_of(model.name.as_str(), &model.path)? {
            let within = file.strip_prefix(root).unwrap_or(&file).display().to_string();
            sources.push(Source {
                path: format!("models/{}/{within}", model.name),
                roles,
                bytes: Bytes::File(file),
            });
        }
    }
    recovery_files(config, &mut sources)?;
    store_files(store, &mut sources)?;
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources.dedup_by(|a, b| a.path == b.path && a.bytes == b.bytes);
    if let Some(two) = sources.windows(2).find(|two| two[0].path == two[1].path) {
        let detail = format!("{:?} and {:?} would be one file", two[0].bytes, two[1].bytes);
        return Err(DrError::lacks(
            format!("a place of its own in {}", two[0].path),
            detail,
        ));
    }
    read(sources)
}

/// The configuration itself, how instances are started, certificates, policies in a watched folder.
fn host_files(config: &Config, sources: &mut Vec<Source>) -> Result<(), DrError> {
    let source = config.source.as_ref();
    let text = source.ok_or_else(|| DrError::lacks("the configuration", "it was not read from a file"))?;
    sources.push(Source {
        path: "config/portolan.yaml".to_owned(),
        roles: vec![Role::HostConfig],
        bytes: Bytes::Made(text.text.clone().into_bytes()),
    });
    let sites = config.to_value().get("sites").cloned().unwrap_or_default();
    let flags = json!({ "sites": sites, "models": config.to_value().get("models") });
    let flags = serde_json::to_vec_pretty(&flags).unwrap_or_default();
    sources.push(Source {
        path: "config/engine-flags.json".to_owned(),
        roles: vec![Role::EngineFlags],
        bytes: Bytes::Made(flags),
    });
    for site in config.sites_here() {
        for (kind, file) in site.tls.iter().flat_map(|tls| {
            [
                ("ca", &tls.ca),
                ("certificate", &tls.certificate),
                ("key", &tls.key),
            ]
        }) {
            let what = || format!("the {kind} of site {}", site.name);
            needed(file, &what)?;
            sources.push(Source {
                path: format!("tls/{}/{kind}.pem", site.name),
                roles: vec![Role::Certificates],
                bytes: Bytes::File(file.clone()),
            });
        }
    }
    if let Some(folder) = config.policies_dir.as_ref().filter(|folder| folder.is_dir()) {
        for file in files_below(folder)? {
            let within = file.strip_prefix(folder).unwrap_or(&file).display().to_string();
            sources.push(Source {
                path: format!("policies/{within}"),
                roles: vec![Role::Policies],
                bytes: Bytes::File(file),
            });
        }
    }
    Ok(())
}

/// The fleet's secret, and the login of this process at the NATS servers.
fn fleet_files(config: &Config, sources: &mut Vec<Source>) -> Result<(), DrError> {
    let secret = match (&config.fleet.secret, &config.fleet.secret_file) {
        // What came from the environment goes before the file.
        (Some(secret), _) => Some(Bytes::Made(hex::encode(secret.bytes()).into_bytes())),
        (None, Some(file)) => {
            needed(file, &|| "the secret of the fleet".to_owned())?;
            Some(Bytes::File(file.clone()))
        }
        (None, None) => None,
    };
    sources.extend(secret.map(|bytes| Source {
        path: "fleet/secret".to_owned(),
        roles: vec![Role::Keys],
        bytes,
    }));
    for (name, file) in config.nats_files() {
        needed(&file, &|| format!("the {name} for NATS"))?;
        sources.push(Source {
            path: format!("fleet/nats/{name}"),
            roles: vec![match name.strip_suffix(".pem") {
                Some(_) => Role::Certificates,
                None => Role::Keys,
            }],
            bytes: Bytes::File(file),
        });
    }
    Ok(())
}

/// What the operator named: deployment files, locks, adapters.
fn recovery_files(config: &Config, sources: &mut Vec<Source>) -> Result<(), DrError> {
    let recovery = &config.recovery;
    for (key, role, files, example) in [
        (
            "deployment",
            Role::Deployment,
            &recovery.deployment,
            "units, compose files, Dockerfiles",
        ),
        (
            "dependency_locks",
            Role::DependencyLock,
            &recovery.dependency_locks,
            "Cargo.lock, requirements.txt",
        ),
    ] {
        let named = files.as_ref().ok_or_else(|| {
            let detail = format!("name them under recovery.{key} ({example}), or say `[]` if there are none");
            DrError::lacks(format!("{} files", role.as_str().replace('_', " ")), detail)
        })?;
        for (file, name) in named.iter().zip(names_of(named)) {
            needed(file, &|| format!("recovery.{key}"))?;
            sources.push(Source {
                path: format!("{key}/{name}"),
                roles: vec![role],
                bytes: Bytes::File(file.clone()),
            });
        }
    }
    for (folder, name) in recovery.adapters.iter().zip(names_of(&recovery.adapters)) {
        for (file, roles) in family::adapter("recovery.adapters", folder)? {
            sources.push(Source {
                path: format!("adapters/{name}/{}", name_of(&file)),
                roles,
                bytes: Bytes::File(file),
            });
        }
    }
    Ok(())
}

fn store_files(store: &Path, sources: &mut Vec<Source>) -> Result<(), DrError> {
    let of_store = [Role::Policies, Role::Bindings, Role::Tenants, Role::Keys];
    for (file, roles) in [("records.jsonl", of_store.to_vec()), ("secret", vec![Role::Keys])] {
        needed(&store.join(file), &|| {
            "policies, bindings, tenants and keys".to_owned()
        })?;
        sources.push(Source {
            path: format!("store/{file}"),
            roles,
            bytes: Bytes::File(store.join(file)),
        });
    }
    let components = store.join("components");
    for file in files_below(&components)? {
        sources.push(Source {
            path: format!("store/components/{}", name_of(&file)),
            roles: vec![Role::Policies],
            bytes: Bytes::File(file),
        });
    }
    Ok(())
}

fn needed(file: &Path, what: &dyn Fn() -> String) -> Result<(), DrError> {
    match file.is_file() {
        true => Ok(()),
        false => Err(DrError::lacks(
            what(),
            format!("there is no file {}", file.display()),
        )),
    }
}

/// What each is called in a backup: as it is called, and where two are called the same, with the folders above.
fn names_of(paths: &[PathBuf]) -> Vec<String> {
    let alike = |name: &str| paths.iter().filter(|path| name_of(path) == name).count() > 1;
    let named = paths.iter().map(|path| match name_of(path) {
        name if alike(&name) => {
            let parts = path.components().filter_map(|part| match part {
                Component::Normal(part) => Some(part.to_string_lossy()),
                _ => None,
            });
            parts.collect::<Vec<_>>().join("/")
        }
        name => name,
    });
    named.collect()
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>, DrError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(DrError::file(folder))? {
        let path = entry.map_err(DrError::file(folder))?.path();
        match path.is_dir() {
            true => files.extend(files_below(&path)?),
            false => files.push(path),
        }
    }
    Ok(files)
}

fn read(sources: Vec<Source>) -> Result<Snapshot, DrError> {
    let (mut items, mut places) = (Vec::new(), Vec::new());
    for source in sources {
        let (bytes, sha256) = match &source.bytes {
            Bytes::Made(bytes) => (bytes.len() as u64, hex::encode(Sha256::digest(bytes))),
            Bytes::File(file) => hash(file)?,
        };
        items.push(Item {
            path: source.path,
            roles: source.roles,
            bytes,
            sha256,
        });
        places.push(source.bytes);
    }
    let manifest = Manifest {
        portolan: env!("CARGO_PKG_VERSION").to_owned(),
        items,
    };
    Ok(Snapshot {
        manifest,
        bytes: places,
    })
}

/// Size and SHA-256 of a file.
fn hash(path: &Path) -> Result<(u64, String), DrError> {
    let mut file = File::open(path).map_err(DrError::file(path))?;
    let (mut hasher, mut buffer, mut size) = (Sha256::new(), vec![0; BUFFER], 0u64);
    loop {
        match file.read(&mut buffer).map_err(DrError::file(path))? {
            0 => return Ok((size, hex::encode(hasher.finalize()))),
            read => {
                hasher.update(&buffer[..read]);
                size += read as u64;
            }
        }
    }
}

/// Where a running host leaves the copy of its store that it was asked for.
pub fn snapshot_folder(config: &Config) -> PathBuf {
    config.data_dir.join("snapshot")
}
