//! What a policy changes: decisions beside those made again, in sum and by request. What is kept does not grow with the
//! number of requests.

use super::replay::{Outcome, Replayed};
use super::spread::{Gathered, Spread};
use portolan_decide::{CandidateRecord, PathRecord, RouteRecord};
use portolan_policy::builtin::{Cost, Ttft};
use portolan_policy::{NEVER, RequestView, RouteView};
use serde::Serialize;

/// Differences that are explained one by one.
const EXPLAINED: usize = 10;

/// What a route costs. Of a recorded request it is what the host expects, from the facts that the policies were told:
/// independent of what any cost policy made of them, so that two of them compare. Of a simulated one, what came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// Time to first token, in µs: the four parts together.
    pub ttft_us: u64,
    /// Waiting for the prompt to be computed.
    pub queue_us: u64,
    /// Computing it.
    pub prefill_us: u64,
    /// Sending its KV, as far as that is not hidden behind computing it.
    pub transfer_us: u64,
    /// Waiting for a place to generate the answer, and the first token; only simulated.
    pub decode_us: u64,
    /// Prompt tokens that need no computing.
    pub cached_tokens: u32,
    /// KV between sites, in bytes.
    pub cross_site_bytes: u64,
    /// The price, in millionths of the operator's unit.
    pub price_micros: u64,
}

impl Estimate {
    /// The time to first token, where anything is known of it: a host that has not measured an engine yet expects 0 of
    /// it, and nothing takes no time.
    fn known_ttft(&self) -> Option<u64> {
        (self.ttft_us > 0).then_some(self.ttft_us)
    }

    /// Adds the parts up.
    #[must_use]
    pub fn summed(self) -> Self {
        let ttft_us = [self.queue_us, self.prefill_us, self.transfer_us, self.decode_us]
            .into_iter()
            .sum();
        Self { ttft_us, ..self }
    }
}

/// Where one decision leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Along a route; without an estimate where its facts say that it does not work.
    Route(RouteRecord, Option<Estimate>),
    /// Nowhere, and why.
    Nowhere(String),
}

/// One request, decided twice.
#[derive(Clone, Debug)]
pub struct Decided {
    /// The request.
    pub request_id: String,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// As it was decided.
    pub recorded: Way,
    /// As the policy decides.
    pub replayed: Way,
    /// Why something else answered than the policy.
    pub fallbacks: Vec<String>,
}

/// A measure both ways, over the requests that both ways have a route of which it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Moved {
    /// How many requests those are; without any, the figures are 0 and mean nothing.
    pub requests: usize,
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
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Where it went.
    pub from: String,
    /// Where it would go.
    pub to: String,
    /// By how much the expected time to first token changes, in µs; none where one way has no route, or nothing is known
    /// of its time.
    pub ttft_us: Option<i64>,
    /// By how much the bytes between sites change.
    pub cross_site_bytes: Option<i64>,
    /// By how much the price changes, in millionths of the operator's unit.
    pub price_micros: Option<i64>,
    /// What the route it took costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Estimate>,
    /// What the route it would take costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Estimate>,
    /// Why something else answered than the policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<String>,
}

/// What a policy changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Requests decided again.
    pub decided: usize,
    /// Records without candidates: they ended before a decision.
    pub skipped: usize,
    /// Decisions that change.
    pub changed: usize,
    /// Those of them whose prompt is computed at another site.
    pub moved_site: usize,
    /// Served then, refused or deferred now.
    pub newly_unserved: usize,
    /// Refused or deferred then, served now.
    pub newly_served: usize,
    /// Calls that ended in a fault, so that the fallback decided.
    pub faults: usize,
    /// The first of them, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_fault: Option<String>,
    /// Records whose routes were priced by the built-in `ttft`.
    pub repriced: usize,
    /// Time to first token, in µs.
    pub ttft_us: Moved,
    /// KV between sites, in bytes.
    pub cross_site_bytes: Moved,
    /// The price, in millionths of the operator's unit.
    pub price_micros: Moved,
    /// The largest changes: those between a route and none first, then by time to first token.
    pub differences: Vec<Change>,
}

/// A measure, gathered both ways.
#[derive(Debug, Default)]
struct Both {
    requests: usize,
    recorded: Gathered,
    replayed: Gathered,
}

impl Both {
    fn add(&mut self, recorded: u64, replayed: u64) {
        self.requests += 1;
        self.recorded.add(recorded);
        self.replayed.add(replayed);
    }

    fn moved(&self) -> Moved {
        Moved {
            requests: self.requests,
            recorded: self.recorded.spread(),
            replayed: self.replayed.spread(),
        }
    }
}

/// Collects decisions.
#[derive(Debug, Default)]
pub struct Tally {
    counts: Comparison,
    ttft: Both,
    bytes: Both,
    price: Both,
}

impl Tally {
    /// A record that cannot be decided again.
    pub fn skip(&mut self) {
        self.counts.skipped += 1;
    }

    /// A record, where it led, and what came of deciding it again.
    pub fn add_record(&mut self, record: &PathRecord, recorded: &Outcome, replayed: Replayed) {
        self.counts.repriced += usize::from(replayed.repriced);
        self.add(Decided {
            request_id: printable(record.request_id.as_str()),
            prompt_tokens: record.request.prompt_tokens,
            recorded: way(record, recorded),
            replayed: way(record, &replayed.outcome),
            fallbacks: replayed.fallbacks,
        });
    }

    /// A request that was decided twice.
    pub fn add(&mut self, decided: Decided) {
        let counts = &mut self.counts;
        counts.decided += 1;
        counts.faults += decided.fallbacks.len();
        if counts.first_fault.is_none() {
            counts.first_fault = decided.fallbacks.first().map(|why| printable(why));
        }
        let (from, to) = (decided.recorded.estimate(), decided.replayed.estimate());
        if let Some((from, to)) = from.zip(to) {
            if let Some((from, to)) = from.known_ttft().zip(to.known_ttft()) {
                self.ttft.add(from, to);
            }
            self.bytes.add(from.cross_site_bytes, to.cross_site_bytes);
            self.price.add(from.price_micros, to.price_micros);
        }
        let changed = match (&decided.recorded, &decided.replayed) {
            (Way::Route(a, _), Way::Route(b, _)) => {
                counts.moved_site += usize::from(a.prefill_site != b.prefill_site);
                a != b
            }
            (Way::Route(..), Way::Nowhere(_)) => {
                counts.newly_unserved += 1;
                true
            }
            (Way::Nowhere(_), Way::Route(..)) => {
                counts.newly_served += 1;
                true
            }
            (Way::Nowhere(_), Way::Nowhere(_)) => false,
        };
        if changed {
            counts.changed += 1;
            self.explain(decided, from, to);
        }
    }

    /// Keeps a change if it is one of the largest so far.
    fn explain(&mut self, decided: Decided, from: Option<Estimate>, to: Option<Estimate>) {
        let by = |measure: fn(&Estimate) -> u64| Some(difference(measure(&from?), measure(&to?)));
        let change = Change {
            from: decided.recorded.to_string(),
            to: decided.replayed.to_string(),
            ttft_us: from
                .zip(to)
                .and_then(|(from, to)| from.known_ttft().zip(to.known_ttft()))
                .map(|(from, to)| difference(from, to)),
            cross_site_bytes: by(|e| e.cross_site_bytes),
            price_micros: by(|e| e.price_micros),
            recorded: from,
            replayed: to,
            request_id: decided.request_id,
            prompt_tokens: decided.prompt_tokens,
            fallbacks: decided.fallbacks,
        };
        // Equals by id, so that the same requests give the same text in whatever order they come.
        let rank = |change: &Change| {
            let size = match (&change.recorded, &change.replayed) {
                (Some(_), Some(_)) => change.ttft_us.map_or(0, i64::unsigned_abs),
                _ => u64::MAX,
            };
            (std::cmp::Reverse(size), change.request_id.clone())
        };
        let kept = &mut self.counts.differences;
        let place = kept.partition_point(|before| rank(before) <= rank(&change));
        if place < EXPLAINED {
            kept.insert(place, change);
            kept.truncate(EXPLAINED);
        }
    }

    /// Everything together.
    pub fn finish(self) -> Comparison {
        Comparison {
            ttft_us: self.ttft.moved(),
            cross_site_bytes: self.bytes.moved(),
            price_micros: self.price.moved(),
            ..self.counts
        }
    }
}

impl Way {
    fn estimate(&self) -> Option<Estimate> {
        match self {
            Self::Route(_, estimate) => *estimate,
            Self::Nowhere(_) => None,
        }
    }
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nowhere(why) => f.write_str(&printable(why)),
            Self::Route(route, _) => f.write_str(&printable(&format!(
                "{}/{} → {}/{}",
                route.prefill_site, route.prefill_instance, route.decode_site, route.decode_instance
            ))),
        }
    }
}

/// Names in a file may be anything; what is printed must not move the cursor of a terminal.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

fn way(record: &PathRecord, outcome: &Outcome) -> Way {
    match outcome {
        Outcome::Nowhere(why) => Way::Nowhere(why.clone()),
        Outcome::Route(i) => match record.candidates.get(*i) {
            Some(candidate) => Way::Route(candidate.route.clone(), estimate_of(record, candidate)),
            None => Way::Nowhere("no such candidate".to_owned()),
        },
    }
}

fn estimate_of(record: &PathRecord, candidate: &CandidateRecord) -> Option<Estimate> {
    let (request, route) = (record.request.to_cells(), candidate.facts.to_cells());
    let cost = Ttft::default().estimate(RequestView(&request), RouteView(&route));
    let expected = Estimate {
        queue_us: u64::from(cost.queue_us),
        prefill_us: u64::from(cost.prefill_us),
        transfer_us: u64::from(cost.transfer_us),
        cached_tokens: candidate.facts.cached_tokens,
        cross_site_bytes: u64::from(candidate.facts.transfer_kib) << 10,
        price_micros: u64::from(candidate.facts.price_micros),
        ..Estimate::default()
    };
    (cost.total_us != NEVER).then(|| expected.summed())
}

fn difference(from: u64, to: u64) -> i64 {
    let signed = |value| i64::try_from(value).unwrap_or(i64::MAX);
    signed(to) - signed(from)
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
            tally.add_record(&record, &recorded(&record), to(outcome));
        }
        let same = record("req-same", &[(1, 100)]);
        tally.add_record(&same, &recorded(&same), to(Outcome::Route(0)));
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
        assert_eq!(found.moved_site, 19);
        let parts = found.differences[1].replayed.unwrap();
        assert_eq!(
            (parts.ttft_us, parts.prefill_us, parts.cross_site_bytes),
            (119, 119, 102_400)
        );
    }

    #[test]
    fn a_time_that_nobody_knows_is_not_counted_as_none_and_the_rest_is() {
        let mut tally = Tally::default();
        let unmeasured = record("req-1", &[(0, 0), (0, 0)]);
        let faulty = Replayed {
            fallbacks: vec!["the policy trapped".into(), "again".into()],
            ..to(Outcome::Route(1))
        };
        tally.add_record(&unmeasured, &recorded(&unmeasured), faulty);
        let known = record("req-2", &[(5, 5), (7, 7)]);
        tally.add_record(&known, &recorded(&known), to(Outcome::Route(1)));
        let found = tally.finish();
        assert_eq!((found.ttft_us.requests, found.ttft_us.recorded.mean), (1, 5.0));
        assert_eq!(found.cross_site_bytes.requests, 2);
        let ids: Vec<_> = found
            .differences
            .iter()
            .map(|c| (&*c.request_id, c.ttft_us))
            .collect();
        assert_eq!(ids, [("req-2", Some(2)), ("req-1", None)]);
        assert_eq!(
            (found.faults, found.first_fault.as_deref()),
            (2, Some("the policy trapped"))
        );
    }

    #[test]
    fn refused_both_times_is_no_change() {
        let mut tally = Tally::default();
        let record = record("req-1", &[(1, 10)]);
        let nowhere = |why: &str| Outcome::Nowhere(why.into());
        tally.add_record(&record, &nowhere("a"), to(nowhere("b")));
        tally.add_record(&record, &nowhere("a"), to(Outcome::Route(0)));
        let found = tally.finish();
        assert_eq!((found.changed, found.newly_served), (1, 1));
        assert_eq!(found.ttft_us, Moved::default());
    }

    #[test]
    fn names_out_of_a_file_cannot_steer_a_terminal() {
        let mut record = record("req-1", &[(1, 10), (2, 20)]);
        record.candidates[1].route.prefill_site = "\u{1b}[2Jparis\n".to_owned();
        let mut tally = Tally::default();
        tally.add_record(&record, &recorded(&record), to(Outcome::Route(1)));
        let found = tally.finish();
        assert_eq!(found.differences[0].to, "\u{fffd}[2Jparis\u{fffd}/p → site-0/d");
    }
}
