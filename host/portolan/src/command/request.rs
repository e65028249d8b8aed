//! `portolan request`: why a request went where it went, and which there were.

mod list;

pub use list::ListArgs;

pub(super) use list::list;

use super::ServerArgs;
use super::output::{Failure, json, line};
use crate::client::{Client, segment};
use portolan_decide::record::{CandidateRecord, FetchRecord, PolicyRecord, ShadowRecord};
use portolan_decide::{PathRecord, PrefillMode};

pub(super) fn show(id: &str, server: &ServerArgs, as_json: bool) -> Result<(), Failure> {
    let fail = |e: &dyn std::fmt::Display| Failure::new(e).as_json(as_json);
    let client = Client::new(&server.server, &server.key);
    let reply = client
        .get(&format!("/v1/portolan/requests/{}", segment(id)))
        .map_err(|e| fail(&e))?;
    if as_json {
        return json(&reply.body);
    }
    let record: PathRecord = serde_json::from_value(reply.body).map_err(|e| fail(&e))?;
    describe(&record).iter().for_each(line);
    Ok(())
}

/// A path record in lines for people: what happened, then why.
pub(super) fn describe(record: &PathRecord) -> Vec<String> {
    let mut out = vec![format!(
        "{}  {}  tenant {}  model {}",
        record.request_id, record.status, record.tenant, record.model
    )];
    let ttft = record.ttft_ms.map_or("no token".to_owned(), |ms| {
        format!("first token after {ms:.0} ms")
    });
    out.push(format!(
        "request   {} prompt + {} generated tokens, {ttft}; prefill_policy {}",
        record.prompt_tokens,
        record.completion_tokens,
        PrefillMode::of_code(record.request.prefill_mode).as_str()
    ));
    if let Some(route) = &record.route {
        out.push(format!(
            "route     prefill {}/{} → decode {}/{}",
            route.prefill_site, route.prefill_instance, route.decode_site, route.decode_instance
        ));
    }
    out.push(format!(
        "kv        {} moved, {} tokens reused, {} computed, {} chunks sent again",
        portolan_base::Bytes(record.kv.bytes_moved),
        record.kv.cached_tokens,
        record.kv.computed_tokens,
        record.kv.chunks_resent
    ));
    if let Some(quant) = record.kv.quantised {
        out.push(format!(
            "kv        quantised to {} on its way: the answer may differ from a single site's",
            quant.as_str()
        ));
    }
    out.extend(record.fetches.iter().map(said_of_fetch));
    let placements = record
        .placements
        .iter()
        .map(|(site, placement)| format!("{site} {}", placement.as_str()));
    out.push(format!("residency {}", placements.collect::<Vec<_>>().join(", ")));
    out.extend(record.policies.iter().map(said_of_call));
    out.extend(record.shadows.iter().map(said_of_shadow));
    out.extend(record.candidates.iter().map(said_of_candidate));
    for left in &record.left_out {
        out.push(format!(
            "left out  {}/{}: {}",
            left.site, left.instance, left.reason
        ));
    }
    out.extend(timeline(record));
    for fallback in &record.fallbacks {
        out.push(format!(
            "fallback  {}: {} → {} ({})",
            fallback.stage, fallback.from, fallback.to, fallback.reason
        ));
    }
    if let Some(error) = &record.error {
        out.push(format!("error     {error}"));
    }
    out
}

/// From where, to where, how much, how long, and why not.
fn said_of_fetch(fetch: &FetchRecord) -> String {
    let to = match fetch.to_site.is_empty() {
        true => String::new(),
        false => format!(" → {}/{}", fetch.to_site, fetch.to_instance),
    };
    let failed = fetch
        .failed
        .as_ref()
        .map_or_else(String::new, |why| format!("; {why}"));
    format!(
        "fetch     {}/{}{to}: {} of {} tokens, {} in {:.1} ms ({:.1} ms expected, computing {:.1} ms){failed}",
        fetch.site,
        fetch.instance,
        fetch.tokens,
        fetch.wanted_tokens,
        portolan_base::Bytes(fetch.bytes),
        fetch.took_ms,
        fetch.estimated_ms,
        fetch.computing_ms,
    )
}

fn said_of_call(call: &PolicyRecord) -> String {
    format!(
        "policy    {:<10} {:<16} {} {:>6} µs  {}",
        call.question.as_str(),
        call.name,
        said_of_version(call),
        call.micros,
        call.detail
            .as_deref()
            .or(call.answer.as_deref())
            .unwrap_or(&call.outcome)
    )
}

/// What a version in the shadow would have done.
fn said_of_shadow(shadow: &ShadowRecord) -> String {
    let call = &shadow.call;
    let verdict = match &shadow.differs {
        Some(differs) => format!("differs: {differs}"),
        None if call.outcome == "ok" => "agrees".to_owned(),
        None => call.detail.clone().unwrap_or_else(|| call.outcome.clone()),
    };
    format!(
        "shadow    {:<10} {:<16} {} {:>6} µs  {verdict}",
        call.question.as_str(),
        call.name,
        said_of_version(call),
        call.micros
    )
}

/// Which component, as which binding, with which configuration.
fn said_of_version(call: &PolicyRecord) -> String {
    let generation = call
        .generation
        .map(|generation| format!(" generation {generation}"));
    let config = call
        .config_digest
        .as_ref()
        .map(|digest| format!(" config {digest}"));
    format!(
        "{:<12}{}{}",
        short(&call.version),
        generation.unwrap_or_default(),
        config.unwrap_or_default()
    )
}

fn said_of_candidate(candidate: &CandidateRecord) -> String {
    let verdict = match (&candidate.excluded, candidate.rank) {
        (Some(why), _) => format!("excluded: {why}"),
        (None, Some(rank)) => format!("rank {rank}"),
        (None, None) => "not ranked".to_owned(),
    };
    let ms = |us: u32| format!("{:.1} ms", f64::from(us) / 1000.0);
    let cost = candidate.cost.map_or_else(|| "–".to_owned(), |c| ms(c.total_us));
    let score = candidate.score.map_or_else(|| "–".to_owned(), |s| s.to_string());
    format!(
        "candidate prefill {:<22} cost {cost:>10}  score {score:>10}  {verdict}",
        format!(
            "{}/{}",
            candidate.route.prefill_site, candidate.route.prefill_instance
        )
    )
}

/// The first digits of a version.
pub(super) fn short(version: &str) -> &str {
    let end = version.char_indices().nth(12).map_or(version.len(), |(i, _)| i);
    &version[..end]
}

/// One bar a stage, to scale, so that the overlap of prefill and transfer can be seen.
pub(super) fn timeline(record: &PathRecord) -> Vec<String> {
    const WIDTH: f64 = 48.0;
    let end = record.stages.iter().map(|s| s.end_ms).fold(0.001, f64::max);
    let column = |ms: f64| ((ms / end) * WIDTH).round() as usize;
    let bar =
        |start: usize, stop: usize| format!("{}{}", " ".repeat(start), "━".repeat((stop - start).max(1)));
    let stages = record.stages.iter();
    stages
        .map(|stage| {
            let (start, stop) = (column(stage.start_ms), column(stage.end_ms));
            let took = stage.end_ms - stage.start_ms;
            format!(
                "stage     {:<9}│{:<49}│ {:>8.1} ms",
                stage.name,
                bar(start, stop.max(start)),
                took
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_says_as_which_binding_it_was_answered_and_an_older_record_says_nothing_of_it() {
        let mut call = serde_json::json!({
            "question": "routing", "name": "mine", "version": "ab".repeat(32), "source": "tenant", "micros": 7,
            "outcome": "ok", "answer": "scores",
        });
        let older: PolicyRecord = serde_json::from_value(call.clone()).unwrap();
        assert_eq!(
            said_of_call(&older),
            "policy    routing    mine             abababababab      7 µs  scores"
        );
        call["generation"] = 3.into();
        call["config_digest"] = "44136fa355b3678a".into();
        let bound: PolicyRecord = serde_json::from_value(call).unwrap();
        assert_eq!(
            said_of_call(&bound),
            "policy    routing    mine             abababababab generation 3 config 44136fa355b3678a      7 µs  scores"
        );
    }

    #[test]
    fn a_fetch_says_from_where_to_where_how_much_and_why_not() {
        let fetch = FetchRecord {
            site: "tokyo".into(),
            instance: "t1".into(),
            to_site: "virginia".into(),
            to_instance: "v1".into(),
            wanted_tokens: 960,
            tokens: 128,
            bytes: 2 << 20,
            took_ms: 250.0,
            estimated_ms: 80.0,
            computing_ms: 400.0,
            failed: Some("it was late".into()),
        };
        assert_eq!(
            said_of_fetch(&fetch),
            "fetch     tokyo/t1 → virginia/v1: 128 of 960 tokens, 2.0 MiB in 250.0 ms (80.0 ms expected, computing \
             400.0 ms); it was late"
        );
        let older = FetchRecord {
            to_site: String::new(),
            failed: None,
            ..fetch
        };
        assert!(said_of_fetch(&older).starts_with("fetch     tokyo/t1: 128 of 960"));
        assert!(said_of_fetch(&older).ends_with("400.0 ms)"));
    }
}
