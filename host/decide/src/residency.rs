//! Which sites are allowed: every residency policy must allow a site; a policy that fails allows only the origin's
//! jurisdiction.

use crate::ask::Asker;
use crate::fleet::{FleetView, SiteIndex};
use crate::table::RequestPolicies;
use portolan_policy::{Answer, Placement, Policy, Question, Subject};
use std::sync::Arc;

/// What each site may do with the data, by site index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placements(Vec<Placement>);

impl Placements {
    /// What one site may do. A site nobody was asked about is denied.
    pub fn of(&self, site: SiteIndex) -> Placement {
        self.0.get(site.0 as usize).copied().unwrap_or(Placement::Denied)
    }

    /// Whether a site may compute on the data.
    pub fn allows(&self, site: SiteIndex) -> bool {
        self.of(site) != Placement::Denied
    }

    /// By site index.
    pub fn as_slice(&self) -> &[Placement] {
        &self.0
    }

    /// Asks the platform's policy and the tenant's, and keeps what both allow. Where the platform has none, a site is
    /// allowed when the data's jurisdiction is its own, or none was stated.
    pub fn ask(
        policies: &RequestPolicies,
        subject: Subject,
        request: &[u32],
        place: (&FleetView, SiteIndex),
        asker: &mut Asker<'_>,
    ) -> Self {
        let (fleet, origin) = place;
        let mut ask = |policy: &Arc<dyn Policy>| {
            let question = Question::Residency {
                subject,
                request,
                sites: fleet.sites.len(),
            };
            match asker.ask(policy.as_ref(), question, "only the origin's jurisdiction") {
                Some(Answer::Residency(placements)) => placements,
                _ => closed(fleet, origin),
            }
        };
        let platform = policies.platform_residency.as_ref();
        let mut allowed =
            platform.map_or_else(|| by_jurisdiction(fleet, subject.data_jurisdiction), &mut ask);
        if let Some(tenant) = &policies.tenant_residency {
            for (both, own) in allowed.iter_mut().zip(ask(tenant)) {
                *both = (*both).min(own);
            }
        }
        Self(allowed)
    }
}

fn by_jurisdiction(fleet: &FleetView, wanted: u32) -> Vec<Placement> {
    let place = |jurisdiction| {
        if wanted == 0 || jurisdiction == wanted {
            Placement::Resident
        } else {
            Placement::Denied
        }
    };
    fleet.sites.iter().map(|site| place(site.jurisdiction)).collect()
}

fn closed(fleet: &FleetView, origin: SiteIndex) -> Vec<Placement> {
    let home = fleet.site(origin).map(|site| site.jurisdiction);
    let place = |jurisdiction| {
        if Some(jurisdiction) == home {
            Placement::Resident
        } else {
            Placement::Denied
        }
    };
    fleet.sites.iter().map(|site| place(site.jurisdiction)).collect()
}
