//! What invalidation policies were asked and said lately: the counterpart of path records for a question that belongs to
//! no request.

use crate::site::Site;
use parking_lot::Mutex;
use portolan_base::{Moment, Scope};
use portolan_decide::record::PolicyRecord;
use portolan_policy::Event;
use portolan_ports::{Reading, Sample};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Decisions kept of each tenant's policy, and of the platform's: an hour of ticks that named something.
const KEPT: usize = 64;

/// One pool or tier of a site.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Place {
    /// `engine`, `host` or `disk`.
    pub(crate) tier: &'static str,
    /// Whose pool it is; none: the instances share it.
    pub(crate) instance: Option<String>,
}

/// One call of an invalidation policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ReactionRecord {
    /// Unix time in milliseconds.
    at_ms: u64,
    /// The site whose blocks it was asked about.
    site: String,
    /// Whose policy it is: a tenant's name, or `_platform`.
    whose: String,
    /// What happened, as the policy was told.
    event: Event,
    /// The one pool or tier that it was asked about; none: all of the site's.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<Place>,
    /// The call: who answered, what it took, what came of it.
    policy: PolicyRecord,
    /// Blocks that it named by age, number or version. What was computed on top of them goes too.
    blocks: u64,
    /// Their bytes; copies in several places count each.
    bytes: u64,
}

impl ReactionRecord {
    pub(super) fn new(
        site: &Site,
        (event, place): (&Event, Option<&Place>),
        policy: PolicyRecord,
        (blocks, bytes): (u64, u64),
    ) -> Self {
        let now: Moment = site.parts.clock.now();
        Self {
            at_ms: now.millis(),
            site: site.parts.name.to_string(),
            whose: String::new(),
            event: event.clone(),
            place: place.cloned(),
            policy,
            blocks,
            bytes,
        }
    }

    /// Every minute of a site in which nothing happened would push out what did.
    fn is_worth_keeping(&self) -> bool {
        let is_tick = matches!(self.event, Event::Tick(_));
        !is_tick || self.blocks > 0 || self.policy.outcome != "ok"
    }
}

/// The latest decisions of each policy.
#[derive(Debug, Default)]
pub(crate) struct Decisions(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    by_scope: BTreeMap<Option<Scope>, VecDeque<ReactionRecord>>,
    /// Questions because room ran out, by what came of them.
    pressure: BTreeMap<String, u64>,
}

impl Decisions {
    /// Notes a call; `of` is whose policy it was, none: the platform's.
    pub(super) fn note(&self, of: Option<&Scope>, mut record: ReactionRecord) {
        record.whose = of.map_or_else(|| "_platform".to_owned(), ToString::to_string);
        let mut kept = self.0.lock();
        if matches!(record.event, Event::CapacityPressure(_)) {
            *kept.pressure.entry(record.policy.outcome.clone()).or_default() += 1;
        }
        if !record.is_worth_keeping() {
            return;
        }
        let of_scope = kept.by_scope.entry(of.cloned()).or_default();
        of_scope.push_front(record);
        of_scope.truncate(KEPT);
    }

    /// Those of one scope's policy, or all, the latest first.
    pub(crate) fn latest(&self, of: Option<&Scope>) -> Vec<ReactionRecord> {
        let kept = self.0.lock();
        let shown = kept
            .by_scope
            .iter()
            .filter(|(scope, _)| of.is_none() || scope.as_ref() == of);
        let mut records: Vec<_> = shown.flat_map(|(_, records)| records).cloned().collect();
        records.sort_by_key(|record| std::cmp::Reverse(record.at_ms));
        records
    }

    /// The numbers of `/metrics`.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        let kept = self.0.lock();
        let samples = kept.pressure.iter().map(|(outcome, count)| Sample {
            name: "kv_pressure_questions",
            help: "Times that a policy was asked what goes since room ran out, by what came of it",
            labels: vec![("outcome", outcome.clone())],
            value: Reading::Counter(*count),
        });
        samples.collect()
    }
}
