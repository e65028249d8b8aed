//! What is sent ahead stays within its bounds, and how good the forecasts were is counted.

use super::*;
use portolan_base::PatternKind;

const SECOND: Duration = Duration::from_secs(1);
const KV: KvSize = KvSize {
    fixed: Bytes(0),
    per_token: Bytes(1000),
};
const THERE: SiteIndex = SiteIndex(1);

fn rules() -> PrewarmRules {
    PrewarmRules {
        likely: Permille(500),
        min_tokens: Tokens(256),
        bounds: Bounds {
            per_minute: Bytes(2_000_000),
            at_once: 2,
        },
        pause: 60 * SECOND,
    }
}

fn blocks(of: u64, count: usize) -> Vec<BlockHash> {
    (1..=count as u64).map(|i| BlockHash(of * 1000 + i)).collect()
}

struct Case {
    of: u64,
    tenant: &'static str,
    share: u32,
    there: usize,
}

const USUAL: Case = Case {
    of: 1,
    tenant: "acme",
    share: 800,
    there: 0,
};

fn ask(prewarms: &mut Prewarms, seconds: u32, case: &Case) -> Option<PrewarmDue> {
    let blocks = blocks(case.of, 12);
    prewarms.asked(
        Moment(0) + SECOND * seconds,
        &PrewarmAsk {
            tenant: &TenantName::new(case.tenant).unwrap(),
            blocks: &blocks,
            likely: Likely {
                site: THERE,
                share: Permille(case.share),
                kind: PatternKind::Conversation,
                blocks: 10,
            },
            there: case.there,
            block: Tokens(64),
            kv: KV,
        },
    )
}

#[test]
fn what_is_likely_and_missing_is_sent_once() {
    let mut prewarms = Prewarms::new(rules());
    let due = ask(&mut prewarms, 0, &USUAL).unwrap();
    assert_eq!((due.site, due.blocks, due.bytes), (THERE, 10, Bytes(640_000)));
    assert_eq!(due.last, blocks(1, 12)[9]);
    assert_eq!(ask(&mut prewarms, 1, &USUAL), None, "it is under way");
    prewarms.ended(&due, PrewarmEnd::Made(Bytes(5)));
    prewarms.ended(&due, PrewarmEnd::Made(Bytes(5)));
    assert_eq!(ask(&mut prewarms, 59, &USUAL), None, "it was sent a minute ago");
    assert!(ask(&mut prewarms, 60, &USUAL).is_some());
    assert_eq!((prewarms.counts().made, prewarms.counts().bytes), (1, 5));
}

#[test]
fn what_is_unlikely_or_there_already_stays() {
    let mut prewarms = Prewarms::new(rules());
    assert_eq!(ask(&mut prewarms, 0, &Case { share: 499, ..USUAL }), None);
    assert_eq!(ask(&mut prewarms, 0, &Case { there: 7, ..USUAL }), None);
    assert!(
        ask(
            &mut prewarms,
            0,
            &Case {
                there: 6,
                share: 500,
                ..USUAL
            }
        )
        .is_some()
    );
    assert_eq!(prewarms.counts().held_back, 0);
}

#[test]
fn the_budget_bounds_all_and_leaves_others_their_half() {
    let mut prewarms = Prewarms::new(rules());
    let of = |of, tenant| Case { of, tenant, ..USUAL };
    assert!(ask(&mut prewarms, 0, &of(1, "acme")).is_some());
    assert!(ask(&mut prewarms, 0, &of(2, "globex")).is_some());
    assert_eq!(ask(&mut prewarms, 0, &of(3, "acme")), None, "two are under way");
    for number in 1..=2 {
        let due = PrewarmDue {
            site: THERE,
            last: blocks(number, 10)[9],
            blocks: 10,
            bytes: Bytes(0),
        };
        prewarms.ended(&due, PrewarmEnd::Made(Bytes(640_000)));
    }
    assert_eq!(
        ask(&mut prewarms, 1, &of(4, "acme")),
        None,
        "more than half, and globex waits"
    );
    assert_eq!(prewarms.counts().held_back, 2);
    assert!(ask(&mut prewarms, 61, &of(4, "acme")).is_some());
}

#[test]
fn precision_and_recall_count_what_came_and_what_moved() {
    let mut foreseen = Foreseen::default();
    let at = |seconds: u32| Moment(0) + SECOND * seconds;
    assert_eq!(
        (foreseen.counts().precision(), foreseen.counts().recall()),
        (None, None)
    );
    foreseen.arrived(at(0), blocks(1, 10)[9], 10);
    foreseen.arrived(at(0), blocks(2, 10)[9], 10);
    foreseen.arrived(at(1), blocks(2, 10)[9], 10);
    foreseen.request(at(5), &blocks(1, 9), Moved::Here);
    assert_eq!(foreseen.counts().foreseen, 0, "a shorter prompt is another");
    foreseen.request(at(6), &blocks(1, 30), Moved::Here);
    foreseen.request(at(7), &blocks(1, 30), Moved::Not);
    let counts = foreseen.counts();
    assert_eq!((counts.used, counts.moved, counts.foreseen), (1, 2, 1));
    assert_eq!(
        (counts.precision(), counts.recall()),
        (Some(Permille(1000)), Some(Permille(500)))
    );
    foreseen.request(at(601), &blocks(3, 1), Moved::Not);
    let counts = foreseen.counts();
    assert_eq!((counts.unused, counts.precision()), (1, Some(Permille(500))));
}
