//! `portolan tls init`: an authority of one's own, and a certificate for each site.

use super::output::{Failure, json, line};
use crate::system::SystemClock;
use portolan_base::{Clock, Moment, SiteName};
use portolan_transport::{Issued, SiteIssuer};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Mean length of a year in the Gregorian calendar.
const SECONDS_A_YEAR: u64 = 31_556_952;

pub(super) fn init(sites: &[SiteName], dir: &Path, as_json: bool) -> Result<(), Failure> {
    let written =
        write_all(sites, dir, year_of(SystemClock::start().now())).map_err(|e| e.as_json(as_json))?;
    if as_json {
        return json(&serde_json::json!({ "files": written }));
    }
    for path in &written {
        line(format!("wrote {}", path.display()));
    }
    line(format!(
        "give each site its own three files: {0}/ca.pem, {0}/SITE.pem, {0}/SITE.key; keep {0}/ca.key away from all of them",
        dir.display()
    ));
    Ok(())
}

pub(super) fn year_of(now: Moment) -> i32 {
    i32::try_from(1970 + now.millis() / 1000 / SECONDS_A_YEAR).unwrap_or(i32::MAX)
}

/// Writes what is missing and nothing over anything.
fn write_all(sites: &[SiteName], dir: &Path, year: i32) -> Result<Vec<PathBuf>, Failure> {
    fs::create_dir_all(dir).map_err(|e| at(dir, e))?;
    let mut written = Vec::new();
    let (ca_pem, ca_key) = (dir.join("ca.pem"), dir.join("ca.key"));
    let issuer = if ca_pem.exists() || ca_key.exists() {
        let key = fs::read_to_string(&ca_key).map_err(|e| at(&ca_key, e))?;
        SiteIssuer::open(&key, year).map_err(|e| at(&ca_key, e))?
    } else {
        let (issuer, authority) = SiteIssuer::create(year).map_err(Failure::new)?;
        write_pair(&authority, [ca_pem, ca_key], &mut written)?;
        issuer
    };
    for site in sites {
        let issued = issuer
            .issue(site)
            .map_err(|e| Failure::new(format!("site {site}: {e}")))?;
        let files = ["pem", "key"].map(|kind| dir.join(format!("{site}.{kind}")));
        write_pair(&issued, files, &mut written)?;
    }
    Ok(written)
}

fn write_pair(issued: &Issued, files: [PathBuf; 2], written: &mut Vec<PathBuf>) -> Result<(), Failure> {
    // Only the owner may read a private key.
    for (path, text, mode) in files
        .into_iter()
        .zip([(&issued.certificate, 0o644), (&issued.key, 0o600)])
        .map(|(p, (t, m))| (p, t, m))
    {
        let opened = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&path);
        let mut file = opened.map_err(|e| at(&path, e))?;
        file.write_all(text.as_bytes()).map_err(|e| at(&path, e))?;
        written.push(path);
    }
    Ok(())
}

fn at(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_transport::{MutualTls, TlsFiles};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn sites_are_added_to_an_authority_and_nothing_is_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let site = |name| SiteName::new(name).unwrap();
        let (paris, virginia) = (site("paris"), site("virginia"));
        let year = year_of(SystemClock::start().now());
        assert!((2025..3000).contains(&year), "{year}");
        assert_eq!(
            write_all(std::slice::from_ref(&paris), dir.path(), year)
                .unwrap()
                .len(),
            4
        );
        assert_eq!(
            write_all(std::slice::from_ref(&virginia), dir.path(), year)
                .unwrap()
                .len(),
            2
        );
        for name in [&paris, &virginia] {
            let files = TlsFiles {
                ca: dir.path().join("ca.pem"),
                certificate: dir.path().join(format!("{name}.pem")),
                key: dir.path().join(format!("{name}.key")),
            };
            MutualTls::new(name, &files.read().unwrap()).unwrap();
            let mode = fs::metadata(&files.key).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "others can read the key");
        }
        let before = fs::read(dir.path().join("paris.key")).unwrap();
        assert!(write_all(&[paris], dir.path(), year).is_err());
        assert_eq!(fs::read(dir.path().join("paris.key")).unwrap(), before);
    }
}
