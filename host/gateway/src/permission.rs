//! Residency is asked again before KV is copied: it may come from there, and may stay here.

use crate::stage::ask_policies;
use portolan_decide::ask::Asker;
use portolan_decide::{FleetView, Placements, RequestPolicies, SiteIndex};
use portolan_policy::{Placement, Subject};

/// Asks the policies of one request, platform and tenant. One that fails allows only the origin's own jurisdiction.
pub(crate) struct Permission<'a> {
    pub(crate) fleet: &'a FleetView,
    /// The versions that answer for the request.
    pub(crate) policies: &'a RequestPolicies,
    /// What for, and whose data; where it is is filled in.
    pub(crate) subject: Subject,
    /// The request's row; empty when stored KV is asked about.
    pub(crate) row: Vec<u32>,
    /// Where the request came in.
    pub(crate) origin: SiteIndex,
    /// Asks, and keeps the record of every call.
    pub(crate) asker: Asker<'a>,
}

impl Permission<'_> {
    /// Whether the data may come from `from`, to which the prompt's tokens are sent for that, and may stay at `to`.
    pub(crate) fn may_come(&mut self, from: SiteIndex, to: SiteIndex) -> bool {
        let subject = Subject {
            from_site: Some(from.0),
            ..self.subject
        };
        let place = (self.fleet, self.origin);
        let (policies, row, asker) = (self.policies, &self.row, &mut self.asker);
        let placements = ask_policies(policies, || Placements::ask(policies, subject, row, place, asker));
        placements.allows(from) && placements.of(to) == Placement::Resident
    }
}
