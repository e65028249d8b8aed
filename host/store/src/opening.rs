//! What opening a store takes: its lock, its secret, its keys.

use crate::files;
use crate::key_ring::KeyDigest;
use crate::ledger::{Ledger, SCHEMA, Table, Write};
use crate::secret::PlatformSecret;
use portolan_base::{Random, TenantName};
use portolan_ports::{KeyRecord, StoreError, TenantRecord};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

const SCHEMA_KEY: &str = "schema";
const SECRET_CHECK_KEY: &str = "secret";
const SECRET_CHECK_CONTEXT: &str = "portolan 2026 secret check";

/// Keeps other processes, and a second store of this process, out of the folder.
pub(crate) fn lock(folder: &Path) -> Result<File, StoreError> {
    let path = folder.join("lock");
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let file = opened.map_err(|e| files::io(&path, &e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse(folder.display().to_string())),
        Err(TryLockError::Error(e)) => Err(files::io(&path, &e)),
    }
}

/// How long sled's threads may take to end: milliseconds on an idle machine.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Opens sled's files. A database that was closed a moment ago is held by sled's own threads until they end; the folder's
/// own lock has already kept everyone else out.
pub(crate) fn open_sled(config: &sled::Config) -> Result<sled::Db, sled::Error> {
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match config.open() {
            Err(error) if is_locked(&error) && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

/// Whether sled's files are held by someone.
pub(crate) fn is_locked(error: &sled::Error) -> bool {
    matches!(error, sled::Error::Io(e) if e.to_string().contains("could not acquire lock"))
}

/// Reads the secret and checks that it is the one the records were written with; founds the store when there are none.
pub(crate) fn open_secret(
    path: &Path,
    ledger: &Ledger,
    random: &dyn Random,
) -> Result<PlatformSecret, StoreError> {
    let damaged = |detail: &str| StoreError::Damaged {
        place: path.display().to_string(),
        detail: detail.into(),
    };
    let founded: Option<u32> = ledger.get(Table::Meta, SCHEMA_KEY)?;
    if let Some(found) = founded.filter(|found| *found > SCHEMA) {
        return Err(StoreError::NewerSchema { found, known: SCHEMA });
    }
    let check = |secret: &PlatformSecret| hex::encode(secret.derive(SECRET_CHECK_CONTEXT));
    match (founded, PlatformSecret::read(path)?) {
        (Some(_), None) => Err(damaged("it is missing; restore it from a backup")),
        (Some(_), Some(secret)) => {
            let expected: Option<String> = ledger.get(Table::Meta, SECRET_CHECK_KEY)?;
            if expected.as_ref() != Some(&check(&secret)) {
                return Err(damaged("it is not the secret this store was founded with"));
            }
            Ok(secret)
        }
        (None, found) => {
            let secret = found.map_or_else(|| PlatformSecret::create(path, random), Ok)?;
            let writes = [
                Write::new(Table::Meta, SCHEMA_KEY, &SCHEMA)?,
                Write::new(Table::Meta, SECRET_CHECK_KEY, &check(&secret))?,
            ];
            ledger.commit_unaudited(&mut ledger.turn(), &writes)?;
            Ok(secret)
        }
    }
}

/// Every tenant.
pub(crate) fn read_tenants(ledger: &Ledger) -> Result<BTreeMap<TenantName, TenantRecord>, StoreError> {
    let tenants: Vec<(_, TenantRecord)> = ledger.scan(Table::Tenants, "")?;
    let named = |(_, tenant): (_, TenantRecord)| (tenant.name.clone(), tenant);
    Ok(tenants.into_iter().map(named).collect())
}

/// Every key record.
pub(crate) fn read_keys(ledger: &Ledger) -> Result<Vec<(KeyDigest, KeyRecord)>, StoreError> {
    let records: Vec<(_, KeyRecord)> = ledger.scan(Table::Keys, "")?;
    let decode = |(key, record): (sled::IVec, KeyRecord)| {
        let mut digest = KeyDigest::default();
        match hex::decode_to_slice(&key, &mut digest) {
            Ok(()) => Ok((digest, record)),
            Err(e) => Err(StoreError::Damaged {
                place: "keys".into(),
                detail: e.to_string(),
            }),
        }
    };
    records.into_iter().map(decode).collect()
}
