//! A server of S3 that others wrote: PyPI's `moto[server]`. It is started by the tests and ends with them.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long it may take to start.
const STARTS: Duration = Duration::from_secs(60);

/// Keys of one page of a list: so few that lists have pages.
pub(super) const PAGE: usize = 3;

pub(super) struct Moto {
    child: Child,
    endpoint: String,
}

impl Moto {
    /// None, said aloud, where there is no `moto_server` and it was not insisted on.
    pub(super) fn start() -> Option<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let spawned = Command::new("moto_server")
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .env("MOTO_S3_DEFAULT_MAX_KEYS", PAGE.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) if std::env::var_os("PORTOLAN_TEST_S3").is_none() => {
                eprintln!("SKIPPED: moto_server cannot be run ({error}); pip install 'moto[server]'");
                return None;
            }
            Err(error) => panic!("moto_server: {error}"),
        };
        let endpoint = format!("http://127.0.0.1:{port}");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        // Read to the end: a server whose words nobody takes stops.
        std::thread::spawn(move || while lines.next().is_some_and(|line| line.is_ok()) {});
        let server = Self { child, endpoint };
        let began = Instant::now();
        while ureq::put(server.bucket()).send(&[] as &[u8]).is_err() {
            assert!(began.elapsed() < STARTS, "moto_server does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(server)
    }

    pub(super) fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    fn bucket(&self) -> String {
        format!("{}/backups", self.endpoint)
    }

    pub(super) fn stop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        self.stop();
    }
}
