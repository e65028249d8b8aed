//! The checker can fail: each thing that a promise forbids is made to look as if it had happened, and is found; and
//! schedules in which the parts themselves are flawed do not pass.

use super::*;
use crate::chaos::history::{Appended, Began, Begin, Bound, Reached};
use crate::chaos::in_process::{Flaw, run, run_flawed};
use crate::chaos::{SEED, run_all};
use portolan_decide::Fallback;
use std::sync::OnceLock;

/// A schedule in which much happened and nothing is wrong.
fn clean() -> History {
    static CLEAN: OnceLock<History> = OnceLock::new();
    let find = || {
        let suits = |history: &History| {
            let promised = |o: &Ordered| o.waited && o.acknowledged;
            let remote = |ask: &Ask| ask.record.as_ref().is_some_and(|r| r.kv.bytes_moved > 0);
            history.orders.iter().any(promised)
                && history.asks.iter().any(remote)
                && history
                    .asks
                    .iter()
                    .any(|ask| matches!(ask.outcome, Outcome::Refused(..)) && ask.record.is_some())
                && history.begins.iter().any(|begin| begin.what == Began::Decode)
        };
        (SEED..).map(run).find(suits).unwrap()
    };
    CLEAN.get_or_init(find).clone()
}

/// Changes a clean history; the checker has to find this promise broken, and no other.
fn finds(promise: u8, change: impl FnOnce(&mut History)) {
    let mut history = clean();
    assert_eq!(check(&history), [], "before");
    change(&mut history);
    let found = check(&history);
    let numbers: Vec<u8> = found.iter().map(|violation| violation.promise).collect();
    assert!(
        !numbers.is_empty() && numbers.iter().all(|n| *n == promise),
        "{promise}: {found:?}"
    );
}

fn answered(history: &mut History) -> &mut Ask {
    let mut asks = history.asks.iter_mut();
    asks.find(|ask| {
        matches!(&ask.outcome, Outcome::Answered(tokens) if tokens.len() > 1) && ask.record.is_some()
    })
    .unwrap()
}

fn refused(history: &mut History) -> &mut Ask {
    let mut asks = history.asks.iter_mut();
    asks.find(|ask| matches!(ask.outcome, Outcome::Refused(..)) && ask.record.is_some())
        .unwrap()
}

#[test]
fn a_route_that_is_no_candidate_is_found() {
    finds(1, |history| {
        answered(history).record.as_mut().unwrap().candidates.clear();
    });
}

#[test]
fn a_wrong_token_is_found() {
    finds(2, |history| {
        if let Outcome::Answered(tokens) = &mut answered(history).outcome {
            tokens[1] ^= 1;
        }
    });
    finds(2, |history| {
        if let Outcome::Answered(tokens) = &mut answered(history).outcome {
            tokens.pop();
        }
    });
}

#[test]
fn an_end_without_a_word_and_an_error_without_a_code_are_found() {
    finds(2, |history| {
        let ask = answered(history);
        ask.outcome = Outcome::CutInSilence(ask.expected[..1].to_vec());
    });
    finds(2, |history| {
        refused(history).outcome = Outcome::Refused(503, String::new());
    });
}

#[test]
fn a_request_that_hangs_is_found() {
    finds(2, |history| history.never_ended = ["ask-1".to_owned()].into());
    finds(2, |history| {
        history.patience = Some(Duration::from_secs(60));
        let ask = answered(history);
        ask.ended = Stamp(ask.sent.0 + 61_000_000);
    });
}

#[test]
fn a_begin_on_what_was_invalidated_is_found() {
    for what in [Began::Prefill, Began::Fetch, Began::Decode] {
        finds(2, |history| {
            let over = history
                .orders
                .iter()
                .find(|o| o.waited && o.acknowledged)
                .unwrap()
                .clone();
            let stream = history.stream.as_mut().unwrap();
            let tenant = history.births[0].about.scope.clone();
            let what_of = Invalidated::Tenant { scope: tenant };
            let order = stream.get_mut(&over.reason).unwrap();
            *order = Appended {
                what: what_of,
                before: Stamp(history.births[0].at.0 + 1),
            };
            // What began in time is none of this.
            history.begins.clear();
            history.ends.clear();
            history.begins.push(Begin {
                what,
                site: "paris".to_owned(),
                request: "late".to_owned(),
                births: vec![BirthId(0)],
                at: Stamp(over.answered.0 + 1),
            });
        });
    }
}

#[test]
fn reuse_that_only_the_records_show_is_found() {
    finds(2, |history| {
        let mut ask = answered(history).clone();
        let end = history.asks.iter().map(|ask| ask.ended).max().unwrap();
        let record = ask.record.as_mut().unwrap();
        record.kv.cached_tokens = 32;
        record.fallbacks.clear();
        history.orders.push(Ordered {
            reason: "late".to_owned(),
            site: ask.site.clone(),
            tenant: None,
            waited: true,
            sent: Stamp(end.0 + 10),
            answered: Stamp(end.0 + 20),
            acknowledged: true,
            families: [ask.family].into(),
        });
        history.stream = None;
        let line = history.audits.values().flatten().next().unwrap().clone();
        history.audits.insert(
            "elsewhere".to_owned(),
            vec![portolan_ports::AuditRecord {
                reason: "late".to_owned(),
                ..line
            }],
        );
        (ask.sent, ask.ended) = (Stamp(end.0 + 30), Stamp(end.0 + 40));
        ask.request = "late".to_owned();
        history.asks.push(ask);
    });
}

#[test]
fn data_where_it_may_not_be_is_found() {
    finds(3, |history| {
        history.sites.insert("virginia".to_owned(), "us".to_owned());
        history.reached.push(Reached {
            site: "virginia".to_owned(),
            tenant: "globex".to_owned(),
            jurisdiction: String::new(),
            how: "kept",
        });
    });
    finds(3, |history| {
        let ask = answered(history);
        let site = ask
            .record
            .as_ref()
            .unwrap()
            .route
            .as_ref()
            .unwrap()
            .prefill_site
            .clone();
        let placements = &mut ask.record.as_mut().unwrap().placements;
        placements.retain(|(name, _)| *name != site);
        placements.push((site, Placement::Denied));
    });
}

#[test]
fn what_was_acknowledged_and_is_lost_is_found() {
    let acknowledged = |history: &History| {
        let order = history.orders.iter().find(|order| order.acknowledged);
        order.unwrap().reason.clone()
    };
    finds(4, |history| {
        let reason = acknowledged(history);
        history.stream.as_mut().unwrap().remove(&reason);
        // Who knows of no order finds nothing outdated.
        history.begins.clear();
    });
    finds(4, |history| {
        let reason = acknowledged(history);
        history.audits.values_mut().for_each(|lines| {
            lines.retain(|line| line.reason != reason);
            (1..).zip(lines).for_each(|(number, line)| line.sequence = number);
        });
    });
    finds(4, |history| {
        let lines = history
            .audits
            .values_mut()
            .max_by_key(|lines| lines.len())
            .unwrap();
        lines.remove(lines.len() / 2);
        history.orders.clear();
    });
    finds(4, |history| {
        history.ends[0].behind = Some("its lease has lapsed".to_owned());
    });
    finds(4, |history| {
        history.bound.push(Bound {
            version: "new".to_owned(),
            acknowledged: true,
        });
        history
            .in_force
            .insert("paris".to_owned(), Some("old".to_owned()));
    });
}

#[test]
fn what_nobody_can_explain_is_found() {
    finds(5, |history| answered(history).record = None);
    finds(5, |history| {
        answered(history).record.as_mut().unwrap().stages.clear();
    });
    finds(5, |history| {
        refused(history).record.as_mut().unwrap().error = None;
    });
    finds(5, |history| {
        answered(history).record.as_mut().unwrap().status = "running".to_owned();
    });
    finds(5, |history| {
        answered(history)
            .record
            .as_mut()
            .unwrap()
            .fallbacks
            .push(Fallback {
                stage: "prefill".to_owned(),
                from: "there".to_owned(),
                to: "here".to_owned(),
                reason: String::new(),
            });
    });
}

/// Batches of 60 schedules after which a flaw counts as not found.
const BATCHES: u64 = 20;

#[test]
fn parts_with_a_flaw_do_not_pass() {
    for (flaw, promise) in [
        (Flaw::KeepsForgotten, 2),
        (Flaw::MixesTenants, 2),
        (Flaw::ForgetsOrders, 4),
        (Flaw::IgnoresLeases, 2),
        (Flaw::AsksAnyone, 3),
    ] {
        let breaks = |found: &[(u64, Violation)]| found.iter().filter(|(_, v)| v.promise == promise).count();
        // Schedules run in real time: on a quiet machine fewer of them meet a flaw.
        let batches = (0..BATCHES).map(|batch| SEED + batch * 60).map(|first| {
            let (_, found) = run_all(first..first + 60, |seed| run_flawed(seed, flaw));
            (first + 60 - SEED, breaks(&found))
        });
        let mut batches = batches.skip_while(|(_, broken)| *broken == 0);
        let Some((schedules, broken)) = batches.next() else {
            panic!("{flaw:?} was not found in {} schedules", BATCHES * 60);
        };
        println!("{flaw:?}: {broken} violations in the last 60 of {schedules} schedules");
    }
}
