//! The process that uses the library.

use super::talk::{Answer, Ask, hear, say};
use memmap2::MmapMut;
use nixl_sys::{
    Agent, AgentConfig, MemType, MemoryRegion, NixlDescriptor, NixlError, OptArgs, XferDescList, XferOp,
    XferRequest,
};
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How often NIXL's own thread looks for what peers do. By default it does nothing else, and takes a whole core.
const LOOK: Duration = Duration::from_micros(500);

/// How often a transfer under way is looked at: NIXL tells nobody when one is done.
const ASK_AGAIN: Duration = Duration::from_micros(50);

/// Peers that the library remembers. Each restart of a peer's process is another one.
const PEERS_MAX: usize = 64;

/// Why the process has nothing to do.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Nobody talks to it.
    #[error("this command is started by the host itself, with a socket for its input: {0}")]
    Alone(#[from] io::Error),
}

/// The memory that is shared with the host.
#[derive(Debug)]
struct Shared(MmapMut);

#[expect(unsafe_code, reason = "the library takes memory by its address")]
impl MemoryRegion for Shared {
    unsafe fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    fn size(&self) -> usize {
        self.0.len()
    }
}

impl NixlDescriptor for Shared {
    fn mem_type(&self) -> MemType {
        MemType::Dram
    }

    fn device_id(&self) -> u64 {
        0
    }
}

/// What stops the process from working.
#[derive(Debug, thiserror::Error)]
enum Unable {
    #[error("libnixl_capi.so was not found; say where it lies (`nixl.libraries`), or install NIXL")]
    NoLibrary,
    #[error("NIXL refuses: {0}")]
    Nixl(#[from] NixlError),
    #[error("the shared memory cannot be used: {0}")]
    Memory(#[from] io::Error),
}

/// Works for the host until it closes its end of standard input, which is a socket. Never returns in order: the library
/// crashes a process that ends by itself.
///
/// # Errors
/// When standard input is no socket.
pub fn work(arena: &Path, name: &str) -> Result<(), WorkerError> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.peer_addr()?;
    let mut to = socket.try_clone()?;
    match Worker::start(arena, name) {
        Ok(worker) => {
            say(&mut to, &worker.ready()?)?;
            worker.run(socket, &to);
        }
        Err(unable) => say(&mut to, &Answer::Unable(unable.to_string()))?,
    }
    leave()
}

/// Ends the process without running what the library left for its end.
fn leave() -> ! {
    let own = rustix::process::getpid();
    // A process may always end itself; should it not, the library's end is all there is left.
    let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
    std::process::abort()
}

struct Worker {
    agent: Agent,
    options: OptArgs,
    shared: Shared,
    /// Peers' agents, by how they describe themselves.
    peers: HashMap<Vec<u8>, String>,
    flights: Vec<(u64, XferRequest)>,
    /// Not read, and given back when the worker ends, which it does not.
    _registered: nixl_sys::RegistrationHandle,
}

impl Worker {
    fn start(arena: &Path, name: &str) -> Result<Self, Unable> {
        // Every other call aborts the process when there is no library.
        if nixl_sys::is_stub() {
            return Err(Unable::NoLibrary);
        }
        let shared = map(arena)?;
        let config = AgentConfig {
            enable_prog_thread: true,
            pthr_delay_us: u64::try_from(LOOK.as_micros()).unwrap_or(500),
            // Its port would believe anyone who connects.
            enable_listen_thread: false,
            ..AgentConfig::default()
        };
        let agent = Agent::new_configured(name, &config)?;
        let (_, parameters) = agent.get_plugin_params("UCX")?;
        let backend = agent.create_backend("UCX", &parameters)?;
        let mut options = OptArgs::new()?;
        options.add_backend(&backend)?;
        let registered = agent.register_memory(&shared, Some(&options))?;
        Ok(Self {
            agent,
            options,
            shared,
            peers: HashMap::new(),
            flights: Vec::new(),
            _registered: registered,
        })
    }

    fn ready(&self) -> io::Result<Answer> {
        let agent = self.agent.get_local_md().map_err(io::Error::other)?;
        Ok(Answer::Ready {
            agent,
            base: self.shared.0.as_ptr() as u64,
        })
    }

    fn run(mut self, socket: UnixStream, to: &UnixStream) {
        let (heard, asks) = channel();
        std::thread::spawn(move || {
            let mut from = socket;
            while let Ok(ask) = hear::<Ask>(&mut from) {
                if heard.send(ask).is_err() {
                    return;
                }
            }
        });
        while self.turn(&asks, to).is_ok() {}
        // What it holds is the library's, and must not be given back in order.
        std::mem::forget(self);
    }

    /// Takes what was asked, looks at what is under way. An error when the host is gone.
    fn turn(&mut self, asks: &Receiver<Ask>, mut to: &UnixStream) -> io::Result<()> {
        let ask = if self.flights.is_empty() {
            Some(asks.recv().map_err(io::Error::other)?)
        } else {
            match asks.recv_timeout(ASK_AGAIN) {
                Ok(ask) => Some(ask),
                Err(RecvTimeoutError::Timeout) => None,
                Err(gone @ RecvTimeoutError::Disconnected) => return Err(io::Error::other(gone)),
            }
        };
        if let Some(Ask::Write {
            number,
            agent,
            from,
            to: address,
            len,
        }) = ask
        {
            match self.write(&agent, from, address, len) {
                Ok(Some(flight)) => self.flights.push((number, flight)),
                Ok(None) => say(&mut to, &Answer::Written(number))?,
                Err(error) => say(&mut to, &Answer::Failed(number, error.to_string()))?,
            }
        }
        let mut done = Vec::new();
        for (index, (number, flight)) in self.flights.iter().enumerate() {
            match self.agent.get_xfer_status(flight) {
                Ok(status) if status.is_success() => done.push((index, Answer::Written(*number))),
                Ok(_) => {}
                Err(error) => done.push((index, Answer::Failed(*number, error.to_string()))),
            }
        }
        for (index, answer) in done.into_iter().rev() {
            self.flights.swap_remove(index);
            say(&mut to, &answer)?;
        }
        Ok(())
    }

    /// Lets go of peers when there are too many, most of which have been restarted since.
    fn forget_peers(&mut self) {
        if self.peers.len() >= PEERS_MAX && self.flights.is_empty() {
            for (_, peer) in self.peers.drain() {
                // One that the library has forgotten by itself is what was wanted.
                let _ = self.agent.invalidate_remote_md(&peer);
            }
        }
    }

    /// Begins a transfer; none when it is done already.
    fn write(
        &mut self,
        agent: &[u8],
        from: u64,
        to: u64,
        len: u64,
    ) -> Result<Option<XferRequest>, NixlError> {
        let (from, len, to) = match (usize::try_from(from), usize::try_from(len), usize::try_from(to)) {
            (Ok(from), Ok(len), Ok(to))
                if from
                    .checked_add(len)
                    .is_some_and(|end| end <= self.shared.0.len()) =>
            {
                (from, len, to)
            }
            _ => return Err(NixlError::InvalidParam),
        };
        let peer = match self.peers.get(agent) {
            Some(peer) => peer.clone(),
            None => {
                self.forget_peers();
                let peer = self.agent.load_remote_md(agent)?;
                self.peers.insert(agent.to_vec(), peer.clone());
                peer
            }
        };
        let (mut here, mut there) = (
            XferDescList::new(MemType::Dram)?,
            XferDescList::new(MemType::Dram)?,
        );
        here.add_desc(self.shared.0.as_ptr() as usize + from, len, 0);
        there.add_desc(to, len, 0);
        let request = self
            .agent
            .create_xfer_req(XferOp::Write, &here, &there, &peer, Some(&self.options))?;
        let is_under_way = self.agent.post_xfer_req(&request, None)?;
        Ok(is_under_way.then_some(request))
    }
}

fn map(arena: &Path) -> io::Result<Shared> {
    let file = OpenOptions::new().read(true).write(true).open(arena)?;
    // The host removes it as well; whoever is last finds it gone.
    std::fs::remove_file(arena)?;
    #[expect(
        unsafe_code,
        reason = "two processes share this memory, which is what it is for"
    )]
    // SAFETY: the file's size does not change. Bytes that the other side writes meanwhile are only ever copied, by the
    // library or the kernel, and checked by their checksum when they have arrived.
    let mapped = unsafe { MmapMut::map_mut(&file) }?;
    Ok(Shared(mapped))
}
