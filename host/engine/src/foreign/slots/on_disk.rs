//! A file that holds a slot: prompts' KV in clear, which does not outlive the request that it is for.

use std::io::Read;
use std::path::{Path, PathBuf};

/// Owns a file, there or about to be written, and removes it when dropped: a request may end at any moment.
#[derive(Debug)]
pub(super) struct OnDisk(Option<PathBuf>);

impl OnDisk {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(Some(path))
    }

    /// Somebody else removes it.
    pub(super) fn hand_over(mut self) {
        self.0 = None;
    }

    /// The file in the folder of the server that is to read it, if it is what was saved. On a thread of its own, which
    /// removes what it brought when nobody waits any more.
    pub(super) async fn brought(self, to: PathBuf, digest_then: String) -> Result<Self, String> {
        let bringing = tokio::task::spawn_blocking(move || {
            let from = self.0.as_deref().unwrap_or(&to).to_owned();
            let here = match from == to {
                true => self,
                false => {
                    let here = Self::new(to.clone());
                    bring(&from, &to)?;
                    here
                }
            };
            match digest(&to)? == digest_then {
                true => Ok(here),
                false => Err("the file is not what was saved".to_owned()),
            }
        });
        bringing.await.map_err(|broke| broke.to_string())?
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            forget(path);
        }
    }
}

fn bring(from: &Path, to: &Path) -> Result<(), String> {
    if std::fs::rename(from, to).is_ok() {
        return Ok(());
    }
    let copied = std::fs::copy(from, to);
    copied.map(drop).map_err(|e| format!("{}: {e}", to.display()))
}

/// The BLAKE3 of a file, as text.
pub(super) fn digest(path: &Path) -> Result<String, String> {
    let unreadable = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut file = std::fs::File::open(path).map_err(unreadable)?;
    let (mut hasher, mut piece) = (blake3::Hasher::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut piece).map_err(unreadable)? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            n => _ = hasher.update(&piece[..n]),
        }
    }
}

pub(super) fn forget(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "a saved slot stays on disk");
        }
        _ => {}
    }
}
