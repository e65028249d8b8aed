//! How long an engine that answers whole requests is waited for, and what ends the wait.

use super::super::journey::{Fault, Journey, Leg};
use super::{Beside, Original};
use bytes::Bytes;
use portolan_ports::{AnswerBody, EngineError, WholeAnswer, WholeJob};
use std::sync::Arc;
use std::time::Duration;

/// A prefill leg that was waited for is over; one that runs beside the decode is not. This long tells them apart.
pub(super) const OVER_BY_NOW: Duration = Duration::from_millis(1);

/// Why a wait ended without bytes.
pub(super) enum Late {
    /// Nothing came for so long.
    Silent(Duration),
    /// The prefill leg that the decode depends on failed.
    Prefill(EngineError),
}

impl Late {
    pub(super) fn into_fault(self, journey: &Journey, leg: &Leg) -> Fault {
        let _ = journey;
        match self {
            Self::Silent(limit) => Fault::DecodeStalled(leg.names.decode_instance.clone(), limit),
            Self::Prefill(error) => Fault::Engine {
                instance: leg.route.prefill,
                error,
            },
        }
    }
}

/// What comes of an answer's body: bytes, its end, or the engine's failure.
pub(super) type Next = Option<Result<Bytes, EngineError>>;

/// The next bytes, unless nothing comes for too long or the prefill beside fails.
pub(super) async fn next(
    body: &mut Box<dyn AnswerBody>,
    limit: Duration,
    beside: &mut Option<Beside>,
) -> Result<Next, Late> {
    within(limit, beside, body.next()).await
}

async fn within<T>(
    limit: Duration,
    beside: &mut Option<Beside>,
    work: impl Future<Output = T>,
) -> Result<T, Late> {
    let mut work = std::pin::pin!(work);
    let until = tokio::time::Instant::now() + limit;
    loop {
        let prefill = async {
            match beside.as_mut() {
                Some(beside) => (&mut beside.task).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            ended = prefill => {
                *beside = None;
                if let Ok(Err(error)) = ended
                    && !matches!(error, EngineError::BadJob(_))
                {
                    return Err(Late::Prefill(error));
                }
            }
            () = tokio::time::sleep_until(until) => return Err(Late::Silent(limit)),
        }
    }
}

impl Journey {
    /// Sends a request and waits for the first bytes of its answer: until then another route may be taken.
    pub(super) async fn first_bytes(
        &self,
        leg: &Leg,
        job: WholeJob,
        params: Option<Arc<str>>,
        original: &Original,
        beside: &mut Option<Beside>,
    ) -> Result<(WholeAnswer, Next), Fault> {
        let whole = leg.decoder.whole();
        let whole = whole.ok_or_else(|| self.impossible(leg, "it answers no whole requests"))?;
        let (limit, elsewhere) = (self.first_limit(leg, original), leg.patience.decode_elsewhere);
        let limit = match elsewhere {
            true => limit,
            false => limit.max(self.site.live().timeouts.longest),
        };
        let work = async {
            let mut answer = whole.answer(job, params).await?;
            let first = answer.body.next().await;
            Ok((answer, first))
        };
        let (answer, first) = match within(limit, beside, work).await {
            Ok(answered) => answered.map_err(|error| self.decode_fault(leg, error))?,
            Err(Late::Silent(limit)) if elsewhere => {
                return Err(Fault::Slow {
                    instance: leg.route.decode,
                    at: leg.decode_at(),
                    stage: "decode",
                    limit,
                });
            }
            Err(late) => return Err(late.into_fault(self, leg)),
        };
        match first {
            // An engine that breaks before its first byte has answered nothing yet.
            Some(Err(error)) => Err(self.decode_fault(leg, error)),
            first => Ok((answer, first)),
        }
    }

    /// How long the first bytes may take: the prompt and a token of a stream, the prompt and every token of an answer in
    /// one piece.
    fn first_limit(&self, leg: &Leg, original: &Original) -> Duration {
        let rule = self.site.live().timeouts;
        let token = self
            .site
            .parts
            .fleet
            .view()
            .instance(leg.route.decode)
            .map_or(rule.longest, |instance| rule.token(&leg.facts, instance));
        let tokens = match original.streamed {
            true => 1,
            false => self.request.max_tokens.max(1),
        };
        rule.prefill(&leg.facts)
            .saturating_add(token.saturating_mul(tokens))
    }
}
