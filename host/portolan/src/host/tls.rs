//! What KV of a site crosses in, and the task that takes up a renewed certificate.

use super::parts::HostError;
use crate::config::SiteConfig;
use portolan_base::SiteName;
use portolan_transport::{MutualTls, PlainTcp, TlsError, TlsFiles, Wiring};
use std::sync::Arc;
use std::time::Duration;

/// How often the files are read. Certificates are renewed days before they end; three small files cost nothing.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// A site's certificate, and where the next one will lie.
pub(super) struct Renewal {
    site: SiteName,
    files: TlsFiles,
    tls: Arc<MutualTls>,
}

/// TLS, or bare TCP where the configuration allows that.
pub(super) fn wiring(config: &SiteConfig) -> Result<(Arc<dyn Wiring>, Option<Renewal>), HostError> {
    let Some(tls) = &config.tls else {
        if !config.transport.ip().is_loopback() {
            tracing::warn!(site = %config.name, address = %config.transport, "KV leaves this machine unencrypted");
        }
        return Ok((Arc::new(PlainTcp), None));
    };
    let files = TlsFiles {
        ca: tls.ca.clone(),
        certificate: tls.certificate.clone(),
        key: tls.key.clone(),
    };
    let renewal = Renewal::open(config.name.clone(), files).map_err(|source| HostError::Tls {
        site: config.name.clone(),
        source,
    })?;
    Ok((Arc::clone(&renewal.tls) as Arc<dyn Wiring>, Some(renewal)))
}

impl Renewal {
    fn open(site: SiteName, files: TlsFiles) -> Result<Self, TlsError> {
        let tls = Arc::new(MutualTls::new(&site, &files.read()?)?);
        Ok(Self { site, files, tls })
    }

    /// Looks now and then, until it is dropped.
    pub(super) async fn run(self) {
        let mut troubled = false;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match self.look() {
                Ok(false) => troubled = false,
                Ok(true) => {
                    troubled = false;
                    tracing::info!(site = %self.site, "the site's certificate was renewed");
                }
                // Files are replaced one after the other: what does not fit together may a moment later. Told once.
                Err(error) if !troubled => {
                    troubled = true;
                    tracing::warn!(site = %self.site, %error, "the site's certificate on disk cannot be used; the one before stays");
                }
                Err(_) => {}
            }
        }
    }

    /// Takes up what the files hold; says whether it is anything new.
    fn look(&self) -> Result<bool, TlsError> {
        self.tls.renew(&self.files.read()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_transport::SiteIssuer;
    use std::fs;

    #[test]
    fn a_renewed_certificate_is_taken_up_and_a_torn_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |file: &str| folder.path().join(file);
        let files = TlsFiles {
            ca: at("ca.pem"),
            certificate: at("paris.pem"),
            key: at("paris.key"),
        };
        let site = SiteName::new("paris").unwrap();
        let (issuer, authority) = SiteIssuer::create(2026).unwrap();
        fs::write(&files.ca, &authority.certificate).unwrap();
        let renew = |site: &str| {
            let issued = issuer.issue(&SiteName::new(site).unwrap()).unwrap();
            fs::write(&files.certificate, &issued.certificate).unwrap();
            issued.key
        };
        fs::write(&files.key, renew("paris")).unwrap();
        let renewal = Renewal::open(site, files.clone()).unwrap();
        assert!(!renewal.look().unwrap(), "nothing new");
        let key = renew("paris");
        assert!(
            matches!(renewal.look(), Err(TlsError::Unfit(_))),
            "the key is that of the old one"
        );
        fs::write(&files.key, key).unwrap();
        assert!(renewal.look().unwrap());
        assert!(!renewal.look().unwrap(), "taken up already");
        fs::write(&files.key, renew("berlin")).unwrap();
        assert!(matches!(renewal.look(), Err(TlsError::OtherSite(_))));
        fs::remove_file(&files.ca).unwrap();
        assert!(matches!(renewal.look(), Err(TlsError::Read { .. })));
    }
}
