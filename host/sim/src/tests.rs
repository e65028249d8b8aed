//! Readers against rows written by hand, the world against arithmetic and the published figures.

mod case_study;
mod happenings;

use crate::case_study::{H20, H200};
use crate::*;
use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Bytes, InstanceName, Moment, Permille, Role, SiteName, Tokens};
use portolan_decide::deferral::MAX_DEFERRALS;
use portolan_decide::{RequestPolicies, SiteIndex};
use portolan_planner::PrefillProfile;
use portolan_policy::{
    Answer, Answered, BoundAs, Call, NameTables, Policy, PolicyDescriptor, PolicySource, QuestionKind,
    RoutingDecision, SiteEntry, builtin,
};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A site whose requests state no jurisdiction.
const fn at(site: SiteIndex) -> Origin {
    Origin {
        site,
        jurisdiction: 0,
    }
}

const HOME: SiteIndex = SiteIndex(0);
const FAR: SiteIndex = SiteIndex(1);
const STEP: Duration = Duration::from_millis(25);

fn instances(prefix: &str, count: u32, like: &SimInstance) -> Vec<SimInstance> {
    let named = |i| InstanceName::new(&format!("{prefix}-{i}")).unwrap();
    (0..count)
        .map(|i| SimInstance {
            name: named(i),
            ..like.clone()
        })
        .collect()
}

fn instance(site: SiteIndex, role: Role, prefill: PrefillProfile) -> SimInstance {
    SimInstance {
        name: InstanceName::new("x").unwrap(),
        site,
        role,
        prefill,
        decode_step: STEP,
        decode_slots: 20,
        cache: Tokens(0),
        price_micros_per_kilotoken: 100,
    }
}

/// The paper's fleet: `far` prefill instances of 8 × H200, at home `prefill` and `decode` instances of 8 × H20.
fn prfaas(far: u32, prefill: u32, decode: u32) -> Scenario {
    let mut all = instances("h200", far, &instance(FAR, Role::Prefill, H200));
    all.extend(instances("prefill", prefill, &instance(HOME, Role::Prefill, H20)));
    all.extend(instances("decode", decode, &instance(HOME, Role::Decode, H20)));
    let link = SimLink {
        capacity: BitsPerSecond(100_000_000_000),
        rtt: Duration::ZERO,
        price_micros_per_gib: 10_000,
    };
    let site = |name| SimSite {
        name: SiteName::new(name).unwrap(),
        jurisdiction: 0,
    };
    Scenario {
        sites: vec![site("home"), site("far")],
        instances: all,
        links: BTreeMap::from([((FAR, HOME), link)]),
        origins: vec![at(HOME)],
        block_tokens: Tokens(512),
        kv: KvSize {
            fixed: Bytes(182_368_338),
            per_token: Bytes(17_280),
        },
        overlap: Permille(0),
        threshold: ThresholdSource::Static(Tokens(19_400)),
        congestion_mark: Permille(700),
        policies: routing("offload"),
        seed: 1,
        queueing: Queueing::PerInstance,
        first_token: FirstToken::Decode,
        changes: vec![],
        slow_loop: None,
        ttft_slo: None,
        warm_up: Duration::ZERO,
    }
}

fn names() -> NameTables {
    let site = |name: &str, region: &str| SiteEntry {
        name: name.into(),
        region: region.into(),
        jurisdiction: 0,
    };
    NameTables {
        sites: vec![site("home", "a"), site("far", "b")],
        ..NameTables::default()
    }
}

fn routing(name: &str) -> RequestPolicies {
    let policy = builtin::policy(QuestionKind::Routing, name, "", &names()).unwrap();
    RequestPolicies {
        routing: Some(policy),
        ..RequestPolicies::default()
    }
}

/// Two equal sites that both take requests, and a cache in every instance.
fn two_sites(cache: Tokens, policy: &str) -> Scenario {
    let both = |site| SimInstance {
        cache,
        decode_slots: 400,
        ..instance(site, Role::Both, H200)
    };
    let link = SimLink {
        capacity: BitsPerSecond(25_000_000_000),
        rtt: Duration::from_millis(65),
        price_micros_per_gib: 20_000,
    };
    let mut all = instances("home", 2, &both(HOME));
    all.extend(instances("far", 2, &both(FAR)));
    Scenario {
        instances: all,
        links: BTreeMap::from([((FAR, HOME), link), ((HOME, FAR), link)]),
        origins: vec![at(HOME), at(FAR)],
        overlap: Permille(930),
        policies: routing(policy),
        ..prfaas(0, 0, 0)
    }
}

fn conversations() -> Vec<SimRequest> {
    read_mooncake(&include_bytes!("../tests/data/conversation_trace_1000.jsonl")[..]).unwrap()
}

fn case_study_traffic(rate: f64, requests: usize) -> Vec<SimRequest> {
    crate::case_study::traffic(rate, requests, 7)
}

#[test]
fn a_mooncake_trace_is_read_row_by_row() {
    let requests = conversations();
    assert_eq!(requests.len(), 1000);
    let first = &requests[0];
    assert_eq!(
        (first.prompt_tokens, first.output_tokens, first.blocks.len()),
        (6758, 500, 14)
    );
    assert!(requests.is_sorted_by_key(|r| r.arrival));
    let torn =
        b"{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [0]}\n{\"timest";
    let wrong = b"{\"timestamp\": 0, \"input_length\": 513, \"output_length\": 1, \"hash_ids\": [0]}";
    let told = |trace: &[u8]| read_mooncake(trace).unwrap_err().to_string();
    assert!(
        told(torn).starts_with("line 2 of the trace: EOF"),
        "{}",
        told(torn)
    );
    assert_eq!(told(wrong), "line 1 of the trace: 513 tokens with 1 block ids");
}

#[test]
fn an_azure_trace_counts_from_its_first_row() {
    let trace = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-02-28 23:59:59.5000000,4808,10\r\n\
                 2024-03-01 00:00:00.2500000,3180,8\r\n";
    let requests = read_azure(trace.as_bytes()).unwrap();
    let leap_day = Duration::from_secs(24 * 3600);
    assert_eq!(requests[0].arrival, Moment(0));
    assert_eq!(requests[1].arrival, Moment(750_000) + leap_day);
    assert_eq!((requests[1].prompt_tokens, requests[1].output_tokens), (3180, 8));
    for bad in [
        "2024-02-28,1,1",
        "2024-02-28 23:61:00,1,1",
        "2024-02-28 23:00:00,x,1",
        "2024-02-28 23:00:00,1",
    ] {
        let error = read_azure(format!("heading\n{bad}").as_bytes())
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("line 2"), "{error}");
    }
}

#[test]
fn an_endless_cache_hits_whatever_was_ever_seen() {
    let traffic = conversations();
    let (mut seen, mut hits, mut blocks) = (HashSet::<u64>::new(), 0, 0);
    for request in &traffic {
        hits += request
            .blocks
            .iter()
            .take_while(|block| seen.contains(*block))
            .count() as u64;
        blocks += request.blocks.len() as u64;
        seen.extend(&request.blocks);
    }
    let mut scenario = two_sites(Tokens(u32::MAX), "lowest-cost");
    scenario.instances.truncate(1);
    scenario.origins = vec![at(HOME)];
    let report = simulate(&scenario, &traffic).unwrap();
    assert_eq!(
        (report.hit_blocks, report.blocks, report.completed),
        (hits, blocks, 1000)
    );
    assert_eq!(report.cross_site_bytes, Bytes(0));
    scenario.instances[0].cache = Tokens(300_000);
    let small = simulate(&scenario, &traffic).unwrap();
    assert!(
        small.hit_blocks < hits / 2 && small.hit_blocks > 0,
        "{} of {hits}",
        small.hit_blocks
    );
}

#[test]
fn an_idle_fleet_takes_prefill_and_transfer_and_nothing_else() {
    let request = |arrival, prompt_tokens| SimRequest {
        arrival: Moment(arrival),
        prompt_tokens,
        output_tokens: 100,
        tenant: 0,
        blocks: vec![],
    };
    let mut scenario = prfaas(1, 1, 1);
    scenario.links.get_mut(&(FAR, HOME)).unwrap().rtt = Duration::from_millis(30);
    let alone = |tokens| simulate(&scenario, &[request(1_000_000, tokens)]).unwrap();

    let local = H20.time(Tokens(10_000)) + STEP;
    assert!((alone(10_000).ttft.mean - local.as_secs_f64()).abs() < 2e-6);
    let sent = Bytes(182_368_338 + 17_280 * 50_000);
    let remote = H200.time(Tokens(50_000)) + sent.time_at(BitsPerSecond(100_000_000_000)) + STEP;
    let report = alone(50_000);
    assert!((report.ttft.mean - (remote + Duration::from_millis(30)).as_secs_f64()).abs() < 2e-6);
    assert!((report.end_to_end.mean - report.ttft.mean - (STEP * 99).as_secs_f64()).abs() < 2e-6);
    assert_eq!(report.cross_site_bytes, sent);
    assert_eq!(report.routes, BTreeMap::from([("far → home".to_owned(), 1)]));

    // A second one waits for the first; its KV does not wait for the link.
    let both = simulate(&scenario, &[request(0, 50_000), request(0, 50_000)]).unwrap();
    let wait = H200.time(Tokens(50_000)).as_secs_f64();
    assert!((both.ttft.p99 - both.ttft.p50 - wait).abs() < 2e-6);
}

#[test]
fn what_became_of_each_request_adds_up_to_the_report() {
    let traffic = &conversations()[..300];
    let played = rehearse(
        &two_sites(Tokens(1 << 20), "round-robin"),
        traffic,
        &VirtualClock::default(),
    )
    .unwrap();
    let served: Vec<_> = played
        .fates
        .iter()
        .map(|fate| fate.outcome.clone().unwrap())
        .collect();
    let report = &played.report;
    let mean = served.iter().map(|s| s.ttft().as_secs_f64()).sum::<f64>() / 300.0;
    assert!((mean - report.ttft.mean).abs() < 1e-9);
    let bytes: u64 = served.iter().map(|s| s.cross_site_bytes.0).sum();
    let price: u64 = served.iter().map(|s| u64::from(s.price_micros)).sum();
    assert_eq!((bytes, price), (report.cross_site_bytes.0, report.price_micros));
    for (request, served) in traffic.iter().zip(&served) {
        let computed = H200.time(Tokens(request.prompt_tokens - served.cached_tokens));
        assert!(served.prefill.abs_diff(computed) < Duration::from_micros(2));
        assert_eq!(served.transfer.is_zero(), served.cross_site_bytes.0 == 0);
        assert!(served.decode >= STEP);
    }

    let mut nobody = prfaas(1, 0, 1);
    nobody.links.clear();
    let refused = rehearse(&nobody, &case_study_traffic(1.0, 2), &VirtualClock::default()).unwrap();
    let why = refused.fates[1].outcome.clone().unwrap_err();
    assert!(why.starts_with("no instance can serve"), "{why}");
}

/// A router that defers whatever comes by no time, and counts how often it is asked.
struct Never(PolicyDescriptor, AtomicU32);

impl Policy for Never {
    fn descriptor(&self) -> &PolicyDescriptor {
        &self.0
    }

    fn ask(&self, _: &Call<'_>) -> Answered {
        self.1.fetch_add(1, Ordering::Relaxed);
        Answered {
            result: Ok(Answer::Routing(RoutingDecision::Defer(0))),
            fuel: None,
        }
    }
}

#[test]
fn a_router_that_always_defers_is_asked_as_often_as_a_gateway_asks_it() {
    let who = PolicyDescriptor {
        question: QuestionKind::Routing,
        name: "never".into(),
        version: String::new(),
        source: PolicySource::Platform,
        bound: BoundAs::default(),
    };
    let never = Arc::new(Never(who, AtomicU32::new(0)));
    let scenario = Scenario {
        policies: RequestPolicies {
            routing: Some(Arc::clone(&never) as Arc<dyn Policy>),
            ..RequestPolicies::default()
        },
        ..prfaas(0, 1, 1)
    };
    let played = rehearse(&scenario, &case_study_traffic(1.0, 1), &VirtualClock::default()).unwrap();
    let why = played.fates[0].outcome.clone().unwrap_err();
    assert!(why.contains(&format!("deferred {MAX_DEFERRALS} times")), "{why}");
    assert_eq!(never.1.load(Ordering::Relaxed), MAX_DEFERRALS + 1);
}

#[test]
fn traces_that_cannot_be_played_are_refused() {
    let told = |trace: &str| read_mooncake(trace.as_bytes()).unwrap_err().to_string();
    let long = "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 4294967295, \"hash_ids\": [0]}";
    assert!(
        told(long).contains("4294967295 tokens, at most"),
        "{}",
        told(long)
    );
    let endless = " ".repeat(2 << 20);
    assert!(told(&endless).contains("longer than"), "{}", told(&endless));
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let traffic = &conversations()[..300];
    let report = |seed| {
        simulate(
            &Scenario {
                seed,
                ..two_sites(Tokens(1 << 20), "random")
            },
            traffic,
        )
        .unwrap()
    };
    assert_eq!(report(5), report(5));
    assert_ne!(report(5), report(6));
}

#[test]
fn policies_trade_hits_against_what_crosses() {
    let traffic = conversations();
    let play = |policy| {
        let report = simulate(&two_sites(Tokens(1 << 20), policy), &traffic).unwrap();
        println!(
            "{policy:20} hits {:.1} %, {} across, TTFT mean {:.2} P50 {:.2} P90 {:.2} P99 {:.2}",
            report.hit_rate() * 100.0,
            report.cross_site_bytes,
            report.ttft.mean,
            report.ttft.p50,
            report.ttft.p90,
            report.ttft.p99
        );
        assert_eq!(report.completed, 1000);
        assert_eq!(report.policy_calls[&format!("routing {policy}: ok")], 1000);
        report
    };
    let round_robin = play("round-robin");
    let region = play("region-cache-aware");
    let global = play("global-cache-aware");
    let least_loaded = play("least-loaded");
    let cost = play("lowest-cost");
    assert_eq!(region.cross_site_bytes, Bytes(0));
    assert!(global.hit_blocks > round_robin.hit_blocks && region.hit_blocks > round_robin.hit_blocks);
    assert!(least_loaded.cross_site_bytes > Bytes(0) && round_robin.cross_site_bytes > Bytes(0));
    for baseline in [round_robin, region, global, least_loaded] {
        assert!(cost.ttft.mean < baseline.ttft.mean);
    }
}

#[test]
fn a_request_nobody_can_serve_is_refused_and_the_rest_goes_on() {
    let mut scenario = prfaas(1, 0, 1);
    scenario.links.clear();
    let report = simulate(&scenario, &case_study_traffic(1.0, 5)).unwrap();
    assert_eq!((report.completed, report.refused.values().sum::<u64>()), (0, 5));
}

#[test]
fn scenarios_that_mean_nothing_are_refused() {
    let fails = |change: fn(&mut Scenario)| {
        let mut scenario = prfaas(1, 1, 1);
        change(&mut scenario);
        simulate(&scenario, &[]).unwrap_err().to_string()
    };
    assert_eq!(fails(|s| s.origins.clear()), "no origin site is given");
    assert_eq!(
        fails(|s| s.origins.push(at(SiteIndex(2)))),
        "an origin names site 2, but there are 2 sites"
    );
    assert!(fails(|s| s.block_tokens = Tokens(0)).starts_with("blocks of 0 tokens"));
    assert!(fails(|s| s.instances[2].decode_slots = 0).contains("decode-0"));
}
