//! Makes a certificate authority and the certificates of sites: what `portolan tls init` writes.

use super::dns_name;
use portolan_base::SiteName;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

/// The authority's name. Constant, so that its private key alone is enough to sign for a further site.
const AUTHORITY: &str = "Portolan KV transport";

/// Years a certificate is good for. A site's links end when its certificate does, so this is longer than hardware
/// is kept; to take a site out earlier, take it out of the configuration.
const YEARS: i32 = 10;

/// Why no certificate was made.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The cryptographic library refused.
    #[error("no certificate can be made: {0}")]
    Refused(#[from] rcgen::Error),
}

/// A certificate with its private key, as PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Issued(..)")
    }
}

/// Signs the certificates of sites.
pub struct SiteIssuer {
    issuer: Issuer<'static, KeyPair>,
    year: i32,
}

impl std::fmt::Debug for SiteIssuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SiteIssuer(..)")
    }
}

impl SiteIssuer {
    /// A new authority, good from the beginning of `year`.
    pub fn create(year: i32) -> Result<(Self, Issued), IssueError> {
        let key = KeyPair::generate()?;
        let params = authority(year);
        let issued = Issued {
            certificate: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
        };
        let issuer = Issuer::new(params, key);
        Ok((Self { issuer, year }, issued))
    }

    /// The authority whose private key this is.
    pub fn open(key_pem: &str, year: i32) -> Result<Self, IssueError> {
        let key = KeyPair::from_pem(key_pem)?;
        let issuer = Issuer::new(authority(year), key);
        Ok(Self { issuer, year })
    }

    /// A certificate for `site`.
    pub fn issue(&self, site: &SiteName) -> Result<Issued, IssueError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![dns_name(site)])?;
        params.distinguished_name = named(&dns_name(site));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        valid(&mut params, self.year);
        Ok(Issued {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn authority(year: i32) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(AUTHORITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut params, year);
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn valid(params: &mut CertificateParams, year: i32) {
    params.not_before = date_time_ymd(year, 1, 1);
    params.not_after = date_time_ymd(year + YEARS, 1, 1);
}
