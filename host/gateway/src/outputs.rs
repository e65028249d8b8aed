//! How much a tenant's requests really produce: an input of the policies.

use parking_lot::Mutex;
use portolan_base::TenantName;
use std::collections::HashMap;

/// Weight of the newest answer in the moving mean: one in sixteen follows a change of habit within some ten answers.
const NEWEST_SHARE: f64 = 1.0 / 16.0;

/// Moving means of output tokens by tenant.
#[derive(Debug, Default)]
pub struct OutputMeans(Mutex<HashMap<TenantName, f64>>);

impl OutputMeans {
    /// Notes that an answer had `tokens` tokens.
    pub fn observe(&self, tenant: &TenantName, tokens: u32) {
        let mut means = self.0.lock();
        let mean = means.entry(tenant.clone()).or_insert(f64::from(tokens));
        *mean += (f64::from(tokens) - *mean) * NEWEST_SHARE;
    }

    /// What an answer of at most `most` tokens is expected to have. Before the first answer: `most`.
    pub fn expected(&self, tenant: &TenantName, most: u32) -> u32 {
        let mean = self.0.lock().get(tenant).copied();
        mean.map_or(most, |mean| (mean.round() as u32).clamp(1, most.max(1)))
    }
}
