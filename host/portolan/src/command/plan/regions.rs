//! `portolan plan --regions`: a set-up of several regions, in words and as JSON.

use super::told::{Cells, aligned};
use crate::command::output::{Failure, json, line};
use crate::plan::PlanError;
use crate::plan::regions::RegionsText;
use portolan_base::Tokens;
use portolan_planner::regions::{Design, Obstacle, RegionIndex, RegionsCase, design};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

pub(super) fn run(file: &Path, as_json: bool) -> Result<Result<(), Failure>, PlanError> {
    let case = RegionsText::read(file)?;
    let found = match design(&case) {
        Ok(found) => found,
        Err(why) => return Ok(Err(Failure::new(format!("no design meets this: {why}")))),
    };
    if as_json {
        return Ok(json(&report(&case, &found)));
    }
    told(&case, &found).iter().for_each(line);
    Ok(Ok(()))
}

#[derive(Serialize)]
struct Report {
    regions: Vec<RegionReport>,
    partitions: Vec<PartitionReport>,
    sites: Vec<SiteReport>,
    links: Vec<LinkReport>,
    monthly_bill: BillReport,
}

#[derive(Serialize)]
struct RegionReport {
    region: String,
    served_by: Vec<WayReport>,
    not_by: Vec<ObstacleReport>,
}

#[derive(Serialize)]
struct WayReport {
    site: String,
    rtt_ms: f64,
    ttft_ms: f64,
}

#[derive(Serialize)]
struct ObstacleReport {
    site: String,
    why: String,
}

#[derive(Serialize)]
struct PartitionReport {
    data_of: Vec<String>,
    at: Vec<String>,
}

#[derive(Serialize)]
struct SiteReport {
    site: String,
    instances: u32,
    load_rps: f64,
    worst_load_rps: f64,
    utilisation: f64,
    wait_ms: f64,
}

#[derive(Serialize)]
struct LinkReport {
    between: [String; 2],
    rtt_ms: f64,
    break_even_tokens: u32,
    break_even_tokens_two_round_trips: u32,
    fetch_break_even_tokens: Option<u32>,
}

#[derive(Serialize)]
struct BillReport {
    instances: f64,
    requests: f64,
    fetches: f64,
    total: f64,
    crossing_bytes: u64,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn report(case: &RegionsCase, found: &Design) -> Report {
    let name = |index: RegionIndex| case.regions[index].name.clone();
    let names = |indices: &[RegionIndex]| indices.iter().map(|index| name(*index)).collect();
    let regions = found
        .regions
        .iter()
        .enumerate()
        .map(|(region, served)| RegionReport {
            region: name(region),
            served_by: served
                .by
                .iter()
                .map(|way| WayReport {
                    site: name(way.site),
                    rtt_ms: ms(way.rtt),
                    ttft_ms: ms(way.ttft),
                })
                .collect(),
            not_by: served
                .not_by
                .iter()
                .map(|(site, obstacle)| ObstacleReport {
                    site: name(*site),
                    why: why(obstacle),
                })
                .collect(),
        });
    Report {
        regions: regions.collect(),
        partitions: found
            .partitions
            .iter()
            .map(|partition| PartitionReport {
                data_of: names(&partition.data_of),
                at: names(&partition.at),
            })
            .collect(),
        sites: found
            .sites
            .iter()
            .map(|site| SiteReport {
                site: name(site.region),
                instances: site.instances,
                load_rps: site.load_rps,
                worst_load_rps: site.worst_rps,
                utilisation: site.utilisation,
                wait_ms: ms(site.wait),
            })
            .collect(),
        links: found
            .links
            .iter()
            .map(|link| LinkReport {
                between: [name(link.between.0), name(link.between.1)],
                rtt_ms: ms(link.rtt),
                break_even_tokens: link.request[0].0,
                break_even_tokens_two_round_trips: link.request[1].0,
                fetch_break_even_tokens: link.fetch.map(|tokens| tokens.0),
            })
            .collect(),
        monthly_bill: BillReport {
            instances: found.bill.instances,
            requests: found.bill.requests,
            fetches: found.bill.fetches,
            total: found.bill.total(),
            crossing_bytes: found.bill.crossing.0,
        },
    }
}

fn why(obstacle: &Obstacle) -> String {
    match obstacle {
        Obstacle::Residency => "residency".to_owned(),
        Obstacle::NoLink => "not linked".to_owned(),
        Obstacle::TooFar { ttft } => format!("too far: {:.0} ms to the first token", ms(*ttft)),
    }
}

fn told(case: &RegionsCase, found: &Design) -> Vec<String> {
    let report = report(case, found);
    let mut out = served(&report.regions);
    out.push(String::new());
    out.push("cache partitions: data may be, and caches be shared, at".to_owned());
    out.extend(
        report
            .partitions
            .iter()
            .map(|partition| format!("  {}: {}", partition.data_of.join(", "), partition.at.join(", "))),
    );
    out.push(String::new());
    out.extend(instances(&report.sites));
    out.push(String::new());
    out.extend(distances(&report.links));
    out.push(String::new());
    out.push(bill(&report.monthly_bill));
    out
}

fn served(regions: &[RegionReport]) -> Vec<String> {
    let heading = ["requests of", "served by", "then, in failover", "never by"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let way = |way: &WayReport| format!("{} ({:.0} ms)", way.site, way.ttft_ms);
    rows.extend(regions.iter().map(|region| {
        let (first, others) = region.served_by.split_at(region.served_by.len().min(1));
        let list = |ways: &[WayReport]| ways.iter().map(way).collect::<Vec<_>>().join(", ");
        let never: Vec<_> = region
            .not_by
            .iter()
            .map(|not| format!("{} ({})", not.site, not.why))
            .collect();
        let failover = if others.is_empty() {
            "nowhere".to_owned()
        } else {
            list(others)
        };
        vec![region.region.clone(), list(first), failover, never.join(", ")]
    }));
    let mut out = aligned(&rows, Cells::Words);
    out.push("times are to the first token of a prompt of `objective_tokens`, when nothing waits".to_owned());
    out
}

fn instances(sites: &[SiteReport]) -> Vec<String> {
    let heading = ["site", "instances", "req/s", "worst req/s", "busy %", "wait ms"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(sites.iter().map(|site| {
        vec![
            site.site.clone(),
            site.instances.to_string(),
            format!("{:.1}", site.load_rps),
            format!("{:.1}", site.worst_load_rps),
            format!("{:.0}", site.utilisation * 100.0),
            format!("{:.0}", site.wait_ms),
        ]
    }));
    aligned(&rows, Cells::Numbers)
}

fn distances(links: &[LinkReport]) -> Vec<String> {
    let heading = ["link", "rtt ms", "cross from", "two trips", "fetch from"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let tokens = |tokens: u32| {
        if Tokens(tokens) == Tokens(u32::MAX) {
            "never".to_owned()
        } else {
            tokens.to_string()
        }
    };
    rows.extend(links.iter().map(|link| {
        vec![
            link.between.join(" - "),
            format!("{:.0}", link.rtt_ms),
            tokens(link.break_even_tokens),
            tokens(link.break_even_tokens_two_round_trips),
            link.fetch_break_even_tokens.map_or("never".to_owned(), tokens),
        ]
    }));
    let mut out = aligned(&rows, Cells::Numbers);
    out.push(
        "in cached tokens: from there on a request gains by crossing, or its KV by being fetched".to_owned(),
    );
    out
}

fn bill(bill: &BillReport) -> String {
    format!(
        "a month: {:.0} = instances {:.0} + requests that cross {:.0} + KV that is fetched {:.0}; {:.1} TB cross",
        bill.total,
        bill.instances,
        bill.requests,
        bill.fetches,
        bill.crossing_bytes as f64 / 1e12
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../../examples/06-planner/regions.yaml");

    fn text(example: &str) -> Vec<String> {
        let case = RegionsText::parse(example).unwrap();
        told(&case, &design(&case).unwrap())
    }

    #[test]
    fn the_example_is_told_region_by_region() {
        let text = text(EXAMPLE);
        let row = |beginning: &str| {
            let found = text.iter().find(|row| row.starts_with(beginning));
            found
                .unwrap_or_else(|| panic!("{beginning} in {text:#?}"))
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            row("eu  "),
            "eu eu (800 ms) nowhere us (residency), ap (residency)"
        );
        assert_eq!(row("us  "), "us us (800 ms) ap (865 ms), eu (875 ms)");
        assert_eq!(
            row("ap  "),
            "ap ap (800 ms) us (865 ms) eu (too far: 1020 ms to the first token)"
        );
        assert_eq!(row("  eu:"), "eu: eu");
        assert_eq!(row("  us, ap:"), "us, ap: eu, us, ap");
        assert_eq!(row("us - ap"), "us - ap 65 181 361 255");
        assert_eq!(row("eu - us"), "eu - us 75 208 417 294");
        assert_eq!(row("eu - ap"), "eu - ap 220 611 1222 862");
        assert!(row("a month:").contains("instances"));
    }

    #[test]
    fn json_names_what_the_text_does() {
        let case = RegionsText::parse(EXAMPLE).unwrap();
        let report = serde_json::to_value(report(&case, &design(&case).unwrap())).unwrap();
        assert_eq!(
            report["regions"][0]["not_by"][0],
            serde_json::json!({"site": "us", "why": "residency"})
        );
        assert_eq!(report["links"][0]["break_even_tokens_two_round_trips"], 417);
        let bill = &report["monthly_bill"];
        let part = |name: &str| bill[name].as_f64().unwrap();
        assert!((part("total") - part("instances") - part("requests") - part("fetches")).abs() < 1e-6);
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (from, to, expected) in [
            ("rtt_ms: 65", "rtt: 65", "rtt"),
            (
                "between: [us, ap]",
                "between: [us, jp]",
                "no region is called \"jp\"; there are eu, us, ap",
            ),
            ("between: [us, ap]", "between: [us, eu]", "each pair once"),
            (
                "eu: [eu]",
                "eu: [eu, ch]",
                "residency.eu: no region is in \"ch\"; there are eu, us, jp",
            ),
            ("name: us", "name: eu", "regions.eu.name"),
            (
                "quantile: 0.9",
                "quantile: 90",
                "objective.quantile: 90 is not from 0 to 0.9999",
            ),
            ("failover: where-possible", "failover: maybe", "maybe"),
            ("room: 64", "room: 64000", "more than 10000"),
        ] {
            assert!(EXAMPLE.contains(from), "{from}");
            let message = RegionsText::parse(&EXAMPLE.replacen(from, to, 1))
                .unwrap_err()
                .to_string();
            assert!(message.contains(expected), "{to}: {message}");
        }
    }
}
