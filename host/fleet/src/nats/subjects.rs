//! Subjects: who publishes which, and who reads it.

use crate::topology::Topology;
use portolan_base::SiteName;
use portolan_ports::BusMessage;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Kinds of what is meant for one site.
const TO_ONE: [&str; 3] = ["prefixes", "wanted", "visits"];

/// The subjects of one fleet.
#[derive(Clone, Debug)]
pub struct Subjects {
    name: String,
    /// `JURISDICTION.SITE` of each site.
    places: BTreeMap<SiteName, String>,
}

/// What a server has to allow a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Subjects that it publishes.
    pub publish: Vec<String>,
    /// Subjects that it reads.
    pub subscribe: Vec<String>,
}

impl Subjects {
    /// The subjects of the fleet `name`; fleets of different names can share a server.
    pub fn new(name: &str, topology: &Topology) -> Self {
        let place = |site: &crate::SiteSpec| {
            let jurisdiction = match site.jurisdiction.is_empty() {
                true => "any",
                false => &site.jurisdiction,
            };
            let place = format!("{}.{}", token(jurisdiction), token(site.name.as_str()));
            (site.name.clone(), place)
        };
        Self {
            name: token(name),
            places: topology.sites().iter().map(place).collect(),
        }
    }

    /// The fleet's name, as the first part of each subject.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The subject of a message; none where it is about a site that the topology does not have.
    pub fn of(&self, message: &BusMessage) -> Option<String> {
        let from = message.from();
        self.places.get(from)?;
        let to = |kind, site| {
            Some(format!(
                "{}.{kind}.{}.{}",
                self.name,
                self.places.get(site)?,
                token(from.as_str())
            ))
        };
        match message {
            BusMessage::Presence(_)
            | BusMessage::Load(_)
            | BusMessage::Applied(_)
            | BusMessage::EffectWanted(_) => self.facts(from),
            BusMessage::Prefixes(told) => to("prefixes", &told.to),
            BusMessage::SnapshotWanted(request) => to("wanted", &request.of),
            BusMessage::Visits(visits) => to("visits", &visits.to),
            // An answer goes where questions to that site go.
            BusMessage::Effect(reply) => to("wanted", &reply.to),
        }
    }

    /// Where a site says that it is there, and its load.
    pub fn facts(&self, site: &SiteName) -> Option<String> {
        Some(format!("{}.facts.{}", self.name, self.places.get(site)?))
    }

    /// What a site reads: the facts of every other one, and what is meant for itself.
    pub fn read_by(&self, site: &SiteName) -> Vec<String> {
        let others = self.places.keys().filter(|other| *other != site);
        let facts = others.filter_map(|other| self.facts(other));
        let own = self
            .places
            .get(site)
            .into_iter()
            .flat_map(|place| TO_ONE.map(|kind| format!("{}.{kind}.{place}.*", self.name)));
        facts.chain(own).collect()
    }

    /// What a server has to allow a site, and no more: nobody speaks for another site, or reads what is meant for one.
    pub fn permissions(&self, site: &SiteName) -> Permissions {
        let from = token(site.as_str());
        let told = TO_ONE.map(|kind| format!("{}.{kind}.*.*.{from}", self.name));
        let publish = self
            .facts(site)
            .into_iter()
            .chain(told)
            .chain(self.ordered_by(site));
        let answers = format!("{}.>", self.inbox(site));
        Permissions {
            publish: publish.collect(),
            subscribe: self.read_by(site).into_iter().chain([answers]).collect(),
        }
    }

    /// Where a site's process is answered: one of its own, so that no other reads it.
    pub(super) fn inbox(&self, site: &SiteName) -> String {
        format!("_INBOX_{}_{}", self.name, token(site.as_str()))
    }

    /// First part of the control stream's subjects.
    pub(super) fn control(&self) -> String {
        format!("{}.control", self.name)
    }

    /// The control stream's name.
    pub(super) fn control_stream(&self) -> String {
        format!("{}-control", self.name)
    }

    /// The bucket of what policy slots hold.
    pub(super) fn policies(&self) -> String {
        // Buckets' names take letters, digits, `-` and `_`.
        format!("{}-policies", self.name.replace('=', "_"))
    }

    /// The bucket of what the sites have in common of their configuration.
    pub(super) fn configuration(&self) -> String {
        format!("{}-configuration", self.name.replace('=', "_"))
    }

    /// The object store of policies' components.
    pub(super) fn components(&self) -> String {
        format!("{}-components", self.name.replace('=', "_"))
    }

    /// What a site keeps, and says to follow what is kept. It cannot drop anything from the control stream.
    fn ordered_by(&self, site: &SiteName) -> Vec<String> {
        let (control, policies, components) = (self.control(), self.policies(), self.components());
        let configuration = self.configuration();
        let mut publish = vec![
            format!("{control}.beat.{site}"),
            format!("{control}.invalidation"),
            format!("{control}.model.*"),
            format!("$KV.{policies}.>"),
            format!("$KV.{configuration}.common"),
            format!("$KV.{configuration}.sites.{}", token(site.as_str())),
            format!("$O.{components}.>"),
            "$JS.API.INFO".to_owned(),
            format!("$JS.API.STREAM.PURGE.OBJ_{components}"),
        ];
        let streams = [
            self.control_stream(),
            format!("KV_{policies}"),
            format!("KV_{configuration}"),
            format!("OBJ_{components}"),
        ];
        for stream in streams {
            let asks = [
                "STREAM.INFO.{}",
                "STREAM.CREATE.{}",
                "STREAM.MSG.GET.{}",
                "DIRECT.GET.{}",
                "DIRECT.GET.{}.>",
                "CONSUMER.CREATE.{}",
                "CONSUMER.CREATE.{}.>",
                "CONSUMER.INFO.{}.*",
                "CONSUMER.DELETE.{}.*",
            ];
            publish.extend(asks.map(|ask| format!("$JS.API.{}", ask.replace("{}", &stream))));
            publish.push(format!("$JS.FC.{stream}.>"));
        }
        publish
    }
}

/// A name as one part of a subject: what would end the part, or match others, is written as `=` and two hex digits.
pub(super) fn token(name: &str) -> String {
    let mut token = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => token.push(char::from(byte)),
            // Writing to a `String` does not fail.
            other => {
                write!(token, "={other:02x}").ok();
            }
        }
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SiteSpec;
    use portolan_base::InstanceName;
    use portolan_ports::{PrefixSummary, SitePresence, SiteState};

    fn site(site: &str) -> SiteName {
        SiteName::new(site).unwrap()
    }

    fn subjects() -> Subjects {
        let spec = |name: &str, jurisdiction: &str| SiteSpec {
            name: site(name),
            region: String::new(),
            jurisdiction: jurisdiction.to_owned(),
            instances: Vec::new(),
        };
        let sites = vec![
            spec("paris.1", "eu"),
            spec("virginia", "us > all"),
            spec("tokyo", ""),
        ];
        Subjects::new("fleet", &Topology::new(sites, Vec::new(), Vec::new()).unwrap())
    }

    #[test]
    fn a_subject_names_jurisdiction_receiver_and_sender() {
        let presence = BusMessage::Presence(SitePresence {
            site: site("paris.1"),
            incarnation: 1,
            sequence: 0,
            state: SiteState::Up,
            lease_ms: 1,
        });
        assert_eq!(subjects().of(&presence).unwrap(), "fleet.facts.eu.paris=2e1");
        let told = |to: &str| {
            BusMessage::Prefixes(PrefixSummary {
                from: site("tokyo"),
                instance: InstanceName::new("i").unwrap(),
                to: site(to),
                summary: [].into(),
            })
        };
        assert_eq!(
            subjects().of(&told("virginia")).unwrap(),
            "fleet.prefixes.us=20=3e=20all.virginia.tokyo"
        );
        assert_eq!(subjects().of(&told("mars")), None);
    }

    #[test]
    fn a_site_reads_what_is_meant_for_it_and_speaks_for_itself() {
        let allowed = subjects().permissions(&site("tokyo"));
        assert_eq!(
            allowed.publish[..4],
            [
                "fleet.facts.any.tokyo",
                "fleet.prefixes.*.*.tokyo",
                "fleet.wanted.*.*.tokyo",
                "fleet.visits.*.*.tokyo"
            ]
        );
        assert_eq!(
            allowed.subscribe[..5],
            [
                "fleet.facts.eu.paris=2e1",
                "fleet.facts.us=20=3e=20all.virginia",
                "fleet.prefixes.any.tokyo.*",
                "fleet.wanted.any.tokyo.*",
                "fleet.visits.any.tokyo.*"
            ]
        );
    }
}
