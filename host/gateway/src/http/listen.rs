//! Takes connections, each within bounds: a client that sends nothing, or half a request, does not stay for ever.

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// How long a connection may take to send the head of a request, and may idle before the next. Clients keep
/// connections for 5 to 60 s; one that finds its connection closed opens another.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Connections at once. Each idle one takes some 10 kB: 40 MB altogether.
const CONNECTIONS_MAX: usize = 4096;

/// Pause after an accept failed for want of file descriptors: they come back when connections end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` is ready, then until the last connection is done.
pub(super) async fn run(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = next(&listener, &slots) => accepted,
        };
        match accepted {
            Ok((stream, slot)) => serve(stream, slot, &router, &graceful),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

type Slot = tokio::sync::OwnedSemaphorePermit;

/// The next connection, once there is room for it: beyond the bound clients wait in the kernel's queue.
async fn next(listener: &TcpListener, slots: &Arc<Semaphore>) -> io::Result<(TcpStream, Slot)> {
    let slot = Arc::clone(slots)
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Tokens are small and each must leave at once: Nagle's algorithm would hold them for the peer's delayed ACK.
    stream.set_nodelay(true)?;
    Ok((stream, slot))
}

fn serve(stream: TcpStream, slot: Slot, router: &Router, graceful: &GracefulShutdown) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HEAD_TIMEOUT);
    let service = TowerToHyperService::new(router.clone());
    let connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .into_owned();
    let watched = graceful.watch(connection);
    tokio::spawn(async move {
        let _slot = slot;
        // A connection that broke is the client's affair; the request's own end is in its record.
        if let Err(error) = watched.await {
            tracing::debug!(error = %error, "a connection ended early");
        }
    });
}
