//! What the operator wrote down about the fleet: sites, instances, links. Checked once, never changed while it runs.

use portolan_base::{BitsPerSecond, InstanceName, ModelName, Role, SiteName};
use portolan_decide::{Serving, SiteIndex};
use portolan_policy::{NameTables, SiteEntry};
use std::time::Duration;

/// A site.
#[derive(Clone, Debug)]
pub struct SiteSpec {
    /// Its name.
    pub name: SiteName,
    /// Its region, free text.
    pub region: String,
    /// Its jurisdiction, by name.
    pub jurisdiction: String,
    /// Engine instances there.
    pub instances: Vec<InstanceSpec>,
}

/// An engine instance.
#[derive(Clone, Debug)]
pub struct InstanceSpec {
    /// Its name, unique within the site.
    pub name: InstanceName,
    /// The model it serves.
    pub model: ModelName,
    /// What it is for.
    pub role: Role,
    /// How it takes part in requests.
    pub serving: Serving,
    /// Sequences it can decode at once.
    pub decode_slots: u32,
    /// Price of a thousand computed tokens, in millionths of the operator's unit.
    pub price_micros_per_kilotoken: u32,
}

/// A directed link.
#[derive(Clone, Debug)]
pub struct LinkSpec {
    /// Where KV comes from.
    pub from: SiteName,
    /// Where it goes.
    pub to: SiteName,
    /// What the link can carry.
    pub capacity: BitsPerSecond,
    /// Round-trip time until the first measurement.
    pub rtt: Duration,
    /// Price of a GiB, in millionths of the operator's unit.
    pub price_micros_per_gib: u32,
}

/// Why a topology was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// Two of a name.
    #[error("{0} is defined twice")]
    Twice(String),
    /// A link names a site that does not exist.
    #[error("the link {from} → {to} names a site that is not defined")]
    UnknownSite {
        /// Its beginning.
        from: SiteName,
        /// Its end.
        to: SiteName,
    },
    /// There is no site.
    #[error("no site is defined")]
    Empty,
}

/// The fleet as written down, checked.
#[derive(Clone, Debug)]
pub struct Topology {
    sites: Vec<SiteSpec>,
    links: Vec<LinkSpec>,
    names: NameTables,
}

impl Topology {
    /// Checks and takes a topology. `user_classes` begin with the lowest class.
    pub fn new(
        sites: Vec<SiteSpec>,
        links: Vec<LinkSpec>,
        user_classes: Vec<String>,
    ) -> Result<Self, TopologyError> {
        if sites.is_empty() {
            return Err(TopologyError::Empty);
        }
        for (i, site) in sites.iter().enumerate() {
            if sites[..i].iter().any(|s| s.name == site.name) {
                return Err(TopologyError::Twice(format!("site {}", site.name)));
            }
            for (j, instance) in site.instances.iter().enumerate() {
                if site.instances[..j].iter().any(|o| o.name == instance.name) {
                    return Err(TopologyError::Twice(format!(
                        "instance {} at {}",
                        instance.name, site.name
                    )));
                }
            }
        }
        for link in &links {
            let known = |name: &SiteName| sites.iter().any(|s| s.name == *name);
            if !(known(&link.from) && known(&link.to)) {
                return Err(TopologyError::UnknownSite {
                    from: link.from.clone(),
                    to: link.to.clone(),
                });
            }
        }
        let names = name_tables(&sites, user_classes);
        Ok(Self { sites, links, names })
    }

    /// The sites, in index order.
    pub fn sites(&self) -> &[SiteSpec] {
        &self.sites
    }

    /// The links.
    pub fn links(&self) -> &[LinkSpec] {
        &self.links
    }

    /// The tables behind the indices.
    pub fn names(&self) -> &NameTables {
        &self.names
    }

    /// A site's index.
    pub fn site_index(&self, name: &SiteName) -> Option<SiteIndex> {
        self.names.site(name.as_str()).map(SiteIndex)
    }

    /// Every instance with its site's index, in instance-index order.
    pub fn instances(&self) -> impl Iterator<Item = (SiteIndex, &InstanceSpec)> {
        (0u32..)
            .map(SiteIndex)
            .zip(&self.sites)
            .flat_map(|(index, site)| site.instances.iter().map(move |i| (index, i)))
    }
}

fn name_tables(sites: &[SiteSpec], mut user_classes: Vec<String>) -> NameTables {
    let mut jurisdictions = vec!["any".to_owned()];
    let mut models: Vec<String> = Vec::new();
    for site in sites {
        add(&mut jurisdictions, &site.jurisdiction);
        site.instances
            .iter()
            .for_each(|i| add(&mut models, i.model.as_str()));
    }
    if user_classes.is_empty() {
        user_classes.push("standard".to_owned());
    }
    let entries = sites
        .iter()
        .map(|site| SiteEntry {
            name: site.name.as_str().to_owned(),
            region: site.region.clone(),
            jurisdiction: jurisdictions
                .iter()
                .position(|j| *j == site.jurisdiction)
                .unwrap_or(0) as u32,
        })
        .collect();
    NameTables {
        tenant: String::new(),
        sites: entries,
        jurisdictions,
        models,
        user_classes,
    }
}

fn add(table: &mut Vec<String>, name: &str) {
    if !table.iter().any(|n| n == name) {
        table.push(name.to_owned());
    }
}
