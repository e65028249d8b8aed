//! The watched folder: a door for operators to the same desk that the admin API uses.
//!
//! ```text
//! policies/_platform/routing.wasm     bound for the platform
//! policies/acme/routing.wasm          bound for tenant acme
//! policies/acme/routing.json          its configuration; optional. Put it there before the component
//! policies/acme/routing.wasm.sig      its signatures, where they are demanded. Put them there before the component
//! policies/acme/routing.wasm.error    written here when the component was refused: what is wrong, how to mend it
//! ```
//!
//! A file is taken when it is complete: its size and time have not changed for [`SETTLE`], or it appeared by a rename.
//! A file that is refused never replaces what is active, and is looked at again when it changes. Deleting a file
//! leaves its binding in force; unbind through the admin API. Where the API and the folder disagree, the later change
//! wins, across restarts too: at start a file that the store has seen is left alone unless it is younger than the last
//! binding.
//!
//! Symbolic links are refused, so that a file here cannot show the host a file elsewhere. File-system notifications
//! only make the host look sooner; it looks every [`RESCAN`] without them.

mod folder;
mod place;
mod scan;
mod settle;
mod take;
#[cfg(test)]
mod tests;

use folder::PolicyFolder;
use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind, RenameMode};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use portolan_base::Clock;
use portolan_gateway::policies::PolicyDesk;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a file must stay unchanged. Copying onto a local disk pauses for less; a copy that pauses for longer is
/// refused as torn and taken when it is whole.
pub const SETTLE: Duration = Duration::from_millis(500);

/// How often the folder is looked at while a file settles: twice within [`SETTLE`].
const POLL: Duration = Duration::from_millis(250);

/// How often the folder is looked at when nothing seems to happen. Network file systems send no notifications, and the
/// kernel drops them when its queue is full; five seconds is soon enough for an operator, and a scan of a hundred
/// tenants takes about a millisecond.
pub const RESCAN: Duration = Duration::from_secs(5);

/// Notifications kept while a component compiles. More are dropped: the next scan sees what they told.
const NOTIFICATIONS: usize = 1024;

/// The folder cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// It is not there and cannot be made.
    #[error("the policy folder {path} cannot be used")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The operating system gave no thread.
    #[error("the thread that watches policies could not be started")]
    Thread(#[source] std::io::Error),
}

/// Watches until it is dropped. Dropping waits for the watching thread, which holds the desk and with it the store; a
/// file that is being taken at that moment is finished first, which may take as long as compiling it.
#[derive(Debug)]
pub struct Watch {
    wake: SyncSender<Wake>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _notifier: Option<RecommendedWatcher>,
}

enum Wake {
    Look,
    Renamed(Vec<PathBuf>),
}

impl Watch {
    /// Makes `folder` if there is none, and watches it on a thread of its own, as taking a file compiles. Call it
    /// after the desk has restored its bindings.
    pub fn start(folder: PathBuf, desk: Arc<PolicyDesk>, clock: Arc<dyn Clock>) -> Result<Self, WatchError> {
        let made = std::fs::create_dir_all(&folder).and_then(|()| folder.canonicalize());
        let folder = made.map_err(|source| WatchError::Folder { path: folder, source })?;
        let (wake, woken) = sync_channel(NOTIFICATIONS);
        let notifier = notifier(&folder, wake.clone()).inspect_err(
            |error| tracing::warn!(%error, "no file notifications; the policy folder is scanned instead"),
        );
        let over = Arc::new(AtomicBool::new(false));
        let policies = PolicyFolder::new(folder, desk, Arc::clone(&over));
        let thread = std::thread::Builder::new()
            .name("policy-folder".into())
            .spawn(move || watch(policies, &woken, clock.as_ref()))
            .map_err(WatchError::Thread)?;
        Ok(Self {
            wake,
            over,
            thread: Some(thread),
            _notifier: notifier.ok(),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Where the queue is full, what is in it wakes the thread.
        let _ = self.wake.try_send(Wake::Look);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that watched policies had panicked");
        }
    }
}

fn notifier(folder: &std::path::Path, wake: SyncSender<Wake>) -> notify::Result<RecommendedWatcher> {
    let tell = move |event: notify::Result<notify::Event>| {
        let wanted = match event {
            Ok(event) => worth(event),
            Err(_) => Some(Wake::Look),
        };
        if let Some(wanted) = wanted {
            // Dropped when the queue is full: what is in the queue wakes the thread.
            let _ = wake.try_send(wanted);
        }
    };
    let config = notify::Config::default().with_follow_symlinks(false);
    let mut notifier = RecommendedWatcher::new(tell, config)?;
    notifier.watch(folder, RecursiveMode::Recursive)?;
    Ok(notifier)
}

/// What an event is worth. Reading is worth nothing: the scan itself reads, and would wake itself for ever.
fn worth(event: notify::Event) -> Option<Wake> {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(Wake::Look),
        EventKind::Access(_) => None,
        EventKind::Modify(ModifyKind::Name(RenameMode::To | RenameMode::Both)) => {
            Some(Wake::Renamed(event.paths))
        }
        _ => Some(Wake::Look),
    }
}

fn watch(mut policies: PolicyFolder, woken: &Receiver<Wake>, clock: &dyn Clock) {
    let mut renamed = BTreeSet::new();
    while !policies.is_over() {
        policies.look(clock.now(), &renamed);
        renamed.clear();
        let wait = if policies.is_settling() { POLL } else { RESCAN };
        let mut next = match woken.recv_timeout(wait) {
            Ok(wake) => Some(wake),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        while let Some(wake) = next {
            match wake {
                Wake::Look => {}
                Wake::Renamed(paths) => renamed.extend(paths),
            }
            next = woken.try_recv().ok();
        }
    }
}
