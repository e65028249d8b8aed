//! Residency is asked about KV that nobody's request is in hand for: before it is written to a site's disk, with purpose
//! spill, and before another site is told that it is held here, with purpose replicate.

use super::parts::Shared;
use crate::config::SiteConfig;
use portolan_base::{Clock, Scope, SiteName, TenantName};
use portolan_decide::ask::Asker;
use portolan_decide::{Answerers, Draw, FleetView, Placements, PolicyTable, SiteIndex, SiteView};
use portolan_disk::Gate;
use portolan_fleet::{Disclosure, Owner, Topology};
use portolan_gateway::policies::PolicyDesk;
use portolan_gateway::stage::ask_policies;
use portolan_policy::{NameTables, Placement, Purpose, QuestionKind, Subject};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Whose, bound to where, and the site that it may lie at.
type Asked = (TenantName, String, SiteIndex);

/// What the residency policies of one table said, and of the tables after it in which they are the same.
struct Answers {
    table: Weak<PolicyTable>,
    answerers: Answerers,
    said: HashMap<Asked, bool>,
    /// How often they were others before.
    edition: u64,
}

/// Asks for one site and one purpose. What asks belongs to engines, whose threads end after the host has: nothing here
/// keeps the desk, and with it the store, open.
struct StoredKv {
    here: SiteIndex,
    purpose: Purpose,
    fleet: FleetView,
    names: NameTables,
    desk: Weak<PolicyDesk>,
    clock: Arc<dyn Clock>,
    answers: Mutex<Answers>,
}

/// What may lie on the disk of a site.
pub(super) fn gate(config: &SiteConfig, shared: &Shared) -> Option<Gate> {
    let here = shared.topology.site_index(&config.name)?;
    let spill = of(here, Purpose::Spill, shared);
    Some(Gate::new(move |about| {
        spill.may_lie_at(spill.here, &about.into())
    }))
}

/// What other sites may be told of what this one holds: prefixes that are resident at the site that is told.
pub(super) fn disclosure(here: SiteIndex, shared: &Shared) -> Arc<dyn Disclosure> {
    Arc::new(of(here, Purpose::Replicate, shared))
}

fn of(here: SiteIndex, purpose: Purpose, shared: &Shared) -> StoredKv {
    let clock = Arc::clone(&shared.clock);
    StoredKv::new((here, purpose), &shared.topology, &shared.desk, clock)
}

impl Disclosure for StoredKv {
    fn may_tell(&self, receiver: &SiteName, owner: &Owner) -> bool {
        let index = self.names.site(receiver.as_str()).map(SiteIndex);
        index.is_some_and(|receiver| self.may_lie_at(receiver, owner))
    }

    fn edition(&self) -> u64 {
        self.current().map_or(u64::MAX, |(_, edition)| edition)
    }
}

impl StoredKv {
    fn new(
        (here, purpose): (SiteIndex, Purpose),
        topology: &Topology,
        desk: &Arc<PolicyDesk>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let names = topology.names().clone();
        let sites = topology.sites().iter().zip(&names.sites);
        let fleet = FleetView {
            sites: sites
                .map(|(site, entry)| SiteView {
                    name: site.name.clone(),
                    jurisdiction: entry.jurisdiction,
                })
                .collect(),
            ..FleetView::default()
        };
        let table = desk.table();
        let answers = Mutex::new(Answers {
            table: Arc::downgrade(&table),
            answerers: table.answerers(QuestionKind::Residency),
            said: HashMap::new(),
            edition: 0,
        });
        Self {
            here,
            purpose,
            fleet,
            names,
            desk: Arc::downgrade(desk),
            clock,
            answers,
        }
    }

    /// The table in force and which edition it is of; none once the host has ended.
    fn current(&self) -> Option<(Arc<PolicyTable>, u64)> {
        let table = self.desk.upgrade()?.table();
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let this = Arc::downgrade(&table);
        if !Weak::ptr_eq(&answers.table, &this) {
            let answerers = table.answerers(QuestionKind::Residency);
            answers.table = this;
            if answerers != answers.answerers {
                answers.answerers = answerers;
                answers.said.clear();
                answers.edition += 1;
            }
        }
        Some((table, answers.edition))
    }

    /// Whether a site is resident for this data. What residency policies said once, they are not asked again.
    fn may_lie_at(&self, site: SiteIndex, owner: &Owner) -> bool {
        // What the platform marked public is nobody's.
        let Scope::Tenant(tenant) = &owner.scope else {
            return true;
        };
        let asked = (tenant.clone(), owner.jurisdiction.clone(), site);
        let Some((table, edition)) = self.current() else {
            return false;
        };
        let answers = || self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(said) = answers().said.get(&asked) {
            return *said;
        }
        let said = self.ask(&table, &asked);
        let mut answers = answers();
        if answers.edition == edition {
            answers.said.insert(asked, said);
        }
        said
    }

    /// A block does not say which class of user its data is of: every class has to be allowed.
    fn ask(&self, table: &PolicyTable, (tenant, jurisdiction, site): &Asked) -> bool {
        let data_jurisdiction = match jurisdiction.as_str() {
            "" => Some(0),
            name => self.names.jurisdiction(name),
        };
        let Some(data_jurisdiction) = data_jurisdiction else {
            return false;
        };
        let policies = table.for_tenant(tenant, Draw::default());
        let labels = BTreeMap::new();
        let mut classes = 0u32..u32::try_from(self.names.user_classes.len()).unwrap_or(u32::MAX);
        classes.all(|data_class| {
            let subject = Subject {
                purpose: self.purpose,
                data_jurisdiction,
                data_class,
                from_site: (*site != self.here).then_some(self.here.0),
            };
            let mut asker = Asker::new(self.clock.as_ref(), &labels, "stored-kv");
            let place = (&self.fleet, self.here);
            let placements = ask_policies(&policies, || {
                Placements::ask(&policies, subject, &[], place, &mut asker)
            });
            placements.of(*site) == Placement::Resident
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::host::Host;
    use portolan_base::{ModelName, Provenance};
    use portolan_gateway::policies::{By, PolicySlot, Upload};
    use portolan_ports::Reuse;
    use std::path::{Path, PathBuf};

    fn about(jurisdiction: &str) -> Provenance {
        Provenance {
            jurisdiction: jurisdiction.to_owned(),
            ..Provenance::of(TenantName::new("acme").unwrap(), ModelName::new("m").unwrap(), 1)
        }
    }

    #[test]
    fn only_a_resident_site_keeps_or_hears_of_it_and_a_new_policy_is_asked_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "{{data_dir: '{}', models: [], operator_keys: [op], tenants: [{{name: acme, keys: [k]}}],
               sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}},
                       {{name: virginia, jurisdiction: us, listen: '127.0.0.1:0', instances: []}}]}}",
            folder.path().display()
        );
        let config = Config::parse(&text).unwrap();
        let topology = config.topology().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let host = runtime.block_on(Host::start(config)).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(crate::system::SystemClock::start());
        let virginia = SiteIndex(1);
        let disk = StoredKv::new(
            (virginia, Purpose::Spill),
            &topology,
            host.desk(),
            Arc::clone(&clock),
        );
        // Paris holds it and would tell Virginia.
        let paris = StoredKv::new((SiteIndex(0), Purpose::Replicate), &topology, host.desk(), clock);
        let name = SiteName::new("virginia").unwrap();
        let allowed = || {
            ["", "us", "eu", "mars"].map(|bound| {
                let owner = Owner::from(&about(bound));
                let lies = disk.may_lie_at(virginia, &owner);
                assert_eq!(lies, paris.may_tell(&name, &owner), "{bound}");
                lies
            })
        };
        assert_eq!(allowed(), [true, true, false, false]);
        let public = Owner::from(&Provenance::public(ModelName::new("m").unwrap(), 1));
        assert!(disk.may_lie_at(virginia, &public) && paris.may_tell(&name, &public));
        assert!(!paris.may_tell(&SiteName::new("atlantis").unwrap(), &Owner::from(&about(""))));
        let first = paris.edition();

        let plugins = std::env::var_os("PORTOLAN_PLUGINS").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist"),
            PathBuf::from,
        );
        let component: Vec<u8> = std::fs::read(plugins.join("jurisdiction.wasm")).unwrap();
        let bind_to = |question, (name, config): (&str, &str), component: &[u8]| {
            let upload = Upload {
                slot: PolicySlot {
                    scope: portolan_policy::Scope::Platform,
                    question,
                },
                name: name.to_owned(),
                config: Some(config.to_owned()),
                component: component.to_vec().into(),
                signature: String::new(),
                budget: None,
                reuse: Reuse::ByClass,
            };
            host.desk().upload(upload, &By::new("op", "")).unwrap();
        };
        let bind = |config: &str| bind_to(QuestionKind::Residency, ("jurisdiction", config), &component);
        bind(r#"{"allow": {"eu": ["us"]}}"#);
        assert_ne!(paris.edition(), first, "what was told is told anew");
        assert_eq!(allowed(), [true, true, true, false]);
        bind(r#"{"transient": {"eu": ["us"]}}"#);
        assert_eq!(
            allowed(),
            [true, true, false, false],
            "in transit it is neither written nor told of"
        );
        let before = paris.edition();
        let cost = std::fs::read(plugins.join("ttft.wasm")).unwrap();
        bind_to(QuestionKind::Cost, ("ttft", ""), &cost);
        assert_eq!(
            paris.edition(),
            before,
            "what other policies say is not theirs to tell"
        );
        assert_eq!(allowed(), [true, true, false, false]);
        runtime.block_on(host.stop());
    }
}
