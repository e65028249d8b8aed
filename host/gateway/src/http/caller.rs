//! Whoever is at the other end of a connection: whether it has asked for anything, and whether it is still there.
//!
//! hyper looks for the end of an HTTP/1 connection only while it holds no byte that it has not used: behind a line end that
//! was sent too much, or a request that was sent ahead, a client's leaving would go unseen until the answer's end. Where it
//! sent ahead more than the kernel takes (64 KiB and up), its end waits behind that and is seen when it is read.

use super::hold::Holding;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::Request;
use axum::response::Response;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};
use portolan_ports::Cancel;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// How long a client that closed its side is served on. It may have said all that it had to say and still listen: what
/// takes no longer is answered. A tenth of the 100 ms within which an engine is to hear of a client that left.
const HALF_CLOSED: Duration = Duration::from_millis(10);

/// Which protocol a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    /// HTTP/1.
    Http1,
    /// HTTP/2: its connections are always read from, so that their end is seen.
    Http2,
}

/// The client of one connection.
#[derive(Clone, Default)]
pub(super) struct Caller {
    asked: Arc<AtomicBool>,
    gone: Cancel,
    holding: Holding,
}

impl Caller {
    /// Whether no request of it has come.
    pub(super) fn is_silent(&self) -> bool {
        !self.asked.load(Ordering::Acquire)
    }

    /// What it holds without using it.
    pub(super) fn holding(&self) -> &Holding {
        &self.holding
    }

    /// Ends what is done for it.
    pub(super) fn leave(&self) {
        self.gone.cancel();
    }

    /// Returns some time after the client closed the connection, whatever it had sent before; never where that cannot be told.
    pub(super) fn hung_up(&self, stream: &TcpStream, spoken: Spoken) -> impl Future<Output = ()> + use<> {
        let twin = match spoken {
            Spoken::Http1 => twin(stream),
            Spoken::Http2 => Ok(None),
        };
        if let Err(error) = &twin {
            tracing::warn!(%error, "a connection cannot be watched for its end");
        }
        let twin = twin.ok().flatten();
        async move {
            match twin {
                Some(twin) if closed(&twin).await.is_ok() => tokio::time::sleep(HALF_CLOSED).await,
                _ => std::future::pending().await,
            }
        }
    }
}

/// The same connection under another descriptor, with a readiness of its own: the one that hyper reads from must not be told
/// that there is nothing to read.
fn twin(stream: &TcpStream) -> io::Result<Option<TcpStream>> {
    let twin = std::net::TcpStream::from(stream.as_fd().try_clone_to_owned()?);
    TcpStream::from_std(twin).map(Some)
}

/// Waits for the other side to close. Wakes once for each arrival of bytes, which it leaves where they are.
async fn closed(twin: &TcpStream) -> io::Result<()> {
    while !twin.ready(Interest::READABLE).await?.is_read_closed() {
        let unread = twin.try_io(Interest::READABLE, || {
            Err::<(), _>(io::ErrorKind::WouldBlock.into())
        });
        debug_assert!(unread.is_err(), "nothing is read here");
    }
    Ok(())
}

/// The client left.
#[derive(Debug, thiserror::Error)]
#[error("the client closed the connection")]
pub(super) struct Gone;

/// The doors, for one client: nothing goes on behind them once it is gone.
#[derive(Clone)]
pub(super) struct Doors {
    router: Router,
    caller: Caller,
}

impl Doors {
    /// The doors of `router` for `caller`.
    pub(super) fn new(router: Router, caller: Caller) -> Self {
        Self { router, caller }
    }
}

impl<B> tower::Service<Request<B>> for Doors
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response;
    type Error = Gone;
    type Future = BoxFuture<'static, Result<Response, Gone>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.caller.asked.store(true, Ordering::Release);
        let asked = self.caller.holding.begin();
        let answer = self.router.call(request);
        let gone = self.caller.gone.clone();
        Box::pin(async move {
            tokio::select! {
                biased;
                Ok(answer) = answer => Ok(asked.watch(while_there(answer, gone))),
                () = gone.cancelled() => Err(Gone),
            }
        })
    }
}

/// The response, whose body ends when the client is gone. One that is all there is left as it is.
fn while_there(response: Response, gone: Cancel) -> Response {
    response.map(|body| match body.size_hint().exact() {
        Some(_) => body,
        None => {
            let pieces = Some((body.into_data_stream(), gone));
            Body::from_stream(stream::unfold(pieces, async |pieces| {
                let (mut body, gone) = pieces?;
                tokio::select! {
                    biased;
                    // Not as an answer ends that is whole.
                    () = gone.cancelled() => Some((Err(axum::Error::new(Gone)), None)),
                    piece = body.next() => Some((piece?, Some((body, gone)))),
                }
            }))
        }
    })
}
