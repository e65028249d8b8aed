//! What is taken for another process, and what is not.

use super::world::*;
use super::*;
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

/// What a server's `/health` and `/metrics` answer.
type Said = Arc<Mutex<(u16, u16, &'static str)>>;

const WELL: u16 = 200;
const ILL: u16 = 503;

/// A server that answers as it is told to, and an instance of it.
async fn told(said: &Said) -> (ForeignInstance, JoinSet<()>) {
    let (address, server) = tells(said).await;
    (up(config(address)).await, server)
}

async fn tells(said: &Said) -> (SocketAddr, JoinSet<()>) {
    let says = Arc::clone(said);
    server(move |got, mut stream| {
        let (health, metrics, page) = *says.lock();
        async move {
            let line = got.head.lines().next().unwrap_or_default().to_owned();
            let (status, body) = match () {
                () if line.contains("/health") => (health, ""),
                () if line.contains("/metrics") => (metrics, page),
                () => return write(&mut stream, housekeeping(&got).unwrap_or_default()).await,
            };
            let answer = format!(
                "HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            write(&mut stream, answer.as_bytes()).await;
        }
    })
    .await
}

/// Starts of another process that were seen.
fn starts(instance: &ForeignInstance) -> u64 {
    instance.shared.counts.starts.load(Relaxed)
}

/// Longer than two looks.
const LOOKS: Duration = Duration::from_millis(1300);

#[tokio::test]
async fn a_page_that_does_not_come_once_is_no_other_process() {
    const PAGE: &str = "process_start_time_seconds 5\nvllm:num_requests_running 1\n";
    let said = Said::new(Mutex::new((WELL, WELL, PAGE)));
    let (instance, _server) = told(&said).await;
    *said.lock() = (WELL, ILL, "");
    tokio::time::sleep(LOOKS).await;
    *said.lock() = (WELL, WELL, PAGE);
    tokio::time::sleep(LOOKS).await;
    assert!(instance.is_up());
    assert_eq!(starts(&instance), 0);
    *said.lock() = (WELL, WELL, "process_start_time_seconds 6\n");
    until("another one is seen", || starts(&instance) == 1).await;
}

#[tokio::test]
async fn one_that_was_gone_and_says_no_start_time_is_another_process() {
    let said = Said::new(Mutex::new((WELL, WELL, "sglang:num_running_reqs 1\n")));
    let (instance, _server) = told(&said).await;
    assert_eq!(starts(&instance), 0, "the first");
    *said.lock() = (ILL, WELL, "");
    until("it is down", || !instance.is_up()).await;
    *said.lock() = (WELL, WELL, "");
    until("it is up again", || instance.is_up()).await;
    assert_eq!(starts(&instance), 1);
}

#[tokio::test]
async fn a_process_that_hangs_after_it_was_up_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("v1.log");
    let said = Said::new(Mutex::new((ILL, WELL, "")));
    let (address, _server) = tells(&said).await;
    let command = CommandConfig {
        command: ["sh", "-c", "echo started; sleep 600"]
            .map(str::to_owned)
            .to_vec(),
        env: Vec::new(),
        log: log.clone(),
        ready_within: Duration::from_secs(3),
    };
    let instance = ForeignInstance::start(ForeignConfig {
        command: Some(command),
        ..config(address)
    })
    .unwrap();
    let begun = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    until("it was started", || begun() == 1).await;
    said.lock().0 = WELL;
    until("it is up", || instance.is_up()).await;
    tokio::time::sleep(Duration::from_millis(3500)).await;
    assert_eq!(begun(), 1, "one that answers is left alone");
    said.lock().0 = ILL;
    until("it was started again", || begun() == 2).await;
}
