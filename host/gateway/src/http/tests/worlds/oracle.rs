//! What may be done with the data of a request, worked out from the tables alone.

use super::policy::said;
use portolan_policy::{Placement, Purpose};

/// What a world's policies and sites are.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    /// The jurisdiction of each site, from 1.
    pub(super) sites: Vec<u32>,
    /// The seed of the platform's policy, if it has one.
    pub(super) platform: Option<u64>,
    /// The seeds of the tenants' policies.
    pub(super) tenants: Vec<Option<u64>>,
}

/// What each site may do, by what for.
#[derive(Clone, Debug)]
pub(super) struct Verdicts {
    /// To compute on the request.
    pub(super) serve: Vec<Placement>,
    /// To take part in a fetch for it.
    pub(super) fetch: Vec<Placement>,
    /// To take part in a copy.
    pub(super) replicate: Vec<Placement>,
}

impl Rules {
    /// For data of a tenant bound to `jurisdiction`, 0 for none, that came in at `origin`.
    pub(super) fn verdicts(
        &self,
        tenant: usize,
        jurisdiction: u32,
        origin: usize,
        serve: Purpose,
    ) -> Verdicts {
        let of = |purpose| self.verdict(tenant, jurisdiction, origin, purpose);
        Verdicts {
            serve: of(serve),
            fetch: of(Purpose::Fetch),
            replicate: of(Purpose::Replicate),
        }
    }

    /// Answers that failed of those that a verdict takes.
    pub(super) fn closed(&self, tenant: usize, jurisdiction: u32, purpose: Purpose) -> usize {
        let asked = [self.platform, self.tenants[tenant]].into_iter().flatten();
        asked
            .filter(|seed| said(*seed, purpose, jurisdiction, 1).is_none())
            .count()
    }

    fn verdict(&self, tenant: usize, jurisdiction: u32, origin: usize, purpose: Purpose) -> Vec<Placement> {
        let where_ = |allowed: &dyn Fn(u32) -> bool| -> Vec<Placement> {
            let place = |site: &u32| {
                if allowed(*site) {
                    Placement::Resident
                } else {
                    Placement::Denied
                }
            };
            self.sites.iter().map(place).collect()
        };
        let home = self.sites[origin];
        let answer = |seed: u64| {
            said(seed, purpose, jurisdiction, self.sites.len())
                .unwrap_or_else(|| where_(&|site| site == home))
        };
        let platform = match self.platform {
            Some(seed) => answer(seed),
            None => where_(&|site| jurisdiction == 0 || site == jurisdiction),
        };
        match self.tenants[tenant].map(answer) {
            Some(own) => platform.into_iter().zip(own).map(|(a, b)| a.min(b)).collect(),
            None => platform,
        }
    }
}
