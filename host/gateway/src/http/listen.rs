//! Takes connections, each within bounds: a client that sends nothing, or half a request, does not stay for ever.

use super::caller::{Caller, Doors, Spoken};
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// How long a connection may take to send the head of a request, and may idle before the next. Clients keep
/// connections for 5 to 60 s; one that finds its connection closed opens another.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long an answer may lie that the client does not take, and a connection of HTTP/2 on which it asks nothing.
const UNUSED_TIMEOUT: Duration = Duration::from_secs(60);

/// Connections at once. Each idle one takes some 10 kB: 40 MB altogether, and two file descriptors.
const CONNECTIONS_MAX: usize = 4096;

/// Pause before a greeting that came in parts is looked at again.
const GREETING_PAUSE: Duration = Duration::from_millis(20);

/// Pause after an accept failed for want of file descriptors: they come back when connections end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` is ready, then until the last connection is done.
pub(super) async fn run(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    run_within(UNUSED_TIMEOUT, listener, router, shutdown).await;
}

/// The same, with how long a client may hold what it does not use.
pub(super) async fn run_within(
    unused: Duration,
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) {
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (open, _) = watch::channel(());
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = next(&listener, &slots, unused) => accepted,
        };
        match accepted {
            Ok(taken) => drop(tokio::spawn(serve(
                taken,
                router.clone(),
                graceful.watcher(),
                open.subscribe(),
                unused,
            ))),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop((listener, open));
    graceful.shutdown().await;
}

type Slot = tokio::sync::OwnedSemaphorePermit;

/// The next connection, once there is room for it: beyond the bound clients wait in the kernel's queue.
async fn next(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    unused: Duration,
) -> io::Result<(TcpStream, Slot)> {
    let slot = Arc::clone(slots)
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Tokens are small and each must leave at once: Nagle's algorithm would hold them for the peer's delayed ACK.
    stream.set_nodelay(true)?;
    // Bytes that the other side takes none of.
    socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(unused))?;
    Ok((stream, slot))
}

/// Whether a client says something within [`HEAD_TIMEOUT`], and if it begins as HTTP/2 does, all of its greeting: which
/// of the two protocols it speaks is found out before either's own bounds hold.
async fn greets(stream: &TcpStream) -> Option<Spoken> {
    const HTTP2: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let greeted = async {
        let mut seen = [0; HTTP2.len()];
        loop {
            match stream.peek(&mut seen).await {
                Ok(0) | Err(_) => return None,
                Ok(n) if !HTTP2.starts_with(&seen[..n]) => return Some(Spoken::Http1),
                Ok(n) if n == seen.len() => return Some(Spoken::Http2),
                Ok(_) => tokio::time::sleep(GREETING_PAUSE).await,
            }
        }
    };
    tokio::time::timeout(HEAD_TIMEOUT, greeted).await.unwrap_or(None)
}

async fn serve(
    (stream, slot): (TcpStream, Slot),
    router: Router,
    watcher: Watcher,
    mut open: watch::Receiver<()>,
    unused: Duration,
) {
    let _slot = slot;
    let greeted = tokio::select! {
        // The site closes.
        _ = open.changed() => return,
        greeted = greets(&stream) => greeted,
    };
    let Some(spoken) = greeted else { return };
    let caller = Caller::default();
    let hung_up = caller.hung_up(&stream, spoken);
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HEAD_TIMEOUT);
    let service = TowerToHyperService::new(Doors::new(router, caller.clone()));
    let connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .into_owned();
    let mut connection = std::pin::pin!(watcher.watch(connection));
    let closing = async {
        // The other end of the channel is dropped when the site closes; nothing is ever sent.
        let _ = open.changed().await;
        caller.is_silent()
    };
    let (mut closing, mut hung_up) = (std::pin::pin!(closing), std::pin::pin!(hung_up));
    let (mut is_open, mut is_there) = (true, true);
    let mut look = std::pin::pin!(tokio::time::sleep(unused));
    let ended = loop {
        tokio::select! {
            ended = &mut connection => break ended,
            // Half a head is no request: nothing is owed.
            silent = &mut closing, if is_open => if silent { return } else { is_open = false },
            () = &mut look => {
                if let Some(overdue) = caller.holding().overdue(unused, spoken == Spoken::Http1) {
                    tracing::debug!(%overdue, "a connection was ended");
                    return;
                }
                look.as_mut().reset(tokio::time::Instant::now() + unused / 2);
            }
            () = &mut hung_up, if is_there => {
                is_there = false;
                caller.leave();
            }
        }
    };
    // A connection that broke is the client's affair; the request's own end is in its record.
    if let Err(error) = ended {
        tracing::debug!(error = %error, "a connection ended early");
    }
}
