//! What is asked for often is ordered once, within its bounds, and less often when nobody used it.

use super::*;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);
const BLOCK: Tokens = Tokens(64);
/// A block is 64,000 bytes.
const KV: KvSize = KvSize {
    fixed: Bytes(0),
    per_token: Bytes(1000),
};

fn rules() -> ReplicaRules {
    ReplicaRules {
        asks: 3,
        window: 60 * SECOND,
        min_tokens: Tokens(256),
        bounds: Bounds {
            per_minute: Bytes(2_000_000),
            at_once: 1,
        },
        pause: 300 * SECOND,
    }
}

fn at(seconds: u64) -> Moment {
    Moment(0) + SECOND * u32::try_from(seconds).unwrap()
}

fn tenant(name: &str) -> TenantName {
    TenantName::new(name).unwrap()
}

/// Names of the blocks of a prompt: `shared` blocks of number 0, then the prompt's own.
fn prompt(number: u64, shared: usize, len: usize) -> Vec<BlockHash> {
    let name = |i: usize| BlockHash(1000 * if i < shared { 0 } else { number } + i as u64 + 1);
    (0..len).map(name).collect()
}

struct Site {
    replicas: Replicas,
}

impl Site {
    fn new(rules: ReplicaRules) -> Self {
        Self {
            replicas: Replicas::new(rules),
        }
    }

    fn ask(&mut self, seconds: u64, blocks: &[BlockHash], here: usize) -> Option<ReplicaDue> {
        self.ask_by("acme", seconds, blocks, here)
    }

    fn ask_by(&mut self, who: &str, seconds: u64, blocks: &[BlockHash], here: usize) -> Option<ReplicaDue> {
        let ask = PrefixAsk {
            tenant: &tenant(who),
            blocks,
            here,
            block: BLOCK,
            kv: KV,
        };
        self.replicas.asked(at(seconds), &ask)
    }

    fn made(&mut self, seconds: u64, due: &ReplicaDue, blocks: &[BlockHash]) {
        let end = ReplicaEnd::Made {
            bytes: due.bytes,
            last: blocks[due.blocks - 1],
            blocks: due.blocks,
        };
        self.replicas.ended(at(seconds), due, end);
    }
}

#[test]
fn the_third_ask_within_the_window_is_due_and_the_second_is_not() {
    let blocks = prompt(1, 0, 10);
    let mut site = Site::new(rules());
    assert_eq!((site.ask(0, &blocks, 0), site.ask(1, &blocks, 0)), (None, None));
    let due = site.ask(2, &blocks, 0).unwrap();
    assert_eq!((due.blocks, due.bytes), (10, Bytes(640_000)));
    let mut slow = Site::new(rules());
    for second in [0, 30, 60, 90, 120] {
        assert_eq!(
            slow.ask(second, &blocks, 0),
            None,
            "never three within sixty seconds"
        );
    }
    assert!(slow.ask(121, &blocks, 0).is_some());
}

#[test]
fn what_the_asks_have_in_common_is_due_whoever_was_first() {
    // One prompt that leaves the others after two blocks comes first; the others share eight and go on differently.
    let mut site = Site::new(rules());
    assert_eq!(site.ask(0, &prompt(9, 2, 20), 0), None);
    let others: Vec<_> = (1..=4)
        .map(|n| [prompt(0, 8, 8), prompt(n, 0, 12)[8..].to_vec()].concat())
        .collect();
    let due: Vec<_> = others
        .iter()
        .filter_map(|blocks| site.ask(1, blocks, 0))
        .collect();
    assert_eq!(due.iter().map(|due| due.blocks).collect::<Vec<_>>(), [8]);
    let mut site = Site::new(rules());
    site.ask(0, &prompt(1, 0, 20), 0);
    site.ask(0, &prompt(1, 0, 20), 0);
    let due = site.ask(0, &prompt(1, 0, 6), 0).unwrap();
    assert_eq!(due.blocks, 6, "no more than the prompt at hand has");
}

#[test]
fn only_what_is_missing_counts_and_little_is_not_worth_it() {
    let blocks = prompt(1, 0, 10);
    let ask = |here| {
        let mut site = Site::new(rules());
        (0..3).filter_map(|n| site.ask(n, &blocks, here)).next()
    };
    assert_eq!(ask(6).map(|due| due.bytes), Some(Bytes(256_000)), "four blocks");
    assert_eq!(ask(7), None, "three blocks are less than 256 tokens");
    assert_eq!(ask(10), None);
    assert_eq!(ask(11), None, "more is here than there");
}

#[test]
fn orders_are_bounded_at_once_and_in_a_minute() {
    let mut site = Site::new(rules());
    let hot = |site: &mut Site, number, second| {
        let blocks = prompt(number, 0, 15);
        let due = (0..3).filter_map(|_| site.ask(second, &blocks, 0)).next();
        (due, blocks)
    };
    let (first, blocks) = hot(&mut site, 1, 0);
    let first = first.unwrap();
    assert_eq!(hot(&mut site, 2, 1).0, None, "one at once");
    assert_eq!(site.replicas.counts().held_back, 1);
    site.made(2, &first, &blocks);
    // 960,000 bytes each: two go into the minute's two million, the third does not.
    let (second, blocks) = hot(&mut site, 2, 3);
    site.made(4, &second.unwrap(), &blocks);
    assert_eq!(hot(&mut site, 3, 5).0, None);
    assert_eq!(hot(&mut site, 3, 59).0, None);
    assert!(hot(&mut site, 3, 60).0.is_some(), "the first is a minute ago");
    let counts = site.replicas.counts();
    assert_eq!((counts.ordered, counts.made, counts.bytes), (2, 2, 1_920_000));
}

#[test]
fn what_was_not_ordered_or_was_less_is_given_back_to_the_budget() {
    let mut site = Site::new(ReplicaRules {
        bounds: Bounds {
            per_minute: Bytes(700_000),
            ..rules().bounds
        },
        ..rules()
    });
    let mut due = |number| {
        let blocks = prompt(number, 0, 10);
        (0..3).filter_map(|_| site.ask(0, &blocks, 0)).next()
    };
    let first = due(1).unwrap();
    site.replicas.ended(at(0), &first, ReplicaEnd::Forbidden);
    let mut due = |number| {
        let blocks = prompt(number, 0, 10);
        (0..3).filter_map(|_| site.ask(0, &blocks, 0)).next()
    };
    let second = due(2).unwrap();
    site.replicas
        .ended(at(0), &second, ReplicaEnd::Failed(Bytes(60_000)));
    let blocks = prompt(3, 0, 10);
    assert!((0..3).filter_map(|_| site.ask(0, &blocks, 0)).next().is_some());
    let counts = site.replicas.counts();
    assert_eq!(
        (counts.forbidden, counts.failed, counts.ordered, counts.bytes),
        (1, 1, 1, 60_000)
    );
}

#[test]
fn one_tenant_leaves_half_of_the_budget_while_others_ask() {
    let mut site = Site::new(rules());
    let due = |site: &mut Site, who, number, second| {
        let blocks = prompt(number, 0, 12);
        let due = (0..3).filter_map(|_| site.ask_by(who, second, &blocks, 0)).next();
        due.inspect(|due| site.made(second, due, &blocks))
    };
    // 768,000 bytes each. Alone, it takes two in a minute.
    assert!(due(&mut site, "greedy", 1, 0).is_some());
    assert!(due(&mut site, "greedy", 2, 0).is_some());
    let mut site = Site::new(rules());
    site.ask_by("modest", 0, &prompt(9, 0, 12), 0);
    assert!(due(&mut site, "greedy", 1, 0).is_some());
    assert_eq!(due(&mut site, "greedy", 2, 0), None);
    assert!(due(&mut site, "modest", 3, 0).is_some());
}

#[test]
fn one_tenant_leaves_half_of_the_orders_while_others_ask() {
    let ordered = |others_ask: bool| {
        let mut site = Site::new(ReplicaRules {
            bounds: Bounds {
                per_minute: Bytes(1 << 40),
                at_once: 4,
            },
            ..rules()
        });
        if others_ask {
            site.ask_by("modest", 0, &prompt(99, 0, 12), 0);
        }
        let hot = |number: u64| (0..3).map(move |_| prompt(number, 0, 12));
        (1..9)
            .flat_map(hot)
            .filter_map(|blocks| site.ask_by("greedy", 1, &blocks, 0))
            .count()
    };
    assert_eq!((ordered(true), ordered(false)), (2, 4));
}

#[test]
fn a_copy_that_nobody_used_rests_twice_as_long_and_one_that_was_used_does_not() {
    let blocks = prompt(1, 0, 10);
    // Seconds at which copies are ordered when it is asked for every second and each copy is gone at once.
    let ordered = |used: bool| {
        let mut site = Site::new(rules());
        let mut seconds = Vec::new();
        for second in 0..4000 {
            if let Some(due) = site.ask(second, &blocks, 0) {
                site.made(second, &due, &blocks);
                if used {
                    site.replicas.found(&blocks, 10);
                }
                seconds.push(second);
            }
        }
        (seconds, site.replicas.counts().useful)
    };
    let (unused, useful) = ordered(false);
    assert_eq!((unused, useful), (vec![2, 302, 902, 2102], 0));
    let (used, useful) = ordered(true);
    assert_eq!((used.len(), used[1] - used[0], useful), (14, 300, 14));
}

#[test]
fn a_forbidden_copy_is_not_asked_about_again_for_long() {
    let blocks = prompt(1, 0, 10);
    let mut site = Site::new(rules());
    let mut asked = 0;
    for second in 0..9000 {
        if let Some(due) = site.ask(second, &blocks, 0) {
            site.replicas.ended(at(second), &due, ReplicaEnd::Forbidden);
            asked += 1;
        }
    }
    assert_eq!((asked, site.replicas.counts().ordered), (1, 0));
}

#[test]
fn a_copy_is_of_use_once_when_a_request_finds_all_of_it() {
    let blocks = prompt(1, 0, 10);
    let mut site = Site::new(rules());
    let due = (0..3).filter_map(|n| site.ask(n, &blocks, 0)).next().unwrap();
    site.made(3, &due, &blocks);
    site.replicas.found(&blocks, 9);
    site.replicas.found(&prompt(2, 0, 10), 10);
    assert_eq!(site.replicas.counts().useful, 0);
    site.replicas.found(&blocks, 10);
    site.replicas.found(&blocks, 10);
    assert_eq!(site.replicas.counts().useful, 1);
}

#[test]
fn an_end_that_is_told_twice_counts_once() {
    let blocks = prompt(1, 0, 10);
    let mut site = Site::new(rules());
    let due = (0..3).filter_map(|n| site.ask(n, &blocks, 0)).next().unwrap();
    site.made(3, &due, &blocks);
    site.made(3, &due, &blocks);
    assert_eq!((site.replicas.counts().made, site.replicas.under_way()), (1, 0));
}

proptest! {
    /// Whatever is asked by whomever: never more at once, in a minute, or watched than allowed, and a due copy is of the
    /// asking prompt.
    #[test]
    fn bounds_hold_whatever_is_asked(asks in prop::collection::vec((0u64..40, 0usize..6, 1usize..20, 0u64..3), 1..400)) {
        let rules = ReplicaRules { bounds: Bounds { at_once: 2, ..rules().bounds }, pause: SECOND, ..rules() };
        let mut site = Site::new(rules);
        let (mut open, mut ordered): (Vec<ReplicaDue>, Vec<(u64, Bytes)>) = (Vec::new(), Vec::new());
        for (second, (number, here, len, end)) in (0u64..).zip(asks) {
            let blocks = prompt(number, 3, len);
            if let Some(due) = site.ask(second, &blocks, here) {
                prop_assert!(here < due.blocks && due.blocks <= blocks.len());
                open.push(due);
                ordered.push((second, due.bytes));
            }
            prop_assert!(open.len() <= 2 && site.replicas.under_way() == open.len());
            let lately = ordered.iter().filter(|(at, _)| second - at < 60).map(|(_, bytes)| bytes.0);
            prop_assert!(lately.sum::<u64>() <= rules.bounds.per_minute.0);
            if end == 0 && let Some(due) = open.pop() {
                site.made(second, &due, &[prompt(number, 3, 20), vec![BlockHash(0); 20]].concat());
            }
        }
        prop_assert!(site.replicas.watched.len() <= WATCHED);
    }
}
