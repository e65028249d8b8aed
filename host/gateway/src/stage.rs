//! The way of a request through one site.
//!
//! `accept` happens before [`serve`] (it needs the HTTP request); every other stage is a file here, called in the
//! order of [`Journey::travel`]. A stage has one name everywhere: file, span, metric label, entry in the path record.

pub mod accept;
mod admit;
mod decide;
mod decode;
mod fetch;
mod hedge;
mod journey;
mod locate;
mod pass;
mod prefill;
pub(crate) mod prewarm;
mod settle;
mod transfer;
mod valid;

use crate::accepted::Accepted;
use crate::answer::{Answer, AnswerEvent};
use crate::error::{ErrorKind, RequestError};
use crate::live::Failover;
use crate::site::Site;
pub use decide::ask_policies;
pub(crate) use decide::jurisdiction;
pub(crate) use decide::without_holding_up_others;
use journey::{Fault, Journey, Leg};
use portolan_decide::{InstanceView, Route};
use portolan_ports::Cancel;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// How often a request begins anew because of invalidations that came while its KV was on its way. One that meets more
/// takes the next route.
const STALE_TRIES: u32 = 3;

/// Admits a request and runs its stages in a task of their own, so that settling happens however it ends. Returns
/// when the first token exists, or with the error that made an answer impossible.
pub(crate) async fn serve(site: Arc<Site>, request: Accepted) -> Result<Answer, RequestError> {
    let id = request.id.clone();
    let cancel = Cancel::new();
    let guard = cancel.on_drop();
    let (events_in, events) = mpsc::unbounded_channel();
    let (started_in, started) = oneshot::channel();
    let journey = admit::admit(site, request, cancel, events_in)?;
    tokio::spawn(run(journey, started_in));
    match started.await {
        Ok(Ok(())) => Ok(Answer {
            id,
            events,
            cancel: guard,
        }),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(RequestError::new(
            ErrorKind::Internal,
            "the request broke inside the gateway",
        )),
    }
}

/// Runs the stages after admit and settles, whatever happens in between.
async fn run(mut journey: Journey, started: oneshot::Sender<Result<(), RequestError>>) {
    let mut started = Some(started);
    let cancel = journey.cancel.clone();
    let cut = journey.site.cut.clone();
    let aborted = valid::aborted(&journey);
    let end = tokio::select! {
        biased;
        () = cancel.cancelled() => Err(Fault::Cancelled),
        () = cut.cancelled() => Err(Fault::Stopping),
        () = aborted => Err(Fault::Aborted),
        end = journey.travel(&mut started) => end,
    };
    // An engine that noticed first reports a cancelled job: it is the same end.
    let end = if cancel.is_cancelled() && end.is_err() {
        Err(Fault::Cancelled)
    } else {
        end
    };
    let events = journey.events.clone();
    drop(settle::settle(journey, &end));
    let Err(fault) = end else { return };
    let error = fault.into_client_error();
    match started.take() {
        // Nobody may be listening: a client that left drops both ends.
        Some(first) => drop(first.send(Err(error))),
        None => drop(events.send(AnswerEvent::Failed(error))),
    }
}

impl Journey {
    /// `locate → decide → (fetch → prefill → transfer → decode)`, the part in brackets once for each route of the
    /// plan until one serves.
    async fn travel(
        &mut self,
        started: &mut Option<oneshot::Sender<Result<(), RequestError>>>,
    ) -> Result<(), Fault> {
        let mut held = self.locate();
        let mut routes = VecDeque::from(self.decide(&held).await?);
        let mut failures = Vec::new();
        while let Some(route) = routes.pop_front() {
            match self
                .attempt(route, routes.make_contiguous(), &held, started)
                .await
            {
                Ok(()) => return Ok(()),
                Err(fault) if started.is_none() || !fault.may_try_elsewhere() => return Err(fault),
                Err(fault) => {
                    self.without(&fault, &mut routes);
                    self.stay_away(route, &mut routes);
                    self.note_route_failure(route, routes.front().copied(), &fault);
                    self.keep_within_budget(&mut routes);
                    failures.push(fault);
                    // What the failed attempt computed is found where it was computed, and need not be computed again.
                    held = self.held();
                }
            }
        }
        Err(Fault::EveryRouteFailed(
            failures.iter().map(ToString::to_string).collect(),
        ))
    }

    async fn attempt(
        &mut self,
        route: Route,
        rest: &[Route],
        holders: &[u32],
        started: &mut Option<oneshot::Sender<Result<(), RequestError>>>,
    ) -> Result<(), Fault> {
        self.site.parts.fleet.begins(route);
        let mut tries = STALE_TRIES;
        loop {
            let leg = self.leg(route, rest)?;
            match self.take(leg, rest, holders, started).await {
                // What was invalidated cannot be found again, so the same route computes it.
                Err(Fault::Stale(stale)) if started.is_some() && tries > 0 => {
                    tries -= 1;
                    self.note_stale(stale);
                }
                end => return end,
            }
        }
    }

    async fn take(
        &mut self,
        leg: Leg,
        rest: &[Route],
        holders: &[u32],
        started: &mut Option<oneshot::Sender<Result<(), RequestError>>>,
    ) -> Result<(), Fault> {
        if leg.decoder.whole().is_some() {
            if self.copies(&leg) {
                self.fetch(&leg, holders).await;
            }
            return self.pass(&leg, started).await;
        }
        let past = self.begins_now(&leg);
        let brought = self.fetch(&leg, holders).await;
        let (leg, kv) = match leg.is_remote() {
            false => {
                let kv = self.prefill(&leg, brought.held).await?;
                (leg, kv)
            }
            true => self.transfer(leg, rest, brought).await?,
        };
        let kv = self.still_valid(kv, past)?;
        self.decode(&leg, kv, started).await
    }

    /// Whether KV can be copied to the instance that computes the prompt.
    fn copies(&self, leg: &Leg) -> bool {
        let prefiller = self.fleet.instance(leg.route.prefill);
        prefiller.is_some_and(|instance| instance.serving.copies_to(instance.serving))
    }

    /// Puts the routes that use what just failed behind those that do not.
    fn without(&self, fault: &Fault, routes: &mut VecDeque<Route>) {
        let uses = |route: &Route| {
            let failed = fault.failed_instance();
            Some(route.prefill) == failed || Some(route.decode) == failed
        };
        routes.make_contiguous().sort_by_key(uses);
    }

    /// Takes the routes of this site out after another one failed, where the operator does not want that.
    fn stay_away(&self, failed: Route, routes: &mut VecDeque<Route>) {
        let here = self.site.parts.index;
        let at_home = |route: &Route| self.fleet.instance(route.prefill).is_some_and(|i| i.site == here);
        if self.site.live().prefill.failover == Failover::Never && !at_home(&failed) {
            routes.retain(|route| !at_home(route));
        }
    }

    /// Where the budget of second tries is spent, one try at this site is all that is left: the last resort adds no load
    /// anywhere else.
    fn keep_within_budget(&mut self, routes: &mut VecDeque<Route>) {
        if routes.is_empty() || self.site.retries.lock().take(self.now()) {
            return;
        }
        let here = self.site.parts.index;
        let site = |instance| self.fleet.instance(instance).map(|i: &InstanceView| i.site);
        routes.retain(|route| site(route.prefill) == Some(here));
        routes.truncate(1);
        self.note_spent_budget(routes.front().copied());
    }
}
