//! A control stream of one process: what it acknowledged lies flushed in a file.

use super::file::{self, Contents, EVENT_MAX_BYTES, Id, LogFile};
use super::held::{Bounds, Held};
use async_trait::async_trait;
use parking_lot::Mutex;
use portolan_base::{Random, Sequence};
use portolan_ports::{
    ControlEntries, ControlEntry, ControlError, ControlEvent, ControlStream, Cursor, StreamId,
};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tokio::sync::{oneshot, watch};

/// Positions reserved at a time: one write for so many beats.
const RESERVE: u64 = 1 << 14;

/// Most events that share a flush. They wait for it together.
const GROUP_MAX: usize = 1024;

/// Why a stream cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("the control stream at {place} cannot be opened: {source}")]
pub struct OpenControlError {
    /// The file.
    place: String,
    source: std::io::Error,
}

/// A [`ControlStream`] in one file. Orders are flushed before they are acknowledged or followed, those that come
/// together in one go; beats are not written.
#[derive(Debug)]
pub struct EmbeddedControl {
    shared: Arc<Shared>,
    orders: Option<mpsc::Sender<Append>>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stream: StreamId,
    held: Mutex<Held>,
    /// The last position that was given.
    last: watch::Sender<Sequence>,
}

#[derive(Debug)]
struct Append {
    event: ControlEvent,
    /// Empty where nothing has to be written.
    bytes: Vec<u8>,
    done: oneshot::Sender<Result<Sequence, ControlError>>,
}

impl EmbeddedControl {
    /// Opens the stream in `folder`, or founds one. One whose file is damaged is set aside and founded anew: whoever
    /// followed it will forget what it could have been about.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn open(folder: &Path, random: &dyn Random) -> Result<Self, OpenControlError> {
        Self::open_within(Bounds::default(), folder, random)
    }

    /// The same, which keeps so much.
    pub(super) fn open_within(
        bounds: Bounds,
        folder: &Path,
        random: &dyn Random,
    ) -> Result<Self, OpenControlError> {
        let path = folder.join("control.log");
        let failed = |source| OpenControlError {
            place: path.display().to_string(),
            source,
        };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let (file, contents) = open_file(&path, random).map_err(failed)?;
        let shared = Arc::new(Shared {
            stream: StreamId(format!("embedded-{:032x}", u128::from_be_bytes(contents.id))),
            held: Mutex::new(Held::new(bounds, contents.entries, contents.dropped)),
            last: watch::Sender::new(contents.reserved),
        });
        let writer = Writer {
            path: path.clone(),
            id: contents.id,
            file,
            reserved: contents.reserved,
            retry_at: 0,
            shared: Arc::clone(&shared),
        };
        let (orders, waiting) = mpsc::channel();
        let thread = std::thread::Builder::new().name("control-stream".to_owned());
        let writer = thread.spawn(move || writer.run(&waiting)).map_err(failed)?;
        Ok(Self {
            shared,
            orders: Some(orders),
            writer: Some(writer),
        })
    }
}

impl Drop for EmbeddedControl {
    /// Waits for what is being written.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the control stream's writer ended in a panic");
        }
    }
}

/// Reads the file, or founds a stream where there is none that can be used.
fn open_file(path: &Path, random: &dyn Random) -> std::io::Result<(LogFile, Contents)> {
    match std::fs::read(path) {
        Ok(bytes) => match file::read(&bytes) {
            Ok(contents) => return Ok((LogFile::open(path, &contents)?, contents)),
            Err(damage) => {
                let aside = path.with_extension("damaged");
                tracing::error!(file = %path.display(), at = damage.at, aside = %aside.display(),
                    "the control stream's file is damaged and set aside; every site forgets what it cached");
                std::fs::rename(path, aside)?;
            }
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let id = u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
    let contents = Contents::empty(id.to_be_bytes());
    Ok((LogFile::replace(path, &contents)?, contents))
}

/// The thread that writes.
struct Writer {
    path: PathBuf,
    id: Id,
    file: LogFile,
    /// Positions up to here are never given to another process.
    reserved: Sequence,
    /// How long the file has to be before it is written anew, where that has failed.
    retry_at: u64,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(mut self, waiting: &mpsc::Receiver<Append>) {
        while let Ok(first) = waiting.recv() {
            let mut group = vec![first];
            group.extend(waiting.try_iter().take(GROUP_MAX - 1));
            let given = self.write(&group);
            if given.is_ok() {
                self.tell(&group);
            }
            self.answer(group, given);
            self.rewrite_if_long();
        }
    }

    /// Puts what has to be kept on disk. The group gets the positions after the last one.
    fn write(&mut self, group: &[Append]) -> std::io::Result<Sequence> {
        let mut next = self.shared.last.borrow().next();
        let before = next;
        let mut records = Vec::new();
        let end = Sequence(next.0 + group.len() as u64);
        let reserved = if end > self.reserved {
            let reserved = Sequence(end.0 + RESERVE);
            file::record(&self.id, reserved, &[], &mut records);
            reserved
        } else {
            self.reserved
        };
        for append in group {
            if !append.bytes.is_empty() {
                file::record(&self.id, next, &append.bytes, &mut records);
            }
            next = next.next();
        }
        if !records.is_empty() {
            self.file.add(&records)?;
        }
        self.reserved = reserved;
        Ok(before)
    }

    fn tell(&self, group: &[Append]) {
        let mut sequence = *self.shared.last.borrow();
        let mut held = self.shared.held.lock();
        for append in group {
            sequence = sequence.next();
            held.push(ControlEntry {
                sequence,
                event: append.event.clone(),
            });
        }
        drop(held);
        self.shared.last.send_replace(sequence);
    }

    fn answer(&self, group: Vec<Append>, given: std::io::Result<Sequence>) {
        let mut next = match given {
            Ok(first) => Ok(first),
            Err(error) => Err(ControlError::NotAcknowledged(format!(
                "{}: {error}",
                self.path.display()
            ))),
        };
        for append in group {
            // Whoever gave the order may have gone.
            let _ = append.done.send(next.clone());
            next = next.map(Sequence::next);
        }
    }

    /// Leaves out of the file what is not kept.
    fn rewrite_if_long(&mut self) {
        let held = self.shared.held.lock();
        let most = held.file_bytes_max();
        if self.file.len() < most.max(self.retry_at) {
            return;
        }
        let contents = Contents {
            entries: held.orders().cloned().collect(),
            dropped: held.dropped(),
            reserved: self.reserved,
            ..Contents::empty(self.id)
        };
        drop(held);
        match LogFile::replace(&self.path, &contents) {
            Ok(file) => {
                self.file = file;
                self.retry_at = 0;
            }
            Err(error) => {
                // Tried again once it is as much longer, not after each group.
                self.retry_at = self.file.len() + most;
                tracing::warn!(%error, "the control stream's file could not be made shorter");
            }
        }
    }
}

#[async_trait]
impl ControlStream for EmbeddedControl {
    async fn append(&self, event: ControlEvent) -> Result<Sequence, ControlError> {
        let refused = |why: String| ControlError::NotAcknowledged(why);
        let bytes = match &event {
            ControlEvent::Beat(_) => Vec::new(),
            order => order.to_bytes().map_err(|error| refused(error.to_string()))?,
        };
        if bytes.len() > EVENT_MAX_BYTES {
            return Err(refused(format!(
                "the order has {} bytes, at most {EVENT_MAX_BYTES} are kept",
                bytes.len()
            )));
        }
        let (done, acknowledged) = oneshot::channel();
        let gone = || refused("its writer has ended; restart the host".to_owned());
        let orders = self.orders.as_ref().ok_or_else(gone)?;
        orders.send(Append { event, bytes, done }).map_err(|_| gone())?;
        acknowledged.await.map_err(|_| gone())?
    }

    async fn follow(&self, after: Option<&Cursor>) -> Result<Box<dyn ControlEntries>, ControlError> {
        let held = self.shared.held.lock();
        let at = match after {
            Some(cursor) if cursor.stream != self.shared.stream => {
                return Err(ControlError::Lost {
                    from: cursor.sequence,
                    why: "it is another stream".to_owned(),
                });
            }
            Some(cursor) => {
                held.check(cursor.sequence, *self.shared.last.borrow())?;
                cursor.sequence
            }
            None => Sequence::NONE,
        };
        Ok(Box::new(Entries {
            shared: Arc::clone(&self.shared),
            last: self.shared.last.subscribe(),
            at,
            begun_without: if after.is_some() {
                Sequence::NONE
            } else {
                held.dropped()
            },
        }))
    }
}

struct Entries {
    shared: Arc<Shared>,
    last: watch::Receiver<Sequence>,
    at: Sequence,
    /// Orders up to here may have been dropped before following began with no cursor.
    begun_without: Sequence,
}

impl Entries {
    fn take(&mut self) -> Result<Option<ControlEntry>, ControlError> {
        let held = self.shared.held.lock();
        if held.dropped() > self.begun_without {
            held.check(self.at, Sequence(u64::MAX))?;
        }
        let next = held.after(self.at).cloned();
        if let Some(entry) = &next {
            self.at = entry.sequence;
        }
        Ok(next)
    }
}

#[async_trait]
impl ControlEntries for Entries {
    fn stream(&self) -> &StreamId {
        &self.shared.stream
    }

    async fn next(&mut self) -> Result<ControlEntry, ControlError> {
        loop {
            self.last.borrow_and_update();
            if let Some(entry) = self.take()? {
                return Ok(entry);
            }
            if self.last.changed().await.is_err() {
                return Err(ControlError::Cut("the process is ending".to_owned()));
            }
        }
    }

    fn next_ready(&mut self) -> Option<ControlEntry> {
        self.take().ok().flatten()
    }
}
