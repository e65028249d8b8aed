//! A connection to the server: login, encryption, reconnecting.

use super::counters::Counters;
use async_nats::{Auth, AuthError, Client, ConnectOptions, ServerAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Time between two tries to reach a server, at most: a server that comes back is found within a lease of five seconds.
const RETRY_AT_MOST: Duration = Duration::from_secs(1);

/// A server that does not answer pings for twice this long is given up. Heartbeats come twice a second, so that a site
/// is taken for silent after five seconds; the connection must not be believed for much longer.
const PING: Duration = Duration::from_secs(2);

/// How to reach the bus.
#[derive(Clone, Debug)]
pub struct NatsConfig {
    /// The fleet's name: first part of each subject.
    pub name: String,
    /// `nats://HOST:PORT` of each server.
    pub servers: Vec<String>,
    /// Who the process is.
    pub login: NatsLogin,
    /// Encryption; none: as the server wants it.
    pub tls: Option<NatsTls>,
}

/// Who a process is to the server. Passwords and tokens are read anew for each connection: one that was changed at the
/// servers is changed here without a restart.
#[derive(Clone, Debug, Default)]
pub enum NatsLogin {
    /// Nobody in particular, or whom its certificate names.
    #[default]
    None,
    /// A user.
    Password {
        /// Its name.
        user: String,
        /// The file of its password.
        file: PathBuf,
    },
    /// The file of a token.
    Token(PathBuf),
    /// A file of user JWT and seed, read once.
    Credentials(PathBuf),
}

/// PEM files.
#[derive(Clone, Debug)]
pub struct NatsTls {
    /// The authority that signed the servers' certificates; none: those of the system.
    pub ca: Option<PathBuf>,
    /// The process's own certificate and key, where the servers ask for one.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// Why there is no bus.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// An address is none.
    #[error("{address} is no address of a NATS server ({detail}): write nats://HOST:PORT")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The login's file cannot be used.
    #[error("the credentials {file} cannot be used: {source}")]
    Credentials {
        /// Which file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The connection cannot be set up, whatever the server.
    #[error("the connection to NATS cannot be set up: {0}")]
    Connect(String),
    /// A subject cannot be read.
    #[error("a subject of the bus cannot be read: {0}")]
    Subscribe(String),
}

/// Begins to connect, and goes on trying. Answers come under `inbox`.
pub(super) async fn connect(
    config: &NatsConfig,
    counters: &Arc<Counters>,
    inbox: String,
) -> Result<Client, NatsError> {
    let servers: Vec<ServerAddr> = config
        .servers
        .iter()
        .map(|s| address(s))
        .collect::<Result<_, _>>()?;
    let counted = Arc::clone(counters);
    let options = logged_in(&config.login)
        .await?
        .name("portolan")
        .custom_inbox_prefix(inbox)
        .no_echo()
        .retry_on_initial_connect()
        .ping_interval(PING)
        .reconnect_delay_callback(|tries| RETRY_AT_MOST.min(Duration::from_millis(50 << tries.min(5))))
        .event_callback(move |event| {
            counted.event(&event);
            std::future::ready(())
        });
    let connected = encrypted(options, config.tls.as_ref()).connect(servers).await;
    connected.map_err(|error| NatsError::Connect(error.to_string()))
}

fn address(text: &str) -> Result<ServerAddr, NatsError> {
    text.parse().map_err(|error: std::io::Error| NatsError::Address {
        address: text.to_owned(),
        detail: error.to_string(),
    })
}

async fn logged_in(login: &NatsLogin) -> Result<ConnectOptions, NatsError> {
    let unusable = |file: &Path| {
        let file = file.to_owned();
        |source| NatsError::Credentials { file, source }
    };
    Ok(match login.clone() {
        NatsLogin::None => ConnectOptions::new(),
        NatsLogin::Password { user, file } => {
            word(&file).map_err(unusable(&file))?;
            asked_anew(file, move |password| {
                let mut auth = Auth::new();
                (auth.username, auth.password) = (Some(user.clone()), Some(password));
                auth
            })
        }
        NatsLogin::Token(file) => {
            word(&file).map_err(unusable(&file))?;
            asked_anew(file, |token| {
                let mut auth = Auth::new();
                auth.token = Some(token);
                auth
            })
        }
        NatsLogin::Credentials(file) => {
            let read = ConnectOptions::new().credentials_file(&file).await;
            read.map_err(unusable(&file))?
        }
    })
}

/// Logs in with the word that a file holds when a connection is made.
fn asked_anew(file: PathBuf, login: impl Fn(String) -> Auth + Send + Sync + 'static) -> ConnectOptions {
    ConnectOptions::with_auth_callback(move |_| {
        let read = word(&file).map_err(|error| AuthError::new(format!("{}: {error}", file.display())));
        std::future::ready(read.map(&login))
    })
}

/// The one word of a file. A file of some bytes: reading it holds nothing up.
fn word(file: &Path) -> std::io::Result<String> {
    std::fs::read_to_string(file).map(|text| text.trim().to_owned())
}

fn encrypted(options: ConnectOptions, tls: Option<&NatsTls>) -> ConnectOptions {
    let Some(tls) = tls else { return options };
    let mut options = options.require_tls(true);
    if let Some(ca) = &tls.ca {
        options = options.add_root_certificates(ca.clone());
    }
    match &tls.own {
        Some((certificate, key)) => options.add_client_certificate(certificate.clone(), key.clone()),
        None => options,
    }
}
