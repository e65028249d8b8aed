//! Which site is asked next, as one site knows it: from its own requests, and from what the others tell of theirs. What
//! crosses the bus are keyed hashes of patterns, to each receiver under its own key.

use crate::topology::Topology;
use parking_lot::Mutex;
use portolan_base::{Moment, PatternId, PatternKey, SiteName};
use portolan_decide::patterns::Pattern;
use portolan_decide::{Patterns, SiteIndex};
use portolan_ports::{Forecast, Visit, Visits};

/// Patterns that wait to be told to one site: those of 1,300 requests. They are told five times a [`crate::HEARTBEAT`];
/// what does not fit is not told, and a forecast is a little worse.
const WAITING: usize = 4096;

/// What one site knows of patterns.
#[derive(Debug)]
pub(crate) struct Foresight {
    site: SiteIndex,
    name: SiteName,
    key: PatternKey,
    patterns: Mutex<Patterns>,
    receivers: Vec<Receiver>,
}

#[derive(Debug)]
struct Receiver {
    site: SiteIndex,
    name: SiteName,
    key: PatternKey,
    waiting: Mutex<Vec<PatternId>>,
}

impl Foresight {
    /// Nothing known. `secret` is known to the fleet's sites only.
    pub(crate) fn new(topology: &Topology, here: SiteIndex, secret: &[u8; 32]) -> Self {
        let receiver = |(number, site): (u32, &crate::SiteSpec)| Receiver {
            site: SiteIndex(number),
            name: site.name.clone(),
            key: PatternKey::derive(secret, site.name.as_str()),
            waiting: Mutex::default(),
        };
        let mut all: Vec<Receiver> = (0u32..).zip(topology.sites()).map(receiver).collect();
        let own = all.swap_remove(here.0 as usize);
        Self {
            site: here,
            name: own.name,
            key: own.key,
            patterns: Mutex::default(),
            receivers: all,
        }
    }

    /// Takes a request that was served here; says where its pattern was before and where it is likely to go.
    pub(crate) fn visited(&self, now: Moment, visit: &Visit<'_>) -> Forecast {
        let tenant = visit.tenant.as_str();
        let own: Vec<Pattern> = visit
            .patterns
            .iter()
            .map(|(kind, name)| Pattern {
                kind: *kind,
                id: self.key.id(tenant, *kind, name),
            })
            .collect();
        for receiver in &self.receivers {
            if visit.may_know.contains(&receiver.site) {
                receiver.note(visit);
            }
        }
        let mut patterns = self.patterns.lock();
        let before = patterns.before(&own);
        own.iter()
            .for_each(|pattern| patterns.visited(now, pattern.id, self.site));
        Forecast {
            before,
            next: patterns.next(now, &own, self.site, visit.blocks),
        }
    }

    /// Takes what another site tells of its requests.
    pub(crate) fn heard(&self, now: Moment, from: SiteIndex, patterns: &[PatternId]) {
        if from == self.site {
            return;
        }
        let mut known = self.patterns.lock();
        patterns
            .iter()
            .take(WAITING)
            .for_each(|pattern| known.visited(now, *pattern, from));
    }

    /// What there is to tell the others.
    pub(crate) fn to_tell(&self) -> Vec<Visits> {
        let told = |receiver: &Receiver| {
            let patterns = std::mem::take(&mut *receiver.waiting.lock());
            (!patterns.is_empty()).then(|| Visits {
                from: self.name.clone(),
                to: receiver.name.clone(),
                patterns,
            })
        };
        self.receivers.iter().filter_map(told).collect()
    }
}

impl Receiver {
    fn note(&self, visit: &Visit<'_>) {
        let mut waiting = self.waiting.lock();
        if waiting.len() < WAITING {
            let tenant = visit.tenant.as_str();
            waiting.extend(
                visit
                    .patterns
                    .iter()
                    .map(|(kind, name)| self.key.id(tenant, *kind, name)),
            );
        }
    }
}

#[cfg(test)]
mod tests;
