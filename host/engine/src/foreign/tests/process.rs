//! Processes that the host starts.

use super::world::*;
use super::*;
use std::sync::atomic::Ordering::Relaxed;

/// A server in a shell's children that answers health and nothing else, so that it is never up; it says its number.
fn sleeper(log: &std::path::Path) -> CommandConfig {
    CommandConfig {
        command: ["sh", "-c", "echo started $$ $WORD; sleep 600 & wait"]
            .map(str::to_owned)
            .to_vec(),
        env: vec![("WORD".to_owned(), "hello".to_owned())],
        log: log.to_owned(),
        ready_within: Duration::from_secs(60),
    }
}

fn lines(log: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn runs(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .any(|line| line.starts_with("State:") && !line.contains('Z'))
}

#[tokio::test]
async fn a_process_is_started_logged_started_again_and_ended_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("logs/v1.log");
    let config = ForeignConfig {
        command: Some(sleeper(&log)),
        ..config("127.0.0.1:9".parse().unwrap())
    };
    let instance = ForeignInstance::start(config).unwrap();
    until("it was started", || lines(&log).len() == 1).await;
    let line = lines(&log).remove(0);
    let pid = line.split(' ').nth(1).unwrap().to_owned();
    assert!(line.ends_with("hello") && runs(&pid), "{line}");
    std::process::Command::new("kill").arg(&pid).status().unwrap();
    until("it was started again", || lines(&log).len() == 2).await;
    assert_eq!(instance.shared.counts.starts.load(Relaxed), 2);
    let second = lines(&log)[1].split(' ').nth(1).unwrap().to_owned();
    assert!(runs(&second));
    drop(instance);
    until("it was ended", || !runs(&second)).await;
}

#[tokio::test]
async fn one_that_does_not_answer_in_time_is_stopped_and_what_cannot_be_started_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("v1.log");
    let command = CommandConfig {
        ready_within: Duration::from_millis(200),
        ..sleeper(&log)
    };
    let slow = ForeignConfig {
        command: Some(command),
        ..config("127.0.0.1:9".parse().unwrap())
    };
    let _instance = ForeignInstance::start(slow).unwrap();
    until("it was stopped and started again", || lines(&log).len() >= 2).await;
    let first = lines(&log)[0].split(' ').nth(1).unwrap().to_owned();
    assert!(!runs(&first));
    let command = CommandConfig {
        command: vec!["/no/such/program".to_owned()],
        ..sleeper(&log)
    };
    let missing = ForeignConfig {
        command: Some(command),
        ..config("127.0.0.1:9".parse().unwrap())
    };
    let missing = ForeignInstance::start(missing).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(missing.shared.counts.starts.load(Relaxed), 0);
    let locked = CommandConfig {
        log: "/proc/no/log".into(),
        ..sleeper(&log)
    };
    let locked = ForeignConfig {
        command: Some(locked),
        ..config("127.0.0.1:9".parse().unwrap())
    };
    assert!(matches!(
        ForeignInstance::start(locked),
        Err(ForeignError::Log { .. })
    ));
}
