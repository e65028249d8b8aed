//! Keys: drawn, written, read; a signature made and checked.

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use portolan_base::Random;
use portolan_ports::{SIGNED_PREFIX, VersionSignature};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::str::FromStr;

const SECRET_FORMAT: &str = "portolan-secret-key-1 ed25519 ";
const PUBLIC_FORMAT: &str = "ed25519:";

/// Longest key file read: a line, and room for remarks.
const KEY_FILE_MAX_BYTES: u64 = 4096;

/// A key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadKey {
    /// A text of so many bytes is no public key. It is not repeated: it may be a secret one.
    #[error(
        "a text of {0} bytes is no public key: it must be \"ed25519:\" and 64 hexadecimal digits, as `portolan policy keygen` prints and \
         writes to NAME.pub"
    )]
    Public(usize),
    /// The text is a secret key, which is not repeated.
    #[error("that is a secret key, and the public one is wanted: NAME.pub of `portolan policy keygen`")]
    SecretForPublic,
    /// The text is a public key where a secret one is wanted.
    #[error(
        "that is a public key, which cannot sign; the secret one is wanted: NAME.key of `portolan policy keygen`"
    )]
    PublicForSecret,
    /// The file holds no secret key.
    #[error("it holds no secret key; NAME.key of `portolan policy keygen` does")]
    Secret,
    /// There is no such file.
    #[error("there is no such file; `portolan policy keygen --output NAME` draws a key into NAME.key")]
    Missing,
    /// There is such a file already.
    #[error("there is a file already, and a key is never overwritten; choose another name with --output")]
    Exists,
    /// Others could have read the file.
    #[error(
        "its mode is {0:03o}, so others can read it; `chmod 600` it, or draw another key if they may have"
    )]
    Readable(u32),
    /// The file cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A key that signs.
pub struct SecretKey(SigningKey);

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({})", self.public().id())
    }
}

impl SecretKey {
    /// Draws a key.
    pub fn draw(random: &dyn Random) -> Self {
        let mut seed = [0; 32];
        for chunk in seed.chunks_exact_mut(8) {
            chunk.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        Self(SigningKey::from_bytes(&seed))
    }

    /// Writes the key to a new file that only its owner can read. An existing file is left alone.
    pub fn write(&self, path: &Path) -> Result<(), BadKey> {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => BadKey::Exists,
                _ => BadKey::Io(error),
            })?;
        writeln!(file, "{SECRET_FORMAT}{}", hex::encode(self.0.to_bytes()))?;
        Ok(file.sync_all()?)
    }

    /// Reads a key from a file that only its owner can read.
    pub fn read(path: &Path) -> Result<Self, BadKey> {
        let file = File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => BadKey::Missing,
            _ => BadKey::Io(error),
        })?;
        let mode = file.metadata()?.mode() & 0o777;
        let mut text = String::new();
        file.take(KEY_FILE_MAX_BYTES).read_to_string(&mut text)?;
        // Said first: a public key is readable to all, and drawing another one would be the wrong advice.
        if text.starts_with(PUBLIC_FORMAT) {
            return Err(BadKey::PublicForSecret);
        }
        if mode & 0o077 != 0 {
            return Err(BadKey::Readable(mode));
        }
        let seed = text.trim().strip_prefix(SECRET_FORMAT).ok_or(BadKey::Secret)?;
        let mut bytes = [0; 32];
        hex::decode_to_slice(seed, &mut bytes).map_err(|_| BadKey::Secret)?;
        Ok(Self(SigningKey::from_bytes(&bytes)))
    }

    /// The key that checks what this one signs.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// Signs a component.
    pub fn sign(&self, component: &[u8]) -> VersionSignature {
        let signature = self.0.sign(&covered(Sha256::digest(component).as_slice()));
        VersionSignature {
            key_id: self.public().id(),
            signature: hex::encode(signature.to_bytes()),
        }
    }
}

/// A key that checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// Its id: the first 16 hexadecimal digits of its SHA-256.
    pub fn id(&self) -> String {
        hex::encode(&Sha256::digest(self.0.as_bytes())[..8])
    }

    /// Whether it made this signature of the component with this SHA-256. Strict: no signature has a second form, and
    /// no key of small order signs anything.
    pub fn made(&self, signature: &VersionSignature, sha256: &str) -> bool {
        let mut bytes = [0; 64];
        let read = hex::decode_to_slice(&signature.signature, &mut bytes).is_ok();
        let digest = hex::decode(sha256).unwrap_or_default();
        read && digest.len() == 32
            && self
                .0
                .verify_strict(&covered(&digest), &Signature::from_bytes(&bytes))
                .is_ok()
    }
}

fn covered(digest: &[u8]) -> Vec<u8> {
    [SIGNED_PREFIX, digest].concat()
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PUBLIC_FORMAT}{}", hex::encode(self.0.as_bytes()))
    }
}

impl FromStr for PublicKey {
    type Err = BadKey;

    fn from_str(text: &str) -> Result<Self, BadKey> {
        let bad = || match text.starts_with(SECRET_FORMAT) {
            true => BadKey::SecretForPublic,
            false => BadKey::Public(text.len()),
        };
        let digits = text.trim().strip_prefix(PUBLIC_FORMAT).ok_or_else(bad)?;
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| bad())?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| bad())?;
        match key.is_weak() {
            true => Err(bad()),
            false => Ok(Self(key)),
        }
    }
}
