//! What policies keep between calls, in a folder of its own beside the store.
//!
//! Calls read and write memory; a thread writes what changed to disk once a second, and [`SledState::close`] writes the
//! rest. So a call costs no more than without a disk, and what is lost by `kill -9` is the last second: `state` holds
//! counters and hints, not what was acknowledged to anyone. Whoever must know that something is on disk calls
//! [`SledState::flush`].
//!
//! The disk has pages of keys and not single keys, and is begun anew when it holds more than it should: see `disk.rs`.

mod disk;
mod memory;
mod record;

use crate::files;
use disk::Disk;
use memory::Memory;
use parking_lot::Mutex;
use portolan_base::{Clock, Moment};
use portolan_ports::{Entry, PolicyState, QuotaBook, Scope, StateSpace, StateUsed, StateValue, StoreError};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often changes are written: a second's worth of counters is what a crash may cost.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// A [`PolicyState`] that survives restarts.
pub struct SledState {
    memory: Arc<Memory>,
    writer: Mutex<Option<Writer>>,
}

/// The thread that writes, and how to reach it. It ends when `asked` is dropped.
struct Writer {
    asked: Sender<Flush>,
    thread: JoinHandle<()>,
}

/// Somebody waits until everything is on disk, or the reason why it is not.
struct Flush(SyncSender<Result<(), StoreError>>);

impl fmt::Debug for SledState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SledState({} spaces)", self.memory.len())
    }
}

impl SledState {
    /// Opens the state in `folder`, or begins one there, and reads it into memory. `clock` tells what ended meanwhile.
    ///
    /// # Errors
    /// [`StoreError::InUse`] when another process has it open, [`StoreError::Io`] when the folder cannot be used,
    /// [`StoreError::Damaged`] when a record does not read back.
    pub fn open(folder: &Path, quotas: QuotaBook, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let memory = Arc::new(Memory::new(quotas));
        let mut disk = Disk::open(folder, Arc::clone(&memory), clock)?;
        let (asked, asks) = channel::<Flush>();
        let work = move || {
            let mut is_failing = false;
            loop {
                let ask = asks.recv_timeout(WRITE_EVERY);
                let written = disk.write();
                // Once for all tries: a disk may be full for hours.
                if let (Err(error), false) = (&written, is_failing) {
                    tracing::error!(%error, "policy state could not be written; it is tried again every second");
                }
                is_failing = written.is_err();
                match ask {
                    // Who does not wait any more is told nothing.
                    Ok(Flush(answer)) => drop(answer.try_send(written)),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("policy-state".into())
            .spawn(work)
            .map_err(|e| files::io(folder, &e))?;
        Ok(Self {
            memory,
            writer: Mutex::new(Some(Writer { asked, thread })),
        })
    }

    /// Returns when every change that was made before is on disk.
    ///
    /// # Errors
    /// The reason why they are not. After [`SledState::close`] they never are.
    pub fn flush(&self) -> Result<(), StoreError> {
        let closed = || StoreError::Io("policy state is closed".to_owned());
        let (answer, answered) = sync_channel(1);
        let asked = self.writer.lock().as_ref().map(|writer| writer.asked.clone());
        let sent = asked.ok_or_else(closed)?.send(Flush(answer));
        sent.map_err(|_| closed())?;
        answered.recv().map_err(|_| closed())?
    }

    /// Writes what is not on disk yet and closes the files. Later changes stay in memory.
    pub fn close(&self) {
        let Some(writer) = self.writer.lock().take() else {
            return;
        };
        drop(writer.asked);
        if writer.thread.join().is_err() {
            tracing::error!("the thread that writes policy state failed; its last changes are lost");
        }
    }
}

impl Drop for SledState {
    fn drop(&mut self) {
        self.close();
    }
}

impl PolicyState for SledState {
    fn get(&self, space: &StateSpace, key: &str, now: Moment) -> Option<u64> {
        self.memory.known(space)?.get(key, now)
    }

    fn set(&self, space: &StateSpace, entry: Entry<'_>, now: Moment) -> bool {
        let value = StateValue {
            number: entry.value,
            expires: entry.ttl.map(|ttl| now + ttl),
        };
        self.memory.space(space).set(entry.key, value, now)
    }

    fn add(&self, space: &StateSpace, key: &str, delta: i64, now: Moment) -> u64 {
        self.memory.space(space).add(key, delta, now)
    }

    fn used(&self, scope: &Scope) -> StateUsed {
        self.memory.usage(scope).used()
    }
}

#[cfg(test)]
mod tests;
