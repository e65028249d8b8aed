//! Each hostile guest beside a tenant that minds its own business: what the one gets, and what the other notices.

use crate::bad_answers::answer;
use crate::compiling::{budget, huge_function};
use crate::guests::{Guest, LOG, STATE_ADD};
use crate::support::{Routing, assert_echo, binding, load, loader, loader_with_worker, tenant};
use portolan_plugin::ComponentLoader;
use portolan_policy::{Answer, Call, Policy, Purpose, Question, QuestionKind, RoutingDecision, Subject};
use portolan_ports::PolicyLoader;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pairs of a quiet round and a hostile one.
const PAIRS: usize = 5;
/// The neighbour's calls in a round.
const CALLS: usize = 100;
/// Between two of the neighbour's calls: a busy tenant's requests, which leave time to make instances ahead.
const GAP: Duration = Duration::from_micros(200);
/// A machine that runs other tests lengthens times as well, and does so by chance: harm shows in every attempt.
const ATTEMPTS: usize = 5;

/// What the median and the 99th percentile of the neighbour's calls may exceed 1.15 times and 1.5 times the quiet ones by.
/// A call is some microseconds of a request's milliseconds: two of them more, from a colder cache, are nobody's harm.
const MEDIAN_MARGIN: Duration = Duration::from_micros(20);
const P99_MARGIN: Duration = Duration::from_millis(5);

/// What it does, the guest, and the words of the faults it may end in. Without words it answers, badly or well.
type Deed = (&'static str, Guest, &'static [&'static str]);

fn deeds() -> Vec<Deed> {
    const OUT_OF_FUEL: &[&str] = &["out-of-fuel", "saturated"];
    let plain = Guest::hostile;
    // Counts calls in the policy's state: an instance lives for one.
    let counting = |condition: &str| Guest {
        imports: STATE_ADD,
        ..plain(&format!(
            "(local.set $i (i32.wrap_i64 (call $add (i32.const 1024) (i32.const 1) (i64.const 1))))
             (if {condition} (then (unreachable))) (local.set $i (i32.const 0))"
        ))
    };
    let logging = |deed: &str| Guest {
        imports: LOG,
        ..plain(deed)
    };
    vec![
        ("endless loop", plain("(loop $l (br $l)) (unreachable)"), OUT_OF_FUEL),
        (
            "endless loop in the allocator",
            Guest {
                realloc: "(if (i32.gt_u (global.get $top) (i32.const 12000)) (then (loop $l (br $l))))",
                ..Guest::echo()
            },
            OUT_OF_FUEL,
        ),
        (
            "deep recursion",
            plain("(call $deep)").with_extra("(func $deep (call $deep) (call $deep))"),
            &["out-of-fuel", "trap", "saturated"],
        ),
        (
            "memory to the limit",
            plain(
                "(loop $l (br_if $l (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) (unreachable)",
            ),
            &["out-of-memory", "saturated"],
        ),
        (
            "a table to the limit",
            plain(
                "(loop $l (br_if $l (i32.ne (table.grow $t (ref.null func) (i32.const 500)) (i32.const -1))))
                 (unreachable)",
            )
            .with_extra("(table $t 1 funcref)"),
            &["out-of-memory"],
        ),
        ("an answer of 100 MB", plain(&answer(0, 0, 25_000_000)), &["bad-answer"]),
        (
            "a list of a million",
            Guest {
                pages: 70,
                ..plain(&answer(0, 8, 1_000_000))
            },
            &["bad-answer", "saturated"],
        ),
        (
            "a reason that is no UTF-8",
            plain(&format!(
                "(i32.store (i32.const 2048) (i32.const 0x80fffeff)) {}",
                answer(2, 2048, 4)
            )),
            &["bad-answer"],
        ),
        ("a score too many", plain(&answer(0, 2048, 65)), &["bad-answer"]),
        (
            "never, for every route",
            plain(&format!(
                "(memory.fill (i32.const 16384) (i32.const 255) (i32.const 256)) {}",
                answer(0, 16384, 64)
            )),
            &[],
        ),
        ("zero, for every route", plain(&answer(0, 32768, 64)), &[]),
        ("a trap", plain("(unreachable)"), &["trap"]),
        (
            "a trap on every third call",
            counting("(i32.eqz (i32.rem_u (local.get $i) (i32.const 3)))"),
            &["trap"],
        ),
        (
            "a trap above 100 calls",
            counting("(i32.gt_u (local.get $i) (i32.const 100))"),
            &["trap"],
        ),
        (
            "10,000 log lines",
            logging(
                "(loop $l (call $log (i32.const 1) (i32.const 1024) (i32.const 16))
                    (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 10000))))
                 (local.set $i (i32.const 0))",
            ),
            OUT_OF_FUEL,
        ),
        (
            "a state key for every call to the host",
            Guest {
                imports: STATE_ADD,
                ..plain(
                    "(loop $l (i32.store (i32.const 2048) (i32.add (i32.load (i32.const 2048)) (i32.const 1)))
                        (i32.store8 (i32.const 2049) (i32.const 65)) (i32.store8 (i32.const 2050) (i32.const 65))
                        (i32.store8 (i32.const 2051) (i32.const 65))
                        (i32.store8 (i32.const 2048) (i32.and (i32.load8_u (i32.const 2048)) (i32.const 127)))
                        (drop (call $add (i32.const 2048) (i32.const 4) (i64.const 1))) (br $l)) (unreachable)",
                )
            },
            OUT_OF_FUEL,
        ),
    ]
}

/// What a hostile tenant's calls ended in, by word.
type Outcomes = BTreeMap<String, u64>;

struct Neighbour<'a> {
    policy: Arc<dyn Policy>,
    question: &'a Routing,
}

impl Neighbour<'_> {
    /// A round of its calls, each answered as ever.
    fn round(&self) -> Vec<Duration> {
        let expected = Ok(Answer::Routing(RoutingDecision::Scores(vec![3, 1, 2])));
        let mut took: Vec<_> = (0..CALLS)
            .map(|_| {
                std::thread::sleep(GAP);
                let begun = Instant::now();
                let answered = self.question.ask(&*self.policy);
                let took = begun.elapsed();
                assert_eq!(answered.result, expected, "the neighbour's answer");
                took
            })
            .collect();
        took.sort();
        took
    }
}

/// What a hostile tenant does over and over, and the word of what came of it.
type Mischief<'a> = &'a (dyn Fn() -> String + Sync);

/// Asks a policy over and over.
fn asking<'a>(policy: &'a dyn Policy, question: &'a Routing) -> impl Fn() -> String + Sync + 'a {
    move || {
        let result = question.ask(policy).result;
        result.map_or_else(|fault| fault.word(), |_| "ok").to_owned()
    }
}

/// A round while the mischief goes on.
fn beside(neighbour: &Neighbour<'_>, mischief: Mischief<'_>) -> (Vec<Duration>, Outcomes) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut outcomes = Outcomes::new();
            while !over.load(Ordering::Relaxed) {
                *outcomes.entry(mischief()).or_default() += 1;
                // A request's other stages take longer than this.
                std::thread::sleep(GAP);
            }
            outcomes
        });
        let took = neighbour.round();
        over.store(true, Ordering::Relaxed);
        (took, asking.join().unwrap())
    })
}

/// How much longer the neighbour's calls take, the middle of the pairs.
struct Harm {
    ratio: f64,
    /// Of the median beyond 1.15 times the quiet one, of the 99th percentile beyond 1.5 times.
    beyond: (Duration, Duration),
    shown: String,
}

impl Harm {
    fn is_none(&self) -> bool {
        self.beyond.0 <= MEDIAN_MARGIN && self.beyond.1 <= P99_MARGIN
    }
}

/// The least harm of a few attempts.
fn least_harm(what: &str, neighbour: &Neighbour<'_>, mischief: Mischief<'_>) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut attempts = 0;
    let harm = loop {
        attempts += 1;
        let harm = harm(neighbour, mischief, &mut outcomes);
        if harm.is_none() || attempts == ATTEMPTS {
            break harm;
        }
    };
    println!("| {what} | {outcomes:?} | {} | {:.2} |", harm.shown, harm.ratio);
    assert!(
        harm.is_none(),
        "{what}: {:?} beyond, in {attempts} attempts",
        harm.beyond
    );
    outcomes
}

fn harm(neighbour: &Neighbour<'_>, mischief: Mischief<'_>, outcomes: &mut Outcomes) -> Harm {
    let (mut ratios, mut medians, mut p99s, mut shown) = (Vec::new(), Vec::new(), Vec::new(), String::new());
    for _ in 0..PAIRS {
        let quiet = neighbour.round();
        let (loud, words) = beside(neighbour, mischief);
        for (word, count) in words {
            *outcomes.entry(word).or_default() += count;
        }
        let (middle, last) = (CALLS / 2, CALLS * 99 / 100);
        ratios.push(loud[middle].as_secs_f64() / quiet[middle].as_secs_f64());
        medians.push(loud[middle].saturating_sub(quiet[middle].mul_f64(1.15)));
        p99s.push(loud[last].saturating_sub(quiet[last].mul_f64(1.5)));
        shown = format!(
            "{:.1?} → {:.1?} | {:.1?} → {:.1?}",
            quiet[middle], loud[middle], quiet[last], loud[last]
        );
    }
    ratios.sort_by(f64::total_cmp);
    medians.sort();
    p99s.sort();
    Harm {
        ratio: ratios[PAIRS / 2],
        beyond: (medians[PAIRS / 2], p99s[PAIRS / 2]),
        shown,
    }
}

fn faults(loader: &ComponentLoader, name: &str) -> BTreeMap<&'static str, u64> {
    let versions = loader.stats().versions;
    let (_, stats) = versions
        .into_iter()
        .find(|(key, _)| key.scope == tenant(name))
        .unwrap();
    stats.faults
}

#[test]
fn whatever_a_tenants_policy_does_the_neighbour_is_answered_as_ever() {
    let (question, loud) = (Routing::new(0, &[3, 1, 2]), Routing::new(1, &[5; 64]));
    println!("| guest | its calls end in | the neighbour's median, quiet → beside it | p99 | ratio |");
    for (what, guest, words) in deeds() {
        let loader = loader();
        let neighbour = Neighbour {
            policy: load(&loader, "alice", &Guest::echo().component()).unwrap(),
            question: &question,
        };
        neighbour.round();
        let hostile = load(&loader, "mallory", &guest.component()).unwrap();
        let outcomes = least_harm(what, &neighbour, &asking(&*hostile, &loud));
        let counted = faults(&loader, "mallory");
        for (word, count) in &outcomes {
            let expected =
                words.contains(&word.as_str()) || (word == "ok" && !matches!(words, ["out-of-fuel", ..]));
            assert!(expected, "{what}: {count} calls ended in {word}");
            assert!(
                word == "ok" || counted[word.as_str()] == *count,
                "{what}: {counted:?}"
            );
        }
        assert!(
            words.is_empty() || outcomes.keys().any(|word| word != "ok"),
            "{what} did nothing"
        );
        assert!(faults(&loader, "alice").values().all(|count| *count == 0));
        if guest.realloc.is_empty() {
            // What one call did is gone in the next.
            assert_echo(&*hostile);
        }
    }
}

#[test]
fn more_placements_than_sites_cost_the_neighbour_nothing() {
    let question = Routing::new(0, &[3, 1, 2]);
    let loader = loader();
    let neighbour = Neighbour {
        policy: load(&loader, "alice", &Guest::echo().component()).unwrap(),
        question: &question,
    };
    neighbour.round();
    let component = Guest::residency().component();
    let bound = binding(tenant("mallory"), QuestionKind::Residency, &component);
    let hostile = loader.load(&bound, &component, None).unwrap();
    let labels = BTreeMap::new();
    // It answers for three sites.
    let ask = || {
        let question = Question::Residency {
            subject: Subject {
                purpose: Purpose::Fetch,
                data_jurisdiction: 1,
                data_class: 0,
                from_site: None,
            },
            request: &[],
            sites: 2,
        };
        let call = Call {
            question,
            labels: &labels,
            request_id: "",
        };
        hostile
            .ask(&call)
            .result
            .map_or_else(|fault| fault.word(), |_| "ok")
            .to_owned()
    };
    let outcomes = least_harm("more placements than sites", &neighbour, &ask);
    assert_eq!(
        outcomes.keys().collect::<Vec<_>>(),
        ["bad-answer"],
        "{outcomes:?}"
    );
    assert_eq!(faults(&loader, "mallory")["bad-answer"], outcomes["bad-answer"]);
}

/// Every round of the neighbour's lasts as long as the compiler is busy.
#[test]
fn compile_bombs_cost_the_neighbour_nothing() {
    let question = Routing::new(0, &[3, 1, 2]);
    let bomb = huge_function();
    for (what, limits, codes) in [
        (
            "7 MB in one function, a second to compile it",
            budget(1, 1024),
            // The second is by the processor; on a machine that is busy, three by the clock are over first.
            &["compile-time", "compiler-busy"][..],
        ),
        (
            "7 MB in one function, 192 MiB to compile it",
            budget(60, 192),
            &["not-compiled"][..],
        ),
    ] {
        let loader = loader_with_worker(limits);
        let neighbour = Neighbour {
            policy: load(&loader, "alice", &Guest::echo().component()).unwrap(),
            question: &question,
        };
        neighbour.round();
        let upload = || match loader.compile(&bomb) {
            Ok(_) => "ok".to_owned(),
            Err(refused) => {
                let finding = refused.0.findings.last();
                finding.map_or_else(String::new, |finding| finding.code.clone())
            }
        };
        let outcomes = least_harm(what, &neighbour, &upload);
        let expected = |code: &String| codes.contains(&code.as_str());
        assert!(
            !outcomes.is_empty() && outcomes.keys().all(expected),
            "{what}: {outcomes:?}"
        );
        assert!(faults(&loader, "alice").values().all(|count| *count == 0));
    }
}
