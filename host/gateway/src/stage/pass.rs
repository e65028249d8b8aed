//! prefill and decode by engines that answer whole requests: the client's own words go in, the engine's own come out.

mod observe;
mod wait;

use super::journey::{Fault, Journey, Leg, Prefiller};
use crate::accepted::Original;
use crate::answer::AnswerEvent;
use crate::error::{ErrorKind, RequestError};
use observe::Observer;
use portolan_base::BlockHash;
use portolan_decide::InstanceIndex;
use portolan_ports::{
    CacheSalt, Cancel, CancelOnDrop, Engine, EngineError, Handed, InstanceOutcome, Retention, WholeAnswer,
    WholeJob,
};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// What tells the caller that the answer begins.
type Started = Option<oneshot::Sender<Result<(), RequestError>>>;

/// KV that a prefill instance keeps for a decode instance of its group, and that none has taken yet.
pub(super) struct Offered {
    by: InstanceIndex,
    params: Arc<str>,
    /// Who would take it.
    decoder: Arc<dyn Engine>,
    job: WholeJob,
}

/// A prefill that runs beside the decode it is for.
struct Beside {
    task: JoinHandle<Result<Handed, EngineError>>,
    stop: CancelOnDrop,
}

impl Journey {
    /// Has the request answered by the leg's engines.
    pub(super) async fn pass(&mut self, leg: &Leg, started: &mut Started) -> Result<(), Fault> {
        let Some(original) = self.request.original.clone() else {
            return Err(self.impossible(leg, "the request was not kept as it was written"));
        };
        let job = self.whole_job(leg, &original);
        let mut beside = None;
        let params = match self.parted(leg, &job) {
            None => None,
            Some(prefiller) => self.hand_over(leg, prefiller, &job, &mut beside).await?,
        };
        let begun = self.enter("decode");
        let end = self.relay(leg, job, params, (&original, started, beside)).await;
        self.note_stage("decode", begun);
        end
    }

    /// The instance that computes the prompt, where that is another one and the request may be parted.
    fn parted(&self, leg: &Leg, job: &WholeJob) -> Option<Arc<dyn Engine>> {
        let Prefiller::Here(prefiller) = &leg.prefiller else {
            return None;
        };
        let apart = leg.route.prefill != leg.route.decode;
        let may = prefiller.whole()?.is_parted(job, self.record.prompt_tokens);
        (apart && may).then(|| Arc::clone(prefiller))
    }

    /// The prefill leg. What it leaves for the other is kept until that was asked: a decode instance that cannot be
    /// reached is followed by another with the same KV.
    async fn hand_over(
        &mut self,
        leg: &Leg,
        prefiller: Arc<dyn Engine>,
        job: &WholeJob,
        beside: &mut Option<Beside>,
    ) -> Result<Option<Arc<str>>, Fault> {
        if let Some(offered) = self.offered.take_if(|offered| offered.by == leg.route.prefill) {
            let params = Arc::clone(&offered.params);
            self.offered = Some(self.offer(leg, job, &params));
            return Ok(Some(params));
        }
        let begun = self.enter("prefill");
        let stop = Cancel::new();
        let guard = stop.on_drop();
        let prefill_job = WholeJob {
            cancel: stop,
            ..job.clone()
        };
        let whole = prefiller
            .whole()
            .ok_or_else(|| self.impossible(leg, "it answers no whole requests"))?;
        let limit = self.site.live().timeouts.prefill(&leg.facts);
        let work = whole.offer(prefill_job);
        let offer = match leg.patience.prefill_elsewhere {
            true => tokio::time::timeout(limit, work).await,
            false => Ok(work.await),
        };
        self.note_stage("prefill", begun);
        let instance = leg.route.prefill;
        let offer = offer.map_err(|_| Fault::Slow {
            instance,
            at: leg.prefill_at(),
            stage: "prefill",
            limit,
        })?;
        let offer = match offer {
            Ok(offer) => offer,
            // The engine refuses the request: the decode instance says so in the engine's words.
            Err(EngineError::BadJob(_)) => return Ok(None),
            Err(error) => return Err(Fault::Engine { instance, error }),
        };
        // Before anything is waited for: a request that ends here releases it.
        self.offered = offer.params.as_ref().map(|params| self.offer(leg, job, params));
        let mut task = tokio::spawn(offer.prefilling);
        // Where prefill came first, it is over by now.
        let over = tokio::time::timeout(wait::OVER_BY_NOW, &mut task).await;
        match over {
            Ok(ended) => {
                self.prefilled(
                    leg,
                    ended.unwrap_or_else(|broke| Err(EngineError::Broken(broke.to_string()))),
                )?;
                if offer.params.is_none() {
                    self.note_no_offer(leg);
                }
            }
            Err(_) => {
                self.offered = None;
                *beside = Some(Beside { task, stop: guard });
            }
        }
        Ok(offer.params)
    }

    fn offer(&self, leg: &Leg, job: &WholeJob, params: &Arc<str>) -> Offered {
        Offered {
            by: leg.route.prefill,
            params: Arc::clone(params),
            decoder: Arc::clone(&leg.decoder),
            job: WholeJob {
                cancel: Cancel::new(),
                ..job.clone()
            },
        }
    }

    /// Takes note of a prefill leg's end.
    fn prefilled(&mut self, leg: &Leg, end: Result<Handed, EngineError>) -> Result<(), Fault> {
        let instance = leg.route.prefill;
        match end {
            Ok(handed) => {
                self.site.parts.fleet.outcome(instance, InstanceOutcome::Served);
                if let Some(cached) = handed.cached {
                    self.note_cached(cached);
                }
                Ok(())
            }
            Err(EngineError::BadJob(_)) => Ok(()),
            Err(error) => Err(Fault::Engine { instance, error }),
        }
    }

    /// The decode leg: sends the request and passes the answer on.
    async fn relay(
        &mut self,
        leg: &Leg,
        job: WholeJob,
        params: Option<Arc<str>>,
        (original, started, mut beside): (&Original, &mut Started, Option<Beside>),
    ) -> Result<(), Fault> {
        let handed = params.is_some();
        let first = self.first_bytes(leg, job, params, original, &mut beside).await;
        self.settle_offer(&first);
        let (WholeAnswer { head, mut body }, mut next) = first?;
        let status = head.status;
        // An engine may take another value than `true` for it.
        let mut observer = Observer::new(head.is_stream());
        drop(self.events.send(AnswerEvent::Head(head)));
        self.begin(leg, started);
        let longest = self.site.live().timeouts.longest;
        while let Some(bytes) = next.transpose().map_err(|error| self.decode_fault(leg, error))? {
            observer.take(&bytes);
            // A client that left is noticed through `cancel`.
            drop(self.events.send(AnswerEvent::Bytes(bytes)));
            next = wait::next(&mut body, longest, &mut beside)
                .await
                .map_err(|late| late.into_fault(self, leg))?;
        }
        if let Some(Beside { task, stop }) = beside {
            // The decode instance has all of the KV: the prefill's answer is of no more interest, and it is not cut off.
            tokio::spawn(async move {
                drop(task.await);
                drop(stop);
            });
        }
        self.note_answer(leg, observer, handed);
        drop(self.events.send(AnswerEvent::Ended));
        match status {
            200..400 => {
                self.site
                    .parts
                    .fleet
                    .outcome(leg.route.decode, InstanceOutcome::Served);
                Ok(())
            }
            _ => {
                let text = format!("the engine refused the request with status {status}");
                Err(Fault::Refused(RequestError::new(ErrorKind::BadRequest, text)))
            }
        }
    }

    pub(super) fn decode_fault(&self, leg: &Leg, error: EngineError) -> Fault {
        Fault::Engine {
            instance: leg.route.decode,
            error,
        }
    }

    fn impossible(&self, leg: &Leg, why: &str) -> Fault {
        self.decode_fault(leg, EngineError::BadJob(why.to_owned()))
    }

    fn whole_job(&self, leg: &Leg, original: &Original) -> WholeJob {
        let key = self.salted_key();
        let cached = leg.facts.cached_tokens;
        // Without a lease nobody knows what may still be used.
        let salt = match (leg.keep_here, self.may_reuse()) {
            (Retention::Keep, true) => CacheSalt {
                text: key.cache_salt().into(),
                root: Some(BlockHash::root(&key)),
            },
            (Retention::Drop, _) | (_, false) => CacheSalt::once(self.site.parts.random.as_ref()),
        };
        WholeJob {
            request: self.id(),
            path: original.path,
            body: original.body.clone(),
            remove: Arc::clone(&original.remove),
            headers: Arc::clone(&original.headers),
            salt,
            prompt: Arc::clone(&self.request.prompt),
            uncached: self.record.prompt_tokens.saturating_sub(cached),
            cancel: leg.cancel.clone(),
        }
    }

    fn note_cached(&mut self, cached: u32) {
        let cached = cached.min(self.record.prompt_tokens);
        self.record.kv.cached_tokens = cached;
        self.record.kv.computed_tokens = self.record.prompt_tokens - cached;
    }

    fn note_no_offer(&mut self, leg: &Leg) {
        self.record.fallbacks.push(portolan_decide::Fallback {
            stage: "prefill".to_owned(),
            from: format!("KV from {}", leg.prefill_at()),
            to: format!("computing at {}", leg.decode_at()),
            reason: "the prefill engine said nothing that a decode engine could use".to_owned(),
        });
    }

    /// What the answer said of itself. Of two legs the first knows what was cached: to the second everything is.
    fn note_answer(&mut self, leg: &Leg, observer: Observer, handed: bool) {
        let seen = observer.end();
        if let Some(prompt) = seen.prompt_tokens {
            self.record.prompt_tokens = prompt;
        }
        let count = || {
            let text = &self.model().text;
            // Of what was too long to look into the text is not known.
            let known = Some(&seen.text).filter(|text| !text.is_empty());
            let tokens = known.and_then(|said| text.encode(said, false).ok());
            tokens.map_or(seen.pieces, |tokens| tokens.len() as u32)
        };
        self.record.completion_tokens = seen.completion_tokens.unwrap_or_else(count);
        match (handed, seen.cached_tokens) {
            (true, _) => {}
            (false, Some(cached)) => self.note_cached(cached),
            (false, None) => self.note_cached(leg.facts.cached_tokens),
        }
    }

    /// What becomes of KV that a prefill instance keeps, once the decode instance was asked. An engine that had the request
    /// may have taken it, failed or not, and what was taken is overwritten: nobody else goes on from it.
    fn settle_offer(&mut self, first: &Result<(WholeAnswer, wait::Next), Fault>) {
        match first {
            Err(Fault::Engine {
                error: EngineError::Unreachable(_),
                ..
            }) => {}
            // One that refuses a request takes nothing for it.
            Ok((answer, _)) if !(200..400).contains(&answer.head.status) => self.release_offer(),
            Err(Fault::Engine { .. }) => self.release_offer(),
            _ => self.offered = None,
        }
    }

    /// Frees what was computed for a decode that never came.
    pub(super) fn release_offer(&mut self) {
        if let Some(Offered {
            params, decoder, job, ..
        }) = self.offered.take()
            && let Some(whole) = decoder.whole()
        {
            whole.release(job, params);
        }
    }
}
