//! The name tables behind the indices. A table that is written out is closed: a name that it lacks is an error. One
//! that is left out grows as names are met, so that a case needs no tables.

use super::error::{LabError, NameError};
use super::rows::Cell;
use portolan_policy::{NameTables, SiteEntry};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::fmt;

/// Name tables as people write them.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NamesText {
    /// The tenant the policy is bound to; empty for the platform.
    pub tenant: String,
    /// Every site, in index order.
    pub sites: Option<Vec<SiteText>>,
    /// Every jurisdiction; index 0 is `any`.
    pub jurisdictions: Option<Vec<String>>,
    /// Every model.
    pub models: Option<Vec<String>>,
    /// Every user class; index 0 is the lowest.
    pub user_classes: Option<Vec<String>>,
}

/// A site: its name alone, or with where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SiteText {
    /// In no particular jurisdiction.
    Name(String),
    /// With all that is known.
    Entry(SiteEntryText),
}

/// A site with where it lies.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteEntryText {
    /// Its name.
    pub name: String,
    /// Its region, free text.
    #[serde(default)]
    pub region: String,
    /// Its jurisdiction, by name or index.
    #[serde(default)]
    pub jurisdiction: Option<Cell>,
}

impl<'de> Deserialize<'de> for SiteText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = SiteText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a site's name, or name, region and jurisdiction")
            }
            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<SiteText, E> {
                Ok(SiteText::Name(name.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SiteText, A::Error> {
                SiteEntryText::deserialize(MapAccessDeserializer::new(map)).map(SiteText::Entry)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// Name tables that are being looked up and, where they were left out, grow.
#[derive(Clone, Debug)]
pub struct Tables {
    names: NameTables,
    open: OpenTables,
}

#[derive(Clone, Copy, Debug)]
struct OpenTables {
    sites: bool,
    jurisdictions: bool,
    models: bool,
    user_classes: bool,
}

impl Tables {
    /// Empty tables that all grow.
    pub fn open() -> Self {
        Self::of(&NamesText::default()).unwrap_or_else(|_| Self::closed(NameTables::default()))
    }

    /// Finished tables.
    pub fn closed(names: NameTables) -> Self {
        let open = OpenTables {
            sites: false,
            jurisdictions: false,
            models: false,
            user_classes: false,
        };
        Self { names, open }
    }

    /// The tables that are written out; the others grow.
    pub fn of(text: &NamesText) -> Result<Self, LabError> {
        let or = |table: &Option<Vec<String>>, first: &str| {
            table.clone().unwrap_or_else(|| vec![first.to_owned()])
        };
        let mut tables = Self {
            names: NameTables {
                tenant: text.tenant.clone(),
                sites: Vec::new(),
                jurisdictions: or(&text.jurisdictions, "any"),
                models: text.models.clone().unwrap_or_default(),
                user_classes: or(&text.user_classes, "standard"),
            },
            open: OpenTables {
                sites: text.sites.is_none(),
                jurisdictions: text.jurisdictions.is_none(),
                models: text.models.is_none(),
                user_classes: text.user_classes.is_none(),
            },
        };
        for (i, site) in text.sites.iter().flatten().enumerate() {
            let entry = tables.entry(site).map_err(|e| e.within(&format!("sites[{i}]")))?;
            if tables.names.sites.iter().any(|known| known.name == entry.name) {
                let problem = format!("another site is called {:?} already", entry.name);
                return Err(LabError::value(format!("sites[{i}]"), problem));
            }
            tables.names.sites.push(entry);
        }
        Ok(tables)
    }

    fn entry(&mut self, site: &SiteText) -> Result<SiteEntry, LabError> {
        let entry = match site {
            SiteText::Name(name) => return Ok(unplaced(name)),
            SiteText::Entry(entry) => entry,
        };
        let jurisdiction = match &entry.jurisdiction {
            None => 0,
            Some(Cell::Number(index)) => *index,
            Some(Cell::Name(name)) => self
                .jurisdiction(name)
                .map_err(|problem| LabError::value("jurisdiction", problem.to_string()))?,
        };
        Ok(SiteEntry {
            name: entry.name.clone(),
            region: entry.region.clone(),
            jurisdiction,
        })
    }

    /// The tables as a policy gets them.
    pub fn finish(self) -> NameTables {
        self.names
    }

    /// The index of a site.
    pub fn site(&mut self, name: &str) -> Result<u32, NameError> {
        let sites = &mut self.names.sites;
        let known = sites.iter().position(|site| site.name == name);
        if known.is_none() && self.open.sites {
            sites.push(unplaced(name));
            return Ok(index(sites.len() - 1));
        }
        let unknown = || NameError::Unknown {
            what: "site",
            name: name.to_owned(),
            known: sites.iter().map(|site| site.name.clone()).collect(),
        };
        known.map(index).ok_or_else(unknown)
    }

    /// The index of a jurisdiction.
    pub fn jurisdiction(&mut self, name: &str) -> Result<u32, NameError> {
        look_up(
            "jurisdiction",
            name,
            &mut self.names.jurisdictions,
            self.open.jurisdictions,
        )
    }

    /// The index of a model.
    pub fn model(&mut self, name: &str) -> Result<u32, NameError> {
        look_up("model", name, &mut self.names.models, self.open.models)
    }

    /// The index of a user class.
    pub fn user_class(&mut self, name: &str) -> Result<u32, NameError> {
        look_up(
            "user class",
            name,
            &mut self.names.user_classes,
            self.open.user_classes,
        )
    }
}

/// Name tables from a document: `sites`, `jurisdictions`, … as in a view, or the body of `GET /v1/portolan/fleet`.
pub fn from_document(mut document: Value) -> Result<NameTables, LabError> {
    let is_fleet = document.get("instances").is_some();
    if let Some(keys) = document.as_object_mut().filter(|_| is_fleet) {
        keys.retain(|key, _| key == "sites");
        let sites = keys.get_mut("sites").and_then(Value::as_array_mut);
        for site in sites.into_iter().flatten().filter_map(Value::as_object_mut) {
            site.retain(|key, _| ["name", "region", "jurisdiction"].contains(&key.as_str()));
        }
    }
    let text: NamesText =
        serde_json::from_value(document).map_err(|e| LabError::value("names", e.to_string()))?;
    Ok(Tables::of(&text)?.finish())
}

fn unplaced(name: &str) -> SiteEntry {
    SiteEntry {
        name: name.to_owned(),
        region: String::new(),
        jurisdiction: 0,
    }
}

fn look_up(what: &'static str, name: &str, table: &mut Vec<String>, open: bool) -> Result<u32, NameError> {
    match table.iter().position(|known| known == name) {
        Some(found) => Ok(index(found)),
        None if open => {
            table.push(name.to_owned());
            Ok(index(table.len() - 1))
        }
        None => Err(NameError::Unknown {
            what,
            name: name.to_owned(),
            known: table.clone(),
        }),
    }
}

/// A table that fits into memory as text has fewer than 2^32 names.
fn index(position: usize) -> u32 {
    position as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_that_is_written_out_is_closed_and_others_grow() {
        let text: NamesText = serde_json::from_value(json!({
            "sites": ["home", {"name": "paris", "jurisdiction": "eu"}]
        }))
        .unwrap();
        let mut tables = Tables::of(&text).unwrap();
        assert_eq!(tables.site("paris"), Ok(1));
        let error = tables.site("virginia").unwrap_err().to_string();
        assert!(error.contains("home, paris"), "{error}");
        assert_eq!((tables.jurisdiction("us"), tables.model("m")), (Ok(2), Ok(0)));
        let names = tables.finish();
        assert_eq!(names.jurisdictions, ["any", "eu", "us"]);
        assert_eq!(names.sites[1].jurisdiction, 1);
    }

    #[test]
    fn a_fleet_body_gives_the_tables_that_the_host_made() {
        let site = |name: &str, j: &str| json!({"name": name, "region": "r", "jurisdiction": j, "state": "up", "incarnation": 7, "heard_ms_ago": 12});
        let fleet = json!({
            "sites": [site("fra", "eu"), site("iad", "us"), site("lon", "eu")], "instances": [], "links": []
        });
        let names = from_document(fleet).unwrap();
        let places: Vec<_> = names.sites.iter().map(|s| s.jurisdiction).collect();
        assert_eq!(
            (places, names.jurisdictions),
            (vec![1, 2, 1], ["any", "eu", "us"].map(String::from).to_vec())
        );
        let error = from_document(json!({"site": []})).unwrap_err().to_string();
        assert!(error.contains("unknown field `site`"), "{error}");
        let error = from_document(json!({"sites": [{"nam": "x"}]}))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("unknown field `nam`") && error.contains("region"),
            "{error}"
        );
    }
}
