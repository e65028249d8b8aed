//! A comparison in words, for the tenant whose policy it is.

use crate::lab::comparison::{Change, Comparison, Estimate, Moved};
use portolan_base::Bytes;

/// What changes, in sum, then the largest changes one by one. `ways` are the names of the two ways.
pub(super) fn describe(found: &Comparison, ways: (&str, &str)) -> Vec<String> {
    let mut out = vec![format!(
        "{} of {} decisions change{}",
        found.changed,
        found.decided,
        what_changes(found)
    )];
    out.push(format!(
        "  {:<22}{:>16}{:>16}{:>12}",
        "", ways.0, ways.1, "change"
    ));
    out.extend(figures(found));
    if !found.differences.is_empty() {
        out.push("largest changes (prompt computed at → answer generated at):".to_owned());
    }
    let changes = found.differences.iter().zip(1..);
    out.extend(changes.flat_map(|(change, number)| explain(change, number, ways)));
    out
}

fn what_changes(found: &Comparison) -> String {
    let mut parts = Vec::new();
    for (count, what) in [
        (found.moved_site, "compute the prompt at another site"),
        (found.newly_unserved, "are refused or deferred and were served"),
        (found.newly_served, "are served and were not"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    if parts.is_empty() {
        return String::new();
    }
    format!(": {}", parts.join(", "))
}

fn figures(found: &Comparison) -> Vec<String> {
    let bytes = |bytes: f64| Bytes(bytes as u64).to_string();
    let price = |price: f64| format!("{price:.0}");
    let row = |what: &str,
               moved: &Moved,
               of: fn(&crate::lab::spread::Spread) -> f64,
               unit: &dyn Fn(f64) -> String| {
        if moved.requests == 0 {
            return format!("  {what:<22}{:>16}{:>16}{:>12}", "–", "–", "–");
        }
        let (from, to) = (of(&moved.recorded), of(&moved.replayed));
        format!(
            "  {what:<22}{:>16}{:>16}{:>12}",
            unit(from),
            unit(to),
            share(from, to)
        )
    };
    vec![
        row("TTFT, mean", &found.ttft_us, |s| s.mean, &time),
        row("TTFT, median", &found.ttft_us, |s| s.p50, &time),
        row("TTFT, P99", &found.ttft_us, |s| s.p99, &time),
        row("bytes between sites", &found.cross_site_bytes, |s| s.sum, &bytes),
        row("price, millionths", &found.price_micros, |s| s.sum, &price),
    ]
}

/// By how much, in percent.
fn share(from: f64, to: f64) -> String {
    if from == to {
        return "–".to_owned();
    }
    if from == 0.0 {
        return "new".to_owned();
    }
    format!("{:+.1} %", (to / from - 1.0) * 100.0)
}

/// A time in µs.
fn time(us: f64) -> String {
    if us < 10_000_000.0 {
        format!("{:.1} ms", us / 1e3)
    } else {
        format!("{:.1} s", us / 1e6)
    }
}

fn signed(us: i64) -> String {
    let sign = if us < 0 { "-" } else { "+" };
    format!("{sign}{}", time(us.unsigned_abs() as f64))
}

fn explain(change: &Change, number: usize, ways: (&str, &str)) -> Vec<String> {
    let mut first = format!(
        "  {number}. {}, a prompt of {} tokens",
        change.request_id, change.prompt_tokens
    );
    let mut parts = Vec::new();
    parts.extend(change.ttft_us.map(|ttft| format!("TTFT {}", signed(ttft))));
    if let Some(bytes) = change.cross_site_bytes.filter(|bytes| *bytes != 0) {
        let sign = if bytes < 0 { "-" } else { "+" };
        parts.push(format!("{sign}{} between sites", Bytes(bytes.unsigned_abs())));
    }
    if let Some(price) = change.price_micros.filter(|price| *price != 0) {
        parts.push(format!("price {price:+}"));
    }
    if !parts.is_empty() {
        first.push_str(&format!(": {}", parts.join(", ")));
    }
    let width = ways.0.len().max(ways.1.len());
    let way = |name: &str, to: &str, estimate: Option<&Estimate>| {
        let parts = estimate.map_or_else(String::new, |estimate| format!(": {}", made_of(estimate)));
        format!("     {name:<width$}  {to}{parts}")
    };
    let mut out = vec![
        first,
        way(ways.0, &change.from, change.recorded.as_ref()),
        way(ways.1, &change.to, change.replayed.as_ref()),
    ];
    out.extend(change.fallbacks.iter().map(|why| format!("     {why}")));
    out
}

/// What a route's time is made of.
fn made_of(estimate: &Estimate) -> String {
    let mut sum = Vec::new();
    for (us, what) in [
        (estimate.queue_us, "queue"),
        (estimate.prefill_us, "prefill"),
        (estimate.transfer_us, "transfer"),
        (estimate.decode_us, "first token"),
    ] {
        if us > 0 {
            sum.push(format!("{what} {}", time(us as f64)));
        }
    }
    let mut text = match estimate.ttft_us {
        0 => "TTFT –".to_owned(),
        us => format!("TTFT {}", time(us as f64)),
    };
    if sum.len() > 1 {
        text.push_str(&format!(" = {}", sum.join(" + ")));
    }
    format!(
        "{text}; {} tokens cached, {} between sites, price {}",
        estimate.cached_tokens,
        Bytes(estimate.cross_site_bytes),
        estimate.price_micros
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::comparison::{Decided, Tally, Way};
    use portolan_decide::RouteRecord;

    #[test]
    fn what_nobody_knows_is_a_dash() {
        let said = describe(&Tally::default().finish(), ("recorded", "replayed"));
        assert_eq!(
            said[2],
            "  TTFT, mean                           –               –           –"
        );
        let unmeasured = Estimate {
            cached_tokens: 7,
            ..Estimate::default()
        };
        assert_eq!(
            made_of(&unmeasured),
            "TTFT –; 7 tokens cached, 0 B between sites, price 0"
        );
    }

    #[test]
    fn a_change_says_what_its_time_is_made_of() {
        let route = |site: &str| RouteRecord {
            prefill_site: site.into(),
            prefill_instance: "p1".into(),
            decode_site: "paris".into(),
            decode_instance: "d1".into(),
        };
        let near = Estimate {
            queue_us: 40_000,
            prefill_us: 300_000,
            price_micros: 30,
            ..Estimate::default()
        };
        let far = Estimate {
            prefill_us: 40_000,
            transfer_us: 90_000,
            cached_tokens: 4096,
            cross_site_bytes: 12 << 20,
            price_micros: 27,
            ..Estimate::default()
        };
        let mut tally = Tally::default();
        let decided = |id: &str, replayed| Decided {
            request_id: id.into(),
            prompt_tokens: 5000,
            recorded: Way::Route(route("paris"), Some(near.summed())),
            replayed,
            fallbacks: vec![],
        };
        tally.add(decided(
            "req-1",
            Way::Route(route("virginia"), Some(far.summed())),
        ));
        tally.add(decided("req-2", Way::Nowhere("refused: later".into())));
        let said = describe(&tally.finish(), ("recorded", "replayed"));
        let expected = "\
2 of 2 decisions change: 1 compute the prompt at another site, 1 are refused or deferred and were served
                                recorded        replayed      change
  TTFT, mean                    340.0 ms        130.0 ms     -61.8 %
  TTFT, median                  340.0 ms        130.0 ms     -61.8 %
  TTFT, P99                     340.0 ms        130.0 ms     -61.8 %
  bytes between sites                0 B        12.0 MiB         new
  price, millionths                   30              27     -10.0 %
largest changes (prompt computed at → answer generated at):
  1. req-2, a prompt of 5000 tokens
     recorded  paris/p1 → paris/d1: TTFT 340.0 ms = queue 40.0 ms + prefill 300.0 ms; 0 tokens cached, 0 B between sites, price 30
     replayed  refused: later
  2. req-1, a prompt of 5000 tokens: TTFT -210.0 ms, +12.0 MiB between sites, price -3
     recorded  paris/p1 → paris/d1: TTFT 340.0 ms = queue 40.0 ms + prefill 300.0 ms; 0 tokens cached, 0 B between sites, price 30
     replayed  virginia/p1 → paris/d1: TTFT 130.0 ms = prefill 40.0 ms + transfer 90.0 ms; 4096 tokens cached, 12.0 MiB between sites, price 27";
        assert_eq!(said.join("\n"), expected);
    }
}
