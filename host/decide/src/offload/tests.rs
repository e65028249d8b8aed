//! The threshold against arithmetic, and the link's share against losses.

use super::*;
use crate::fleet::{LinkFigures, SiteView};
use crate::standing::Standing;
use portolan_base::{Bytes, InstanceName, PrefillCurve, Role, SiteName};

const HERE: SiteIndex = SiteIndex(0);
const THERE: SiteIndex = SiteIndex(1);
const ENDS: (SiteIndex, SiteIndex) = (THERE, HERE);
const KV: KvSize = KvSize {
    fixed: Bytes(0),
    per_token: Bytes(1000),
};

fn instance(site: SiteIndex, ns_per_token: u64, queued: u32) -> InstanceView {
    InstanceView {
        name: InstanceName::new("i").unwrap(),
        site,
        model: 0,
        role: Role::Both,
        serving: Default::default(),
        standing: Standing::Ready,
        prefill_queued_requests: 0,
        prefill_queued_tokens: queued,
        decode_running: 0,
        decode_slots: 1,
        kv_used: Permille(0),
        prefill_busy: Permille(0),
        decode_busy: Permille(0),
        prefill_ns_per_token: ns_per_token,
        prefill_curve: PrefillCurve::default(),
        decode_step_us: 1,
        price_micros_per_kilotoken: 0,
    }
}

fn fleet(local: InstanceView, remote: InstanceView) -> FleetView {
    let site = |name| SiteView {
        name: SiteName::new(name).unwrap(),
        jurisdiction: 0,
    };
    let link = LinkView {
        up: true,
        rtt: Duration::from_millis(75),
        capacity: BitsPerSecond(1_000_000_000_000),
        busy: Permille(0),
        loss: Permille(0),
        price_micros_per_gib: 0,
        measured: LinkFigures::default(),
    };
    FleetView {
        sites: vec![site("here"), site("there")],
        instances: vec![local, remote],
        links: BTreeMap::from([(ENDS, link)]),
        ..Default::default()
    }
}

fn at_rest(fleet: &FleetView) -> Tokens {
    OffloadControl::default().threshold(fleet, HERE, KV)
}

#[test]
fn a_round_trip_pays_from_the_length_whose_prefill_takes_as_long() {
    // 0.36 ms a token here and next to nothing there: 75 ms are 208 tokens, 220 ms are 611.
    let mut fleet = fleet(instance(HERE, 360_000, 0), instance(THERE, 1, 0));
    assert!((207..=210).contains(&at_rest(&fleet).0), "{:?}", at_rest(&fleet));
    fleet.links.get_mut(&ENDS).unwrap().rtt = Duration::from_millis(220);
    assert!((610..=613).contains(&at_rest(&fleet).0), "{:?}", at_rest(&fleet));
}

#[test]
fn queues_move_the_threshold_and_a_slower_site_never_pays() {
    let even = |local, remote| at_rest(&fleet(local, remote));
    let idle = even(instance(HERE, 360_000, 0), instance(THERE, 36_000, 0));
    let busy_there = even(instance(HERE, 360_000, 0), instance(THERE, 36_000, 10_000));
    assert!(busy_there > idle, "{busy_there:?} {idle:?}");
    let busy_here = even(instance(HERE, 360_000, 10_000), instance(THERE, 360_000, 0));
    assert_eq!(busy_here, Tokens(1));
    assert_eq!(even(instance(HERE, 1000, 0), instance(THERE, 2000, 0)), NO_LENGTH);
    let mut alone = fleet(instance(HERE, 1000, 0), instance(THERE, 2000, 0));
    alone.instances[0].standing = Standing::Broken;
    assert_eq!(at_rest(&alone), Tokens(0), "everything goes where something can");
}

/// The paper's speeds, as curves; `busy` as every instance reports it.
fn paper(busy: u32) -> FleetView {
    let curve = |fixed_us, ps_per_token, fs_per_token_squared| PrefillCurve {
        fixed_us,
        ps_per_token,
        fs_per_token_squared,
    };
    let like = |site, curve| InstanceView {
        prefill_curve: curve,
        prefill_busy: Permille(busy),
        ..instance(site, 1, 0)
    };
    let (near, far) = (
        curve(456_700, 130_750_000, 285_700),
        curve(398_300, 42_060_000, 98_600),
    );
    let mut fleet = fleet(like(HERE, near), like(THERE, far));
    fleet.instances = vec![like(HERE, near); 3];
    fleet.instances.extend(vec![like(THERE, far); 4]);
    fleet.links.get_mut(&ENDS).unwrap().rtt = Duration::ZERO;
    fleet
}

fn after(minutes: u64, fleet: &FleetView) -> OffloadControl {
    let mut control = OffloadControl::default();
    // Lengths of which half are over 20,000.
    (1..=400).for_each(|i| control.decided(Tokens(i * 100)));
    for sample in 0..minutes * 120 {
        control.observe(Moment(sample * 500_000), fleet, KV);
    }
    control
}

#[test]
fn the_threshold_rises_from_break_even_to_balance_with_the_load() {
    let thresholds: Vec<_> = [0, 300, 600, 800, 950]
        .map(|busy| {
            let fleet = paper(busy);
            after(10, &fleet).threshold(&fleet, HERE, KV).0
        })
        .into();
    assert!(thresholds.is_sorted(), "{thresholds:?}");
    let balance = after(1, &paper(0)).balance[&ENDS].0;
    assert!(
        thresholds[0] < 1000 && thresholds[4] < balance,
        "{thresholds:?} {balance}"
    );
    assert!(
        f64::from(thresholds[4]) > 0.75 * f64::from(balance),
        "{thresholds:?} {balance}"
    );
}

#[test]
fn a_link_past_its_mark_is_scarce_until_it_is_well_below_and_what_crosses_falls_smoothly() {
    let mut fleet = paper(800);
    fleet.links.get_mut(&ENDS).unwrap().capacity = BitsPerSecond(1_000_000_000);
    let mut control = after(10, &fleet);
    let mut last = 0;
    let mut now = 10_000 * 500_000;
    let mut seen = Vec::new();
    for busy in [650, 699, 700, 800, 900, 1000, 700, 650, 599, 650] {
        fleet.links.get_mut(&ENDS).unwrap().busy = Permille(busy);
        now += 500_000;
        control.observe(Moment(now), &fleet, KV);
        let scarce = control.bandwidth(HERE) == Bandwidth::Scarce;
        let threshold = control.threshold(&fleet, HERE, KV).0;
        if (700..=1000).contains(&busy) && seen.len() < 6 {
            assert!(threshold > last, "{busy}: {threshold} after {last}");
        }
        last = threshold;
        seen.push(scarce);
    }
    assert_eq!(
        seen,
        [false, false, true, true, true, true, true, true, false, false]
    );
}

#[test]
fn losses_cut_the_share_and_quiet_gives_it_back_step_by_step() {
    let mut fleet = paper(800);
    let mut control = after(10, &fleet);
    let rest = control.threshold(&fleet, HERE, KV);
    let share = |control: &OffloadControl| control.links[&ENDS].share;
    assert_eq!(share(&control), 1000);
    let mut now = 10_000 * 500_000;
    let mut sample = |control: &mut OffloadControl, loss, rtt_ms| {
        let link = fleet.links.get_mut(&ENDS).unwrap();
        (link.loss, link.rtt) = (Permille(loss), Duration::from_millis(rtt_ms));
        now += 500_000;
        control.observe(Moment(now), &fleet, KV);
    };
    // Five samples with loss are two cuts, two seconds apart.
    (0..5).for_each(|_| sample(&mut control, 20, 0));
    assert_eq!(share(&control), 490);
    (0..3).for_each(|_| sample(&mut control, 5, 0));
    assert_eq!(share(&control), 520);
    // A round trip of 11 ms where there was none: packets wait.
    sample(&mut control, 0, 11);
    assert_eq!(share(&control), 364);
    let cut = control.threshold(&fleet, HERE, KV);
    assert!(cut > rest, "{cut:?} {rest:?}");
    let longer = (1..=400u32).filter(|i| i * 100 > rest.0).count();
    let still = (1..=400u32).filter(|i| i * 100 > cut.0).count();
    assert!(
        (still as f64 / longer as f64 - 0.364).abs() < 0.01,
        "{still} of {longer}"
    );
    // A link that keeps losing as much, though less is sent, is not congested: the share grows again.
    let mut lossy = control.clone();
    let link = fleet.links.get_mut(&ENDS).unwrap();
    (link.loss, link.rtt) = (Permille(20), Duration::ZERO);
    for _ in 0..600 {
        now += 500_000;
        lossy.observe(Moment(now), &fleet, KV);
    }
    assert_eq!(share(&lossy), 1000);
    fleet.links.get_mut(&ENDS).unwrap().loss = Permille(0);
    // With nothing lost it is whole again within a minute.
    fleet.links.get_mut(&ENDS).unwrap().rtt = Duration::ZERO;
    for _ in 0..120 {
        now += 500_000;
        control.observe(Moment(now), &fleet, KV);
    }
    assert_eq!(
        (share(&control), control.threshold(&fleet, HERE, KV)),
        (1000, rest)
    );
}
