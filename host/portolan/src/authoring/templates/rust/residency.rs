//! Data stays in its own jurisdiction; sites of one further jurisdiction may compute on it without keeping it.

use portolan_sdk::{ConfigError, NameTables, Placement, RequestView, Residency, Subject, config};

/// The index of "no restriction stated" among the jurisdictions.
const ANY: u32 = 0;

/// The binding's text, such as `{"compute_also_in": "us"}`.
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    /// The further jurisdiction; empty: nowhere else.
    compute_also_in: String,
}

struct StayAtHome {
    /// The jurisdiction of each site, in the order of the name table.
    sites: Vec<u32>,
    /// The further jurisdiction, if the platform has one of that name.
    compute_also_in: Option<u32>,
}

impl Residency for StayAtHome {
    fn configure(text: &str, names: &NameTables) -> Result<Self, ConfigError> {
        let settings: Settings = config::parse(text)?;
        Ok(Self {
            sites: names.sites.iter().map(|site| site.jurisdiction).collect(),
            compute_also_in: names.jurisdiction(&settings.compute_also_in),
        })
    }

    fn partition(&self, subject: &Subject, _request: RequestView<'_>) -> Vec<Placement> {
        let data = subject.data_jurisdiction;
        let placement = |here: &u32| {
            if data == ANY || data == *here {
                Placement::Resident
            } else if self.compute_also_in == Some(*here) {
                Placement::Transient
            } else {
                Placement::Denied
            }
        };
        self.sites.iter().map(placement).collect()
    }
}

portolan_sdk::residency!(StayAtHome);
