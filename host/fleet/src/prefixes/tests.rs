//! Sites and the line between them, without a clock or a task: every message is carried by hand.

use super::*;
use crate::{InstanceSpec, LinkSpec, SiteSpec};
use portolan_base::{BitsPerSecond, CachePart, InstanceName, ModelName, Role, TenantKey, TenantName, Tier};
use std::time::Duration;

const SECRET: [u8; 32] = [5; 32];
/// Virginia's only instance, and Paris' number of it.
const VIRGINIA: u32 = 1;

fn name(site: &str) -> SiteName {
    SiteName::new(site).unwrap()
}

/// Paris, Virginia and Tokyo, an instance each; links lead from Virginia to Paris and from Tokyo to Virginia.
fn topology() -> Topology {
    let site = |site: &str| SiteSpec {
        name: name(site),
        region: String::new(),
        jurisdiction: site.to_owned(),
        instances: vec![InstanceSpec {
            name: InstanceName::new("i1").unwrap(),
            model: ModelName::new("m").unwrap(),
            role: Role::Both,
            serving: Default::default(),
            decode_slots: 4,
            price_micros_per_kilotoken: 0,
        }],
    };
    let link = |from: &str, to: &str| LinkSpec {
        from: name(from),
        to: name(to),
        capacity: BitsPerSecond(1_000_000),
        rtt: Duration::from_millis(9),
        price_micros_per_gib: 0,
    };
    let sites = ["paris", "virginia", "tokyo"].map(site).to_vec();
    let links = vec![link("virginia", "paris"), link("tokyo", "virginia")];
    Topology::new(sites, links, Vec::new()).unwrap()
}

fn prefixes(site: u32, telling: &Telling) -> Prefixes {
    Prefixes::new(&topology(), SiteIndex(site), telling)
}

fn paris() -> Prefixes {
    prefixes(0, &Telling::everything(SECRET, 1))
}

fn virginia(incarnation: u64) -> Prefixes {
    prefixes(1, &Telling::everything(SECRET, incarnation))
}

fn blocks(tokens: u32) -> Vec<BlockHash> {
    let key = TenantKey::derive(&[1; 32], "t", "m", 1);
    BlockHash::chain(&key, &(0..tokens).collect::<Vec<_>>())
}

fn about(tenant: &str, jurisdiction: &str) -> Provenance {
    Provenance {
        jurisdiction: jurisdiction.to_owned(),
        ..Provenance::of(TenantName::new(tenant).unwrap(), ModelName::new("m").unwrap(), 1)
    }
}

/// What the native engine says.
fn stored(blocks: &[BlockHash]) -> KvEvent {
    stored_by(Some(about("t", "")), None, blocks)
}

fn stored_by(about: Option<Provenance>, parent: Option<BlockHash>, blocks: &[BlockHash]) -> KvEvent {
    KvEvent::Stored {
        part: CachePart::DEVICE,
        parent,
        blocks: blocks.to_vec(),
        about: about.map(Arc::new),
    }
}

fn removed(blocks: &[BlockHash]) -> KvEvent {
    KvEvent::Removed {
        part: CachePart::DEVICE,
        blocks: blocks.to_vec(),
    }
}

fn summaries(site: &Prefixes, now: Moment) -> Vec<PrefixSummary> {
    let message = |message| match message {
        BusMessage::Prefixes(told) => told,
        other => panic!("{other:?}"),
    };
    site.to_tell(now).into_iter().map(message).collect()
}

/// Carries what Virginia has to tell to Paris, and Paris' requests back; returns how many there were.
fn carry(from: &Prefixes, to: &Prefixes, now: Moment) -> usize {
    let mut asked = 0;
    for told in summaries(from, now) {
        if let Told::Ask(request) = to.heard(VIRGINIA, &told, now) {
            from.asked(VIRGINIA, &request);
            asked += 1;
        }
    }
    asked
}

fn held(site: &Prefixes, chain: &[BlockHash], now: Moment) -> u32 {
    site.held(chain, now).get(&VIRGINIA).copied().unwrap_or(0)
}

fn is_snapshot(told: &PrefixSummary) -> bool {
    told.summary[3] == 1
}

fn at_ms(ms: u64) -> Moment {
    Moment(ms * 1000)
}

#[test]
fn another_site_knows_what_is_held_as_long_as_it_is_told() {
    let (virginia, paris, chain) = (virginia(1), paris(), blocks(160));
    carry(&virginia, &paris, at_ms(0));
    virginia.own_event(VIRGINIA, &stored(&chain[..4]));
    assert_eq!(held(&virginia, &chain, at_ms(0)), 4, "at once at home");
    assert_eq!(held(&paris, &chain, at_ms(0)), 0);
    carry(&virginia, &paris, at_ms(100));
    assert_eq!(held(&paris, &chain, at_ms(100)), 4);
    virginia.own_event(VIRGINIA, &stored(&chain[4..]));
    virginia.own_event(VIRGINIA, &removed(&chain[7..]));
    carry(&virginia, &paris, at_ms(200));
    assert_eq!(held(&paris, &chain, at_ms(200)), 7);
    assert_eq!(held(&paris, &chain, at_ms(2_199)), 7);
    assert_eq!(held(&paris, &chain, at_ms(2_200)), 0, "the lease has run out");
    virginia.own_event(VIRGINIA, &KvEvent::Cleared { rank: 0 });
    carry(&virginia, &paris, at_ms(2_300));
    assert_eq!(held(&paris, &chain, at_ms(2_300)), 0);
    assert_eq!(paris.held(&chain, at_ms(2_300)).len(), 0);
}

#[test]
fn silence_is_a_heartbeat_and_no_more() {
    let (virginia, paris, chain) = (virginia(1), paris(), blocks(64));
    virginia.own_event(VIRGINIA, &stored(&chain));
    let mut messages = 0;
    for tick in 0..100 {
        let now = at_ms(tick * 100);
        let told = summaries(&virginia, now);
        messages += told.len();
        told.iter()
            .for_each(|told| assert_eq!(paris.heard(VIRGINIA, told, now), Told::Taken));
        assert_eq!(held(&paris, &chain, now), 4, "tick {tick}");
    }
    assert_eq!(messages, 20, "two a second, for ten seconds");
}

#[test]
fn a_gap_costs_one_snapshot_however_often_it_is_asked_for() {
    let (virginia, paris, chain) = (virginia(1), paris(), blocks(160));
    carry(&virginia, &paris, at_ms(0));
    for n in 0..4 {
        virginia.own_event(VIRGINIA, &stored(&chain[n..=n]));
    }
    let lost = summaries(&virginia, at_ms(100));
    assert!(!lost.is_empty());
    // Two more are on the line before the first request is back.
    let mut line = Vec::new();
    for n in [4, 5] {
        virginia.own_event(VIRGINIA, &stored(&chain[n..=n]));
        line.extend(summaries(&virginia, at_ms(100 * n as u64)));
    }
    let mut requests = Vec::new();
    for told in &line {
        match paris.heard(VIRGINIA, told, at_ms(600)) {
            Told::Ask(request) => requests.push(request),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        held(&paris, &chain, at_ms(600)),
        0,
        "what was lost may have been a removal"
    );
    virginia.asked(VIRGINIA, &requests[0]);
    let answer = summaries(&virginia, at_ms(700));
    assert!(answer.len() == 1 && is_snapshot(&answer[0]));
    virginia.asked(VIRGINIA, &requests[1]);
    virginia.own_event(VIRGINIA, &stored(&chain[6..7]));
    let next = summaries(&virginia, at_ms(800));
    assert!(
        next.len() == 1 && !is_snapshot(&next[0]),
        "answered by the snapshot under way"
    );
    for told in answer.iter().chain(&next) {
        assert_eq!(paris.heard(VIRGINIA, told, at_ms(800)), Told::Taken);
    }
    assert_eq!(held(&paris, &chain, at_ms(800)), 7);
}

#[test]
fn a_site_that_starts_late_asks_once() {
    let (virginia, chain) = (virginia(1), blocks(64));
    virginia.own_event(VIRGINIA, &stored(&chain));
    summaries(&virginia, at_ms(0));
    let paris = paris();
    assert_eq!(carry(&virginia, &paris, at_ms(500)), 1);
    assert_eq!(carry(&virginia, &paris, at_ms(600)), 0);
    assert_eq!(held(&paris, &chain, at_ms(600)), 4);
}

#[test]
fn a_restarted_site_holds_nothing_and_its_late_messages_say_nothing() {
    let (before, paris, chain) = (virginia(1), paris(), blocks(64));
    before.own_event(VIRGINIA, &stored(&chain));
    carry(&before, &paris, at_ms(0));
    assert_eq!(held(&paris, &chain, at_ms(0)), 4);
    before.own_event(VIRGINIA, &removed(&chain[3..]));
    let late = summaries(&before, at_ms(100));
    let after = virginia(2);
    carry(&after, &paris, at_ms(200));
    assert_eq!(held(&paris, &chain, at_ms(200)), 0);
    for told in &late {
        assert_eq!(paris.heard(VIRGINIA, told, at_ms(300)), Told::Taken);
    }
    assert_eq!(held(&paris, &chain, at_ms(300)), 0);
    after.own_event(VIRGINIA, &stored(&chain[..2]));
    assert_eq!(carry(&after, &paris, at_ms(400)), 0);
    assert_eq!(held(&paris, &chain, at_ms(400)), 2);
}

#[test]
fn lost_events_of_an_engine_are_forgotten_everywhere() {
    let (virginia, paris, chain) = (virginia(1), paris(), blocks(64));
    virginia.own_event(VIRGINIA, &stored(&chain));
    carry(&virginia, &paris, at_ms(0));
    virginia.lost_events(VIRGINIA);
    assert_eq!(held(&virginia, &chain, at_ms(0)), 0);
    carry(&virginia, &paris, at_ms(100));
    assert_eq!(held(&paris, &chain, at_ms(100)), 0);
}

#[test]
fn what_one_tier_keeps_is_still_told() {
    let (virginia, paris, chain) = (virginia(1), paris(), blocks(64));
    let host = CachePart {
        tier: Tier::Host,
        ..CachePart::DEVICE
    };
    virginia.own_event(VIRGINIA, &stored(&chain));
    let offloaded = KvEvent::Stored {
        part: host,
        parent: None,
        blocks: chain[..2].to_vec(),
        about: None,
    };
    virginia.own_event(VIRGINIA, &offloaded);
    carry(&virginia, &paris, at_ms(0));
    virginia.own_event(VIRGINIA, &removed(&chain));
    carry(&virginia, &paris, at_ms(100));
    assert_eq!(held(&paris, &chain, at_ms(100)), 2);
}

#[test]
fn only_sites_that_a_link_leads_to_are_told_and_only_what_they_may_know() {
    let chain = blocks(64);
    let telling = Telling {
        disclosure: Arc::new(|to: &SiteName, whose: &Owner| {
            to.as_str() == "paris" && whose.jurisdiction.is_empty()
        }),
        ..Telling::everything(SECRET, 1)
    };
    let (virginia, paris) = (prefixes(1, &telling), paris());
    virginia.own_event(VIRGINIA, &stored(&chain[..2]));
    let secret = stored_by(Some(about("t", "us")), Some(chain[1]), &chain[2..3]);
    virginia.own_event(VIRGINIA, &secret);
    let told = summaries(&virginia, at_ms(0));
    assert_eq!(
        told.iter().map(|told| told.to.as_str()).collect::<Vec<_>>(),
        ["paris"]
    );
    paris.heard(VIRGINIA, &told[0], at_ms(0));
    assert_eq!(held(&paris, &chain, at_ms(0)), 2);
    virginia.own_event(VIRGINIA, &removed(&chain[2..3]));
    let told = summaries(&virginia, at_ms(500));
    assert_eq!(told[0].summary.len(), 40, "its removal is not told either");
}

/// What Paris knows of `chain` once Virginia has told it.
fn known_in_paris(virginia: &Prefixes, paris: &Prefixes, chain: &[BlockHash], ms: u64) -> u32 {
    while carry(virginia, paris, at_ms(ms)) > 0 {}
    held(paris, chain, at_ms(ms))
}

#[test]
fn nobody_is_told_of_blocks_whose_owner_nobody_knows() {
    let (virginia, paris, chain) = (virginia(1), paris(), blocks(96));
    virginia.own_event(VIRGINIA, &stored_by(None, None, &chain[..4]));
    assert_eq!(known_in_paris(&virginia, &paris, &chain, 0), 0);
    // A request with this prompt comes in, as after a restart of the host alone: all that is held of it is told.
    virginia.predict(VIRGINIA, &chain, &about("t", ""), at_ms(1));
    assert_eq!(known_in_paris(&virginia, &paris, &chain, 1), 4);
    // Whose the block before is, theirs they are.
    virginia.own_event(VIRGINIA, &stored_by(None, Some(chain[3]), &chain[4..5]));
    assert_eq!(known_in_paris(&virginia, &paris, &chain, 2), 5);
}

#[test]
fn an_engine_that_does_not_know_is_told_for_by_the_request_that_it_was_sent() {
    let (virginia, paris, chain) = (virginia(1), paris(), blocks(64));
    virginia.predict(VIRGINIA, &chain, &about("t", ""), at_ms(0));
    assert_eq!(
        known_in_paris(&virginia, &paris, &chain, 0),
        0,
        "not before it holds it"
    );
    virginia.own_event(VIRGINIA, &stored_by(None, None, &chain[..1]));
    virginia.own_event(VIRGINIA, &stored_by(None, Some(chain[0]), &chain[1..]));
    assert_eq!(known_in_paris(&virginia, &paris, &chain, 1), 4);
}

#[test]
fn blocks_of_two_owners_are_told_to_nobody() {
    let (virginia, paris, chain) = (virginia(1), paris(), blocks(64));
    virginia.own_event(VIRGINIA, &stored(&chain));
    assert_eq!(known_in_paris(&virginia, &paris, &chain, 0), 4);
    virginia.lost_events(VIRGINIA);
    virginia.own_event(VIRGINIA, &stored(&chain));
    virginia.own_event(VIRGINIA, &stored_by(Some(about("t", "us")), None, &chain[..1]));
    assert_eq!(known_in_paris(&virginia, &paris, &chain, 1), 0);
}

/// Whether jurisdiction `us` may be told of, and how often that changed.
struct Switch(AtomicU64);

impl Disclosure for Switch {
    fn may_tell(&self, _: &SiteName, whose: &Owner) -> bool {
        whose.jurisdiction.is_empty() || self.edition() % 2 == 1
    }

    fn edition(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn new_answers_are_told_at_once_and_what_is_forbidden_is_forgotten() {
    let switch = Arc::new(Switch(AtomicU64::new(0)));
    let telling = Telling {
        disclosure: Arc::clone(&switch) as Arc<dyn Disclosure>,
        ..Telling::everything(SECRET, 1)
    };
    let (virginia, paris, chain) = (prefixes(1, &telling), paris(), blocks(64));
    virginia.own_event(VIRGINIA, &stored_by(Some(about("t", "us")), None, &chain));
    for (round, expected) in [(0, 0), (1, 4), (2, 0), (3, 4)] {
        switch.0.store(round, Ordering::Relaxed);
        assert_eq!(
            known_in_paris(&virginia, &paris, &chain, round),
            expected,
            "{round}"
        );
    }
}

#[test]
fn another_fleet_and_another_receiver_read_nothing() {
    let (virginia, chain) = (virginia(1), blocks(64));
    let stranger = prefixes(0, &Telling::everything([6; 32], 1));
    virginia.own_event(VIRGINIA, &stored(&chain));
    let told = summaries(&virginia, at_ms(0)).remove(0);
    assert_eq!(stranger.heard(VIRGINIA, &told, at_ms(0)), Told::OtherSecret);
    let tokyo = prefixes(2, &Telling::everything(SECRET, 1));
    let misdirected = PrefixSummary {
        to: name("tokyo"),
        ..told.clone()
    };
    assert_eq!(
        tokyo.heard(VIRGINIA, &misdirected, at_ms(0)),
        Told::OtherSecret,
        "a key for each receiver"
    );
    let broken = PrefixSummary {
        summary: told.summary[..30].into(),
        ..told
    };
    assert!(matches!(
        paris().heard(VIRGINIA, &broken, at_ms(0)),
        Told::Unreadable(_)
    ));
}

/// The native engine tells of 64 tokens at a time. As one message an event this was 250 messages and 57,542 bytes.
#[test]
fn a_thousand_blocks_take_under_nine_bytes_each_on_the_bus() {
    let (virginia, paris, chain) = (virginia(1), paris(), blocks(16_000));
    carry(&virginia, &paris, at_ms(0));
    let (mut bytes, mut messages) = (0, 0);
    for (n, event) in chain.chunks(4).enumerate() {
        virginia.own_event(VIRGINIA, &stored(event));
        // A prefill of some 6,400 tokens a second: ten events in each tenth of one.
        if n % 10 == 9 {
            let now = at_ms(n as u64 * 10);
            for told in summaries(&virginia, now) {
                bytes += told.summary.len()
                    + told.from.as_str().len()
                    + told.instance.as_str().len()
                    + told.to.as_str().len();
                messages += 1;
                paris.heard(VIRGINIA, &told, now);
                let plain = chain.iter().map(|block| block.0.to_le_bytes());
                for plain in plain {
                    assert!(
                        !told.summary.windows(8).any(|part| part == plain),
                        "a plain hash on the bus"
                    );
                }
            }
        }
    }
    assert_eq!(held(&paris, &chain, at_ms(2_500)), 1_000);
    println!("{messages} messages, {bytes} bytes");
    assert!(
        messages == 25 && bytes < 10_000,
        "{messages} messages, {bytes} bytes"
    );
}

#[test]
fn a_prediction_counts_at_once_is_told_to_nobody_and_ends() {
    let (virginia, paris, chain) = (virginia(1), paris(), blocks(64));
    // Paris sends a prompt to Virginia: it knows before Virginia does.
    paris.predict(VIRGINIA, &chain, &about("t", ""), at_ms(0));
    virginia.predict(VIRGINIA, &chain[..3], &about("t", ""), at_ms(0));
    assert_eq!(
        (held(&paris, &chain, at_ms(0)), held(&virginia, &chain, at_ms(0))),
        (4, 3)
    );
    let told = summaries(&virginia, at_ms(0));
    assert!(
        is_snapshot(&told[0]) && told[0].summary.len() == 36,
        "a snapshot of nothing"
    );
    paris.heard(VIRGINIA, &told[0], at_ms(0));
    virginia.own_event(VIRGINIA, &stored(&chain[..2]));
    carry(&virginia, &paris, at_ms(100));
    assert_eq!(held(&paris, &chain, at_ms(100)), 4);
    for ms in (500..5_100).step_by(500) {
        carry(&virginia, &paris, at_ms(ms));
        summaries(&paris, at_ms(ms));
    }
    assert_eq!(
        (
            held(&paris, &chain, at_ms(5_000)),
            held(&virginia, &chain, at_ms(5_000))
        ),
        (2, 2),
        "what came true stays, the rest ends"
    );
}
