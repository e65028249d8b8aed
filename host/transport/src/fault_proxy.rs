//! A TCP proxy that makes a link long, slow or broken: for drills, demos and tests.
//!
//! Delay is a timestamped queue, so it does not limit throughput; the rate is shared by all connections of a
//! direction, as on a real link. Jitter comes from a seed; faults hit named bytes of named connections. So a schedule
//! of faults can be played again, up to the order in which the connections come.

mod pump;

use parking_lot::Mutex;
use portolan_base::BitsPerSecond;
use pump::Lane;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the side that connected.
    ToUpstream,
    /// To the side that connected.
    ToClient,
}

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// One bit of the byte is flipped (0 to 7).
    FlipBit(u8),
    /// Both sides get a reset.
    Reset,
    /// Bytes before this one arrive, then the connection ends in order.
    Truncate,
    /// Nothing moves in this direction for so long; the connection stays.
    Stall(Duration),
    /// This byte and all after it vanish; the connection stays: a half-open connection.
    Swallow,
    /// So many bytes up to this one come twice.
    Duplicate(usize),
}

/// A fault that waits for its byte. It happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which connection, counted from 0 in the order they were accepted; `None` for the first that gets so far.
    pub connection: Option<usize>,
    /// Which direction.
    pub direction: Direction,
    /// Bytes of that direction and connection before it.
    pub after: u64,
    /// What happens.
    pub kind: FaultKind,
}

/// What lies behind a proxy, and what the path to it is like.
#[derive(Clone, Copy, Debug)]
pub struct FaultPlan {
    /// Where connections are passed on to.
    pub upstream: SocketAddr,
    /// Delay of each direction.
    pub one_way_delay: Duration,
    /// Up to so much more delay, drawn for each block of bytes; bytes never overtake.
    pub jitter: Duration,
    /// Rate of each direction, all connections together.
    pub rate: Option<BitsPerSecond>,
    /// Up to so much time between a connection's acceptance and its first byte, drawn for each: connections made one
    /// after the other come in another order.
    pub shuffle: Duration,
    /// Seed of jitter and shuffle.
    pub seed: u64,
}

impl FaultPlan {
    /// A path without delay or limit.
    pub const fn clear(upstream: SocketAddr) -> Self {
        Self {
            upstream,
            one_way_delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rate: None,
            shuffle: Duration::ZERO,
            seed: 0,
        }
    }
}

/// The state all connections share.
#[derive(Debug)]
struct Path {
    plan: FaultPlan,
    faults: Mutex<Vec<Fault>>,
    /// When each direction's link is free again.
    free_at: [Mutex<Instant>; 2],
    forwarded: [AtomicU64; 2],
    accepted: AtomicUsize,
    open: AtomicUsize,
    /// Ends the connections of the time until the next cut.
    era: Mutex<CancellationToken>,
    /// Bytes wait here while the whole path is frozen.
    frozen: tokio::sync::watch::Sender<bool>,
}

/// A running proxy. Dropping it ends it and its connections.
#[derive(Debug)]
pub struct FaultProxy {
    path: Arc<Path>,
    address: SocketAddr,
    tasks: TaskTracker,
    ended: CancellationToken,
    /// Whether new connections are let in.
    healed: tokio::sync::watch::Sender<bool>,
}

impl FaultProxy {
    /// Listens on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start(plan: FaultPlan) -> io::Result<Self> {
        Self::start_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), plan).await
    }

    /// Listens on `listen`.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn start_at(listen: SocketAddr, plan: FaultPlan) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let now = Instant::now();
        let path = Arc::new(Path {
            plan,
            faults: Mutex::default(),
            free_at: [Mutex::new(now), Mutex::new(now)],
            forwarded: Default::default(),
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            era: Mutex::new(CancellationToken::new()),
            frozen: tokio::sync::watch::Sender::new(false),
        });
        let (tasks, ended) = (TaskTracker::new(), CancellationToken::new());
        let healed = tokio::sync::watch::Sender::new(true);
        let doorman = accept(Arc::clone(&path), listener, healed.subscribe(), tasks.clone());
        tasks.spawn(ended.clone().run_until_cancelled_owned(doorman));
        Ok(Self {
            path,
            address,
            tasks,
            ended,
            healed,
        })
    }

    /// Where to connect instead of the upstream.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a fault.
    pub fn inject(&self, fault: Fault) {
        self.path.faults.lock().push(fault);
    }

    /// Faults that did not happen yet.
    pub fn pending(&self) -> usize {
        self.path.faults.lock().len()
    }

    /// Resets all connections and refuses new ones.
    pub fn cut(&self) {
        self.healed.send_replace(false);
        std::mem::take(&mut *self.path.era.lock()).cancel();
    }

    /// Lets connections in again.
    pub fn heal(&self) {
        self.healed.send_replace(true);
    }

    /// Holds every byte of every connection back; connections stay open and new ones are accepted.
    pub fn freeze(&self) {
        self.path.frozen.send_replace(true);
    }

    /// Connections accepted since the start.
    pub fn accepted(&self) -> usize {
        self.path.accepted.load(Ordering::Relaxed)
    }

    /// Connections open.
    pub fn open(&self) -> usize {
        self.path.open.load(Ordering::Relaxed)
    }

    /// Bytes passed on in a direction.
    pub fn forwarded(&self, direction: Direction) -> u64 {
        self.path.forwarded[direction as usize].load(Ordering::Relaxed)
    }

    /// Ends the proxy and resets its connections. May be called again.
    pub async fn shutdown(&self) {
        self.end();
        self.tasks.wait().await;
    }

    fn end(&self) {
        self.ended.cancel();
        self.cut();
        self.tasks.close();
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.end();
    }
}

async fn accept(
    path: Arc<Path>,
    listener: TcpListener,
    healed: tokio::sync::watch::Receiver<bool>,
    tasks: TaskTracker,
) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // Out of file descriptors, most likely.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let _ = client.set_zero_linger();
        let era = path.era.lock().clone();
        if !*healed.borrow() {
            continue;
        }
        let number = path.accepted.fetch_add(1, Ordering::Relaxed);
        let path = Arc::clone(&path);
        tasks.spawn(async move {
            path.open.fetch_add(1, Ordering::Relaxed);
            era.run_until_cancelled(connection(&path, client, number)).await;
            path.open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Both directions of a connection, until both have ended or one was reset. Dropping the sockets resets them, since
/// they do not linger.
async fn connection(path: &Path, client: TcpStream, number: usize) {
    let mut seed = path.plan.seed ^ (number as u64).wrapping_mul(0x9e37_79b9);
    tokio::time::sleep(path.plan.shuffle.mul_f64(pump::draw(&mut seed))).await;
    let Ok(upstream) = TcpStream::connect(path.plan.upstream).await else {
        return;
    };
    let _ = (
        client.set_nodelay(true),
        upstream.set_nodelay(true),
        upstream.set_zero_linger(),
    );
    let (client_in, client_out) = client.into_split();
    let (upstream_in, upstream_out) = upstream.into_split();
    let lane = |direction| Lane {
        path,
        direction,
        number,
    };
    let up = lane(Direction::ToUpstream).run(client_in, upstream_out);
    let down = lane(Direction::ToClient).run(upstream_in, client_out);
    let _ = tokio::try_join!(up, down);
}
