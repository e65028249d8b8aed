//! Whether what a request is about to begin on may be used: looked at when its KV is on its way, and when decode begins.

use super::journey::{Fault, Journey, Leg};
use portolan_decide::Fallback;
use portolan_kv::tier::Epoch;
use portolan_ports::{
    Begun, EngineError, InUse, Invalidated, Invalidation, KvMade, KvPast, KvSet, Retention, Stale,
};
use std::future::Future;
use std::sync::Arc;
use tokio::sync::broadcast::error::RecvError;

/// Where the site was when a route was begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Past {
    begun: Begun,
    /// The same as the decode instance's caches count it.
    epoch: Option<Epoch>,
}

impl Journey {
    /// A route begins: what it will use is held against the orders that come from here on.
    pub(super) fn begins_now(&mut self, leg: &Leg) -> Past {
        self.record.kv.cached_tokens = 0;
        let epoch = leg.decoder.cache().map(|cache| cache.tiers().epoch());
        Past {
            begun: self.site.parts.validity.begin(),
            epoch,
        }
    }

    /// Whether anything cached or fetched may be used at this moment.
    pub(super) fn may_reuse(&self) -> bool {
        self.site.parts.validity.check(self.now()).is_ok()
    }

    /// Decode is about to begin on this. KV of which nothing was cached was computed for this request, after it began: it
    /// is not what an order can have been about.
    pub(super) fn still_valid(&self, kv: KvSet, past: Past) -> Result<KvSet, Fault> {
        let made = match self.record.kv.cached_tokens {
            0 => KvMade::Afresh,
            _ => KvMade::FromCache,
        };
        if made == KvMade::FromCache {
            let in_use = InUse {
                begun: past.begun,
                about: &self.about,
            };
            // Which blocks it was made from is not known here: any may be among them.
            let checked = self.site.parts.validity.check_kv(in_use, self.now(), &|_| true);
            checked.map_err(Fault::Stale)?;
        }
        Ok(match past.epoch {
            Some(since) => kv.made(KvPast { since, made }),
            None => kv,
        })
    }

    /// Whether what is computed may be kept: a request that began with an older version finishes with it, and leaves
    /// nothing.
    pub(super) fn if_current(&self, retention: Retention) -> Retention {
        let current = self.site.model_version(&self.model().description.layout);
        match self.about.model_version == current {
            true => retention,
            false => Retention::Drop,
        }
    }

    /// Notes that a route is begun anew.
    pub(super) fn note_stale(&mut self, stale: Stale) {
        tracing::info!(request = %self.request.id, reason = %stale, "begun anew");
        self.record.fallbacks.push(Fallback {
            stage: self.at.to_owned(),
            from: "cached KV".to_owned(),
            to: "computing it".to_owned(),
            reason: stale.to_string(),
        });
    }
}

/// What an engine says of KV that it must not begin on.
pub(super) fn stale(error: &EngineError) -> Option<Fault> {
    (*error == EngineError::Stale).then_some(Fault::Stale(Stale::Invalidated))
}

/// Returns when an order ends this request.
pub(super) fn aborted(journey: &Journey) -> impl Future<Output = ()> + use<> {
    let mut orders = journey.site.parts.validity.aborts();
    let about = Arc::clone(&journey.about);
    async move {
        loop {
            match orders.recv().await {
                Ok(order) if is_about(&order, &about) => return,
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

/// Whether an order is, or may be, about what a request runs on.
fn is_about(order: &Invalidation, about: &portolan_base::Provenance) -> bool {
    match &order.what {
        Invalidated::Model { model } => about.model == *model,
        Invalidated::Dependency { by, of } => {
            let mut on = about.dependencies.iter();
            of.as_ref().is_none_or(|of| *of == about.scope)
                && on.any(|d| d.kind == by.kind && d.name == by.name && d.version != by.version)
        }
        Invalidated::Prefix { of, .. } => of.as_ref().is_none_or(|of| *of == about.scope),
        Invalidated::Tenant { scope } => *scope == about.scope,
    }
}
