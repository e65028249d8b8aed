//! The carrier of this process: starts the NIXL process, asks it, ends it.

use super::arena::{Arena, Half, Lent};
use super::talk::{Answer, Ask, Invitation, hear, say};
use crate::carrier::{Carrier, CarrierError, Window};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use portolan_base::{Bytes as ByteCount, Random, TransferId};
use std::collections::HashMap;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Most of the memory for peers that one transfer gets: several share it.
const WINDOWS: u64 = 4;

/// How long a process that failed is left alone: long enough that one which cannot start costs nothing.
const COOL_DOWN: Duration = Duration::from_secs(10);

/// Loading the library and its plug-ins takes a second or two; devices that do not answer take longer.
const START: Duration = Duration::from_secs(20);

/// Saying something takes no time unless nobody hears it.
const SAY: Duration = Duration::from_secs(1);

/// How long memory rests that a transfer left before its end: its peer may still write there, no longer than it has
/// patience for one chunk.
const REST: Duration = Duration::from_secs(10);

/// How NIXL is used.
#[derive(Clone, Debug)]
pub struct NixlConfig {
    /// A program that calls [`super::work`] with what is put behind `arguments`: a path and a number.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Where `libnixl_capi.so` lies; none: where the system looks.
    pub libraries: Option<PathBuf>,
    /// Where NIXL's plug-ins lie; none: where the library looks.
    pub plugins: Option<PathBuf>,
    /// Memory that peers write into; as much again is for what is on its way to them.
    pub memory: ByteCount,
}

/// NIXL in another process.
pub struct NixlCarrier {
    config: NixlConfig,
    random: Arc<dyn Random>,
    state: tokio::sync::Mutex<State>,
}

enum State {
    /// Why it is not there, and until when that is taken for an answer.
    Down(Option<(CarrierError, Instant)>),
    Up(Arc<Process>),
}

struct Process {
    arena: Arc<Arena>,
    child: Mutex<Child>,
    socket: UnixStream,
    to: Mutex<UnixStream>,
    agent: Vec<u8>,
    base: u64,
    asked: Mutex<HashMap<u64, Asked>>,
    resting: Mutex<Vec<(Instant, Lent)>>,
    next: AtomicU64,
    dead: AtomicBool,
}

/// Something asked and not answered. Its piece of memory is not lent again before it is.
struct Asked {
    reply: oneshot::Sender<Result<(), CarrierError>>,
    _out: Lent,
}

impl NixlCarrier {
    /// Starts nothing yet: the process comes with the first order or chunk.
    pub fn new(config: NixlConfig, random: Arc<dyn Random>) -> Self {
        Self {
            config,
            random,
            state: tokio::sync::Mutex::new(State::Down(None)),
        }
    }

    /// Starts the process if it is not there; says why it cannot be.
    ///
    /// # Errors
    /// [`CarrierError::Unavailable`] when the program or the library is missing, for ten seconds without another try.
    pub async fn probe(&self) -> Result<(), CarrierError> {
        self.up().await.map(|_| ())
    }

    /// The process's id, while it is there.
    pub async fn process(&self) -> Option<u32> {
        match &*self.state.lock().await {
            State::Up(process) => Some(process.child.lock().id()),
            State::Down(_) => None,
        }
    }

    async fn up(&self) -> Result<Arc<Process>, CarrierError> {
        let mut state = self.state.lock().await;
        match &*state {
            State::Up(process) if !process.dead.load(Ordering::Acquire) => return Ok(Arc::clone(process)),
            State::Down(Some((error, until))) if Instant::now() < *until => return Err(error.clone()),
            _ => {}
        }
        let (config, name) = (self.config.clone(), TransferId::draw(&*self.random).0);
        let started = tokio::task::spawn_blocking(move || Process::start(&config, name)).await;
        let started = started.map_err(|error| CarrierError::Dead(error.to_string()));
        match started.and_then(|started| started) {
            Ok(process) => {
                *state = State::Up(Arc::clone(&process));
                Ok(process)
            }
            Err(error) => {
                *state = State::Down(Some((error.clone(), Instant::now() + COOL_DOWN)));
                Err(error)
            }
        }
    }
}

#[async_trait]
impl Carrier for NixlCarrier {
    async fn open(&self, bytes: u64) -> Result<Arc<dyn Window>, CarrierError> {
        let process = self.up().await?;
        let most = self.config.memory.0 / WINDOWS;
        let lent = process.lend(bytes.min(most).max(1))?;
        let invitation = Invitation {
            agent: process.agent.clone(),
            address: process.base + lent.at,
            bytes: lent.len,
        };
        let invitation = postcard::to_stdvec(&invitation).map_err(|e| CarrierError::Failed(e.to_string()))?;
        Ok(Arc::new(NixlWindow {
            process,
            lent: Mutex::new(Some(lent)),
            invitation,
            settled: AtomicBool::new(false),
        }))
    }

    async fn write(&self, invitation: &[u8], at: u64, bytes: Bytes) -> Result<(), CarrierError> {
        let invited: Invitation = postcard::from_bytes(invitation)
            .map_err(|_| CarrierError::Failed("the peer's window is not one of NIXL's".to_owned()))?;
        let len = bytes.len() as u64;
        let end = at.checked_add(len).filter(|end| *end <= invited.bytes);
        let to = end.and_then(|_| invited.address.checked_add(at));
        let to = to.ok_or_else(|| CarrierError::Failed("beyond the peer's window".to_owned()))?;
        let process = self.up().await?;
        let out = process.arena.lend(Half::Out, len).ok_or(CarrierError::Full)?;
        out.write(0, &bytes)
            .map_err(|error| CarrierError::Failed(error.to_string()))?;
        let (reply, answer) = oneshot::channel();
        let number = process.next.fetch_add(1, Ordering::Relaxed);
        let ask = Ask::Write {
            number,
            agent: invited.agent,
            from: out.at,
            to,
            len,
        };
        process.asked.lock().insert(number, Asked { reply, _out: out });
        process.say(&ask)?;
        answer.await.unwrap_or_else(|_| Err(process.gone()))
    }
}

impl Process {
    fn start(config: &NixlConfig, name: u128) -> Result<Arc<Self>, CarrierError> {
        let unavailable = |error: std::io::Error| CarrierError::Unavailable(error.to_string());
        let arena = Arena::new(config.memory.0.max(1), name).map_err(unavailable)?;
        let (socket, theirs) = UnixStream::pair().map_err(unavailable)?;
        let mut command = Command::new(&config.program);
        command
            .args(&config.arguments)
            .arg(&arena.path)
            .arg(format!("portolan-{name:032x}"))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // The library writes to it what it likes.
            .stdout(Stdio::null());
        for (variable, folder) in [
            ("LD_LIBRARY_PATH", &config.libraries),
            ("NIXL_PLUGIN_DIR", &config.plugins),
        ] {
            if let Some(folder) = folder {
                command.env(variable, folder);
            }
        }
        let mut child = command.spawn().map_err(|error| {
            CarrierError::Unavailable(format!("{} does not start: {error}", config.program.display()))
        })?;
        let ready = socket
            .set_read_timeout(Some(START))
            .and_then(|()| socket.set_write_timeout(Some(SAY)))
            .and_then(|()| hear::<Answer>(&mut &socket))
            .and_then(|ready| socket.set_read_timeout(None).map(|()| ready));
        let (agent, base) = match ready {
            Ok(Answer::Ready { agent, base }) => (agent, base),
            Ok(Answer::Unable(why)) => return Err(end(&mut child, CarrierError::Unavailable(why))),
            Ok(other) => {
                let why = format!("its process said {other:?} before it was ready");
                return Err(end(&mut child, CarrierError::Failed(why)));
            }
            Err(error) => return Err(end(&mut child, CarrierError::Dead(error.to_string()))),
        };
        let (to, from) = (socket.try_clone(), socket.try_clone());
        let (to, mut from) = match (to, from) {
            (Ok(to), Ok(from)) => (to, from),
            (Err(error), _) | (_, Err(error)) => return Err(end(&mut child, unavailable(error))),
        };
        let process = Arc::new(Self {
            arena,
            child: Mutex::new(child),
            socket,
            to: Mutex::new(to),
            agent,
            base,
            asked: Mutex::default(),
            resting: Mutex::default(),
            next: AtomicU64::new(0),
            dead: AtomicBool::new(false),
        });
        // Holds no reference that would keep the process: it ends when the socket does.
        let listener = Arc::downgrade(&process);
        let listen = move || {
            while let Ok(answer) = hear::<Answer>(&mut from) {
                let Some(process) = listener.upgrade() else { return };
                process.answered(answer);
            }
            if let Some(process) = listener.upgrade() {
                process.died();
            }
        };
        let started = std::thread::Builder::new()
            .name("nixl-answers".to_owned())
            .spawn(listen);
        started.map_err(unavailable)?;
        Ok(process)
    }

    fn say(&self, ask: &Ask) -> Result<(), CarrierError> {
        say(&mut *self.to.lock(), ask).map_err(|error| {
            self.died();
            CarrierError::Dead(error.to_string())
        })
    }

    fn answered(&self, answer: Answer) {
        let (number, outcome) = match answer {
            Answer::Written(number) => (number, Ok(())),
            Answer::Failed(number, why) => (number, Err(CarrierError::Failed(why))),
            Answer::Ready { .. } | Answer::Unable(_) => return,
        };
        let asked = self.asked.lock().remove(&number);
        if let Some(asked) = asked {
            // Whoever asked may have lost patience.
            let _ = asked.reply.send(outcome);
        }
    }

    /// Ends it, if it did not itself, and fails everything asked. The next one that wants it starts another.
    fn died(&self) {
        self.dead.store(true, Ordering::Release);
        let _ = self.socket.shutdown(Shutdown::Both);
        let _ = self.child.lock().kill();
        for (_, asked) in self.asked.lock().drain() {
            let _ = asked.reply.send(Err(self.gone()));
        }
    }

    fn gone(&self) -> CarrierError {
        let ended = self.child.lock().try_wait();
        let how = ended
            .ok()
            .flatten()
            .map_or_else(|| "it fell silent".to_owned(), |status| status.to_string());
        CarrierError::Dead(how)
    }

    fn lend(&self, bytes: u64) -> Result<Lent, CarrierError> {
        self.resting.lock().retain(|(since, _)| since.elapsed() < REST);
        self.arena.lend(Half::In, bytes).ok_or(CarrierError::Full)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
        let mut child = self.child.lock();
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Ends a process that is of no use.
fn end(child: &mut Child, error: CarrierError) -> CarrierError {
    let _ = child.kill();
    let _ = child.wait();
    error
}

struct NixlWindow {
    process: Arc<Process>,
    lent: Mutex<Option<Lent>>,
    invitation: Vec<u8>,
    settled: AtomicBool,
}

impl Window for NixlWindow {
    fn invitation(&self) -> &[u8] {
        &self.invitation
    }

    fn bytes(&self) -> u64 {
        self.lent.lock().as_ref().map_or(0, |lent| lent.len)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), CarrierError> {
        let lent = self.lent.lock();
        let lent = lent.as_ref().ok_or(CarrierError::Full)?;
        lent.read(at, into)
            .map_err(|error| CarrierError::Failed(error.to_string()))
    }

    fn settle(&self) {
        self.settled.store(true, Ordering::Release);
    }
}

impl Drop for NixlWindow {
    fn drop(&mut self) {
        let lent = self.lent.lock().take();
        if let Some(lent) = lent.filter(|_| !self.settled.load(Ordering::Acquire)) {
            self.process.resting.lock().push((Instant::now(), lent));
        }
    }
}
