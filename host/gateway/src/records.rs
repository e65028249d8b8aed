//! The path records of recent requests, kept in memory.

use parking_lot::Mutex;
use portolan_base::RequestId;
use portolan_decide::PathRecord;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Keeps the newest records; older ones are dropped when the bound is reached.
#[derive(Debug)]
pub struct RecordLog {
    most: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_id: HashMap<RequestId, Arc<PathRecord>>,
    order: VecDeque<RequestId>,
}

impl RecordLog {
    /// Keeps at most `most` records, at least one.
    pub fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            inner: Mutex::default(),
        }
    }

    /// Keeps a record; one of the same id is replaced.
    pub fn put(&self, record: PathRecord) {
        let mut inner = self.inner.lock();
        let id = record.request_id.clone();
        if inner.by_id.insert(id.clone(), Arc::new(record)).is_none() {
            inner.order.push_back(id);
        }
        while inner.order.len() > self.most {
            if let Some(oldest) = inner.order.pop_front() {
                inner.by_id.remove(&oldest);
            }
        }
    }

    /// The record of a request.
    pub fn get(&self, id: &RequestId) -> Option<Arc<PathRecord>> {
        self.inner.lock().by_id.get(id).cloned()
    }

    /// The newest records, newest first.
    pub fn newest(&self, limit: usize) -> Vec<Arc<PathRecord>> {
        let inner = self.inner.lock();
        inner
            .order
            .iter()
            .rev()
            .take(limit)
            .filter_map(|id| inner.by_id.get(id).cloned())
            .collect()
    }
}
