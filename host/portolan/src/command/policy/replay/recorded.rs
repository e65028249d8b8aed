//! Recorded requests decided again, one after the other as they are read.

use super::super::call::read_names;
use super::super::lab_failure;
use super::{Failure, ReplayArgs, Told, Tried};
use crate::client::{Client, ClientError, segment};
use crate::lab::LabError;
use crate::lab::comparison::{Comparison, Tally};
use crate::lab::component::Workshop;
use crate::lab::error::RecordError;
use crate::lab::names;
use crate::lab::records::{self, Reading};
use crate::lab::replay::{Replayer, recorded};
use crate::lab::situation::names_of;
use portolan_base::Clock;
use portolan_decide::PathRecord;
use portolan_policy::{NameTables, Policy, QuestionKind};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Records asked for at once: with 64 candidates each they are some 12 MB.
const PAGE: usize = 250;

/// Tenants that are counted one by one.
const TENANTS_NAMED: usize = 5;

/// Why records were not replayed.
pub(super) enum Trouble {
    /// Something here.
    Lab(LabError),
    /// The running host said no.
    Host(ClientError),
    /// What the host sent is no list of records.
    Answer(RecordError),
    /// Nothing is left to replay, and why.
    Nothing(String),
}

impl From<LabError> for Trouble {
    fn from(error: LabError) -> Self {
        Self::Lab(error)
    }
}

impl Trouble {
    pub(super) fn into_failure(self, as_json: bool) -> Failure {
        match self {
            Self::Lab(e) => lab_failure(&e, as_json),
            Self::Host(e) => Failure::new(e).as_json(as_json),
            Self::Answer(e) => Failure::new(format!("the host's records: {e}")).as_json(as_json),
            Self::Nothing(why) => Failure::new(why).as_json(as_json),
        }
    }
}

pub(super) fn replay(args: &ReplayArgs) -> Result<Told, Trouble> {
    let workshop = Workshop::new()?;
    let tried = Tried::open(args, &workshop)?;
    let known = tables(args)?;
    if known.is_none() && tried.file.question == QuestionKind::Residency {
        let problem = "path records do not say in which jurisdiction a site lies; give the name tables, or the \
                       operator's body of GET /v1/portolan/fleet";
        return Err(LabError::value("--names", problem).into());
    }
    let mut bench = Bench {
        args,
        workshop: &workshop,
        tried: &tried,
        names_are_given: known.is_some(),
        loaded: known
            .map(|names| bench_of(args, &workshop, &tried, names))
            .transpose()?,
        tally: Tally::default(),
        passed_by: PassedBy::default(),
        wrong: None,
    };
    let earliest = args.since.map(|since| earliest(since, workshop.clock()));
    let mut each = |record: PathRecord| bench.meet(&record, earliest);
    let reading = if args.records.is_empty() {
        fetch(args, earliest, &mut each)?
    } else {
        records::each_of(&args.records, &mut each)?
    };
    if let Some(wrong) = bench.wrong {
        return Err(wrong.into());
    }
    let passed_by = bench.passed_by;
    let comparison = bench.tally.finish();
    if comparison.decided + comparison.skipped == 0 {
        return Err(Trouble::Nothing(passed_by.why_nothing(args, &reading)));
    }
    Ok(Told {
        notes: notes(args, &tried, &reading, &passed_by, &comparison),
        comparison,
        ways: ("recorded", "replayed"),
        more: Value::Null,
    })
}

/// The policies, loaded for name tables.
struct Loaded {
    names: NameTables,
    policy: Arc<dyn Policy>,
    router: Option<Arc<dyn Policy>>,
}

fn bench_of(
    args: &ReplayArgs,
    workshop: &Workshop,
    tried: &Tried,
    mut names: NameTables,
) -> Result<Loaded, LabError> {
    if let Some(tenant) = &args.tenant {
        names.tenant.clone_from(tenant);
    }
    Ok(Loaded {
        policy: tried.load(args, workshop, &names)?,
        router: tried.load_router(workshop, &names)?,
        names,
    })
}

/// Decides records again as they come.
struct Bench<'a> {
    args: &'a ReplayArgs,
    workshop: &'a Workshop,
    tried: &'a Tried,
    names_are_given: bool,
    loaded: Option<Loaded>,
    tally: Tally,
    passed_by: PassedBy,
    wrong: Option<LabError>,
}

impl Bench<'_> {
    fn meet(&mut self, record: &PathRecord, earliest: Option<u64>) {
        let tenant = record.tenant.as_str();
        if self.args.tenant.as_ref().is_some_and(|only| only != tenant) {
            self.passed_by.other_tenants += 1;
        } else if earliest.is_some_and(|earliest| record.accepted_ms < earliest) {
            self.passed_by.older += 1;
        } else if record.candidates.is_empty() {
            self.tally.skip();
        } else if self.wrong.is_none() {
            self.passed_by.note(record);
            if let Err(wrong) = self.decide(record) {
                self.wrong = Some(wrong);
            }
        }
    }

    fn decide(&mut self, record: &PathRecord) -> Result<(), LabError> {
        let fits =
            |loaded: &&Loaded| self.names_are_given || loaded.names.sites.len() >= record.placements.len();
        // Records that name more sites than those before are of a fleet that has grown.
        if self.loaded.as_ref().filter(fits).is_none() {
            self.loaded = Some(bench_of(self.args, self.workshop, self.tried, names_of(record))?);
        }
        let Some(loaded) = &self.loaded else {
            return Ok(());
        };
        let replayer = Replayer {
            policy: Arc::clone(&loaded.policy),
            router: loaded.router.clone(),
            names: &loaded.names,
            clock: self.workshop.clock(),
        };
        let replayed = replayer.replay(record);
        self.tally.add_record(record, &recorded(record), replayed);
        Ok(())
    }
}

/// What was met and not decided again, and whose the rest is.
#[derive(Default)]
struct PassedBy {
    other_tenants: usize,
    older: usize,
    by_tenant: BTreeMap<String, usize>,
    routed_otherwise: usize,
}

impl PassedBy {
    fn note(&mut self, record: &PathRecord) {
        // A file may hold any number of tenants; a few are enough to say that there are several.
        let tenant = record.tenant.as_str();
        if let Some(count) = self.by_tenant.get_mut(tenant) {
            *count += 1;
        } else if self.by_tenant.len() <= TENANTS_NAMED {
            self.by_tenant.insert(tenant.to_owned(), 1);
        }
        let mut routers = record
            .policies
            .iter()
            .filter(|p| p.question == QuestionKind::Routing);
        self.routed_otherwise += usize::from(routers.any(|p| p.name != "lowest-cost"));
    }

    fn why_nothing(&self, args: &ReplayArgs, reading: &Reading) -> String {
        let mut text = "there is no record to replay".to_owned();
        let tenant = args.tenant.as_deref().unwrap_or_default();
        for (count, why) in [
            (reading.repeated, "were met twice".to_owned()),
            (self.other_tenants, format!("are not of tenant {tenant}")),
            (self.older, "are older than --since".to_owned()),
        ] {
            if count > 0 {
                text.push_str(&format!("; {count} {why}"));
            }
        }
        if reading.records == 0 && args.records.is_empty() {
            text.push_str(&format!(
                ": the host has none that this key may see ({})",
                args.server.server
            ));
        } else if reading.records == 0 {
            text.push_str(": the files are empty");
        }
        text
    }
}

/// The name tables that are given, or those of the running host where its key may see the fleet.
fn tables(args: &ReplayArgs) -> Result<Option<NameTables>, LabError> {
    if let Some(path) = &args.names {
        return read_names(path).map(Some);
    }
    if !args.records.is_empty() {
        return Ok(None);
    }
    let client = Client::new(&args.server.server, &args.server.key);
    let fleet = client.get("/v1/portolan/fleet").ok();
    Ok(fleet.and_then(|fleet| names::from_document(fleet.body).ok()))
}

fn fetch(
    args: &ReplayArgs,
    earliest: Option<u64>,
    each: &mut dyn FnMut(PathRecord),
) -> Result<Reading, Trouble> {
    let client = Client::new(&args.server.server, &args.server.key);
    let mut get = |path: &str| Ok(client.get(path).map_err(Trouble::Host)?.body);
    pages(args.tenant.as_deref(), earliest, &mut get, each)
}

/// The records that the host keeps of a tenant, the newest first, until a page holds nothing later than `earliest`
/// (Unix time in ms).
fn pages(
    tenant: Option<&str>,
    earliest: Option<u64>,
    get: &mut dyn FnMut(&str) -> Result<Value, Trouble>,
    each: &mut dyn FnMut(PathRecord),
) -> Result<Reading, Trouble> {
    let whose = tenant.map_or_else(String::new, |tenant| format!("&tenant={}", segment(tenant)));
    let mut reading = Reading::default();
    let mut from = String::new();
    loop {
        let page = get(&format!("/v1/portolan/requests?limit={PAGE}{whose}{from}"))?;
        let next = page["next"].as_u64();
        let found = records::of_document(page).map_err(Trouble::Answer)?;
        reading.records += found.len();
        let is_past = |earliest| found.iter().all(|record| record.accepted_ms < earliest);
        let is_done = earliest.is_some_and(is_past);
        found.into_iter().for_each(&mut *each);
        match next {
            Some(next) if !is_done => from = format!("&before={next}"),
            _ => return Ok(reading),
        }
    }
}

fn earliest(since: Duration, clock: &dyn Clock) -> u64 {
    let age = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    clock.now().millis().saturating_sub(age)
}

fn notes(
    args: &ReplayArgs,
    tried: &Tried,
    reading: &Reading,
    passed_by: &PassedBy,
    comparison: &Comparison,
) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(router) = tried.routed_by() {
        notes.push(format!("the routes are chosen by {router} on the replayed costs"));
        if args.with.is_none() && passed_by.routed_otherwise > 0 {
            notes.push(format!(
                "{} records were routed by another policy; some changes are the router's",
                passed_by.routed_otherwise
            ));
        }
    }
    if comparison.faults > 0 {
        notes.push(format!(
            "{} calls gave no usable answer, and the built-in rule decided in their place",
            comparison.faults
        ));
    }
    if comparison.repriced > 0 {
        notes.push(format!(
            "{} records have routes that residency had excluded, so all of theirs are priced by the built-in ttft",
            comparison.repriced
        ));
    }
    if comparison.skipped > 0 {
        notes.push(format!(
            "{} records were skipped: they ended before there was anything to decide",
            comparison.skipped
        ));
    }
    if args.tenant.is_none() && passed_by.by_tenant.len() > 1 {
        let mut counts: Vec<_> = passed_by.by_tenant.iter().collect();
        let more = if counts.len() > TENANTS_NAMED { ", …" } else { "" };
        counts.truncate(TENANTS_NAMED);
        let named: Vec<_> = counts
            .iter()
            .map(|(tenant, count)| format!("{tenant} {count}"))
            .collect();
        notes.push(format!(
            "the records are of several tenants ({}{more}); --tenant NAME takes those of one",
            named.join(", ")
        ));
    }
    if reading.repeated > 0 {
        notes.push(format!(
            "{} records were met again; each request counts once",
            reading.repeated
        ));
    }
    for file in &reading.cut_off {
        notes.push(format!(
            "the last line of {} is cut off; it was left out",
            file.display()
        ));
    }
    if args.records.is_empty() {
        notes.push("a site keeps the records of the requests that came in there, the latest ones".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(accepted_ms: u64) -> Value {
        json!({
            "request_id": format!("r{accepted_ms}"), "tenant": "acme", "model": "m", "accepted_ms": accepted_ms,
            "prompt_tokens": 1, "completion_tokens": 1, "route": null, "request": {}, "candidates": [], "policies": [],
            "placements": [], "stages": [],
            "kv": { "bytes_moved": 0, "cached_tokens": 0, "computed_tokens": 0, "chunks_resent": 0 },
            "fallbacks": [], "status": "ok",
        })
    }

    /// A host with two pages: what was asked of it, and how many records came.
    fn asked(earliest: Option<u64>) -> (Vec<String>, usize) {
        let (mut asked, mut met) = (Vec::new(), 0);
        let mut get = |path: &str| {
            asked.push(path.to_owned());
            Ok(match path.ends_with("&before=7") {
                false => json!({"object": "list", "data": [record(2_000)], "next": 7}),
                true => json!({"object": "list", "data": [record(1_000)]}),
            })
        };
        let reading = pages(Some("acme"), earliest, &mut get, &mut |_| met += 1);
        let Ok(reading) = reading else { panic!("no list") };
        assert_eq!(reading.records, met);
        (asked, met)
    }

    #[test]
    fn a_tenants_records_are_read_page_by_page_as_far_back_as_is_wanted() {
        let first = "/v1/portolan/requests?limit=250&tenant=acme";
        let both = [first.to_owned(), format!("{first}&before=7")];
        assert_eq!(asked(None), (both.to_vec(), 2));
        assert_eq!(asked(Some(1_500)), (both.to_vec(), 2));
        assert_eq!(asked(Some(2_500)), (both[..1].to_vec(), 1));
    }
}
