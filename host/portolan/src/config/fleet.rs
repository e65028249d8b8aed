//! Which sites this process runs, and how it and the processes of the others tell each other.

use super::{Config, ConfigError, SiteConfig};
use portolan_base::SiteName;
use portolan_fleet::{NatsConfig, NatsLogin, NatsTls};
use portolan_ports::PRESENCE_LEASE;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Stands for the first site of the process in logins and paths, so that one file serves every process.
const SITE: &str = "{site}";

/// The shortest lease: four heartbeats.
const SHORTEST_LEASE: Duration = Duration::from_secs(2);

/// What the processes of a fleet share.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FleetConfig {
    /// First part of each subject on the bus: fleets of different names can share servers.
    #[serde(default = "portolan")]
    pub name: String,
    /// A file of 64 hex digits, the same at every process.
    #[serde(default)]
    pub secret_file: Option<PathBuf>,
    /// The secret itself, where it does not come from a file.
    #[serde(skip)]
    pub secret: Option<FleetSecret>,
    /// How long a site that says nothing is taken to be there, in ms.
    #[serde(default = "presence_lease")]
    pub lease_ms: u64,
    /// The servers; none: all sites run in this process.
    #[serde(default)]
    pub nats: Option<NatsSettings>,
}

impl Default for FleetConfig {
    fn default() -> Self {
        Self {
            name: portolan(),
            secret_file: None,
            secret: None,
            lease_ms: presence_lease(),
            nats: None,
        }
    }
}

/// NATS servers, and who this process is to them.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NatsSettings {
    /// `nats://HOST:PORT` of each.
    pub servers: Vec<String>,
    /// A user, with `password_file`.
    #[serde(default)]
    pub user: Option<String>,
    /// File of the user's password.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// File of a token.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// File of user JWT and seed.
    #[serde(default)]
    pub credentials: Option<PathBuf>,
    /// Encryption; none: as the servers want it.
    #[serde(default)]
    pub tls: Option<NatsTlsSettings>,
    /// Servers that keep what must survive; a majority of them has to acknowledge it.
    #[serde(default = "one")]
    pub replicas: usize,
}

/// PEM files for the connection to NATS.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NatsTlsSettings {
    /// The authority of the servers; none: those of the system.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// The process's own certificate, with `key`.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// Its key.
    #[serde(default)]
    pub key: Option<PathBuf>,
}

/// What all sites of a fleet share and nobody else knows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FleetSecret([u8; 32]);

impl std::fmt::Debug for FleetSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FleetSecret(..)")
    }
}

impl FleetSecret {
    /// Reads 64 hex digits; `place` names where they come from. The digits are in no message.
    ///
    /// # Errors
    /// When they are not 64 hex digits.
    pub fn parse(text: &str, place: &str) -> Result<Self, ConfigError> {
        let mut secret = [0; 32];
        match hex::decode_to_slice(text.trim(), &mut secret) {
            Ok(()) => Ok(Self(secret)),
            Err(_) => Err(ConfigError::value(
                place,
                "the fleet's secret has 64 hex digits: `openssl rand -hex 32` makes one",
            )),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }
}

impl FleetConfig {
    /// How long a site that says nothing is taken to be there.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// What the sites share; none where all of them run in this process.
    ///
    /// # Errors
    /// When the file cannot be read, or holds something else.
    pub fn secret(&self) -> Result<Option<FleetSecret>, ConfigError> {
        let Some(file) = self.secret_file.as_ref().filter(|_| self.secret.is_none()) else {
            return Ok(self.secret);
        };
        warn_if_open(file);
        FleetSecret::parse(&read(file)?, "fleet.secret_file").map(Some)
    }

    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let nats = self.nats.iter_mut().flat_map(|nats| {
            let tls = nats.tls.iter_mut();
            let tls = tls.flat_map(|tls| [&mut tls.ca, &mut tls.certificate, &mut tls.key]);
            let files = [
                &mut nats.password_file,
                &mut nats.token_file,
                &mut nats.credentials,
            ];
            tls.chain(files).flatten()
        });
        self.secret_file.iter_mut().chain(nats)
    }
}

impl Config {
    /// The same, where this process runs only these sites.
    ///
    /// # Errors
    /// When there is no such site, or the others could not be reached.
    pub fn running(mut self, sites: Vec<SiteName>) -> Result<Self, ConfigError> {
        self.run = sites;
        self.check_fleet()?;
        Ok(self)
    }

    /// Whether a site runs in this process.
    pub fn runs(&self, site: &SiteName) -> bool {
        self.run.is_empty() || self.run.contains(site)
    }

    /// The sites of this process.
    pub fn sites_here(&self) -> impl Iterator<Item = &SiteConfig> {
        self.sites.iter().filter(|site| self.runs(&site.name))
    }

    /// How this process reaches the bus; none: its sites are all there are.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn bus(&self) -> Result<Option<NatsConfig>, ConfigError> {
        let Some(nats) = &self.fleet.nats else {
            return Ok(None);
        };
        let site = self.first_here();
        let here = |path: &PathBuf| self.path_here(path);
        // What cannot be read is said before anything is connected.
        let readable = |path: &PathBuf| read(&here(path)).map(|_| here(path));
        let login = match (
            &nats.user,
            &nats.password_file,
            &nats.token_file,
            &nats.credentials,
        ) {
            (Some(user), Some(password), _, _) => NatsLogin::Password {
                user: user.replace(SITE, site),
                file: readable(password)?,
            },
            (_, _, Some(token), _) => NatsLogin::Token(readable(token)?),
            (_, _, _, Some(file)) => NatsLogin::Credentials(here(file)),
            _ => NatsLogin::None,
        };
        let tls = nats.tls.as_ref().map(|tls| NatsTls {
            ca: tls.ca.as_ref().map(here),
            own: tls.certificate.as_ref().map(here).zip(tls.key.as_ref().map(here)),
        });
        Ok(Some(NatsConfig {
            name: self.fleet.name.clone(),
            servers: nats.servers.clone(),
            login,
            tls,
        }))
    }

    /// The files that this process shows who it is with at the NATS servers, and tells who they are, each with its name.
    pub fn nats_files(&self) -> Vec<(&'static str, PathBuf)> {
        let Some(nats) = &self.fleet.nats else {
            return Vec::new();
        };
        let tls = nats.tls.clone().unwrap_or_default();
        let named = [
            ("password", &nats.password_file),
            ("token", &nats.token_file),
            ("credentials", &nats.credentials),
            ("ca.pem", &tls.ca),
            ("certificate.pem", &tls.certificate),
            ("key.pem", &tls.key),
        ];
        let named = named.into_iter();
        named
            .filter_map(|(name, file)| Some((name, self.path_here(file.as_ref()?))))
            .collect()
    }

    fn first_here(&self) -> &str {
        self.sites_here().next().map_or("", |site| site.name.as_str())
    }

    /// A path of the file's, for this process.
    fn path_here(&self, path: &Path) -> PathBuf {
        PathBuf::from(path.to_string_lossy().replace(SITE, self.first_here()))
    }

    /// Servers that keep what must survive.
    pub fn replicas(&self) -> usize {
        self.fleet.nats.as_ref().map_or(1, |nats| nats.replicas)
    }

    pub(super) fn check_fleet(&self) -> Result<(), ConfigError> {
        let fail = |key: &str, problem: String| Err(ConfigError::value(key, problem));
        let known: BTreeSet<&SiteName> = self.sites.iter().map(|site| &site.name).collect();
        if let Some(stranger) = self.run.iter().find(|site| !known.contains(site)) {
            let known: Vec<_> = known.iter().map(|site| site.as_str()).collect();
            let problem = format!("there is no site {stranger}; defined are: {}", known.join(", "));
            return fail("run", problem);
        }
        if self.fleet.name.is_empty() {
            return fail(
                "fleet.name",
                "a name is needed: each subject begins with it".to_owned(),
            );
        }
        if self.fleet.lease() < SHORTEST_LEASE {
            let problem = format!(
                "at least {} is needed: four heartbeats",
                SHORTEST_LEASE.as_millis()
            );
            return fail("fleet.lease_ms", problem);
        }
        if let Some(nats) = &self.fleet.nats {
            nats.check()?;
        }
        let elsewhere: Vec<&SiteConfig> = self.sites.iter().filter(|site| !self.runs(&site.name)).collect();
        let Some(first) = elsewhere.first() else {
            return Ok(());
        };
        if self.fleet.nats.is_none() {
            let problem = format!(
                "site {} runs in another process: name the servers that carry what the sites tell each other",
                first.name
            );
            return fail("fleet.nats", problem);
        }
        elsewhere.into_iter().try_for_each(|site| self.check_reach(site))
    }

    /// A site of another process from which KV comes here has to be found.
    fn check_reach(&self, site: &SiteConfig) -> Result<(), ConfigError> {
        let mut links = self
            .links
            .iter()
            .filter(|link| link.from == site.name && self.runs(&link.to));
        let address = site.reached_at();
        if (address.port() != 0 && !address.ip().is_unspecified()) || links.all(|link| !link.paths.is_empty())
        {
            return Ok(());
        }
        let problem = format!(
            "{address} is no address that another process can connect to: name one with its port in `transport`, or in \
             `advertise` where the site is reached at another one than it listens on"
        );
        Err(ConfigError::value(
            format!("sites.{}.transport", site.name),
            problem,
        ))
    }
}

impl NatsSettings {
    fn check(&self) -> Result<(), ConfigError> {
        let fail = |key: &str, problem: &str| Err(ConfigError::value(format!("fleet.nats.{key}"), problem));
        if self.servers.is_empty() {
            return fail("servers", "name at least one, as nats://HOST:PORT");
        }
        if ![1, 3, 5].contains(&self.replicas) {
            return fail(
                "replicas",
                "1, 3 or 5 servers keep what must survive: an even number gains nothing",
            );
        }
        if self.user.is_some() != self.password_file.is_some() {
            return fail("user", "`user` and `password_file` go together");
        }
        let logins = [
            self.user.is_some(),
            self.token_file.is_some(),
            self.credentials.is_some(),
        ];
        if logins.iter().filter(|given| **given).count() > 1 {
            return fail("user", "take one of `user`, `token_file` and `credentials`");
        }
        match &self.tls {
            Some(tls) if tls.certificate.is_some() != tls.key.is_some() => {
                fail("tls.certificate", "`certificate` and `key` go together")
            }
            _ => Ok(()),
        }
    }
}

impl SiteConfig {
    /// Where other processes reach it for KV.
    pub fn reached_at(&self) -> SocketAddr {
        self.advertise.unwrap_or(self.transport)
    }
}

fn read(file: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(file).map_err(|source| ConfigError::Read {
        path: file.to_owned(),
        source,
    })
}

/// Says so when others on the machine may read a secret. Mounted secrets often cannot be closed, so it is no error.
fn warn_if_open(file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(file).map(|known| known.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o077 != 0) {
        tracing::warn!(file = %file.display(), "others on this machine may read the fleet's secret");
    }
}

fn one() -> usize {
    1
}

fn portolan() -> String {
    "portolan".to_owned()
}

fn presence_lease() -> u64 {
    u64::try_from(PRESENCE_LEASE.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
