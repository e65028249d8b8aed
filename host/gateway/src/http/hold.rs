//! What a client holds and does not use: a connection on which it asks nothing, answers that it does not take.
//!
//! hyper bounds how long the head of an HTTP/1 request may take, and whether an HTTP/2 client answers pings. One that
//! answers them, and asks nothing or opens no window for what it asked for, would stay for ever; 4,096 of them are all that a
//! site takes.

use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// What the client of one connection asked for and has not got.
#[derive(Clone, Debug)]
pub(super) struct Holding(Arc<Mutex<Held>>);

#[derive(Debug)]
struct Held {
    /// Requests under way, by the order they came in; of an answer that waits for the client, since when.
    open: HashMap<u64, Option<Instant>>,
    ever: u64,
    /// When the last request ended.
    idle_since: Instant,
}

/// What a client did not do in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Overdue {
    /// It asked nothing.
    #[error("it asked nothing")]
    Idle,
    /// It took nothing of an answer.
    #[error("it took nothing of an answer")]
    Untaken,
}

impl Default for Holding {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Held {
            open: HashMap::new(),
            ever: 0,
            idle_since: Instant::now(),
        })))
    }
}

impl Holding {
    /// A request begins.
    pub(super) fn begin(&self) -> Asked {
        let mut held = self.0.lock();
        held.ever += 1;
        let number = held.ever;
        held.open.insert(number, None);
        Asked {
            holding: self.clone(),
            number,
        }
    }

    /// What has been overdue for `limit`. That it is idle is asked of HTTP/2 only: hyper bounds it for HTTP/1.
    pub(super) fn overdue(&self, limit: Duration, may_idle: bool) -> Option<Overdue> {
        let held = self.0.lock();
        let late = |since: &Instant| since.elapsed() >= limit;
        match held.open.values().flatten().any(late) {
            true => Some(Overdue::Untaken),
            false => (held.open.is_empty() && !may_idle && late(&held.idle_since)).then_some(Overdue::Idle),
        }
    }
}

/// One request of a connection, until its answer has been taken or it is given up.
#[derive(Debug)]
pub(super) struct Asked {
    holding: Holding,
    number: u64,
}

impl Asked {
    /// The answer, watched for whether it is taken.
    pub(super) fn watch(self, response: Response) -> Response {
        // Not a byte of it is asked for until the client has room.
        self.waits_since(Some(Instant::now()));
        response.map(|body| Body::new(Watched { body, asked: self }))
    }

    fn waits_since(&self, since: Option<Instant>) {
        self.holding.0.lock().open.insert(self.number, since);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let mut held = self.holding.0.lock();
        held.open.remove(&self.number);
        held.idle_since = Instant::now();
    }
}

/// A body that notes whether it waits for the site or for the client: what was given and is not asked on is not taken.
struct Watched {
    body: Body,
    asked: Asked,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.asked.waits_since(polled.is_ready().then(Instant::now));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
