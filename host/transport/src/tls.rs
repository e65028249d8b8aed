//! Mutual TLS 1.3 between sites: a certificate says who is at the other end, not the peer's own word.
//!
//! A site's certificate carries the DNS name `SITE.portolan.internal`, so that one signed for another purpose opens
//! nothing here. The dialer demands the name of the site it dials; the listener demands that the hello names the site
//! the certificate was made for. Each lane is a TLS session of its own, so encryption spreads over as many cores as
//! there are lanes.

mod issue;

pub use issue::{IssueError, Issued, SiteIssuer};

use crate::wire::{Accepted, PeerProof, Wire, Wiring};
use async_trait::async_trait;
use parking_lot::RwLock;
use portolan_base::SiteName;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, version::TLS13};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// What a site's name is followed by in its certificate; `.internal` is reserved for private use.
const DOMAIN: &str = "portolan.internal";

/// The protocol of the connection, so that no other service's TLS port is taken for ours.
const ALPN: &[u8] = b"portolan-kv/1";

/// TLS reads records of 16 KiB in pieces of 4 KiB; this makes one system call of sixty-four of them.
const READ_AHEAD: usize = 256 << 10;

/// Where a site finds its certificate, its key and the authority it trusts, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authority that signed the certificates of all sites.
    pub ca: PathBuf,
    /// This site's certificate, and any between it and the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The same as texts.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsIdentity {
    /// The authority that signed the certificates of all sites.
    pub ca: String,
    /// This site's certificate, and any between it and the authority.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl std::fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsIdentity(..)")
    }
}

/// Why a site's certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A text is not the PEM that is expected.
    #[error("the {what} is not the PEM that is expected: {detail}")]
    Pem {
        /// Which of the three.
        what: &'static str,
        /// Why.
        detail: String,
    },
    /// The site's name cannot stand in a certificate.
    #[error(
        "the site name {0} cannot stand in a certificate: use letters, digits and single dots, and hyphens inside only"
    )]
    Name(SiteName),
    /// The certificate belongs to another site.
    #[error("the certificate is not for site {0}: it has to carry the DNS name {0}.portolan.internal")]
    OtherSite(SiteName),
    /// Certificate, key and authority do not fit together.
    #[error("certificate, key and authority do not fit together: {0}")]
    Unfit(String),
}

impl TlsFiles {
    /// Reads the three files.
    pub fn read(&self) -> Result<TlsIdentity, TlsError> {
        let text = |path: &Path| {
            std::fs::read_to_string(path).map_err(|source| TlsError::Read {
                path: path.to_owned(),
                source,
            })
        };
        Ok(TlsIdentity {
            ca: text(&self.ca)?,
            certificate: text(&self.certificate)?,
            key: text(&self.key)?,
        })
    }
}

/// Wraps lanes in mutual TLS 1.3.
pub struct MutualTls {
    site: SiteName,
    current: RwLock<Ends>,
}

/// Both ends of a connection as one identity makes them.
#[derive(Clone)]
struct Ends {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
    identity: TlsIdentity,
}

impl std::fmt::Debug for MutualTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MutualTls(..)")
    }
}

impl MutualTls {
    /// TLS as `site`, proven by `identity`.
    ///
    /// # Errors
    /// When the texts are not PEM, do not fit together, or belong to another site.
    pub fn new(site: &SiteName, identity: &TlsIdentity) -> Result<Self, TlsError> {
        Ok(Self {
            site: site.clone(),
            current: RwLock::new(Ends::new(site, identity)?),
        })
    }

    /// Proves the site by `identity` on every connection made from now on; those that are open stay as they are. Says
    /// whether it is another identity than before.
    ///
    /// # Errors
    /// As [`MutualTls::new`]; the identity before stays in use.
    pub fn renew(&self, identity: &TlsIdentity) -> Result<bool, TlsError> {
        if self.current.read().identity == *identity {
            return Ok(false);
        }
        let ends = Ends::new(&self.site, identity)?;
        *self.current.write() = ends;
        Ok(true)
    }

    fn ends(&self) -> Ends {
        self.current.read().clone()
    }
}

impl Ends {
    fn new(site: &SiteName, identity: &TlsIdentity) -> Result<Self, TlsError> {
        let roots = Arc::new(roots(&identity.ca)?);
        let chain = certificates("certificate", &identity.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).map_err(|e| pem("key", e))?;
        let name = server_name(site)?;
        if !chain.first().is_some_and(|first| names(first, &name)) {
            return Err(TlsError::OtherSite(site.clone()));
        }
        let unfit = |e: &dyn std::fmt::Display| TlsError::Unfit(e.to_string());
        let provider = Arc::new(provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|e| unfit(&e))?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| unfit(&e))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|e| unfit(&e))?;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| unfit(&e))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|e| unfit(&e))?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        client.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self {
            connector: TlsConnector::from(Arc::new(client)),
            acceptor: TlsAcceptor::from(Arc::new(server)),
            identity: identity.clone(),
        })
    }
}

#[async_trait]
impl Wiring for MutualTls {
    async fn dialed(&self, stream: TcpStream, peer: &SiteName) -> io::Result<Box<dyn Wire>> {
        let name = server_name(peer).map_err(io::Error::other)?;
        let stream = BufReader::with_capacity(READ_AHEAD, stream);
        Ok(Box::new(self.ends().connector.connect(name, stream).await?))
    }

    async fn accepted(&self, stream: TcpStream) -> io::Result<Accepted> {
        let stream = self
            .ends()
            .acceptor
            .accept(BufReader::with_capacity(READ_AHEAD, stream))
            .await?;
        let certificate = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(|chain| chain.first());
        let certificate = certificate
            .ok_or_else(|| io::Error::other("the peer showed no certificate"))?
            .clone()
            .into_owned();
        Ok(Accepted {
            proof: PeerProof::Certificate(certificate),
            wire: Box::new(stream),
        })
    }
}

/// Whether a certificate, already verified against the authority, was made for `site`.
pub(crate) fn is_for(certificate: &CertificateDer<'_>, site: &SiteName) -> bool {
    server_name(site).is_ok_and(|name| names(certificate, &name))
}

fn names(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    webpki::EndEntityCert::try_from(certificate)
        .is_ok_and(|certificate| certificate.verify_is_valid_for_subject_name(name).is_ok())
}

/// The name of a site as it stands in its certificate.
fn dns_name(site: &SiteName) -> String {
    format!("{site}.{DOMAIN}")
}

fn server_name(site: &SiteName) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(dns_name(site)).map_err(|_| TlsError::Name(site.clone()))
}

/// AES-128 first: as strong as the key exchange, and a tenth faster than AES-256.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    provider
}

fn pem(what: &'static str, error: impl std::fmt::Display) -> TlsError {
    TlsError::Pem {
        what,
        detail: error.to_string(),
    }
}

fn certificates(what: &'static str, text: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(text.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| pem(what, e))
}

fn roots(text: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("authority", text)? {
        roots.add(certificate).map_err(|e| pem("authority", e))?;
    }
    Ok(roots)
}
