//! `portolan request show`: why a request went where it went.

use super::ServerArgs;
use super::output::{Failure, json, line};
use crate::client::Client;
use portolan_decide::PathRecord;

pub(super) fn show(id: &str, server: &ServerArgs, as_json: bool) -> Result<(), Failure> {
    let fail = |e: &dyn std::fmt::Display| Failure::new(e).as_json(as_json);
    let client = Client::new(&server.server, &server.key);
    let reply = client
        .get(&format!("/v1/portolan/requests/{id}"))
        .map_err(|e| fail(&e))?;
    if as_json {
        return json(&reply.body);
    }
    let record: PathRecord = serde_json::from_value(reply.body).map_err(|e| fail(&e))?;
    describe(&record).iter().for_each(line);
    Ok(())
}

/// A path record in lines for people.
pub(super) fn describe(record: &PathRecord) -> Vec<String> {
    let mut out = vec![format!(
        "{}  {}  tenant {}  model {}  {} prompt + {} generated tokens",
        record.request_id,
        record.status,
        record.tenant,
        record.model,
        record.prompt_tokens,
        record.completion_tokens
    )];
    if let Some(route) = &record.route {
        out.push(format!(
            "route     prefill {}/{} → decode {}/{}",
            route.prefill_site, route.prefill_instance, route.decode_site, route.decode_instance
        ));
    }
    out.push(format!(
        "kv        {} moved, {} tokens reused, {} computed",
        portolan_base::Bytes(record.kv.bytes_moved),
        record.kv.cached_tokens,
        record.kv.computed_tokens
    ));
    for policy in &record.policies {
        out.push(format!(
            "policy    {:<12} {:<16} {:<12} {:>6} µs  {}",
            policy.question.as_str(),
            policy.name,
            short(&policy.version),
            policy.micros,
            policy.detail.as_deref().unwrap_or(&policy.outcome)
        ));
    }
    for candidate in &record.candidates {
        let verdict = match (&candidate.excluded, candidate.rank) {
            (Some(why), _) => format!("excluded: {why}"),
            (None, Some(rank)) => format!("rank {rank}"),
            (None, None) => "not ranked".to_owned(),
        };
        let cost = candidate.cost.map_or_else(String::new, |c| {
            format!("{:.1} ms", f64::from(c.total_us) / 1000.0)
        });
        out.push(format!(
            "candidate prefill {:<22} cost {cost:>10}  {verdict}",
            format!(
                "{}/{}",
                candidate.route.prefill_site, candidate.route.prefill_instance
            )
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
