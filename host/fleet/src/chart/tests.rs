//! What a chart of two sites says of what it was told.

use super::*;
use crate::{InstanceSpec, LinkSpec, SiteSpec};
use portolan_base::{BitsPerSecond, CachePart, Duty, Moment, Permille, Role, TenantKey};
use portolan_ports::{EngineLoad, KvEvent};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[derive(Default)]
struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Moment {
        Moment(self.0.load(Ordering::Relaxed))
    }
}

fn name(site: &str) -> SiteName {
    SiteName::new(site).unwrap()
}

fn instance() -> InstanceName {
    InstanceName::new("i1").unwrap()
}

fn chart(clock: Arc<TestClock>) -> Chart {
    let spec = InstanceSpec {
        name: instance(),
        model: ModelName::new("m").unwrap(),
        role: Role::Both,
        serving: Default::default(),
        decode_slots: 4,
        price_micros_per_kilotoken: 0,
    };
    let site = |n: &str| SiteSpec {
        name: name(n),
        region: String::new(),
        jurisdiction: n.to_owned(),
        instances: vec![spec.clone()],
    };
    let link = LinkSpec {
        from: name("there"),
        to: name("here"),
        capacity: BitsPerSecond(1_000_000),
        rtt: Duration::from_millis(9),
        price_micros_per_gib: 0,
    };
    let topology = Topology::new(vec![site("here"), site("there")], vec![link], Vec::new()).unwrap();
    let telling = Telling::everything([5; 32], 1);
    Chart::new(topology, SiteIndex(0), &BTreeMap::new(), clock, &telling)
}

fn report(standing: Standing) -> InstanceLoadReport {
    InstanceLoadReport {
        site: name("there"),
        instance: instance(),
        load: EngineLoad {
            prefill_ns_per_token: 1000,
            prefill_queued_tokens: 10,
            ..EngineLoad::default()
        },
        standing,
        duty: None,
        at: Moment(0),
    }
}

#[test]
fn a_link_that_is_not_as_it_has_to_be_counts_as_down() {
    let floor = LinkFloor {
        least: Some(BitsPerSecond(400_000)),
        longest: Some(Duration::from_millis(20)),
    };
    let chart = chart(Arc::default()).with_floor(&name("there"), floor);
    let up = |delivery, rtt_ms| {
        let reading = LinkReading {
            up: true,
            delivery: BitsPerSecond(delivery),
            rtt: Duration::from_millis(rtt_ms),
            ..LinkReading::default()
        };
        chart.read_link(&name("there"), reading);
        chart.view().links[&(SiteIndex(1), SiteIndex(0))].up
    };
    assert!(up(0, 9), "nothing was measured");
    assert!(up(400_000, 20));
    assert!(!up(399_999, 20));
    assert!(!up(400_000, 21));
}

#[test]
fn an_instance_is_ready_while_it_reports_and_its_breaker_is_closed() {
    let clock = Arc::new(TestClock::default());
    let chart = chart(Arc::clone(&clock));
    let ready = || chart.view().instances[1].standing.is_ready();
    assert!(!ready(), "nothing is known of it");
    chart.heard_load(&report(Standing::Ready));
    assert!(ready());
    for _ in 0..3 {
        chart.outcome(InstanceIndex(1), InstanceOutcome::Failed);
    }
    assert!(!ready(), "its breaker is open");
    clock.0.fetch_add(5_000_000, Ordering::Relaxed);
    chart.heard_load(&report(Standing::Ready));
    assert!(ready(), "the cool-down is over");
    clock
        .0
        .fetch_add(known::LOAD_EXPIRES.as_micros() as u64, Ordering::Relaxed);
    assert!(!ready(), "it has stopped reporting");
}

#[test]
fn what_its_own_site_says_of_an_instance_holds_here_too() {
    let chart = chart(Arc::default());
    for standing in [Standing::Draining, Standing::WarmingUp, Standing::Broken] {
        chart.heard_load(&report(standing));
        assert_eq!(chart.view().instances[1].standing, standing);
    }
}

#[test]
fn one_that_was_away_begins_with_a_tenth_and_has_all_after_ten_seconds() {
    let clock = Arc::new(TestClock::default());
    let chart = chart(Arc::clone(&clock));
    let standing = || chart.view().instances[1].standing;
    let later = |seconds: u64| {
        clock.0.fetch_add(seconds * 1_000_000, Ordering::Relaxed);
        chart.heard_load(&report(Standing::Ready));
        standing()
    };
    assert_eq!(later(1), Standing::Ready, "the first start is no comeback");
    clock.0.fetch_add(6_000_000, Ordering::Relaxed);
    assert_eq!(standing(), Standing::Silent);
    assert_eq!(later(1), Standing::Returning(Permille(100)));
    assert_eq!(later(5), Standing::Returning(Permille(550)));
    assert_eq!(later(5), Standing::Ready);
}

#[test]
fn a_half_open_breaker_lets_one_request_through() {
    let clock = Arc::new(TestClock::default());
    let chart = chart(Arc::clone(&clock));
    chart.heard_load(&report(Standing::Ready));
    let ready = || chart.view().instances[1].standing.is_ready();
    (0..3).for_each(|_| chart.outcome(InstanceIndex(1), InstanceOutcome::Failed));
    assert!(!ready());
    clock.0.fetch_add(5_000_000, Ordering::Relaxed);
    chart.heard_load(&report(Standing::Ready));
    assert!(ready());
    let route = Route {
        prefill: InstanceIndex(1),
        decode: InstanceIndex(0),
    };
    chart.begins(route);
    assert!(!ready(), "the trial is under way");
    chart.outcome(InstanceIndex(1), InstanceOutcome::Served);
    assert!(ready());
}

#[test]
fn a_link_that_fails_is_left_alone_and_its_instances_are_not_blamed() {
    let clock = Arc::new(TestClock::default());
    let chart = chart(Arc::clone(&clock));
    chart.heard_load(&report(Standing::Ready));
    let up = || chart.view().links[&(SiteIndex(1), SiteIndex(0))].up;
    (0..3).for_each(|_| chart.link_outcome(SiteIndex(1), InstanceOutcome::Failed));
    assert!(!up());
    assert_eq!(chart.view().instances[1].standing, Standing::Ready);
    clock.0.fetch_add(5_000_000, Ordering::Relaxed);
    assert!(up(), "half open");
    chart.link_outcome(SiteIndex(1), InstanceOutcome::Served);
    assert!(up());
}

#[test]
fn draining_is_for_this_sites_own() {
    let chart = chart(Arc::default());
    let stranger = InstanceName::new("x9").unwrap();
    let refused = chart.set_service(&stranger, Service::Draining).unwrap_err();
    assert_eq!(refused.to_string(), "this site has no instance x9");
}

#[test]
fn work_on_its_way_counts_before_it_is_reported() {
    let chart = chart(Arc::default());
    chart.heard_load(&report(Standing::Ready));
    let queued = || chart.view().instances[1].prefill_queued_tokens;
    let claim = chart.claim(InstanceIndex(1), Tokens(100));
    assert_eq!(queued(), 110);
    drop(claim);
    assert_eq!(queued(), 10);
    drop(chart.claim(InstanceIndex(99), Tokens(1)));
}

#[test]
fn an_instance_that_turns_takes_no_work_and_its_site_says_so() {
    let chart = chart(Arc::default());
    let seen = || {
        let view = chart.view();
        (view.instances[1].role, view.instances[1].standing.is_ready())
    };
    chart.heard_load(&report(Standing::Ready));
    assert_eq!(seen(), (Role::Both, true));
    let turning = Duty::of(Role::Decode).turned(Role::Prefill);
    chart.heard_duty(&name("there"), &instance(), turning);
    assert_eq!(seen(), (Role::Decode, false));
    chart.heard_duty(&name("there"), &instance(), turning.after(0, 0));
    assert_eq!(seen(), (Role::Prefill, true));
    chart.heard_duty(&name("nowhere"), &instance(), turning);
}

/// Two instances here that can do both, one there that prefills, and what a minute of requests was.
fn to_be_divided() -> (Chart, Arc<TestClock>) {
    let clock = Arc::new(TestClock::default());
    let spec = |name: &str, role| InstanceSpec {
        name: InstanceName::new(name).unwrap(),
        model: ModelName::new("m").unwrap(),
        role,
        serving: Default::default(),
        decode_slots: 4,
        price_micros_per_kilotoken: 0,
    };
    let site = |n: &str, instances| SiteSpec {
        name: name(n),
        region: String::new(),
        jurisdiction: n.to_owned(),
        instances,
    };
    let sites = vec![
        site("here", vec![spec("a", Role::Both), spec("b", Role::Both)]),
        site("there", vec![spec("i1", Role::Prefill)]),
    ];
    let link = LinkSpec {
        from: name("there"),
        to: name("here"),
        capacity: BitsPerSecond(10_000_000_000),
        rtt: Duration::from_millis(9),
        price_micros_per_gib: 0,
    };
    let topology = Topology::new(sites, vec![link], Vec::new()).unwrap();
    let telling = Telling::everything([5; 32], 1);
    let chart = Chart::new(
        topology,
        SiteIndex(0),
        &BTreeMap::new(),
        Arc::clone(&clock) as _,
        &telling,
    );
    for i in 0..100 {
        clock.0.fetch_add(1_000_000, Ordering::Relaxed);
        chart.settled(Tokens(100 + i * 10), 100);
    }
    (chart.with_conversion(Conversion::ByPlan), clock)
}

#[test]
fn instances_are_divided_one_by_one_as_they_drain() {
    let (chart, clock) = to_be_divided();
    let report = |instance: &str, decoding: u32| {
        let load = EngineLoad {
            prefill_ns_per_token: 100_000,
            decode_step_us: 10_000,
            decode_running: decoding,
            ..EngineLoad::default()
        };
        let site = if instance == "i1" { "there" } else { "here" };
        chart.heard_load(&InstanceLoadReport {
            site: name(site),
            instance: InstanceName::new(instance).unwrap(),
            load,
            standing: Standing::Ready,
            duty: None,
            at: Moment(0),
        });
    };
    let roles = || {
        let view = chart.view();
        [0, 1].map(|i| (view.instances[i].role, view.instances[i].standing.is_ready()))
    };
    ["a", "b", "i1"].iter().for_each(|instance| report(instance, 1));
    chart.plan_if_due();
    let duty = |instance: &str| chart.duty(&InstanceName::new(instance).unwrap()).unwrap();
    let turning = Duty::of(Role::Both).turned(Role::Prefill);
    assert_eq!((duty("a"), duty("b")), (turning, Duty::of(Role::Both)));
    assert_eq!(
        roles(),
        [(Role::Prefill, true), (Role::Both, true)],
        "no more answers are begun there"
    );
    chart.plan_if_due();
    assert_eq!(
        (duty("a"), duty("b")),
        (turning, Duty::of(Role::Both)),
        "one still runs, and nobody else turns"
    );
    report("a", 0);
    chart.plan_if_due();
    assert_eq!(
        (duty("a").is_turning(), duty("b").is_turning()),
        (false, true),
        "the other's turn has come"
    );
    assert_eq!(
        roles(),
        [(Role::Prefill, true), (Role::Decode, true)],
        "it goes on to decode"
    );
    chart.plan_if_due();
    assert_eq!(
        (duty("a"), duty("b")),
        (Duty::of(Role::Prefill), Duty::of(Role::Decode))
    );
    chart.plan_if_due();
    assert_eq!(roles(), [(Role::Prefill, true), (Role::Decode, true)]);
    // The remote pool falls silent: what can do both, does again.
    clock
        .0
        .fetch_add(known::LOAD_EXPIRES.as_micros() as u64, Ordering::Relaxed);
    ["a", "b"].iter().for_each(|instance| report(instance, 1));
    chart.plan_if_due();
    chart.plan_if_due();
    assert_eq!(roles(), [(Role::Both, true), (Role::Both, true)]);
}

#[test]
fn held_tokens_are_listed_by_instance() {
    let chart = chart(Arc::default());
    let key = TenantKey::derive(&[1; 32], "t", "m", 1);
    let blocks = BlockHash::chain(&key, &(0..64).collect::<Vec<_>>());
    let event = KvEvent::Stored {
        part: CachePart::DEVICE,
        parent: None,
        blocks: blocks[..3].to_vec(),
        about: None,
    };
    let number = chart.number_of(&name("here"), &instance()).unwrap();
    chart.prefixes().own_event(number, &event);
    let model = ModelName::new("m").unwrap();
    let threshold_from = || format!("{:?}", chart.offload.lock());
    let before = threshold_from();
    assert_eq!(chart.held(&model, &blocks), [48, 0]);
    assert_eq!(before, threshold_from(), "whoever looks decides nothing");
    chart.decided(Tokens(16));
    assert_ne!(before, threshold_from());
}

#[test]
fn a_link_says_what_was_assumed_until_it_is_measured() {
    let chart = chart(Arc::default());
    let link = || chart.view().links[&(SiteIndex(1), SiteIndex(0))];
    assert_eq!((link().up, link().rtt), (true, Duration::from_millis(9)));
    let rtt = Duration::from_millis(4);
    chart.read_link(
        &name("there"),
        LinkReading {
            rtt,
            up: true,
            ..LinkReading::default()
        },
    );
    assert_eq!(link().rtt, rtt);
    for _ in 0..2 {
        chart.read_link(
            &name("there"),
            LinkReading {
                up: false,
                ..LinkReading::default()
            },
        );
    }
    assert!(!link().up);
}
