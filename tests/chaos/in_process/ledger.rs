//! Where every part of a world writes down what happens.

use crate::chaos::history::{Appended, Began, Begin, Birth, BirthId, Reached, Stamp};
use parking_lot::Mutex;
use portolan_base::{BlockId, Provenance, RequestId, Scope};
use portolan_ports::Invalidation;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// What was written down, and the clock that stamps it.
pub(crate) struct Ledger {
    began: Instant,
    pub(crate) written: Mutex<Written>,
}

#[derive(Default)]
pub(crate) struct Written {
    pub(crate) births: Vec<Birth>,
    pub(crate) begins: Vec<Begin>,
    pub(crate) reached: Vec<Reached>,
    pub(crate) stream: BTreeMap<String, Appended>,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self {
            began: Instant::now(),
            written: Mutex::default(),
        }
    }

    pub(crate) fn stamp(&self) -> Stamp {
        Stamp(u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// KV of one block was computed; what it is called from then on.
    pub(crate) fn born(&self, request: &RequestId, about: &Arc<Provenance>) -> BirthId {
        let at = self.stamp();
        let mut written = self.written.lock();
        written.births.push(Birth {
            request: request.as_str().to_owned(),
            chain: Vec::new(),
            has_aliases: false,
            about: Arc::clone(about),
            at,
        });
        BirthId(written.births.len() as u64 - 1)
    }

    /// KV is kept under the last of these names.
    pub(crate) fn kept(&self, birth: BirthId, chain: &[BlockId]) {
        let mut written = self.written.lock();
        let Some(birth) = written.births.get_mut(birth.0 as usize) else {
            return;
        };
        birth.has_aliases |= !birth.chain.is_empty() && birth.chain != chain;
        birth.chain = match birth.has_aliases {
            true => Vec::new(),
            false => chain.to_vec(),
        };
    }

    /// Something began at `at` on KV. A request may decode from what was computed for itself, whatever was ordered since:
    /// that is not written down.
    pub(crate) fn began(&self, (what, site): (Began, &str), request: &str, births: Vec<BirthId>, at: Stamp) {
        let mut written = self.written.lock();
        let others = |id: &BirthId| {
            let birth = written.births.get(id.0 as usize);
            what != Began::Decode || birth.is_none_or(|birth| birth.request != request)
        };
        let births: Vec<BirthId> = births.into_iter().filter(others).collect();
        if !births.is_empty() {
            written.begins.push(Begin {
                what,
                site: site.to_owned(),
                request: request.to_owned(),
                births,
                at,
            });
        }
    }

    /// Something of a request was at a site.
    pub(crate) fn reached(&self, site: &str, about: &Provenance, how: &'static str) {
        let Scope::Tenant(tenant) = &about.scope else {
            return;
        };
        self.written.lock().reached.push(Reached {
            site: site.to_owned(),
            tenant: tenant.to_string(),
            jurisdiction: about.jurisdiction.clone(),
            how,
        });
    }

    /// An order is about to be appended.
    pub(crate) fn appending(&self, order: &Invalidation) {
        let before = self.stamp();
        let entry = Appended {
            what: order.what.clone(),
            before,
        };
        let mut written = self.written.lock();
        written.stream.entry(order.reason.clone()).or_insert(entry);
    }
}
