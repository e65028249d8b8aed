//! The platform's secret: drawn once, kept in a file of its own, never shown.

use crate::files;
use portolan_base::Random;
use portolan_ports::StoreError;
use std::fmt;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Bytes of the secret: the key length of BLAKE3.
const SECRET_BYTES: usize = 32;

/// What every key of this installation is derived from. Whoever reads it can forge compiled artefacts and guess at
/// API keys; whoever loses it loses all API keys.
#[derive(Clone)]
pub struct PlatformSecret([u8; SECRET_BYTES]);

impl fmt::Debug for PlatformSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PlatformSecret(..)")
    }
}

impl PlatformSecret {
    /// A secret that several installations share, kept elsewhere.
    pub fn shared(secret: [u8; SECRET_BYTES]) -> Self {
        Self(secret)
    }

    /// A key for one purpose, named by a `context` that is a constant of the code, such as
    /// `portolan 2026 tenant cache keys`. Keys of different contexts tell nothing about each other or the secret.
    pub fn derive(&self, context: &str) -> [u8; SECRET_BYTES] {
        blake3::derive_key(context, &self.0)
    }

    /// Reads the secret, or `None` when there is none. A file that others may read is closed to them, with a warning.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, StoreError> {
        let Some(bytes) = files::read(path)? else {
            return Ok(None);
        };
        let secret = <[u8; SECRET_BYTES]>::try_from(bytes.as_slice()).map_err(|_| StoreError::Damaged {
            place: path.display().to_string(),
            detail: format!(
                "{} bytes, {SECRET_BYTES} expected; restore it from a backup",
                bytes.len()
            ),
        })?;
        close_to_others(path)?;
        Ok(Some(Self(secret)))
    }

    /// Draws a secret and keeps it.
    pub(crate) fn create(path: &Path, random: &dyn Random) -> Result<Self, StoreError> {
        let mut secret = [0; SECRET_BYTES];
        for eight in secret.chunks_exact_mut(8) {
            eight.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        files::write(path, &secret)?;
        Ok(Self(secret))
    }
}

fn close_to_others(path: &Path) -> Result<(), StoreError> {
    let mode = fs::metadata(path)
        .map_err(|e| files::io(path, &e))?
        .permissions()
        .mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    tracing::warn!(file = %path.display(), mode = format!("{:o}", mode & 0o777), "the secret was open to others");
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(|e| files::io(path, &e))
}
