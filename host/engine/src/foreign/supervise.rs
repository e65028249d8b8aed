//! An engine's process, where the host starts it: its log, its readiness, its restarts, its end.

use super::{ForeignError, Shared};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The pause before a start that follows a failure, doubled with each up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A process that ran so long has recovered: its next failure is the first again.
const RECOVERED: Duration = Duration::from_secs(300);

/// How long a process may take to end once it was asked to; then it is killed.
const GRACE: Duration = Duration::from_secs(10);

/// How long an engine that is there already is looked for before one is started.
const LOOK: Duration = Duration::from_millis(500);

/// How an engine is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandConfig {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables for it beside the host's own.
    pub env: Vec<(String, String)>,
    /// Where what it prints goes.
    pub log: PathBuf,
    /// How long it may take until it answers, or not answer later on; vLLM takes minutes to start.
    pub ready_within: Duration,
}

/// Opens the log, at its end.
pub(super) fn open_log(config: &CommandConfig) -> Result<File, ForeignError> {
    if let Some(folder) = config.log.parent() {
        // Where this fails, opening says why.
        let _ = std::fs::create_dir_all(folder);
    }
    let log = OpenOptions::new().create(true).append(true).open(&config.log);
    log.map_err(|e| ForeignError::Log {
        path: config.log.clone(),
        reason: e.to_string(),
    })
}

/// Keeps the process running.
pub(super) async fn run(shared: Arc<Shared>, config: CommandConfig, log: File) {
    let name = shared.description.instance.clone();
    let mut pause = FIRST_PAUSE;
    loop {
        // One that outlived the host before this one is as good as a new one.
        if shared
            .upstream
            .get("/health", LOOK)
            .await
            .is_ok_and(|(status, _)| status.is_success())
        {
            tokio::time::sleep(FIRST_PAUSE).await;
            continue;
        }
        let begun = Instant::now();
        match Process::start(&config, &log) {
            Err(reason) => tracing::error!(instance = %name, reason, "its process cannot be started"),
            Ok(process) => {
                tracing::info!(instance = %name, pid = process.pid, log = %config.log.display(), "started");
                shared.counts.starts.fetch_add(1, Ordering::Relaxed);
                let why = attend(&shared, process, config.ready_within).await;
                tracing::error!(instance = %name, why, again_after = ?pause, "its process ended");
            }
        }
        if begun.elapsed() > RECOVERED {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Waits until the process ends, or has not answered for too long; says why. One that hangs after months is given as long as
/// one that starts: no shorter time tells it from one that is busy.
async fn attend(shared: &Shared, mut process: Process, ready_within: Duration) -> String {
    let silent = async {
        let mut answered = Instant::now();
        while answered.elapsed() < ready_within {
            tokio::time::sleep(LOOK.min(ready_within)).await;
            if shared.up.load(Ordering::Acquire) {
                answered = Instant::now();
            }
        }
    };
    tokio::select! {
        ended = process.ended() => ended,
        () = silent => format!("it did not answer for {ready_within:?} and is stopped"),
    }
}

/// A process with all its children. Dropping it asks them to end, and kills what does not.
struct Process {
    pid: u32,
    ended: Option<oneshot::Receiver<std::io::Result<ExitStatus>>>,
}

impl Process {
    fn start(config: &CommandConfig, log: &File) -> Result<Self, String> {
        let [program, arguments @ ..] = config.command.as_slice() else {
            return Err("its command is empty".to_owned());
        };
        let clone = || log.try_clone().map(Stdio::from).map_err(|e| e.to_string());
        let mut child = Command::new(program)
            .args(arguments)
            .envs(config.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(clone()?)
            .stderr(clone()?)
            // vLLM's workers are processes of their own: they end together.
            .process_group(0)
            .spawn()
            .map_err(|e| format!("{program}: {e}"))?;
        let pid = child.id();
        let (told, ended) = oneshot::channel();
        let wait = move || drop(told.send(Child::wait(&mut child)));
        let thread = std::thread::Builder::new()
            .name("engine-process".to_owned())
            .spawn(wait);
        thread.map_err(|e| e.to_string())?;
        Ok(Self {
            pid,
            ended: Some(ended),
        })
    }

    fn group(&self) -> Option<Pid> {
        i32::try_from(self.pid).ok().and_then(Pid::from_raw)
    }

    /// Waits for its end, and says how it ended.
    async fn ended(&mut self) -> String {
        let Some(ended) = &mut self.ended else {
            return "it had ended".to_owned();
        };
        let how = match ended.await {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "nobody waited for it".to_owned(),
        };
        self.ended = None;
        // What it leaves behind would hold its port and its memory.
        if let Some(group) = self.group() {
            let _ = kill_process_group(group, Signal::KILL);
        }
        how
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(mut ended) = self.ended.take() else {
            return;
        };
        let Some(group) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return;
        };
        let _ = kill_process_group(group, Signal::TERM);
        // The thread that waits for it holds its number: it is nobody else's until that thread is told.
        let wait = move || {
            let until = Instant::now() + GRACE;
            while Instant::now() < until {
                if !matches!(ended.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = kill_process_group(group, Signal::KILL);
        };
        // Without a thread to wait in there is no grace.
        if std::thread::Builder::new()
            .name("engine-stop".to_owned())
            .spawn(wait)
            .is_err()
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
