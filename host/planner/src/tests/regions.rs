//! Designs over three regions: residency, reach, capacity, failover, distances and bill.

use super::close;
use crate::regions::*;
use crate::{DecodeProfile, PrefillProfile};
use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Bytes, Tokens};
use std::collections::BTreeMap;
use std::time::Duration;

const EU: RegionIndex = 0;
const US: RegionIndex = 1;
const AP: RegionIndex = 2;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// 80 ms for a hit, 800 ms for a miss of 2,000 tokens: 0.36 ms a token.
fn prefill() -> PrefillProfile {
    PrefillProfile {
        fixed_s: 0.08,
        per_token_s: 0.36e-3,
        per_token_squared_s: 0.0,
    }
}

fn region(name: &str) -> Region {
    Region {
        name: name.to_owned(),
        jurisdiction: name.to_owned(),
        data_may_go: None,
        load_rps: 10.0,
        site: Some(SiteOffer {
            price_per_hour: 20.0,
            room: 200,
        }),
    }
}

fn case() -> RegionsCase {
    let link = |rtt| RegionLink {
        rtt: ms(rtt),
        capacity: BitsPerSecond(10_000_000_000),
        price_per_gib: 0.02,
    };
    RegionsCase {
        regions: ["eu", "us", "ap"].map(region).to_vec(),
        links: BTreeMap::from([((EU, US), link(75)), ((EU, AP), link(220)), ((US, AP), link(65))]),
        work: RegionalWork {
            mean_tokens: 1_000.0,
            mean_square_tokens: 2_000_000.0,
            objective_tokens: Tokens(2_000),
            prompt_tokens: 2_000.0,
            fetched_share: 0.0,
            fetched_tokens: 0.0,
        },
        objective: Objective {
            ttft: ms(1_000),
            quantile: 0.9,
            round_trips: 1,
            utilisation: 0.7,
        },
        prefill: prefill(),
        decode: DecodeProfile {
            batch: 20,
            step_s: 0.025,
            output_tokens: 256.0,
        },
        kv: KvSize {
            fixed: Bytes(0),
            per_token: Bytes(131_072),
        },
        failover: Failover::WherePossible,
    }
}

fn sites(served: &Served) -> Vec<RegionIndex> {
    served.by.iter().map(|way| way.site).collect()
}

#[test]
fn break_even_lengths_of_the_published_links() {
    for (rtt, one, two) in [(65, 181, 361), (75, 208, 417), (220, 611, 1_222)] {
        let even = |trips| break_even(&prefill(), ms(rtt), trips);
        assert_eq!(
            (even(1), even(2)),
            (Some(Tokens(one)), Some(Tokens(two))),
            "{rtt} ms"
        );
    }
    // 440 ms do not eat a saving of 720 ms: a hit on 2,000 tokens still gains.
    assert!(break_even(&prefill(), ms(220), 2).unwrap() < Tokens(2_000));
    let constant = PrefillProfile {
        per_token_s: 0.0,
        ..prefill()
    };
    assert_eq!(break_even(&constant, ms(75), 1), None);
    let curved = PrefillProfile {
        per_token_squared_s: 1e-7,
        ..prefill()
    };
    assert!(break_even(&curved, ms(220), 2).unwrap() < Tokens(1_222));
}

#[test]
fn fetching_pays_when_the_link_outruns_prefill() {
    let kv = case().kv;
    let even = |gbps: u64| fetch_break_even(&prefill(), ms(75), kv, BitsPerSecond(gbps * 1_000_000_000));
    // 131,072 B take 0.105 ms at 10 Gbit/s: 75 / (0.36 - 0.105).
    assert_eq!(even(10), Some(Tokens(294)));
    assert_eq!(even(2), None, "2.9 Gbit/s are what prefill makes");
    assert_eq!(even(100), Some(Tokens(215)));
}

#[test]
fn residency_partitions_before_anything_else() {
    let mut case = case();
    case.regions[EU].data_may_go = Some(vec!["eu".to_owned()]);
    let design = design(&case).unwrap();
    assert_eq!(sites(&design.regions[EU]), [EU]);
    assert_eq!(
        design.regions[EU].not_by,
        [(US, Obstacle::Residency), (AP, Obstacle::Residency)]
    );
    // The others may still come to Europe: the rule is of the data, not of the site.
    assert_eq!(sites(&design.regions[US]), [US, AP, EU]);
    assert_eq!(
        design.partitions,
        [
            Partition {
                data_of: vec![EU],
                at: vec![EU]
            },
            Partition {
                data_of: vec![US, AP],
                at: vec![EU, US, AP]
            },
        ]
    );
}

#[test]
fn reach_is_round_trips_and_prefill_within_the_objective() {
    // A prompt of 2,000 tokens takes 800 ms: 200 ms are left, and 220 do not fit.
    let served = |case: &RegionsCase| design(case).unwrap().regions[AP].clone();
    let found = served(&case());
    assert_eq!(sites(&found), [AP, US]);
    assert_eq!(found.not_by, [(EU, Obstacle::TooFar { ttft: ms(1_020) })]);
    assert_eq!(found.by[1].ttft, ms(865));
    let mut twice = case();
    twice.objective.round_trips = 2;
    assert_eq!(served(&twice).by[1].ttft, ms(930));
    let mut patient = case();
    patient.objective.ttft = ms(1_020);
    assert_eq!(sites(&served(&patient)), [AP, US, EU]);
    let mut unlinked = case();
    unlinked.links.remove(&(US, AP));
    assert_eq!(served(&unlinked).not_by[1], (US, Obstacle::NoLink));
}

#[test]
fn instances_hold_the_load_of_a_lost_neighbour() {
    let undisturbed = RegionsCase {
        failover: Failover::None,
        ..case()
    };
    let (alone, covered) = (design(&undisturbed).unwrap(), design(&case()).unwrap());
    for (a, c) in alone.sites.iter().zip(&covered.sites) {
        assert_eq!((a.region, a.load_rps, a.worst_rps), (c.region, 10.0, 10.0));
        assert!(a.utilisation <= 0.7 && c.utilisation <= 0.7 && a.wait <= ms(200));
    }
    // Europe's nearest is the United States, whose nearest is Asia; Asia's is the United States: it may get both.
    let worst: Vec<_> = covered.sites.iter().map(|site| site.worst_rps).collect();
    assert_eq!(worst, [10.0, 20.0, 20.0]);
    // (0.08 s + 0.36 s of prefill, 0.32 s of decode) x 10 / 0.7.
    assert!(
        alone.sites[EU].instances >= 11 && alone.sites[EU].instances < 16,
        "{:?}",
        alone.sites
    );
    assert!(covered.sites[US].instances > alone.sites[US].instances);
}

#[test]
fn a_region_without_a_site_is_served_by_the_nearest() {
    let mut case = case();
    case.regions[AP].site = None;
    let design = design(&case).unwrap();
    assert_eq!(sites(&design.regions[AP]), [US]);
    assert_eq!(
        design.sites.iter().map(|site| site.region).collect::<Vec<_>>(),
        [EU, US]
    );
    assert_eq!(design.sites[1].load_rps, 20.0);
    // (2,000 + 256) tokens x 4 B x 10 req/s x 2,628,000 s over a link of 0.02 a GiB.
    let gib = 2_256.0 * 4.0 * 10.0 * 2_628_000.0 / f64::from(1 << 30);
    close(design.bill.requests, gib * 0.02, 1e-9);
    close(design.bill.crossing.0 as f64, gib * f64::from(1 << 30), 1e-9);
}

#[test]
fn the_bill_adds_up() {
    let mut case = RegionsCase {
        failover: Failover::None,
        ..case()
    };
    case.work.fetched_share = 0.05;
    case.work.fetched_tokens = 1_000.0;
    case.regions[EU].data_may_go = Some(vec!["eu".to_owned()]);
    let design = design(&case).unwrap();
    let instances: u32 = design.sites.iter().map(|site| site.instances).sum();
    close(design.bill.instances, f64::from(instances) * 20.0 * 730.0, 1e-12);
    assert_eq!(design.bill.requests, 0.0, "everyone is served at home");
    // Two regions fetch for 5 % of their requests; Europe has nobody to fetch from.
    let gib = 2.0 * 10.0 * 2_628_000.0 * 0.05 * 131_072_000.0 / f64::from(1 << 30);
    close(design.bill.fetches, gib * 0.02, 1e-9);
    close(
        design.bill.total(),
        design.bill.instances + design.bill.fetches,
        1e-12,
    );
}

#[test]
fn of_two_sites_as_near_a_regions_own_serves() {
    let mut case = case();
    case.links.get_mut(&(EU, US)).unwrap().rtt = ms(0);
    let design = design(&case).unwrap();
    assert_eq!(sites(&design.regions[US])[..2], [US, EU]);
    assert_eq!(design.bill.requests, 0.0);
}

#[test]
fn what_prevents_a_design_is_named() {
    let said = |change: fn(&mut RegionsCase)| {
        let mut case = case();
        change(&mut case);
        design(&case).unwrap_err().to_string()
    };
    let residency = said(|case| {
        case.regions[EU].data_may_go = Some(vec!["eu".to_owned(), "ch".to_owned()]);
        case.regions[EU].site = None;
    });
    assert!(
        residency.starts_with("requests of eu cannot be served: their data may be processed in eu, ch only"),
        "{residency}"
    );

    let distance = said(|case| {
        case.objective.ttft = ms(850);
        case.regions[AP].site = None;
    });
    assert!(
        distance.contains("requests of ap miss 850 ms: the nearest site they may use is us, 65 ms of round trips and 800 ms of prefill away; a nearer site would help"),
        "{distance}"
    );
    let speed = said(|case| case.objective.ttft = ms(700));
    assert!(
        speed.contains("requests of eu miss 700 ms") && speed.contains("faster instances would"),
        "{speed}"
    );

    let alone = said(|case| {
        case.failover = Failover::Required;
        case.regions[EU].data_may_go = Some(vec!["eu".to_owned()]);
    });
    assert!(
        alone.contains(
            "requests of eu have nowhere to go when eu is lost: residency forbids us, residency forbids ap"
        ),
        "{alone}"
    );

    let room = said(|case| {
        case.regions[US].site = Some(SiteOffer {
            price_per_hour: 1.0,
            room: 5,
        });
    });
    assert!(
        room.starts_with("us needs") && room.contains("20.0 requests a second and has room for 5"),
        "{room}"
    );

    let narrow = said(|case| {
        case.links.get_mut(&(US, AP)).unwrap().capacity = BitsPerSecond(500_000_000);
        case.work.fetched_share = 0.05;
        case.work.fetched_tokens = 1_000.0;
    });
    // Half a request a second of each of the two, 131 MB each.
    assert!(
        narrow
            .starts_with("1.049 Gbit/s of requests and of KV that is fetched are to cross between us and ap")
            && narrow.contains("carries 0.5;"),
        "{narrow}"
    );
    let fetch = |tokens: f64, gbps: u64| {
        let mut case = case();
        let links = case.links.values_mut();
        links.for_each(|link| link.capacity = BitsPerSecond(gbps * 1_000_000_000));
        (case.work.fetched_share, case.work.fetched_tokens) = (0.001, tokens);
        design(&case).map_err(|wrong| wrong.to_string())
    };
    assert!(fetch(300.0, 10).is_ok());
    let few = fetch(200.0, 10).unwrap_err();
    assert!(
        few.contains("computed sooner than it comes: that pays from 294 tokens on"),
        "{few}"
    );
    let slow = fetch(300.0, 2).unwrap_err();
    assert!(
        slow.contains("is computed sooner than it comes; widen the link"),
        "{slow}"
    );

    let nowhere = said(|case| case.regions[EU].data_may_go = Some(Vec::new()));
    assert!(
        nowhere.contains("their data may be processed nowhere; allow"),
        "{nowhere}"
    );

    let unlinked = said(|case| {
        case.links.clear();
        case.regions[AP].site = None;
    });
    assert!(
        unlinked.contains("no site they may use is linked to it"),
        "{unlinked}"
    );
}
