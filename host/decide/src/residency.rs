//! Which sites are allowed: every residency policy must allow a site; a policy that fails allows only the origin's
//! jurisdiction.

use crate::ask::Asker;
use crate::fleet::{FleetView, SiteIndex, SiteView};
use crate::record::SiteVerdict;
use crate::table::RequestPolicies;
use portolan_policy::{Answer, Placement, Policy, Question, Subject};
use std::sync::Arc;

/// What each site may do with the data, by site index, and who said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placements {
    both: Vec<Placement>,
    platform: Said,
    tenant: Option<Said>,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    placements: Vec<Placement>,
    by: Speaker,
}

/// Who gave an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Speaker {
    /// The data's own jurisdiction: no policy is bound.
    Jurisdiction,
    /// A policy, by name and the beginning of its version.
    Policy(String),
    /// Nobody: the policy gave no usable answer, and this is why.
    Nobody(String),
}

impl Placements {
    /// What one site may do. A site nobody was asked about is denied.
    pub fn of(&self, site: SiteIndex) -> Placement {
        self.both
            .get(site.0 as usize)
            .copied()
            .unwrap_or(Placement::Denied)
    }

    /// Whether a site may compute on the data.
    pub fn allows(&self, site: SiteIndex) -> bool {
        self.of(site) != Placement::Denied
    }

    /// By site index.
    pub fn as_slice(&self) -> &[Placement] {
        &self.both
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
            let who = policy.descriptor();
            let name = format!("{}@{}", who.name, who.version.get(..12).unwrap_or(&who.version));
            match asker.ask(policy.as_ref(), question, "only the origin's jurisdiction") {
                Some(Answer::Residency(placements)) => Said {
                    placements,
                    by: Speaker::Policy(name),
                },
                _ => {
                    let reason = asker
                        .fallbacks
                        .last()
                        .map_or("no answer", |fallback| &fallback.reason);
                    Said {
                        placements: closed(fleet, origin),
                        by: Speaker::Nobody(format!("{name}: {reason}")),
                    }
                }
            }
        };
        let built_in = || Said {
            placements: by_jurisdiction(fleet, subject.data_jurisdiction),
            by: Speaker::Jurisdiction,
        };
        let platform = policies
            .platform_residency
            .as_ref()
            .map_or_else(built_in, &mut ask);
        let tenant = policies.tenant_residency.as_ref().map(ask);
        let mut both = platform.placements.clone();
        for (both, own) in both
            .iter_mut()
            .zip(tenant.iter().flat_map(|said| &said.placements))
        {
            *both = (*both).min(*own);
        }
        Self {
            both,
            platform,
            tenant,
        }
    }

    /// What was said of each site, and why it counts, for data bound to `jurisdiction` (0: to none).
    pub fn verdicts(&self, fleet: &FleetView, jurisdiction: u32) -> Vec<SiteVerdict> {
        let verdict = |(at, site): (usize, &SiteView)| {
            let of = |said: &Said| said.placements.get(at).copied().unwrap_or(Placement::Denied);
            let reason = |whose: &str, said: &Said| match &said.by {
                Speaker::Jurisdiction if jurisdiction == 0 => {
                    "no jurisdiction was stated for the data".to_owned()
                }
                Speaker::Jurisdiction if site.jurisdiction == jurisdiction => {
                    "the site lies in the data's jurisdiction".to_owned()
                }
                Speaker::Jurisdiction => "the site lies outside the data's jurisdiction".to_owned(),
                Speaker::Policy(name) => format!("{whose} policy {name} says {}", of(said).as_str()),
                Speaker::Nobody(why) => {
                    format!(
                        "{whose} policy gave no usable answer, so only the origin's jurisdiction stays ({why})"
                    )
                }
            };
            let mut why = reason("the platform's", &self.platform);
            if let Some(tenant) = &self.tenant {
                why = format!("{why}; {}", reason("the tenant's", tenant));
            }
            SiteVerdict {
                site: site.name.as_str().to_owned(),
                placement: self.both.get(at).copied().unwrap_or(Placement::Denied),
                platform: of(&self.platform),
                tenant: self.tenant.as_ref().map(of),
                why,
            }
        };
        fleet.sites.iter().enumerate().map(verdict).collect()
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
