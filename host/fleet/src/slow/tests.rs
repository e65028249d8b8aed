//! The slow loop over a fleet of two sites.

use super::*;
use portolan_base::{BitsPerSecond, Bytes, InstanceName, Permille, Role, SiteName, Tokens};
use portolan_decide::{SiteView, Standing};
use std::collections::BTreeMap;

const HERE: SiteIndex = SiteIndex(0);
const THERE: SiteIndex = SiteIndex(1);
const KV: KvSize = KvSize {
    fixed: Bytes(0),
    per_token: Bytes(100_000),
};

fn instance(site: SiteIndex, role: Role, ns_per_token: u64) -> InstanceView {
    InstanceView {
        name: InstanceName::new("i").unwrap(),
        site,
        model: 0,
        role,
        serving: Default::default(),
        standing: Standing::Ready,
        prefill_queued_requests: 0,
        prefill_queued_tokens: 0,
        decode_running: 0,
        decode_slots: 8,
        kv_used: Permille(0),
        prefill_busy: Permille(0),
        decode_busy: Permille(0),
        prefill_ns_per_token: ns_per_token,
        prefill_curve: Default::default(),
        decode_step_us: 10_000,
        price_micros_per_kilotoken: 0,
    }
}

/// One instance here that does everything, one there that prefills three times as fast, 10 Gbit/s between.
fn fleet() -> FleetView {
    let site = |name| SiteView {
        name: SiteName::new(name).unwrap(),
        jurisdiction: 0,
    };
    let link = LinkView {
        up: true,
        rtt: Duration::from_millis(20),
        capacity: BitsPerSecond(10_000_000_000),
        busy: Permille(0),
        loss: Permille(0),
        price_micros_per_gib: 0,
        measured: Default::default(),
    };
    FleetView {
        sites: vec![site("here"), site("there")],
        instances: vec![
            instance(HERE, Role::Both, 300_000),
            instance(THERE, Role::Prefill, 100_000),
        ],
        links: BTreeMap::from([((THERE, HERE), link)]),
        ..Default::default()
    }
}

/// A request a second, of 100 to 10,000 tokens.
fn served(slow: &Slow, requests: u64) -> Moment {
    for i in 0..requests {
        slow.note(SeenRequest {
            at: Moment(i * 1_000_000),
            uncached: Tokens(100 + (i as u32 * 37) % 100 * 100),
            produced: 100,
        });
    }
    Moment(requests * 1_000_000)
}

#[test]
fn a_plan_comes_with_enough_requests_and_every_minute() {
    let slow = Slow::default();
    let now = served(&slow, 20);
    assert!(slow.plan_if_due(&fleet(), HERE, KV, now));
    assert_eq!(slow.outlook(), None, "twenty requests say nothing");
    assert!(slow.samples().is_empty());
    let now = served(&slow, 200);
    assert!(slow.plan_if_due(&fleet(), HERE, KV, now), "a minute later");
    let outlook = slow.outlook().unwrap();
    assert!(
        outlook.threshold > Tokens(0) && outlook.threshold < Tokens(10_000),
        "{outlook:?}"
    );
    assert!(!slow.plan_if_due(&fleet(), HERE, KV, now + LOOK_INTERVAL));
    assert!(slow.plan_if_due(&fleet(), HERE, KV, now + PERIOD));
}

#[test]
fn a_change_of_the_fleet_is_planned_for_at_once() {
    let slow = Slow::default();
    let now = served(&slow, 200);
    let plan = |change: fn(&mut FleetView)| {
        let mut fleet = fleet();
        change(&mut fleet);
        (
            slow.plan_if_due(&fleet, HERE, KV, now),
            slow.outlook().map(|outlook| outlook.threshold),
        )
    };
    let (_, usual) = plan(|_| {});
    assert_eq!(
        plan(|fleet| fleet.instances[0].prefill_queued_tokens = 9),
        (false, usual),
        "load is no change"
    );
    // A link of a hundredth: less is sent over it.
    let (planned, narrow) = plan(|fleet| {
        let link = fleet.links.get_mut(&(THERE, HERE)).unwrap();
        link.capacity = BitsPerSecond(100_000_000);
    });
    assert!(planned && narrow > usual, "{narrow:?} {usual:?}");
    assert_eq!(
        plan(|fleet| fleet.instances[1].standing = Standing::Broken),
        (true, None),
        "nobody to offload to"
    );
    assert_eq!(plan(|fleet| fleet.links.clear()), (true, None));
    assert_eq!(
        plan(|fleet| fleet.instances[0].decode_step_us = 0),
        (true, None),
        "its decode was never measured"
    );
}

#[test]
fn the_metrics_say_what_is_wanted() {
    let slow = Slow::default();
    let now = served(&slow, 200);
    slow.plan_if_due(&fleet(), HERE, KV, now);
    let wanted: Vec<_> = slow
        .samples()
        .into_iter()
        .filter(|s| s.name == "wanted_instances")
        .collect();
    let pools: Vec<_> = wanted.iter().map(|s| s.labels[0].1.as_str()).collect();
    assert_eq!(pools, ["remote_prefill", "prefill", "decode"]);
    // A request a second that decodes 100 tokens at 8 a step of 10 ms: 0.125 s at 80 %.
    assert_eq!(wanted[2].value, Reading::Gauge(1));
}

#[test]
fn a_speed_is_the_curve_that_was_measured_or_else_a_line() {
    let mut curved = instance(THERE, Role::Prefill, 100_000);
    curved.prefill_curve = portolan_base::PrefillCurve {
        fixed_us: 40_000,
        ps_per_token: 60_000_000,
        fs_per_token_squared: 2_000_000,
    };
    let line = instance(THERE, Role::Prefill, 100_000);
    let seconds = |instances: &[&InstanceView], tokens: f64| {
        let profile = speed(instances.iter().copied()).unwrap();
        (profile.seconds(tokens) * 1e6).round()
    };
    assert_eq!(seconds(&[&line], 10_000.0), 1_000_000.0);
    assert_eq!(seconds(&[&curved], 10_000.0), 40_000.0 + 600_000.0 + 200_000.0);
    assert_eq!(seconds(&[&curved, &line], 10_000.0), 920_000.0);
    let slow = Slow::default();
    let now = served(&slow, 200);
    let threshold = |at: usize| {
        let mut fleet = fleet();
        fleet.instances[at].prefill_curve = portolan_base::PrefillCurve {
            fixed_us: 0,
            ps_per_token: if at == 0 { 1_000_000 } else { 100_000_000 },
            fs_per_token_squared: if at == 0 { 50_000_000 } else { 1 },
        };
        slow.plan_if_due(&fleet, HERE, KV, now + PERIOD * 2 * (at as u32 + 1));
        slow.outlook().unwrap().threshold
    };
    assert_ne!(
        threshold(0),
        threshold(1),
        "what long prompts cost here moves the threshold"
    );
}
