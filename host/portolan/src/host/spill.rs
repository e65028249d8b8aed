//! Residency is asked before KV is written to a site's disk: with purpose spill, for whoever's it is.

use super::parts::Shared;
use crate::config::SiteConfig;
use portolan_base::{Clock, Provenance, Scope, TenantName};
use portolan_decide::ask::Asker;
use portolan_decide::{Draw, FleetView, Placements, PolicyTable, SiteIndex, SiteView};
use portolan_disk::Gate;
use portolan_fleet::Topology;
use portolan_gateway::policies::PolicyDesk;
use portolan_policy::{NameTables, Placement, Purpose, Subject};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Whose, and bound to where.
type Whose = (TenantName, String);

/// What the policies of one table said.
struct Answers {
    table: Weak<PolicyTable>,
    said: HashMap<Whose, bool>,
}

/// Asks for one site. Disk tiers belong to engines, whose threads end after the host has: nothing here keeps the desk, and
/// with it the store, open.
struct Spill {
    here: SiteIndex,
    fleet: FleetView,
    names: NameTables,
    desk: Weak<PolicyDesk>,
    clock: Arc<dyn Clock>,
    answers: Mutex<Answers>,
}

/// What may lie on the disk of a site.
pub(super) fn gate(config: &SiteConfig, shared: &Shared) -> Option<Gate> {
    let here = shared.topology.site_index(&config.name)?;
    let spill = Spill::new(here, &shared.topology, &shared.desk, Arc::clone(&shared.clock));
    Some(Gate::new(move |about| spill.allows(about)))
}

impl Spill {
    fn new(here: SiteIndex, topology: &Topology, desk: &Arc<PolicyDesk>, clock: Arc<dyn Clock>) -> Self {
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
        let answers = Mutex::new(Answers {
            table: Arc::downgrade(&desk.table()),
            said: HashMap::new(),
        });
        Self {
            here,
            fleet,
            names,
            desk: Arc::downgrade(desk),
            clock,
            answers,
        }
    }

    /// Whether the site is resident for this data. What a table of policies said once, it is not asked again.
    fn allows(&self, about: &Provenance) -> bool {
        // What the platform marked public is nobody's.
        let Scope::Tenant(tenant) = &about.scope else {
            return true;
        };
        let whose = (tenant.clone(), about.jurisdiction.clone());
        let Some(table) = self.desk.upgrade().map(|desk| desk.table()) else {
            return false;
        };
        let this = Arc::downgrade(&table);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if !Weak::ptr_eq(&answers.table, &this) {
            *answers = Answers {
                table: Weak::clone(&this),
                said: HashMap::new(),
            };
        }
        if let Some(said) = answers.said.get(&whose) {
            return *said;
        }
        drop(answers);
        let said = self.ask(&table, &whose);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if Weak::ptr_eq(&answers.table, &this) {
            answers.said.insert(whose, said);
        }
        said
    }

    /// A block does not say which class of user its data is of: every class has to be allowed.
    fn ask(&self, table: &PolicyTable, (tenant, jurisdiction): &Whose) -> bool {
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
                purpose: Purpose::Spill,
                data_jurisdiction,
                data_class,
                from_site: None,
            };
            let mut asker = Asker::new(self.clock.as_ref(), &labels, "spill");
            let place = (&self.fleet, self.here);
            let placements = Placements::ask(&policies, subject, &[], place, &mut asker);
            placements.of(self.here) == Placement::Resident
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::host::Host;
    use portolan_base::ModelName;
    use portolan_gateway::policies::{By, PolicySlot, Upload};
    use portolan_policy::QuestionKind;
    use portolan_ports::Reuse;
    use std::path::{Path, PathBuf};

    fn about(jurisdiction: &str) -> Provenance {
        Provenance {
            jurisdiction: jurisdiction.to_owned(),
            ..Provenance::of(TenantName::new("acme").unwrap(), ModelName::new("m").unwrap(), 1)
        }
    }

    #[test]
    fn only_a_resident_sites_disk_takes_it_and_a_new_policy_is_asked_at_once() {
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
        let virginia = Spill::new(SiteIndex(1), &topology, host.desk(), clock);
        let allowed = |spill: &Spill| ["", "us", "eu", "mars"].map(|bound| spill.allows(&about(bound)));
        assert_eq!(allowed(&virginia), [true, true, false, false]);
        assert!(virginia.allows(&Provenance::public(ModelName::new("m").unwrap(), 1)));

        let plugins = std::env::var_os("PORTOLAN_PLUGINS").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist"),
            PathBuf::from,
        );
        let component: Vec<u8> = std::fs::read(plugins.join("jurisdiction.wasm")).unwrap();
        let bind = |config: &str| {
            let upload = Upload {
                slot: PolicySlot {
                    scope: portolan_policy::Scope::Platform,
                    question: QuestionKind::Residency,
                },
                name: "jurisdiction".to_owned(),
                config: config.to_owned(),
                component: component.clone().into(),
                signature: String::new(),
                budget: None,
                reuse: Reuse::ByClass,
            };
            host.desk().upload(upload, &By::new("op", "")).unwrap();
        };
        bind(r#"{"allow": {"eu": ["us"]}}"#);
        assert_eq!(allowed(&virginia), [true, true, true, false]);
        bind(r#"{"transient": {"eu": ["us"]}}"#);
        assert_eq!(
            allowed(&virginia),
            [true, true, false, false],
            "in transit it is not written"
        );
        runtime.block_on(host.stop());
    }
}
