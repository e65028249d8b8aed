//! Compiled components at rest: sealed with a key of this host, so that only what it wrote itself is ever run.
//!
//! Compiled code is native code. wasmtime checks that it fits the engine, not who wrote it, so the seal is what stands
//! between a file on disk and the process.

use portolan_base::Random;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use wasmtime::Engine;
use wasmtime::component::Component;

/// Begins every sealed artefact; the digit is the format's version.
const MAGIC: &[u8; 8] = b"PTLNCWA1";
const SEAL_BYTES: usize = 32;

/// The key that seals compiled artefacts.
#[derive(Clone)]
pub struct ArtefactKey([u8; 32]);

/// The key could not be read or made.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file could not be read or written.
    #[error("the artefact key {path} could not be read or written")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a key.
    #[error(
        "the artefact key {path} has {found} bytes instead of 32; remove the file to have a new one made"
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
    },
    /// Others may read the file.
    #[error("the artefact key {path} has mode {mode:04o}; run: chmod 600 {path}")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
}

impl std::fmt::Debug for ArtefactKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ArtefactKey")
    }
}

impl ArtefactKey {
    /// A key from bytes that are already secret and random.
    pub const fn from_bytes(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// Draws a key that lasts as long as the process: artefacts of earlier runs are compiled anew.
    pub fn draw(random: &dyn Random) -> Self {
        let mut key = [0; 32];
        for word in key.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        Self(key)
    }

    /// Reads the key at `path`, or makes one there that only the owner can read. `random` must be the operating
    /// system's.
    pub fn open(path: &Path, random: &dyn Random) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Io {
            path: path.to_owned(),
            source,
        };
        match create(path) {
            Ok(mut file) => {
                let key = Self::draw(random);
                file.write_all(&key.0)
                    .and_then(|()| file.sync_all())
                    .map_err(failed)?;
                Ok(key)
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => read(path),
            Err(error) => Err(failed(error)),
        }
    }
}

fn create(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn read(path: &Path) -> Result<ArtefactKey, KeyError> {
    let failed = |source| KeyError::Io {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed {
                path: path.to_owned(),
                mode,
            });
        }
    }
    if metadata.len() != 32 {
        return Err(KeyError::Length {
            path: path.to_owned(),
            found: metadata.len(),
        });
    }
    let mut key = [0; 32];
    file.read_exact(&mut key).map_err(failed)?;
    Ok(ArtefactKey(key))
}

/// Why a sealed artefact was not used. It is compiled anew, so this is a matter of time, not of failure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("it is not a sealed artefact")]
    Format,
    #[error("its seal does not fit this host, this wasmtime or this component")]
    Seal,
    #[error("wasmtime refused it: {0:#}")]
    Engine(wasmtime::Error),
}

/// Seals and opens artefacts for one engine.
pub(crate) struct Sealer {
    key: ArtefactKey,
    code_key: String,
}

impl Sealer {
    /// `code_key` names compiler, settings and processor.
    pub(crate) fn new(key: ArtefactKey, code_key: String) -> Self {
        Self { key, code_key }
    }

    pub(crate) fn seal(&self, sha256: &str, code: &[u8]) -> Vec<u8> {
        let seal = self.mac(sha256, code);
        [&MAGIC[..], seal.as_bytes(), code].concat()
    }

    /// The code under a seal, or why it may not be run.
    pub(crate) fn open<'a>(&self, sha256: &str, sealed: &'a [u8]) -> Result<&'a [u8], Unusable> {
        let sealed = sealed.strip_prefix(MAGIC).ok_or(Unusable::Format)?;
        let (seal, code) = sealed.split_at_checked(SEAL_BYTES).ok_or(Unusable::Format)?;
        let seal: [u8; SEAL_BYTES] = seal.try_into().map_err(|_| Unusable::Format)?;
        // Compares in constant time.
        if self.mac(sha256, code) != blake3::Hash::from_bytes(seal) {
            return Err(Unusable::Seal);
        }
        Ok(code)
    }

    fn mac(&self, sha256: &str, code: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key.0);
        for field in [self.code_key.as_bytes(), sha256.as_bytes()] {
            hasher.update(&(field.len() as u64).to_le_bytes()).update(field);
        }
        hasher.update(code);
        hasher.finalize()
    }

    /// Whether a sealed artefact is one that this host wrote for this component, with this compiler.
    pub(crate) fn fits(&self, sha256: &str, sealed: &[u8]) -> bool {
        self.open(sha256, sealed).is_ok()
    }

    /// Opens a sealed artefact and makes a component of it.
    pub(crate) fn load(&self, engine: &Engine, sha256: &str, sealed: &[u8]) -> Result<Component, Unusable> {
        deserialize(engine, Authentic(self.open(sha256, sealed)?)).map_err(Unusable::Engine)
    }
}

/// Whether these bytes are a sealed artefact, of whichever host.
pub(crate) fn is_sealed(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Compiled code of which it is known who wrote it.
#[derive(Clone, Copy)]
pub(crate) struct Authentic<'a>(&'a [u8]);

impl<'a> Authentic<'a> {
    /// What this host's own compile worker wrote into the pipe that the host made for it. Only that process, which
    /// runs this very program, holds the pipe's other end.
    pub(crate) fn from_worker(code: &'a [u8]) -> Self {
        Self(code)
    }
}

#[allow(
    unsafe_code,
    reason = "running code compiled earlier is wasmtime's one unsafe entry point"
)]
pub(crate) fn deserialize(engine: &Engine, code: Authentic<'_>) -> wasmtime::Result<Component> {
    // SAFETY: `Component::deserialize` must only see what wasmtime serialized. `Authentic` is made in two places: from
    // bytes whose keyed hash was verified, which only `Sealer::seal` of a host with the same secret key makes, over the
    // output of the same compiler with the same settings; and from the pipe of a worker that this host started.
    unsafe { Component::deserialize(engine, code.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer(key: u8, code_key: &str) -> Sealer {
        Sealer::new(ArtefactKey::from_bytes([key; 32]), code_key.into())
    }

    #[test]
    fn only_the_same_key_compiler_component_and_code_open_a_seal() {
        let sealed = sealer(1, "a").seal("sha", b"code");
        assert_eq!(sealer(1, "a").open("sha", &sealed).unwrap(), b"code");
        assert!(
            matches!(sealer(2, "a").open("sha", &sealed), Err(Unusable::Seal)),
            "another host's key"
        );
        assert!(
            matches!(sealer(1, "b").open("sha", &sealed), Err(Unusable::Seal)),
            "another compiler"
        );
        assert!(
            matches!(sealer(1, "a").open("other", &sealed), Err(Unusable::Seal)),
            "another component"
        );
        for i in 0..sealed.len() {
            let mut bent = sealed.clone();
            bent[i] ^= 1;
            assert!(
                sealer(1, "a").open("sha", &bent).is_err(),
                "byte {i} could be changed"
            );
        }
        assert!(matches!(
            sealer(1, "a").open("sha", &sealed[..20]),
            Err(Unusable::Format)
        ));
    }

    #[cfg(unix)]
    #[test]
    fn a_key_file_is_made_once_private_and_kept() {
        use std::os::unix::fs::PermissionsExt;
        struct Count(std::sync::atomic::AtomicU64);
        impl Random for Count {
            fn next_u64(&self) -> u64 {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let random = Count(Default::default());
        let first = ArtefactKey::open(&path, &random).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(ArtefactKey::open(&path, &random).unwrap().0, first.0);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(
            ArtefactKey::open(&path, &random),
            Err(KeyError::Exposed { mode: 0o640, .. })
        ));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, b"short").unwrap();
        assert!(matches!(
            ArtefactKey::open(&path, &random),
            Err(KeyError::Length { found: 5, .. })
        ));
    }
}
