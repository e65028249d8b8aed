//! The path records of recent requests, kept in memory.

use crate::live::Switch;
use parking_lot::Mutex;
use portolan_base::{RequestId, TenantName};
use portolan_decide::PathRecord;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The status of a request that was let in and has not ended.
pub const RUNNING: &str = "running";

/// Keeps the newest records. When the bound is reached, the oldest goes of the tenant that has the most: one tenant's burst
/// takes its own records, not another's.
#[derive(Debug)]
pub struct RecordLog {
    most: usize,
    off: AtomicBool,
    inner: Mutex<Inner>,
}

/// Ids are the clients' own: two tenants may choose the same, and neither learns of the other.
#[derive(Debug, Default)]
struct Inner {
    tenants: HashMap<TenantName, OfTenant>,
    /// Records at the moment, and how many there were ever.
    kept: usize,
    ever: u64,
}

#[derive(Debug, Default)]
struct OfTenant {
    by_id: HashMap<RequestId, (u64, Arc<PathRecord>)>,
    /// By when they came, oldest first.
    order: VecDeque<RequestId>,
}

impl Inner {
    fn put(&mut self, record: PathRecord) {
        let id = record.request_id.clone();
        let of_tenant = self.tenants.entry(record.tenant.clone()).or_default();
        let record = Arc::new(record);
        match of_tenant.by_id.get_mut(&id) {
            // It goes on.
            Some((_, known)) if record.status != RUNNING => {
                *known = record;
                return;
            }
            // The id is used again: the newest request is the one that came last.
            Some(_) => {
                of_tenant.order.retain(|other| *other != id);
                self.kept -= 1;
            }
            None => {}
        }
        of_tenant.by_id.insert(id.clone(), (self.ever, record));
        of_tenant.order.push_back(id);
        self.ever += 1;
        self.kept += 1;
    }

    fn drop_one(&mut self) {
        let most = self.tenants.iter().max_by_key(|(_, of)| of.order.len());
        let Some(tenant) = most.map(|(tenant, _)| tenant.clone()) else {
            return;
        };
        if let Some(of_tenant) = self.tenants.get_mut(&tenant) {
            if let Some(oldest) = of_tenant.order.pop_front() {
                of_tenant.by_id.remove(&oldest);
                self.kept -= 1;
            }
            if of_tenant.order.is_empty() {
                self.tenants.remove(&tenant);
            }
        }
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
    pub fn put(&self, record: PathRecord) {
        if self.off.load(Ordering::Relaxed) {
            return;
        }
        let mut inner = self.inner.lock();
        inner.put(record);
        while inner.kept > self.most {
            inner.drop_one();
        }
    }

    /// The record of a tenant's request.
    pub fn get(&self, tenant: &TenantName, id: &RequestId) -> Option<Arc<PathRecord>> {
        let inner = self.inner.lock();
        let (_, record) = inner.tenants.get(tenant)?.by_id.get(id)?;
        Some(Arc::clone(record))
    }

    /// The newest record of this id, whichever tenant's it is: for the operator.
    pub fn find(&self, id: &RequestId) -> Option<Arc<PathRecord>> {
        let inner = self.inner.lock();
        let found = inner.tenants.values().filter_map(|of| of.by_id.get(id));
        let (_, record) = found.max_by_key(|(number, _)| *number)?;
        Some(Arc::clone(record))
    }

    /// The newest records of a tenant, newest first.
    pub fn newest_of(&self, tenant: &TenantName, limit: usize) -> Vec<Arc<PathRecord>> {
        let inner = self.inner.lock();
        let Some(of) = inner.tenants.get(tenant) else {
            return Vec::new();
        };
        let latest = of.order.iter().rev().take(limit);
        let latest = latest.filter_map(|id| of.by_id.get(id));
        latest.map(|(_, record)| Arc::clone(record)).collect()
    }

    /// The newest records of all tenants, newest first. Looks at `limit` of each: for the operator.
    pub fn newest(&self, limit: usize) -> Vec<Arc<PathRecord>> {
        let inner = self.inner.lock();
        let of_each = inner.tenants.values().flat_map(|of| {
            let latest = of.order.iter().rev().take(limit);
            latest.filter_map(|id| of.by_id.get(id))
        });
        let mut newest: Vec<_> = of_each.collect();
        newest.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        newest.truncate(limit);
        newest.into_iter().map(|(_, record)| Arc::clone(record)).collect()
    }
}
