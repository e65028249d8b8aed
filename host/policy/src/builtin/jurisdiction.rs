//! Residency `jurisdiction`: data stays where its jurisdiction is, before any cache is looked at.

use super::config::{self, ConfigError};
use super::contract::Residency;
use crate::answer::Placement;
use crate::column::RequestView;
use crate::names::NameTables;
use crate::question::Subject;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What `jurisdiction` can be told. Names are those of the name tables; an unknown one is an error, since a misspelt
/// rule would be no rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JurisdictionConfig {
    /// For data of the key's jurisdiction: further jurisdictions whose sites may keep it. None by default.
    pub allow: BTreeMap<String, Vec<String>>,
    /// For data of the key's jurisdiction: further jurisdictions whose sites may compute on it but not keep it. None
    /// by default.
    pub transient: BTreeMap<String, Vec<String>>,
    /// Sites that may see nothing at all, unrestricted data included. None by default.
    pub deny_sites: Vec<String>,
}

/// A site is resident when the data states no restriction or the site lies in the data's own jurisdiction, and denied
/// otherwise, but for what the configuration adds.
#[derive(Clone, Debug, Default)]
pub struct Jurisdiction {
    site_jurisdictions: Vec<u32>,
    denied_sites: Vec<u32>,
    /// Pairs of data jurisdiction and site jurisdiction.
    resident: Vec<(u32, u32)>,
    transient: Vec<(u32, u32)>,
}

/// The index of "no restriction stated".
const ANY: u32 = 0;

impl Jurisdiction {
    /// With this configuration.
    pub fn new(config: &JurisdictionConfig, names: &NameTables) -> Result<Self, ConfigError> {
        let denied = config.deny_sites.iter().map(|name| {
            names
                .site(name)
                .ok_or_else(|| ConfigError::invalid("deny_sites", format!("there is no site \"{name}\"")))
        });
        Ok(Self {
            site_jurisdictions: names.sites.iter().map(|site| site.jurisdiction).collect(),
            denied_sites: denied.collect::<Result<_, _>>()?,
            resident: pairs("allow", &config.allow, names)?,
            transient: pairs("transient", &config.transient, names)?,
        })
    }

    fn placement(&self, data: u32, site: u32, site_jurisdiction: u32) -> Placement {
        let pair = (data, site_jurisdiction);
        if self.denied_sites.contains(&site) {
            Placement::Denied
        } else if data == ANY || data == site_jurisdiction || self.resident.contains(&pair) {
            Placement::Resident
        } else if self.transient.contains(&pair) {
            Placement::Transient
        } else {
            Placement::Denied
        }
    }
}

impl Residency for Jurisdiction {
    fn configure(text: &str, names: &NameTables) -> Result<Self, ConfigError> {
        Self::new(&config::parse(text)?, names)
    }

    fn partition(&self, subject: &Subject, _request: RequestView<'_>) -> Vec<Placement> {
        (0..)
            .zip(&self.site_jurisdictions)
            .map(|(site, j)| self.placement(subject.data_jurisdiction, site, *j))
            .collect()
    }
}

fn pairs(
    field: &'static str,
    rules: &BTreeMap<String, Vec<String>>,
    names: &NameTables,
) -> Result<Vec<(u32, u32)>, ConfigError> {
    let index = |name: &str| {
        let unknown = || ConfigError::invalid(field, format!("there is no jurisdiction \"{name}\""));
        names.jurisdiction(name).ok_or_else(unknown)
    };
    let mut pairs = Vec::new();
    for (data, sites) in rules {
        for site in sites {
            pairs.push((index(data)?, index(site)?));
        }
    }
    Ok(pairs)
}
