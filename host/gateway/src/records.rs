//! The path records of recent requests, kept in memory.

use crate::live::Switch;
use parking_lot::Mutex;
use portolan_base::{RequestId, TenantName};
use portolan_decide::PathRecord;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Keeps the newest records; older ones are dropped when the bound is reached.
#[derive(Debug)]
pub struct RecordLog {
    most: usize,
    off: AtomicBool,
    inner: Mutex<Inner>,
}

/// Ids are the clients' own: two tenants may choose the same, and neither learns of the other.
type Key = (TenantName, RequestId);

#[derive(Debug, Default)]
struct Inner {
    by_key: HashMap<Key, Arc<PathRecord>>,
    order: VecDeque<Key>,
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

    /// Keeps a record; an earlier one of the same tenant and id is replaced.
    pub fn put(&self, record: PathRecord) {
        if self.off.load(Ordering::Relaxed) {
            return;
        }
        let mut inner = self.inner.lock();
        let key = (record.tenant.clone(), record.request_id.clone());
        if inner.by_key.insert(key.clone(), Arc::new(record)).is_none() {
            inner.order.push_back(key);
        }
        while inner.order.len() > self.most {
            if let Some(oldest) = inner.order.pop_front() {
                inner.by_key.remove(&oldest);
            }
        }
    }

    /// The record of a tenant's request.
    pub fn get(&self, tenant: &TenantName, id: &RequestId) -> Option<Arc<PathRecord>> {
        self.inner
            .lock()
            .by_key
            .get(&(tenant.clone(), id.clone()))
            .cloned()
    }

    /// The newest record of this id, whichever tenant's it is: for the operator.
    pub fn find(&self, id: &RequestId) -> Option<Arc<PathRecord>> {
        let inner = self.inner.lock();
        let key = inner.order.iter().rev().find(|(_, known)| known == id)?;
        inner.by_key.get(key).cloned()
    }

    /// The newest records, newest first.
    pub fn newest(&self, limit: usize) -> Vec<Arc<PathRecord>> {
        let inner = self.inner.lock();
        inner
            .order
            .iter()
            .rev()
            .take(limit)
            .filter_map(|key| inner.by_key.get(key).cloned())
            .collect()
    }
}
