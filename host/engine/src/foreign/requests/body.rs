//! The body of a foreign engine's answer.

use super::super::Shared;
use super::super::meter::InFlight;
use super::super::slots::{Keeping, Slot};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use portolan_ports::{AnswerBody, Cancel, EngineError};
use std::sync::Arc;

/// Bytes that go on in one piece: a connection's buffer takes no more at a time.
const PIECE_MOST: usize = 64 << 10;

/// The slot that generates an answer.
pub(super) enum Taken {
    /// Whichever the engine picks.
    Nothing,
    /// One that KV was restored into; free once the answer ended.
    Slot(#[expect(dead_code, reason = "held until the answer ended")] Slot),
    /// One whose KV the host keeps once the answer ended.
    Kept(Keeping),
}

/// What a connection says next; none at the end.
type Said = Option<Result<Frame<Bytes>, hyper::Error>>;

/// A body as it comes.
pub(super) struct Body {
    body: Incoming,
    /// What was found behind the bytes that went on last.
    ahead: Option<Said>,
    in_flight: InFlight,
    cancel: Cancel,
    shared: Arc<Shared>,
    taken: Taken,
}

impl Body {
    pub(super) fn new(
        body: Incoming,
        (in_flight, taken): (InFlight, Taken),
        cancel: Cancel,
        shared: &Arc<Shared>,
    ) -> Self {
        Self {
            body,
            ahead: None,
            in_flight,
            cancel,
            shared: Arc::clone(shared),
            taken,
        }
    }

    /// The answer is whole.
    fn ended(&mut self) {
        self.in_flight.ended();
        if let Taken::Kept(keeping) = std::mem::replace(&mut self.taken, Taken::Nothing) {
            let shared = Arc::clone(&self.shared);
            tokio::spawn(async move {
                if let Some(kept) = &shared.kept_slots {
                    shared.keep_slot(kept, keeping).await;
                }
            });
        }
    }

    /// `first` with what is right behind it. An engine that is busy says tokens of several steps in one go; each piece that
    /// goes on by itself costs two tasks their turn and the client's connection a write.
    async fn gathered(&mut self, first: Bytes) -> Bytes {
        let mut all = BytesMut::new();
        while first.len().max(all.len()) < PIECE_MOST {
            // The connection hands over one piece, and the next once it has had its turn.
            tokio::task::yield_now().await;
            match self.body.frame().now_or_never() {
                None => break,
                Some(Some(Ok(frame))) if frame.is_data() => {
                    self.in_flight.piece();
                    if all.is_empty() {
                        all.extend_from_slice(&first);
                    }
                    all.extend_from_slice(&frame.into_data().unwrap_or_default());
                }
                Some(said) => {
                    self.ahead = Some(said);
                    break;
                }
            }
        }
        if all.is_empty() { first } else { all.freeze() }
    }
}

#[async_trait]
impl AnswerBody for Body {
    async fn next(&mut self) -> Option<Result<Bytes, EngineError>> {
        loop {
            let said = match self.ahead.take() {
                Some(said) => said,
                None => tokio::select! {
                    biased;
                    () = self.cancel.cancelled() => return Some(Err(EngineError::Cancelled)),
                    said = self.body.frame() => said,
                },
            };
            match said {
                None => {
                    self.ended();
                    return None;
                }
                Some(Err(error)) => {
                    let reason = format!("its answer broke off: {error}");
                    return Some(Err(EngineError::Broken(reason)));
                }
                Some(Ok(frame)) => {
                    // Trailers are of the connection.
                    if let Ok(data) = frame.into_data() {
                        self.in_flight.piece();
                        return Some(Ok(self.gathered(data).await));
                    }
                }
            }
        }
    }
}
