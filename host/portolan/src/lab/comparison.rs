//! What a policy would have changed: recorded decisions beside those made again, in sum and by request.

use super::replay::{Outcome, Replayed};
use super::spread::Spread;
use portolan_decide::{CandidateRecord, PathRecord};
use portolan_policy::builtin::{Cost, Ttft};
use portolan_policy::{NEVER, RequestView, RouteView};
use serde::Serialize;

/// Differences that are explained one by one.
const EXPLAINED: usize = 10;

/// What the host expects of a decision, from the facts that the policies were told: independent of what any cost
/// policy made of them, so that two of them compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Time to first token: queue, prefill and transfer of the built-in `ttft`, in µs.
    pub ttft_us: u64,
    /// KV between sites, in bytes.
    pub bytes: u64,
    /// The price, in millionths of the operator's unit.
    pub price_micros: u64,
}

/// A measure, recorded and decided again, over the requests that both ways have a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Moved {
    /// As it was decided.
    pub recorded: Spread,
    /// As it would be.
    pub replayed: Spread,
}

/// One decision that changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The request.
    pub request_id: String,
    /// Where it went.
    pub from: String,
    /// Where it would go.
    pub to: String,
    /// By how much the expected time to first token changes, in µs; none where one way has no route.
    pub ttft_us: Option<i64>,
    /// By how much the bytes between sites change.
    pub cross_site_bytes: Option<i64>,
    /// By how much the price changes, in millionths of the operator's unit.
    pub price_micros: Option<i64>,
    /// Why something else answered than the policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<String>,
}

/// What a policy would have changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Records decided again.
    pub decided: usize,
    /// Records without candidates: they ended before a decision.
    pub skipped: usize,
    /// Decisions that change.
    pub changed: usize,
    /// Served then, refused or deferred now.
    pub newly_unserved: usize,
    /// Refused or deferred then, served now.
    pub newly_served: usize,
    /// Calls that ended in a fault, so that the fallback decided.
    pub faults: usize,
    /// Records whose routes were priced by the built-in `ttft`.
    pub repriced: usize,
    /// Expected time to first token, in µs.
    pub ttft_us: Moved,
    /// KV between sites, in bytes.
    pub cross_site_bytes: Moved,
    /// The price, in millionths of the operator's unit.
    pub price_micros: Moved,
    /// The largest changes: those between a route and none first, then by time to first token.
    pub differences: Vec<Change>,
}

/// Collects decisions.
#[derive(Debug, Default)]
pub struct Tally {
    counts: Comparison,
    pairs: Vec<(Estimate, Estimate)>,
    changes: Vec<Change>,
}

impl Tally {
    /// A record that cannot be decided again.
    pub fn skip(&mut self) {
        self.counts.skipped += 1;
    }

    /// A record, where it led, and what came of deciding it again.
    pub fn add(&mut self, record: &PathRecord, recorded: &Outcome, replayed: &Replayed) {
        let estimate = |outcome: &Outcome| match outcome {
            Outcome::Route(i) => record.candidates.get(*i).and_then(|c| estimate_of(record, c)),
            Outcome::Nowhere(_) => None,
        };
        let both = estimate(recorded).zip(estimate(&replayed.outcome));
        self.pairs.extend(both);
        let counts = &mut self.counts;
        counts.decided += 1;
        counts.faults += replayed.fallbacks.len();
        counts.repriced += usize::from(replayed.repriced);
        let changed = match (recorded, &replayed.outcome) {
            (Outcome::Route(a), Outcome::Route(b)) => a != b,
            (Outcome::Route(_), Outcome::Nowhere(_)) => {
                counts.newly_unserved += 1;
                true
            }
            (Outcome::Nowhere(_), Outcome::Route(_)) => {
                counts.newly_served += 1;
                true
            }
            (Outcome::Nowhere(_), Outcome::Nowhere(_)) => false,
        };
        if changed {
            counts.changed += 1;
            let by = |measure: fn(&Estimate) -> u64| both.map(|(a, b)| difference(measure(&a), measure(&b)));
            self.changes.push(Change {
                request_id: record.request_id.as_str().to_owned(),
                from: named(record, recorded),
                to: named(record, &replayed.outcome),
                ttft_us: by(|e| e.ttft_us),
                cross_site_bytes: by(|e| e.bytes),
                price_micros: by(|e| e.price_micros),
                fallbacks: replayed.fallbacks.clone(),
            });
        }
    }

    /// Everything together.
    pub fn finish(mut self) -> Comparison {
        let moved = |measure: fn(&Estimate) -> u64| {
            let side = |pick: fn(&(Estimate, Estimate)) -> &Estimate| {
                let values: Vec<f64> = self.pairs.iter().map(|pair| measure(pick(pair)) as f64).collect();
                Spread::of(&values)
            };
            Moved {
                recorded: side(|pair| &pair.0),
                replayed: side(|pair| &pair.1),
            }
        };
        let (ttft_us, cross_site_bytes, price_micros) = (
            moved(|e| e.ttft_us),
            moved(|e| e.bytes),
            moved(|e| e.price_micros),
        );
        let size = |change: &Change| change.ttft_us.map_or(u64::MAX, i64::unsigned_abs);
        // Stable, and equals by id, so that the same records give the same text.
        self.changes.sort_by(|a, b| {
            size(b)
                .cmp(&size(a))
                .then_with(|| a.request_id.cmp(&b.request_id))
        });
        self.changes.truncate(EXPLAINED);
        Comparison {
            ttft_us,
            cross_site_bytes,
            price_micros,
            differences: self.changes,
            ..self.counts
        }
    }
}

fn estimate_of(record: &PathRecord, candidate: &CandidateRecord) -> Option<Estimate> {
    let (request, route) = (record.request.to_cells(), candidate.facts.to_cells());
    let cost = Ttft::default().estimate(RequestView(&request), RouteView(&route));
    (cost.total_us != NEVER).then(|| Estimate {
        ttft_us: [cost.queue_us, cost.prefill_us, cost.transfer_us]
            .into_iter()
            .map(u64::from)
            .sum(),
        bytes: u64::from(candidate.facts.transfer_kib) << 10,
        price_micros: u64::from(candidate.facts.price_micros),
    })
}

fn difference(from: u64, to: u64) -> i64 {
    let signed = |value| i64::try_from(value).unwrap_or(i64::MAX);
    signed(to) - signed(from)
}

fn named(record: &PathRecord, outcome: &Outcome) -> String {
    match outcome {
        Outcome::Nowhere(why) => why.clone(),
        Outcome::Route(i) => record.candidates.get(*i).map_or_else(String::new, |candidate| {
            let route = &candidate.route;
            format!(
                "{}/{} → {}/{}",
                route.prefill_site, route.prefill_instance, route.decode_site, route.decode_instance
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::replay::{recorded, tests::record};
    use super::*;

    fn to(outcome: Outcome) -> Replayed {
        Replayed {
            outcome,
            fallbacks: Vec::new(),
            repriced: false,
        }
    }

    #[test]
    fn sums_changes_and_the_largest_first() {
        let mut tally = Tally::default();
        tally.skip();
        for n in 0..20 {
            // Site 1 is n µs slower, moves 100 KiB and costs 2 in place of 1.
            let record = record(&format!("req-{n:02}"), &[(1, 100), (2, 100 + n)]);
            let outcome = if n == 3 {
                Outcome::Nowhere("refused: no".into())
            } else {
                Outcome::Route(1)
            };
            tally.add(&record, &recorded(&record), &to(outcome));
        }
        let same = record("req-same", &[(1, 100)]);
        tally.add(&same, &recorded(&same), &to(Outcome::Route(0)));
        let found = tally.finish();
        assert_eq!(
            (found.decided, found.skipped, found.changed, found.newly_unserved),
            (21, 1, 20, 1)
        );
        let slower: u32 = (0..20).sum::<u32>() - 3;
        assert_eq!(found.ttft_us.recorded.sum, 2000.0);
        assert_eq!(found.ttft_us.replayed.sum, 2000.0 + f64::from(slower));
        assert_eq!(found.cross_site_bytes.replayed.sum, 19.0 * 102_400.0);
        assert_eq!(
            (found.price_micros.recorded.p50, found.price_micros.replayed.p50),
            (1.0, 2.0)
        );
        let first: Vec<_> = found
            .differences
            .iter()
            .take(3)
            .map(|c| (&*c.request_id, c.ttft_us))
            .collect();
        assert_eq!(
            first,
            [("req-03", None), ("req-19", Some(19)), ("req-18", Some(18))]
        );
        assert_eq!(found.differences.len(), 10);
        assert_eq!(found.differences[1].from, "site-0/p → site-0/d");
        assert_eq!(found.differences[1].to, "site-1/p → site-0/d");
    }

    #[test]
    fn refused_both_times_is_no_change() {
        let mut tally = Tally::default();
        let record = record("req-1", &[(1, 10)]);
        let nowhere = |why: &str| Outcome::Nowhere(why.into());
        tally.add(&record, &nowhere("a"), &to(nowhere("b")));
        tally.add(&record, &nowhere("a"), &to(Outcome::Route(0)));
        let found = tally.finish();
        assert_eq!((found.changed, found.newly_served), (1, 1));
        assert_eq!(found.ttft_us, Moved::default());
    }
}
