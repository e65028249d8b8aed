//! `portolan policy replay`: recorded requests decided again.

use super::super::ServerArgs;
use super::super::output::{Failure, json, line};
use super::call::read_names;
use super::lab_failure;
use crate::client::Client;
use crate::lab::LabError;
use crate::lab::comparison::{Change, Comparison, Moved, Tally};
use crate::lab::component::Workshop;
use crate::lab::names;
use crate::lab::records;
use crate::lab::replay::{Replayer, recorded};
use crate::lab::situation::names_of;
use clap::Args;
use portolan_base::{Bytes, Clock};
use portolan_decide::PathRecord;
use portolan_policy::{NameTables, QuestionKind};
use std::path::PathBuf;
use std::time::Duration;

/// Options of `policy replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The component.
    pub file: PathBuf,
    /// Path records: JSON, JSON lines, bodies of `GET /v1/portolan/requests`, or folders of them.
    #[arg(long, num_args = 1.., value_name = "PATHS", required_unless_present = "tenant", conflicts_with = "tenant")]
    pub records: Vec<PathBuf>,
    /// Take the records of this tenant from the running host.
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only requests accepted so long ago at most: `90s`, `30m`, `1h`, `2d`.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub since: Option<Duration>,
    /// The question; told from the component when left out.
    #[arg(long)]
    pub question: Option<QuestionKind>,
    /// Text for its `configure`.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub config: String,
    /// The router that follows a cost or residency component; the built-in `lowest-cost` when left out.
    #[arg(long, value_name = "FILE")]
    pub with: Option<PathBuf>,
    /// Name tables (JSON), or the body of `GET /v1/portolan/fleet`: records do not say where sites lie.
    #[arg(long, value_name = "NAMES.json")]
    pub names: Option<PathBuf>,
    /// The running host.
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Most records that a host hands out at once.
const LIST_MAX: usize = 1000;

pub(super) fn run(args: &ReplayArgs, as_json: bool) -> Result<(), Failure> {
    let trouble = |e: &LabError| lab_failure(e, as_json);
    let workshop = Workshop::new().map_err(|e| trouble(&e))?;
    let records = match &args.tenant {
        None => records::read_all(&args.records).map_err(|e| trouble(&e))?,
        Some(tenant) => fetch(args, tenant).map_err(|e| e.as_json(as_json))?,
    };
    let records = recent(records, args.since, workshop.clock());
    if records.is_empty() {
        return Err(Failure::new("there is no record to replay").as_json(as_json));
    }
    let (comparison, notes) = replay(args, &workshop, &records).map_err(|e| trouble(&e))?;
    if as_json {
        let mut said = serde_json::to_value(&comparison).map_err(Failure::new)?;
        said["notes"] = serde_json::json!(notes);
        return json(&said);
    }
    describe(&comparison).iter().for_each(line);
    notes.iter().for_each(|note| line(format!("note: {note}")));
    Ok(())
}

fn replay(
    args: &ReplayArgs,
    workshop: &Workshop,
    records: &[PathRecord],
) -> Result<(Comparison, Vec<String>), LabError> {
    let file = workshop.open(&args.file, args.question)?;
    if file.question == QuestionKind::Invalidation {
        return Err(LabError::value(
            "question",
            "path records hold no invalidation events; residency, cost and routing can be replayed",
        ));
    }
    let known = tables(args)?;
    if known.is_none() && file.question == QuestionKind::Residency {
        return Err(LabError::value(
            "--names",
            "path records do not say in which jurisdiction a site lies; give the name tables, or the operator's \
             body of GET /v1/portolan/fleet",
        ));
    }
    let names = known.unwrap_or_else(|| recorded_names(records));
    let policy = workshop.load(&file, &args.config, &names)?;
    let router = match args
        .with
        .as_ref()
        .filter(|_| file.question != QuestionKind::Routing)
    {
        None => None,
        Some(path) => {
            let router = workshop.open(path, Some(QuestionKind::Routing))?;
            Some(workshop.load(&router, "", &names)?)
        }
    };
    let replayer = Replayer {
        policy,
        router,
        names: &names,
        clock: workshop.clock(),
    };
    let mut tally = Tally::default();
    for record in records {
        if record.candidates.is_empty() {
            tally.skip();
        } else {
            tally.add(record, &recorded(record), &replayer.replay(record));
        }
    }
    let comparison = tally.finish();
    let notes = notes(file.question, args, records, &comparison);
    Ok((comparison, notes))
}

/// The name tables that are given, or those of the running host where its key may see the fleet.
fn tables(args: &ReplayArgs) -> Result<Option<NameTables>, LabError> {
    if let Some(path) = &args.names {
        return read_names(path).map(Some);
    }
    let fleet = args.tenant.as_ref().and_then(|tenant| {
        let client = Client::new(&args.server.server, &args.server.key);
        let body = client.get("/v1/portolan/fleet").ok()?.body;
        let mut names = names::from_document(body).ok()?;
        names.tenant.clone_from(tenant);
        Some(names)
    });
    Ok(fleet)
}

/// The longest site table among the records.
fn recorded_names(records: &[PathRecord]) -> NameTables {
    let longest = records.iter().max_by_key(|record| record.placements.len());
    longest.map_or_else(NameTables::default, names_of)
}

fn fetch(args: &ReplayArgs, tenant: &str) -> Result<Vec<PathRecord>, Failure> {
    let client = Client::new(&args.server.server, &args.server.key);
    let listed = client.get(&format!("/v1/portolan/requests?limit={LIST_MAX}"));
    let found = records::of_document(listed.map_err(Failure::new)?.body).map_err(Failure::new)?;
    Ok(found
        .into_iter()
        .filter(|record| record.tenant.as_str() == tenant)
        .collect())
}

fn recent(records: Vec<PathRecord>, since: Option<Duration>, clock: &dyn Clock) -> Vec<PathRecord> {
    let Some(since) = since else { return records };
    let age = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    let earliest = clock.now().millis().saturating_sub(age);
    records
        .into_iter()
        .filter(|record| record.accepted_ms >= earliest)
        .collect()
}

/// What a reader must know to read the figures aright.
fn notes(
    question: QuestionKind,
    args: &ReplayArgs,
    records: &[PathRecord],
    comparison: &Comparison,
) -> Vec<String> {
    let mut notes = Vec::new();
    if question != QuestionKind::Routing {
        let router = args.with.as_ref().map_or_else(
            || "the built-in lowest-cost".to_owned(),
            |path| path.display().to_string(),
        );
        notes.push(format!("the routes are chosen by {router} on the replayed costs"));
        let routed_by = |record: &&PathRecord| {
            record
                .policies
                .iter()
                .any(|p| p.question == QuestionKind::Routing && p.name != "lowest-cost")
        };
        let other = records.iter().filter(routed_by).count();
        if args.with.is_none() && other > 0 {
            notes.push(format!(
                "{other} records were routed by another policy; some changes are the router's"
            ));
        }
    }
    if comparison.repriced > 0 {
        notes.push(format!(
            "{} records have routes that residency had excluded, so all of theirs are priced by the built-in ttft",
            comparison.repriced
        ));
    }
    if args.tenant.is_some() {
        notes.push(format!(
            "a host hands out its newest {LIST_MAX} records, of all tenants that the key may see"
        ));
    }
    notes
}

/// `90s`, `30m`, `1h`, `2d`.
fn duration(text: &str) -> Result<Duration, String> {
    let trouble = || format!("{text:?} is no time; write 90s, 30m, 1h or 2d");
    let unit = text.chars().last().ok_or_else(trouble)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(trouble()),
    };
    let number: u64 = text[..text.len() - unit.len_utf8()]
        .parse()
        .map_err(|_| trouble())?;
    number
        .checked_mul(seconds)
        .map(Duration::from_secs)
        .ok_or_else(trouble)
}

fn describe(found: &Comparison) -> Vec<String> {
    let mut out = vec![format!(
        "{} of {} decisions change ({} served then and not now, {} the other way; {} calls failed, {} records skipped)",
        found.changed, found.decided, found.newly_unserved, found.newly_served, found.faults, found.skipped
    )];
    let ms = |us: f64| format!("{:.1} ms", us / 1000.0);
    let bytes = |bytes: f64| Bytes(bytes as u64).to_string();
    let price = |price: f64| format!("{price:.0}");
    out.push(format!(
        "  {:<22}{:>24}{:>24}{:>24}",
        "recorded → replayed", "sum", "P50", "P99"
    ));
    out.push(moved("expected TTFT", &found.ttft_us, ms));
    out.push(moved("bytes between sites", &found.cross_site_bytes, bytes));
    out.push(moved("price, millionths", &found.price_micros, price));
    if !found.differences.is_empty() {
        out.push("largest changes:".to_owned());
    }
    out.extend(found.differences.iter().flat_map(explain));
    out
}

fn moved(what: &str, moved: &Moved, unit: impl Fn(f64) -> String) -> String {
    let pair = |from: f64, to: f64| format!("{} → {}", unit(from), unit(to));
    let Moved { recorded, replayed } = moved;
    format!(
        "  {what:<22}{:>24}{:>24}{:>24}",
        pair(recorded.sum, replayed.sum),
        pair(recorded.p50, replayed.p50),
        pair(recorded.p99, replayed.p99)
    )
}

fn explain(change: &Change) -> Vec<String> {
    let mut out = vec![format!(
        "  {}  {}  ⇒  {}",
        change.request_id, change.from, change.to
    )];
    if let (Some(ttft), Some(bytes), Some(price)) =
        (change.ttft_us, change.cross_site_bytes, change.price_micros)
    {
        out.push(format!(
            "      TTFT {:+.1} ms, {}{} between sites, price {price:+}",
            ttft as f64 / 1000.0,
            if bytes < 0 { "-" } else { "+" },
            Bytes(bytes.unsigned_abs())
        ));
    }
    out.extend(change.fallbacks.iter().map(|why| format!("      {why}")));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_with_a_unit() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2d"), Ok(Duration::from_secs(172_800)));
        for bad in ["", "h", "1", "1.5h", "-1m", "1é", "18446744073709551615d"] {
            assert!(duration(bad).unwrap_err().contains("write 90s"), "{bad}");
        }
    }
}
