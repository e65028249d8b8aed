//! The answers of one order as a single stream of events, each with the position of its answer.

use crate::accepted::Accepted;
use crate::answer::{Answer, AnswerEvent};
use crate::error::{ErrorKind, RequestError};
use crate::site::Site;
use futures_util::future;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use portolan_ports::AnswerHead;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// An event of the answer at this position of the order.
pub(super) type Positioned = (usize, AnswerEvent);

/// The events of all answers as they come. Dropping the stream cancels every request of the order.
pub(super) type Events = BoxStream<'static, Positioned>;

/// How an answer began.
pub(super) enum Begun {
    /// Tokens come, of which the answer is written here.
    Written(Events),
    /// An engine's own answer comes.
    Passed(AnswerHead, Events),
}

/// Serves every request of an order. Returns when the first answer begins; an error when it is a failure, so that it
/// can still be told by a status.
pub(super) async fn begin(site: &Arc<Site>, requests: Vec<Accepted>) -> Result<Begun, RequestError> {
    let answers = requests
        .into_iter()
        .enumerate()
        .map(|(position, request)| one(Arc::clone(site), position, request));
    let mut events = stream::select_all(answers);
    match events.next().await {
        Some((_, AnswerEvent::Failed(error))) => Err(error),
        Some((_, AnswerEvent::Head(head))) => Ok(Begun::Passed(head, events.boxed())),
        Some(first) => Ok(Begun::Written(
            stream::once(future::ready(first)).chain(events).boxed(),
        )),
        None => Err(broken_off()),
    }
}

fn one(site: Arc<Site>, position: usize, request: Accepted) -> Events {
    let served = async move { site.serve(request).await };
    stream::once(served)
        .flat_map(|served| match served {
            Ok(answer) => AnswerStream { answer, ended: false }.left_stream(),
            Err(error) => stream::once(future::ready(AnswerEvent::Failed(error))).right_stream(),
        })
        .map(move |event| (position, event))
        .boxed()
}

fn broken_off() -> RequestError {
    RequestError::new(ErrorKind::Internal, "the answer broke off inside the gateway")
}

/// One answer; ends after its last event, and makes up a failure when there is none.
struct AnswerStream {
    answer: Answer,
    ended: bool,
}

impl Stream for AnswerStream {
    type Item = AnswerEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<AnswerEvent>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.answer.events.poll_recv(context).map(|event| {
            let event = event.unwrap_or_else(|| AnswerEvent::Failed(broken_off()));
            let more = matches!(
                event,
                AnswerEvent::Delta { .. } | AnswerEvent::Head(_) | AnswerEvent::Bytes(_)
            );
            self.ended = !more;
            Some(event)
        })
    }
}
