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
        let site = self.sites_here().next().map_or("", |site| site.name.as_str());
        let here = |path: &PathBuf| PathBuf::from(path.to_string_lossy().replace(SITE, site));
        let text = |path: &PathBuf| read(&here(path)).map(|text| text.trim().to_owned());
        let login = match (
            &nats.user,
            &nats.password_file,
            &nats.token_file,
            &nats.credentials,
        ) {
            (Some(user), Some(password), _, _) => NatsLogin::Password {
                user: user.replace(SITE, site),
                password: text(password)?,
            },
            (_, _, Some(token), _) => NatsLogin::Token(text(token)?),
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

fn portolan() -> String {
    "portolan".to_owned()
}

fn presence_lease() -> u64 {
    u64::try_from(PRESENCE_LEASE.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "
data_dir: data
operator_keys: [op]
models: []
sites:
  - {name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}
  - {name: virginia, jurisdiction: us, listen: '127.0.0.1:0', transport: '127.0.0.1:7401', instances: []}
links: [{from: virginia, to: paris, capacity_mbps: 1000}]
run: [paris]
fleet: {nats: {servers: ['nats://127.0.0.1:4222']}}
";

    fn site(name: &str) -> SiteName {
        SiteName::new(name).unwrap()
    }

    #[test]
    fn a_process_runs_the_sites_it_is_told_to() {
        let config = Config::parse(TWO).unwrap();
        let here: Vec<_> = config.sites_here().map(|site| site.name.as_str()).collect();
        assert_eq!(here, ["paris"]);
        assert_eq!(config.topology().unwrap().sites().len(), 2, "it knows the others");
        let config = config.running(vec![site("virginia")]).unwrap();
        assert!(config.runs(&site("virginia")) && !config.runs(&site("paris")));
        assert!(config.running(vec![site("mars")]).is_err());
        let alone = TWO.replace("run: [paris]\n", "");
        assert_eq!(Config::parse(&alone).unwrap().sites_here().count(), 2);
    }

    #[test]
    fn each_mistake_is_named_with_its_place() {
        for (from, to, expected) in [
            (
                "run: [paris]",
                "run: [mars]",
                "run: there is no site mars; defined are: paris, virginia",
            ),
            ("fleet: {nats", "fleet: {nuts", "nuts"),
            (
                "fleet: {nats: {servers: ['nats://127.0.0.1:4222']}}",
                "fleet: {}",
                "fleet.nats: site virginia runs in another process",
            ),
            (
                "transport: '127.0.0.1:7401', ",
                "",
                "sites.virginia.transport: 127.0.0.1:0 is no address",
            ),
            (
                "transport: '127.0.0.1:7401'",
                "plaintext: true, transport: '[::]:7401'",
                "sites.virginia.transport: [::]:7401",
            ),
            ("['nats://127.0.0.1:4222']", "[]", "fleet.nats.servers"),
            (
                "4222']",
                "4222'], user: a",
                "fleet.nats.user: `user` and `password_file`",
            ),
            (
                "4222']",
                "4222'], token_file: a, credentials: b",
                "fleet.nats.user: take one",
            ),
            ("4222']", "4222'], tls: {key: a}", "fleet.nats.tls.certificate"),
            (
                "fleet: {",
                "fleet: {lease_ms: 1999, ",
                "fleet.lease_ms: at least 2000",
            ),
            ("fleet: {", "fleet: {name: '', ", "fleet.name"),
        ] {
            assert!(TWO.contains(from), "{from}");
            let error = Config::parse(&TWO.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(expected), "{to}: {error}");
        }
    }

    #[test]
    fn a_site_behind_another_address_advertises_it() {
        let text = TWO.replace(
            "transport: '127.0.0.1:7401'",
            "plaintext: true, transport: '[::]:7401', advertise: '10.0.0.2:7401'",
        );
        let config = Config::parse(&text).unwrap();
        assert_eq!(config.sites[1].reached_at().to_string(), "10.0.0.2:7401");
    }

    #[test]
    fn one_file_serves_every_process() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("paris.password"), "geheim\n").unwrap();
        let text = TWO.replace(
            "4222']",
            "4222'], user: 'site-{site}', password_file: '{site}.password'",
        );
        let mut config = Config::parse(&text).unwrap();
        config.resolve_paths(folder.path());
        let NatsLogin::Password { user, password } = config.bus().unwrap().unwrap().login else {
            panic!("a user");
        };
        assert_eq!((user.as_str(), password.as_str()), ("site-paris", "geheim"));
        let other = config.running(vec![site("virginia")]).unwrap();
        let error = other.bus().unwrap_err().to_string();
        assert!(error.contains("virginia.password"), "{error}");
    }

    #[test]
    fn a_secret_is_64_hex_digits_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, format!("{}\n", "0f".repeat(32))).unwrap();
        let mut fleet = FleetConfig {
            secret_file: Some(file.clone()),
            ..FleetConfig::default()
        };
        let secret = fleet.secret().unwrap().unwrap();
        assert_eq!(secret.bytes(), [15; 32]);
        assert_eq!(format!("{secret:?}"), "FleetSecret(..)");
        std::fs::write(&file, "0f0f").unwrap();
        let error = fleet.secret().unwrap_err().to_string();
        assert!(
            error.contains("64 hex digits") && !error.contains("0f0f"),
            "{error}"
        );
        fleet.secret = Some(secret);
        assert_eq!(
            fleet.secret().unwrap(),
            Some(secret),
            "what was given goes before the file"
        );
    }
}
