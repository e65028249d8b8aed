//! A prompt that is computed ahead of its request: `admit → locate → decide → prefill → settle`, and its KV stays.

use super::journey::{Fault, Journey, Leg};
use super::{admit, settle};
use crate::accepted::Accepted;
use crate::error::{ErrorKind, RequestError};
use crate::site::Site;
use portolan_decide::record::RouteRecord;
use portolan_ports::{Cancel, HeldPrefix, Retention};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Warm {
    /// Where the KV is.
    pub(crate) route: RouteRecord,
    /// Prompt tokens whose KV was there already.
    pub(crate) cached_tokens: u32,
    /// Prompt tokens that were computed.
    pub(crate) computed_tokens: u32,
}

/// Computes the prompt of `request` and leaves its KV where that is done. A caller that stops waiting stops the work.
pub(crate) async fn prewarm(site: Arc<Site>, request: Accepted) -> Result<Warm, RequestError> {
    let cancel = Cancel::new();
    let _stop = cancel.on_drop();
    // Nothing is generated: nobody listens.
    let (events, _) = mpsc::unbounded_channel();
    let journey = admit::admit(site, request, cancel, events)?;
    let (done, waiting) = oneshot::channel();
    tokio::spawn(async move {
        let _ = done.send(run(journey).await);
    });
    let broke = |_| RequestError::new(ErrorKind::Internal, "the request broke inside the gateway");
    waiting.await.map_err(broke)?
}

/// Runs the stages and settles, whatever happens in between.
async fn run(mut journey: Journey) -> Result<Warm, RequestError> {
    let cancel = journey.cancel.clone();
    let cut = journey.site.cut.clone();
    let end = tokio::select! {
        biased;
        () = cancel.cancelled() => Err(Fault::Cancelled),
        () = cut.cancelled() => Err(Fault::Stopping),
        end = journey.warm() => end,
    };
    let end = match end {
        Ok(()) => Ok(()),
        Err(_) if cancel.is_cancelled() => Err(Fault::Cancelled),
        Err(fault) => Err(fault),
    };
    let record = settle::settle(journey, &end);
    end.map_err(Fault::into_client_error)?;
    let (kv, route) = (record.kv, record.route.clone());
    let nowhere = || RequestError::new(ErrorKind::Internal, "the request took no route");
    Ok(Warm {
        route: route.ok_or_else(nowhere)?,
        cached_tokens: kv.cached_tokens,
        computed_tokens: kv.computed_tokens,
    })
}

impl Journey {
    async fn warm(&mut self) -> Result<(), Fault> {
        let held = self.locate();
        let routes = self.decide(&held).await?;
        let mut failures = Vec::new();
        for (position, route) in routes.iter().enumerate() {
            let rest = &routes[position + 1..];
            let leg = self.leg(*route, rest)?;
            match self.warm_at(&leg).await {
                Ok(()) => return Ok(()),
                Err(fault) if !fault.may_try_elsewhere() => return Err(fault),
                Err(fault) => {
                    self.note_route_failure(*route, rest.first().copied(), &fault);
                    failures.push(fault.to_string());
                }
            }
        }
        Err(Fault::EveryRouteFailed(failures))
    }

    async fn warm_at(&mut self, leg: &Leg) -> Result<(), Fault> {
        // What may not stay is not worth computing, and its text may not stay either.
        if leg.keep_there != Retention::Keep {
            let text = format!(
                "the residency answer does not let this data stay at {}",
                leg.names.prefill_site
            );
            let refused = RequestError::new(ErrorKind::Forbidden, text).with_code("residency_denied");
            return Err(Fault::Refused(refused));
        }
        self.site.parts.fleet.begins(leg.route);
        self.prefill(leg, HeldPrefix::default()).await?;
        self.record.route = Some(leg.names.clone());
        Ok(())
    }
}
