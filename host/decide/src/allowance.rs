//! How much a site orders by itself: bytes in a minute, orders under way, and no tenant's more than half of either while
//! another waits.

use portolan_base::{Bytes, Moment, TenantName};
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

/// The budget's time.
const MINUTE: Duration = Duration::from_secs(60);

/// Bounds of what is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most bytes ordered in any minute. One tenant takes half of it while others are waiting too.
    pub per_minute: Bytes,
    /// Most orders under way. One tenant has half of them, at least one, while others are waiting too.
    pub at_once: u32,
}

/// Orders under way and what those of the last minute took. An order is named by `K`, of which one is under way at a time.
#[derive(Clone, Debug)]
pub struct Allowance<K> {
    bounds: Bounds,
    spent: VecDeque<Spent<K>>,
    under_way: HashMap<K, (Moment, TenantName)>,
}

#[derive(Clone, Debug)]
struct Spent<K> {
    at: Moment,
    of: K,
    tenant: TenantName,
    bytes: Bytes,
}

impl<K: Copy + Eq + Hash> Allowance<K> {
    /// Nothing ordered.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            spent: VecDeque::new(),
            under_way: HashMap::new(),
        }
    }

    /// Orders under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Whether this order is under way.
    pub fn has(&self, order: &K) -> bool {
        self.under_way.contains_key(order)
    }

    /// Begins an order, if there is room for it and its bytes.
    pub fn begin(
        &mut self,
        now: Moment,
        order: K,
        (tenant, bytes): (&TenantName, Bytes),
        waiting: OtherTenants,
    ) -> bool {
        let fits = self.has_room(tenant, waiting) && self.affords(now, tenant, bytes, waiting);
        if fits {
            self.spent.push_back(Spent {
                at: now,
                of: order,
                tenant: tenant.clone(),
                bytes,
            });
            self.under_way.insert(order, (now, tenant.clone()));
        }
        fits
    }

    /// Ends an order: the budget counts what crossed, not what was thought to. False when it was not under way.
    pub fn end(&mut self, order: &K, crossed: Bytes) -> bool {
        let Some((begun, _)) = self.under_way.remove(order) else {
            return false;
        };
        for spent in &mut self.spent {
            if spent.of == *order && spent.at == begun {
                spent.bytes = crossed;
            }
        }
        true
    }

    fn has_room(&self, tenant: &TenantName, waiting: OtherTenants) -> bool {
        let most = self.bounds.at_once as usize;
        let own = self.under_way.values().filter(|(_, of)| of == tenant).count();
        self.under_way.len() < most && (own < (most / 2).max(1) || waiting == OtherTenants::Idle)
    }

    fn affords(&mut self, now: Moment, tenant: &TenantName, bytes: Bytes, waiting: OtherTenants) -> bool {
        while self
            .spent
            .front()
            .is_some_and(|spent| now.since(spent.at) >= MINUTE)
        {
            self.spent.pop_front();
        }
        let most = self.bounds.per_minute;
        let all: Bytes = self.spent.iter().map(|spent| spent.bytes).sum();
        let own: Bytes = self
            .spent
            .iter()
            .filter(|spent| spent.tenant == *tenant)
            .map(|spent| spent.bytes)
            .sum();
        all + bytes <= most && (own + bytes <= Bytes(most.0 / 2) || waiting == OtherTenants::Idle)
    }
}

/// Whether other tenants want something too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherTenants {
    /// They do.
    Waiting,
    /// They did not lately.
    Idle,
}
