//! When a fetch pays, from whom, and for how long it is waited for.

use super::*;
use crate::fleet::{LinkFigures, LinkView, SiteView};
use crate::standing::Standing;
use portolan_base::{BitsPerSecond, InstanceName, Permille, Role, SiteName};

const PARIS: SiteIndex = SiteIndex(0);
const VIRGINIA: SiteIndex = SiteIndex(1);
const TOKYO: SiteIndex = SiteIndex(2);
const BLOCK: Tokens = Tokens(64);
const KV: KvSize = KvSize {
    fixed: Bytes(0),
    per_token: Bytes(1_000),
};

fn instance(name: &str, site: SiteIndex) -> InstanceView {
    InstanceView {
        name: InstanceName::new(name).unwrap(),
        site,
        model: 0,
        role: Role::Both,
        serving: Default::default(),
        standing: Standing::Ready,
        prefill_queued_requests: 0,
        prefill_queued_tokens: 0,
        decode_running: 0,
        decode_slots: 8,
        kv_used: Permille(0),
        prefill_busy: Permille(0),
        decode_busy: Permille(0),
        prefill_ns_per_token: 100_000,
        prefill_curve: Default::default(),
        decode_step_us: 100,
        price_micros_per_kilotoken: 0,
    }
}

/// 80 Mbit/s: a token's kilobyte takes as long as computing it; 10 ms away.
fn link() -> LinkView {
    LinkView {
        up: true,
        rtt: Duration::from_millis(10),
        capacity: BitsPerSecond(80_000_000),
        busy: Permille(0),
        loss: Permille(0),
        price_micros_per_gib: 0,
        measured: LinkFigures::default(),
    }
}

fn fleet() -> FleetView {
    let site = |name: &str| SiteView {
        name: SiteName::new(name).unwrap(),
        jurisdiction: 1,
    };
    FleetView {
        sites: vec![site("paris"), site("virginia"), site("tokyo")],
        instances: vec![
            instance("p1", PARIS),
            instance("p2", PARIS),
            instance("v1", VIRGINIA),
            instance("t1", TOKYO),
        ],
        links: [((VIRGINIA, PARIS), fast()), ((TOKYO, PARIS), fast())].into(),
        ..FleetView::default()
    }
}

/// Twenty times as fast as computing.
fn fast() -> LinkView {
    LinkView {
        capacity: BitsPerSecond(1_600_000_000),
        ..link()
    }
}

fn input<'a>(fleet: &'a FleetView, held: &'a [u32]) -> FetchInput<'a> {
    FetchInput {
        fleet,
        kv: KV,
        block: BLOCK,
        held,
        at: InstanceIndex(0),
        has: Tokens(64),
        wanted: Tokens(1_000),
    }
}

fn best(fleet: &FleetView, held: &[u32]) -> Option<FetchPlan> {
    FetchPlan::best(&input(fleet, held), |_| true)
}

#[test]
fn whole_blocks_that_are_missing_come_from_who_holds_most() {
    let plan = best(&fleet(), &[64, 0, 600, 300]).unwrap();
    // 576 of the 600 tokens are whole blocks, and 64 are there.
    assert_eq!((plan.from, plan.site), (InstanceIndex(2), VIRGINIA));
    assert_eq!((plan.tokens, plan.bytes), (Tokens(576), Bytes(512_000)));
    assert_eq!(plan.computing, Duration::from_micros(51_200));
    assert_eq!(plan.takes, Duration::from_micros(10_000 + 2_560));
    let plan = best(&fleet(), &[64, 0, 5_000, 0]).unwrap();
    assert_eq!(plan.tokens, Tokens(960), "no more than the prompt has");
}

#[test]
fn it_pays_just_when_the_link_is_faster_than_computing() {
    let mut fleet = fleet();
    // The bytes take as long as computing; the round trip decides.
    fleet.links = [((VIRGINIA, PARIS), link())].into();
    assert_eq!(best(&fleet, &[0, 0, 640, 0]), None);
    fleet.links = [(
        (VIRGINIA, PARIS),
        LinkView {
            rtt: Duration::ZERO,
            ..link()
        },
    )]
    .into();
    assert_eq!(
        best(&fleet, &[0, 0, 640, 0]),
        None,
        "an equal fetch saves nothing"
    );
    let faster = LinkView {
        rtt: Duration::ZERO,
        capacity: BitsPerSecond(80_100_000),
        ..link()
    };
    fleet.links = [((VIRGINIA, PARIS), faster)].into();
    assert!(best(&fleet, &[0, 0, 640, 0]).is_some());
    fleet.links = [(
        (VIRGINIA, PARIS),
        LinkView {
            busy: Permille(500),
            ..faster
        },
    )]
    .into();
    assert_eq!(best(&fleet, &[0, 0, 640, 0]), None, "half of the link is in use");
}

#[test]
fn a_fixed_state_has_to_pay_too() {
    let fleet = fleet();
    let with = |fixed: u64| {
        let input = FetchInput {
            kv: KvSize {
                fixed: Bytes(fixed),
                ..KV
            },
            ..input(&fleet, &[0, 0, 128, 0])
        };
        FetchPlan::best(&input, |_| true)
    };
    // 64 tokens take 6.4 ms to compute: less than the round trip.
    assert_eq!(with(0), None);
    let mut near = fleet.clone();
    near.links = [(
        (VIRGINIA, PARIS),
        LinkView {
            rtt: Duration::ZERO,
            ..fast()
        },
    )]
    .into();
    let with = |fixed: u64| {
        let input = FetchInput {
            kv: KvSize {
                fixed: Bytes(fixed),
                ..KV
            },
            ..input(&near, &[0, 0, 128, 0])
        };
        FetchPlan::best(&input, |_| true).map(|plan| plan.bytes)
    };
    assert_eq!(with(100_000), Some(Bytes(164_000)));
    assert_eq!(with(10_000_000), None);
}

#[test]
fn who_may_not_cannot_or_need_not_is_not_asked() {
    let held = [64, 900, 600, 300];
    let from = |fleet: &FleetView| best(fleet, &held).map(|plan| plan.from.0);
    assert_eq!(
        from(&fleet()),
        Some(2),
        "an instance of the same site is no other site"
    );
    let plan = FetchPlan::best(&input(&fleet(), &held), |site| site != VIRGINIA).unwrap();
    assert_eq!(plan.from, InstanceIndex(3));
    assert_eq!(FetchPlan::best(&input(&fleet(), &held), |_| false), None);

    let changed = |change: &dyn Fn(&mut FleetView)| {
        let mut fleet = fleet();
        change(&mut fleet);
        from(&fleet)
    };
    assert_eq!(changed(&|f| f.instances[2].standing = Standing::Broken), Some(3));
    assert_eq!(changed(&|f| f.instances[2].model = 1), Some(3));
    assert_eq!(
        changed(&|f| f.links.retain(|(from, _), _| *from != VIRGINIA)),
        Some(3)
    );
    assert_eq!(
        changed(&|f| f.links.values_mut().for_each(|link| link.up = false)),
        None
    );
    assert_eq!(
        best(&fleet(), &[64, 0, 64, 127]),
        None,
        "nothing whole is missing"
    );
    assert_eq!(best(&fleet(), &[]), None);
}

#[test]
fn equals_are_told_apart_by_their_number() {
    assert_eq!(best(&fleet(), &[0, 0, 640, 640]).unwrap().from, InstanceIndex(2));
}

#[test]
fn it_is_waited_for_three_times_the_estimate_and_never_less_than_new_connections_take() {
    let plan = best(&fleet(), &[0, 0, 640, 0]).unwrap();
    assert_eq!(plan.deadline(), Duration::from_millis(250));
    let slow = FetchPlan {
        takes: Duration::from_secs(2),
        ..plan
    };
    assert_eq!(slow.deadline(), Duration::from_secs(6));
}

#[test]
fn kv_is_copied_between_instances_of_one_kind_only() {
    use crate::fleet::Serving;
    let mut fleet = fleet();
    let held = [0, 0, 640, 0];
    for (here, there, copied) in [
        (Serving::Pieces, Serving::Pieces, true),
        (Serving::Stored, Serving::Stored, true),
        (Serving::Slotted, Serving::Slotted, true),
        (Serving::Slotted, Serving::Stored, false),
        (Serving::Stored, Serving::Slotted, false),
        (Serving::Pieces, Serving::Stored, false),
        (Serving::Stored, Serving::Pieces, false),
        (Serving::Stored, Serving::Whole, false),
        (Serving::Whole, Serving::Whole, false),
        (Serving::Handing(1), Serving::Handing(1), false),
    ] {
        fleet.instances[0].serving = here;
        fleet.instances[2].serving = there;
        let plan = FetchPlan::best(&input(&fleet, &held), |_| true);
        assert_eq!(plan.is_some(), copied, "{there:?} to {here:?}");
    }
}
