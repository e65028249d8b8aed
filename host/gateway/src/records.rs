//! The path records of recent requests, kept in memory.

use crate::live::Switch;
use parking_lot::Mutex;
use portolan_base::{RequestId, TenantName};
use portolan_decide::PathRecord;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The status of a request that was let in and has not ended.
pub const RUNNING: &str = "running";

/// Every status that a record may have.
pub const STATUSES: [&str; 5] = [RUNNING, "ok", "refused", "cancelled", "failed"];

/// Records looked at while requests that begin or end wait: some 0.1 ms.
const LOOKED_AT_ONCE: usize = 1024;

/// Keeps the newest records. When the bound is reached, the oldest goes of the tenant that has the most: one tenant's burst
/// takes its own records, not another's.
#[derive(Debug)]
pub struct RecordLog {
    most: usize,
    off: AtomicBool,
    inner: Mutex<Inner>,
}

/// Which records are wanted: those that are all of this.
#[derive(Clone, Debug, Default)]
pub struct RecordFilter {
    /// Of this tenant.
    pub tenant: Option<TenantName>,
    /// One of [`STATUSES`].
    pub status: Option<String>,
    /// Served by this site: it computed the prompt, or generated the answer.
    pub site: Option<String>,
}

/// A part of a list.
#[derive(Debug, Default)]
pub struct RecordPage {
    /// Newest first.
    pub records: Vec<Arc<PathRecord>>,
    /// Where the next page begins; none after the oldest record.
    pub next: Option<u64>,
}

/// Ids are the clients' own: two tenants may choose the same, and neither learns of the other.
#[derive(Debug, Default)]
struct Inner {
    tenants: HashMap<TenantName, OfTenant>,
    /// Every record, by when it came.
    all: BTreeMap<u64, Arc<PathRecord>>,
    /// How many there were ever.
    ever: u64,
}

/// A tenant counts its own records: from a number of its list it learns nothing of how many others have.
#[derive(Debug, Default)]
struct OfTenant {
    by_id: HashMap<RequestId, Numbers>,
    /// By when they came among the tenant's own: their numbers among all.
    order: BTreeMap<u64, u64>,
    ever: u64,
}

#[derive(Clone, Copy, Debug)]
struct Numbers {
    own: u64,
    among_all: u64,
}

impl Inner {
    fn put(&mut self, record: Arc<PathRecord>) {
        let of_tenant = self.tenants.entry(record.tenant.clone()).or_default();
        if let Some(known) = of_tenant.by_id.get(&record.request_id) {
            // It goes on.
            if record.status != RUNNING {
                self.all.insert(known.among_all, record);
                return;
            }
            // The id is used again: the newest request is the one that came last.
            of_tenant.order.remove(&known.own);
            self.all.remove(&known.among_all);
        }
        let numbers = Numbers {
            own: of_tenant.ever,
            among_all: self.ever,
        };
        of_tenant.by_id.insert(record.request_id.clone(), numbers);
        of_tenant.order.insert(numbers.own, numbers.among_all);
        self.all.insert(numbers.among_all, record);
        of_tenant.ever += 1;
        self.ever += 1;
    }

    fn drop_one(&mut self) {
        let most = self.tenants.iter().max_by_key(|(_, of)| of.order.len());
        let Some(tenant) = most.map(|(tenant, _)| tenant.clone()) else {
            return;
        };
        if let Some(of_tenant) = self.tenants.get_mut(&tenant) {
            let oldest = of_tenant.order.pop_first();
            if let Some(record) = oldest.and_then(|(_, number)| self.all.remove(&number)) {
                of_tenant.by_id.remove(&record.request_id);
            }
            if of_tenant.order.is_empty() {
                self.tenants.remove(&tenant);
            }
        }
    }

    /// Records below a number, newest first, with their numbers: a tenant's own, or all.
    fn below(&self, before: u64, tenant: Option<&TenantName>) -> Vec<(u64, Arc<PathRecord>)> {
        let Some(tenant) = tenant else {
            let found = self.all.range(..before).rev().take(LOOKED_AT_ONCE);
            return found
                .map(|(number, record)| (*number, Arc::clone(record)))
                .collect();
        };
        let Some(of_tenant) = self.tenants.get(tenant) else {
            return Vec::new();
        };
        let found = of_tenant.order.range(..before).rev().take(LOOKED_AT_ONCE);
        let found = found.filter_map(|(own, among_all)| Some((*own, self.all.get(among_all)?)));
        found.map(|(own, record)| (own, Arc::clone(record))).collect()
    }
}

impl RecordFilter {
    /// Whether a record of the tenant is wanted.
    fn wants(&self, record: &PathRecord) -> bool {
        let served_by = |site: &String| {
            let route = record.route.as_ref();
            route.is_some_and(|route| route.prefill_site == *site || route.decode_site == *site)
        };
        self.status.as_ref().is_none_or(|status| record.status == *status)
            && self.site.as_ref().is_none_or(served_by)
    }
}

impl RecordLog {
    /// Keeps at most `most` records, at least one.
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            off: AtomicBool::new(false),
            inner: Mutex::default(),
        }
    }

    /// Keeps records from now on, or forgets them all and keeps none.
    pub fn keep(&self, records: Switch) {
        self.off.store(!records.is_on(), Ordering::Relaxed);
        if !records.is_on() {
            *self.inner.lock() = Inner::default();
        }
    }

    /// Keeps a record; an earlier one of the same tenant and id is replaced. One that is running is a request that just came.
    pub fn put(&self, record: impl Into<Arc<PathRecord>>) {
        if self.off.load(Ordering::Relaxed) {
            return;
        }
        let mut inner = self.inner.lock();
        inner.put(record.into());
        while inner.all.len() > self.most {
            inner.drop_one();
        }
    }

    /// The record of a tenant's request.
    pub fn get(&self, tenant: &TenantName, id: &RequestId) -> Option<Arc<PathRecord>> {
        let inner = self.inner.lock();
        let numbers = inner.tenants.get(tenant)?.by_id.get(id)?;
        inner.all.get(&numbers.among_all).cloned()
    }

    /// The newest record of this id, whichever tenant's it is: for the operator.
    pub fn find(&self, id: &RequestId) -> Option<Arc<PathRecord>> {
        let inner = self.inner.lock();
        let found = inner.tenants.values().filter_map(|of| of.by_id.get(id));
        let newest = found.map(|numbers| numbers.among_all).max()?;
        inner.all.get(&newest).cloned()
    }

    /// The newest records of all tenants, newest first: for the operator.
    pub fn newest(&self, limit: usize) -> Vec<Arc<PathRecord>> {
        self.page(&RecordFilter::default(), None, limit).records
    }

    /// The newest records that are wanted, newest first, at most `limit`; with `before`, which a page before gave as `next`, those
    /// that follow it. Looks at each record that is kept once at most, and holds nobody up meanwhile.
    pub fn page(&self, filter: &RecordFilter, before: Option<u64>, limit: usize) -> RecordPage {
        let mut page = RecordPage::default();
        let (mut before, mut last) = (before.unwrap_or(u64::MAX), None);
        loop {
            let looked_at = self.inner.lock().below(before, filter.tenant.as_ref());
            let is_end = looked_at.len() < LOOKED_AT_ONCE;
            for (number, record) in looked_at {
                before = number;
                if !filter.wants(&record) {
                    continue;
                }
                if page.records.len() >= limit {
                    page.next = last;
                    return page;
                }
                page.records.push(record);
                last = Some(number);
            }
            if is_end {
                return page;
            }
        }
    }
}
