//! A connection to the server: login, encryption, reconnecting.

use super::counters::Counters;
use async_nats::{Client, ConnectOptions, ServerAddr};
use std::path::PathBuf;
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

/// Who a process is to the server.
#[derive(Clone, Default)]
pub enum NatsLogin {
    /// Nobody in particular, or whom its certificate names.
    #[default]
    None,
    /// A user.
    Password {
        /// Its name.
        user: String,
        /// Its password.
        password: String,
    },
    /// A token.
    Token(String),
    /// A file of user JWT and seed.
    Credentials(PathBuf),
}

impl std::fmt::Debug for NatsLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Password { user, .. } => write!(f, "Password({user}, ..)"),
            Self::Token(_) => f.write_str("Token(..)"),
            Self::Credentials(path) => write!(f, "Credentials({})", path.display()),
        }
    }
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
    let options = ConnectOptions::new()
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
    let options = encrypted(log_in(options, &config.login).await?, config.tls.as_ref());
    let connected = options.connect(servers).await;
    connected.map_err(|error| NatsError::Connect(error.to_string()))
}

fn address(text: &str) -> Result<ServerAddr, NatsError> {
    text.parse().map_err(|error: std::io::Error| NatsError::Address {
        address: text.to_owned(),
        detail: error.to_string(),
    })
}

async fn log_in(options: ConnectOptions, login: &NatsLogin) -> Result<ConnectOptions, NatsError> {
    Ok(match login {
        NatsLogin::None => options,
        NatsLogin::Password { user, password } => options.user_and_password(user.clone(), password.clone()),
        NatsLogin::Token(token) => options.token(token.clone()),
        NatsLogin::Credentials(file) => {
            let read = options.credentials_file(file).await;
            read.map_err(|source| NatsError::Credentials {
                file: file.clone(),
                source,
            })?
        }
    })
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
