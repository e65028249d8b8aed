//! Leases and waiting, by hand.

use super::*;
use portolan_base::{Bytes, Dependency, Moment, Scope, Sequence, SiteName, TenantName};
use portolan_ports::{AppliedReport, Beat, Begun, ControlEntry, ControlEvent, Invalidated, StreamId};

fn site(name: &str) -> SiteName {
    SiteName::new(name).unwrap()
}

fn rules() -> LeaseRules {
    LeaseRules {
        lease: Duration::from_micros(100),
        drift: Duration::from_micros(10),
    }
}

fn paris() -> SiteValidity {
    SiteValidity::new((site("paris"), 7), rules(), (None, Sequence::NONE))
}

fn entry(n: u64, event: ControlEvent) -> ControlEntry {
    ControlEntry {
        sequence: Sequence(n),
        event,
    }
}

fn order(n: u64) -> ControlEntry {
    entry(n, crate::control::suite::order(n))
}

fn report(name: &str, incarnation: u64, sequence: u64) -> AppliedReport {
    AppliedReport {
        site: site(name),
        incarnation,
        stream: StreamId("s".to_owned()),
        sequence: Sequence(sequence),
        received_at: Moment(0),
        applied_at: Moment(0),
        blocks: 3,
        bytes: Bytes(9),
    }
}

#[test]
fn a_lease_counts_from_the_question_and_needs_the_own_beat_back() {
    let mut paris = paris();
    assert!(!paris.is_valid(Moment(0)), "none before the first beat");
    let beat = paris.ask(Moment(50));
    let other = Beat {
        incarnation: 6,
        ..beat.clone()
    };
    assert_eq!(paris.take(&entry(1, ControlEvent::Beat(other))), Taken::Nothing);
    assert!(!paris.is_valid(Moment(60)), "an earlier process' beat");
    let back = entry(2, ControlEvent::Beat(beat.clone()));
    assert_eq!(paris.take(&back), Taken::Renewed(Moment(150)));
    assert!(paris.is_valid(Moment(149)) && !paris.is_valid(Moment(150)));
    assert_eq!(paris.take(&back), Taken::Nothing, "it came before");
    let again = entry(3, ControlEvent::Beat(beat));
    assert_eq!(paris.take(&again), Taken::Nothing, "the question was answered");
}

#[test]
fn nothing_is_valid_while_an_order_is_being_applied() {
    let mut paris = paris();
    let beat = paris.ask(Moment(0));
    paris.take(&entry(1, ControlEvent::Beat(beat)));
    assert!(matches!(paris.take(&order(2)), Taken::Apply(_)));
    assert!(!paris.is_valid(Moment(1)));
    assert_eq!(paris.applied_to(), Sequence(1));
    paris.applied();
    assert!(paris.is_valid(Moment(1)));
    assert_eq!(paris.applied_to(), Sequence(2));
    assert_eq!(paris.take(&order(2)), Taken::Nothing, "twice does no harm");
    assert_eq!(paris.take(&entry(3, ControlEvent::Unknown)), Taken::ForgetAll);
}

#[test]
fn what_began_before_an_order_about_it_is_outdated_and_nothing_else_is() {
    let mut paris = paris();
    for n in 1..=3 {
        paris.take(&order(n));
        paris.applied();
    }
    let at = |sequence| Begun {
        generation: 0,
        applied: Sequence(sequence),
    };
    let about = |name: &'static str| {
        move |order: &Invalidated| match order {
            Invalidated::Dependency {
                by: Dependency { name: by, .. },
                ..
            } => by == name,
            _ => false,
        }
    };
    let acme = Scope::Tenant(TenantName::new("acme").unwrap());
    assert!(!paris.still(at(1), &acme, about("d2")));
    assert!(paris.still(at(2), &acme, about("d2")), "it began with the order");
    assert!(paris.still(at(1), &acme, about("d9")));
    for n in 4..3000 {
        paris.take(&order(n));
        paris.applied();
    }
    assert!(!paris.still(at(1), &acme, about("d0")), "too many orders to tell");
    assert!(paris.still(at(2999), &acme, about("d0")));
    let before = paris.begin();
    paris.begins_anew(None);
    assert!(
        !paris.still(before, &acme, about("d0")),
        "it began on another stream"
    );
    assert!(paris.still(paris.begin(), &acme, about("d0")));
}

#[test]
fn what_one_tenant_orders_outdates_nothing_of_another() {
    let mut paris = paris();
    let scope = |name: &str| Scope::Tenant(TenantName::new(name).unwrap());
    let begun = paris.begin();
    for n in 1..3000 {
        let ControlEvent::Invalidation(mut order) = crate::control::suite::order(n) else {
            unreachable!("it is an order")
        };
        order.what = Invalidated::Tenant {
            scope: scope("globex"),
        };
        paris.take(&entry(n, ControlEvent::Invalidation(order)));
        paris.applied();
    }
    assert!(
        !paris.still(begun, &scope("globex"), |_| false),
        "too many to tell"
    );
    assert!(paris.still(begun, &scope("acme"), |_| true));
    assert!(paris.still(begun, &Scope::Public, |_| true));
    paris.take(&order(3000));
    paris.applied();
    for owner in [scope("acme"), Scope::Public] {
        assert!(!paris.still(begun, &owner, |_| true), "it is about everyone's");
        assert!(paris.still(paris.begin(), &owner, |_| true));
    }
}

#[test]
fn waiting_ends_when_all_who_could_use_it_said_so() {
    let mut peers = Peers::new(rules(), Moment(0));
    let beat = |name: &str, incarnation| Beat {
        site: site(name),
        incarnation,
        number: 1,
    };
    for (name, incarnation) in [("paris", 7), ("tokyo", 1), ("tokyo", 2)] {
        peers.heard(&beat(name, incarnation), Moment(200));
    }
    let mut waiting = Waiting::new(Sequence(5), Moment(205), rules());
    waiting.heard(&report("paris", 7, 5), Moment(206));
    waiting.heard(&report("tokyo", 2, 6), Moment(206));
    waiting.met_in(&StreamId("s".to_owned()));
    assert!(
        !waiting.is_over(&peers, Moment(207)),
        "tokyo's first process has a lease"
    );
    waiting.heard(&report("tokyo", 1, 4), Moment(207));
    assert!(!waiting.is_over(&peers, Moment(207)), "it has not come so far");
    let mut confirmed = waiting.clone();
    confirmed.heard(&report("tokyo", 1, 5), Moment(208));
    assert!(confirmed.is_over(&peers, Moment(208)));
    let sites: Vec<_> = confirmed
        .confirmed()
        .map(|c| (c.site.as_str(), c.blocks))
        .collect();
    assert_eq!(sites, [("paris", 3), ("tokyo", 3), ("tokyo", 0)]);
    let mut deaf = Waiting::new(Sequence(5), Moment(205), rules());
    deaf.heard(&report("paris", 7, 5), Moment(206));
    assert!(
        !waiting.is_over(&peers, Moment(309)),
        "the beat of the silent one came at 200"
    );
    assert!(waiting.is_over(&peers, Moment(310)), "its lease is over");
    assert!(
        !deaf.is_over(&peers, Moment(314)),
        "what beat before the order is not known"
    );
    assert!(deaf.is_over(&peers, Moment(315)));
}

#[test]
fn who_has_just_started_waits_for_leases_it_never_heard_of() {
    let peers = Peers::new(rules(), Moment(200));
    let mut waiting = Waiting::new(Sequence(5), Moment(201), rules());
    waiting.met_in(&StreamId("s".to_owned()));
    assert!(!waiting.is_over(&peers, Moment(309)));
    assert!(waiting.is_over(&peers, Moment(310)));
}

#[test]
fn what_was_said_of_another_stream_confirms_nothing() {
    let mut peers = Peers::new(rules(), Moment(0));
    let tokyo = Beat {
        site: site("tokyo"),
        incarnation: 1,
        number: 1,
    };
    peers.heard(&tokyo, Moment(200));
    let mut waiting = Waiting::new(Sequence(5), Moment(205), rules());
    waiting.heard(&report("tokyo", 1, 90), Moment(206));
    waiting.met_in(&StreamId("found anew".to_owned()));
    assert!(!waiting.is_over(&peers, Moment(207)));
    assert_eq!(waiting.confirmed().count(), 0);
    let of_this_one = AppliedReport {
        stream: StreamId("found anew".to_owned()),
        ..report("tokyo", 1, 5)
    };
    waiting.heard(&of_this_one, Moment(208));
    assert!(waiting.is_over(&peers, Moment(208)));
    peers.begins_anew(Moment(208));
    assert!(
        !waiting.is_over(&peers, Moment(209)),
        "beats of the stream before may have gone by unheard"
    );
    assert!(waiting.is_over(&peers, Moment(315)));
}
