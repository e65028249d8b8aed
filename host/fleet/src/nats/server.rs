//! A `nats-server` of one's own, for demos and tests: on a free port of this machine, ended with its handle.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum NatsServerError {
    /// It is not installed.
    #[error("nats-server is not installed: it is Debian's package of that name")]
    Missing,
    /// It cannot be started.
    #[error("nats-server cannot be started: {0}")]
    Start(#[from] io::Error),
    /// It does not listen.
    #[error("nats-server does not listen after {PATIENCE:?}; its log: {0}")]
    Silent(String),
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct NatsServer {
    child: Child,
    folder: PathBuf,
    configuration: String,
    port: u16,
}

impl NatsServer {
    /// Starts a server that keeps what it has in `folder`, which has to exist. `configuration` is added to its file.
    ///
    /// # Errors
    /// When it is not installed, or does not come to listen.
    pub fn start(folder: &Path, configuration: &str) -> Result<Self, NatsServerError> {
        let (child, port) = launch(folder, configuration, None)?;
        Ok(Self {
            child,
            folder: folder.to_owned(),
            configuration: configuration.to_owned(),
            port,
        })
    }

    /// Kills it at once.
    pub fn kill(&mut self) {
        // A process that has ended cannot be killed, which is as well.
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Starts it again on the same port and folder after [`NatsServer::kill`].
    ///
    /// # Errors
    /// As [`NatsServer::start`].
    pub fn restart(&mut self) -> Result<(), NatsServerError> {
        self.kill();
        (self.child, self.port) = launch(&self.folder, &self.configuration, Some(self.port))?;
        Ok(())
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn launch(folder: &Path, configuration: &str, port: Option<u16>) -> Result<(Child, u16), NatsServerError> {
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    let port_line = port.map_or("-1".to_owned(), |port| port.to_string());
    let text = format!(
        "host: 127.0.0.1\nport: {port_line}\nports_file_dir: {}\njetstream: {{store_dir: {}}}\n{configuration}\n",
        quoted(folder),
        quoted(&folder.join("jetstream")),
    );
    let (file, log) = (folder.join("nats.conf"), folder.join("nats.log"));
    fs::write(&file, text)?;
    let out = fs::File::create(&log)?;
    let child = Command::new("nats-server")
        .arg("-c")
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn();
    let mut child = child.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => NatsServerError::Missing,
        _ => NatsServerError::Start(error),
    })?;
    let ports = folder.join(format!("nats-server_{}.ports", child.id()));
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let said = port.or_else(|| port_of(&ports));
        if let Some(port) = said.filter(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok()) {
            return Ok((child, port));
        }
        if child.try_wait()?.is_some() {
            break;
        }
        std::thread::sleep(LOOK);
    }
    drop(child.kill());
    drop(child.wait());
    Err(NatsServerError::Silent(
        fs::read_to_string(&log).unwrap_or_default(),
    ))
}

/// The port in the file that a server writes once it listens: `{"nats": ["nats://127.0.0.1:PORT"], …}`, or `tls://`.
fn port_of(ports: &Path) -> Option<u16> {
    let text = fs::read_to_string(ports).ok()?;
    let (_, rest) = text.split_once("://127.0.0.1:")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}
