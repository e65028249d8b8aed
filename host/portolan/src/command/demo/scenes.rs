//! The scenes of the tour, in order.

use super::stage_play::{Ask, Asked, Tour};
use super::texts;
use crate::command::output::{Failure, line};
use portolan_base::SiteName;
use portolan_decide::PathRecord;
use portolan_ports::Transport;
use std::time::{Duration, Instant};

const ACME: &str = "demo-acme";
const GLOBEX: &str = "demo-globex";

/// Short prompts stay, long ones go: scaled down from 512 and 4096 so that a small model on a laptop shows it.
const THRESHOLD: &str = r#"{"local_below_tokens": 64, "remote_above_tokens": 128}"#;

pub(super) fn play(tour: &mut Tour<'_>) -> Result<(), Failure> {
    opening(tour);
    policies(tour)?;
    short_question(tour)?;
    let across = across_the_ocean(tour)?;
    stays_home(tour, &across)?;
    half_cached(tour, &across)?;
    swap_mid_stream(tour)?;
    killed_mid_transfer(tour)
}

fn opening(tour: &Tour<'_>) {
    line("Portolan: two sites, joined by real sockets with 40 ms of ocean in each direction.");
    for site in tour.host.sites() {
        tour.tell(&format!(
            "{:<9} gateway http://{}, KV port {}",
            site.name(),
            site.http(),
            site.transport().address()
        ));
    }
    tour.tell("The model is SmolLM2-135M-Instruct, run by the native engine at both sites.");
}

fn policies(tour: &mut Tour<'_>) -> Result<(), Failure> {
    tour.scene("Tenants bring policies: WebAssembly components, uploaded over HTTP, kept in the store");
    tour.push("demo-admin", ("_platform", "residency"), "jurisdiction", "")?;
    for (key, tenant) in [(ACME, "acme"), (GLOBEX, "globex")] {
        tour.push(key, (tenant, "cost"), "ttft", "")?;
        tour.push(key, (tenant, "routing"), "threshold", THRESHOLD)?;
    }
    let path = "/v1/portolan/tenants/globex/policies";
    let refused = tour.client(ACME).get(path).is_err();
    tour.check("acme's key does not open globex's policies", refused);
    Ok(())
}

fn short_question(tour: &mut Tour<'_>) -> Result<(), Failure> {
    tour.scene("acme asks something short: not worth an ocean");
    let asked = tour.ask(&ask(ACME, texts::CAPITAL, 24))?;
    tour.why(&asked.record);
    tour.check("the answer is right", asked.text == texts::CAPITAL_ANSWER);
    tour.check(
        "the prompt was computed in paris",
        prefill_site(&asked.record) == "paris",
    );
    Ok(())
}

fn across_the_ocean(tour: &mut Tour<'_>) -> Result<Asked, Failure> {
    tour.scene("acme asks something long: virginia computes the prompt, paris answers");
    let asked = tour.ask(&ask(ACME, texts::CHARTS, 48))?;
    tour.why(&asked.record);
    tour.stages(&asked.record);
    let record = &asked.record;
    tour.check(
        "the prompt was computed in virginia",
        prefill_site(record) == "virginia",
    );
    tour.check("its KV crossed between the sites", record.kv.bytes_moved > 0);
    tour.check("the KV was crossing while prefill still ran", overlaps(record));
    tour.check(
        "every policy that decided is a component from the store",
        all_components(record),
    );
    Ok(asked)
}

fn stays_home(tour: &mut Tour<'_>, across: &Asked) -> Result<(), Failure> {
    tour.scene("globex asks the very same, but its data must stay in the EU");
    let asked = tour.ask(&ask(GLOBEX, texts::CHARTS, 48))?;
    tour.why(&asked.record);
    tour.check(
        "the prompt was computed in paris",
        prefill_site(&asked.record) == "paris",
    );
    let denied =
        |c: &portolan_decide::CandidateRecord| c.excluded.as_deref() == Some("residency denies virginia");
    tour.check(
        "because the residency policy denies virginia",
        asked.record.candidates.iter().any(denied),
    );
    tour.check("nothing crossed the ocean", asked.record.kv.bytes_moved == 0);
    tour.check("acme's cache was not touched", asked.record.kv.cached_tokens == 0);
    tour.check(
        "the answer equals acme's, token for token",
        asked.text == across.text,
    );
    Ok(())
}

fn half_cached(tour: &mut Tour<'_>, across: &Asked) -> Result<(), Failure> {
    tour.scene("acme asks again, at home this time: the KV that crossed is still here");
    let asked = tour.ask(&Ask {
        prefill_policy: "local_only",
        ..ask(ACME, texts::CHARTS, 48)
    })?;
    tour.why(&asked.record);
    tour.check(
        "most of the prompt was reused",
        asked.record.kv.cached_tokens * 2 > asked.record.prompt_tokens,
    );
    let (first, again) = (ttft(&across.record), ttft(&asked.record));
    tour.check(
        &format!("the first token came after {again:.0} ms instead of {first:.0} ms"),
        again < first,
    );
    tour.check(
        "the answer is the same, token for token",
        asked.text == across.text,
    );
    Ok(())
}

fn swap_mid_stream(tour: &mut Tour<'_>) -> Result<(), Failure> {
    tour.scene("acme swaps its routing policy while an answer streams");
    let story = ask(ACME, texts::STORY, 48);
    let undisturbed = tour.ask(&story)?;
    tour.tell("once more, with a swap after the eighth piece:");
    let mut version = String::new();
    let swapped = tour.ask_and(&story, &mut |pieces, printer| {
        if pieces == 8 {
            printer.end();
            let body = tour.push(ACME, ("acme", "routing"), "round-robin", "")?;
            body["version"]
                .as_str()
                .unwrap_or_default()
                .clone_into(&mut version);
        }
        Ok(())
    })?;
    tour.check(
        "the stream was neither cut nor changed",
        swapped.text == undisturbed.text && is_ok(&swapped.record),
    );
    let decided = |record: &PathRecord| routing(record).map(|p| (p.name.clone(), p.version.clone()));
    let began_with = decided(&swapped.record).is_some_and(|(name, _)| name == "threshold");
    tour.check("it finished on the version it began with", began_with);
    let next = tour.ask(&ask(ACME, texts::CAPITAL, 24))?;
    let took_over = decided(&next.record).is_some_and(|(name, v)| name == "round-robin" && v == version);
    tour.check("the next request was decided by the new version", took_over);
    tour.push(ACME, ("acme", "routing"), "threshold", THRESHOLD)?;
    Ok(())
}

fn killed_mid_transfer(tour: &mut Tour<'_>) -> Result<(), Failure> {
    tour.scene("virginia is killed while its KV is crossing");
    let asked = ask_while_killing(tour)?;
    tour.why(&asked.record);
    tour.stages(&asked.record);
    for fallback in &asked.record.fallbacks {
        tour.tell(&format!(
            "fallback: {} → {} because {}",
            fallback.from, fallback.to, fallback.reason
        ));
    }
    tour.check("the request was served all the same", is_ok(&asked.record));
    tour.check("by paris", prefill_site(&asked.record) == "paris");
    tour.check(
        "and the record says what was fallen back from",
        !asked.record.fallbacks.is_empty(),
    );
    let reference = tour.ask(&ask(GLOBEX, texts::CABLES, 48))?;
    tour.check(
        "the answer equals a single site's, token for token",
        asked.text == reference.text,
    );
    tour.runtime
        .block_on(tour.host.revive("virginia"))
        .map_err(Failure::new)?;
    tour.tell("virginia is back.");
    Ok(())
}

/// Asks, and kills virginia as soon as some of its KV has arrived.
fn ask_while_killing(tour: &mut Tour<'_>) -> Result<Asked, Failure> {
    let (server, question) = (
        tour.client(ACME),
        super::stage_play::body(&ask(ACME, texts::CABLES, 48)),
    );
    let before = arrived(tour);
    let asking = std::thread::spawn(move || {
        let mut text = String::new();
        let id = server.stream("/v1/chat/completions", &question, &mut |data| {
            let event: serde_json::Value = serde_json::from_str(data).unwrap_or_default();
            text.push_str(
                event
                    .pointer("/choices/0/delta/content")
                    .and_then(|d| d.as_str())
                    .unwrap_or_default(),
            );
            true
        });
        id.map(|id| (id, text))
    });
    let began = Instant::now();
    while arrived(tour) < before + IN_THE_MIDDLE && began.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    tour.tell(&format!(
        "{} have arrived; killing virginia",
        portolan_base::Bytes(arrived(tour) - before)
    ));
    tour.runtime.block_on(tour.host.kill("virginia"));
    let answer = asking
        .join()
        .map_err(|_| Failure::new("the asking thread broke"))?;
    let (id, text) = answer.map_err(Failure::new)?;
    let id = id.ok_or_else(|| Failure::new("the response names no request id"))?;
    tour.tell(&format!("│ {text}"));
    Ok(Asked {
        text,
        record: tour.settled(&id)?,
    })
}

/// KV of a tenth of the prompt: the rest is still to come when this much has arrived.
const IN_THE_MIDDLE: u64 = 1 << 20;

/// Bytes of KV that paris has received from virginia.
fn arrived(tour: &Tour<'_>) -> u64 {
    let virginia = SiteName::new("virginia").ok();
    let link = tour
        .host
        .site("paris")
        .zip(virginia)
        .and_then(|(site, peer)| site.transport().link(&peer));
    link.map_or(0, |reading| reading.received.0)
}

fn ask<'a>(key: &'a str, prompt: &'a str, max_tokens: u32) -> Ask<'a> {
    Ask {
        key,
        prompt,
        max_tokens,
        prefill_policy: "",
    }
}

fn prefill_site(record: &PathRecord) -> &str {
    record.route.as_ref().map_or("", |route| &route.prefill_site)
}

fn is_ok(record: &PathRecord) -> bool {
    record.status == "ok"
}

fn ttft(record: &PathRecord) -> f64 {
    record.ttft_ms.unwrap_or(f64::INFINITY)
}

fn routing(record: &PathRecord) -> Option<&portolan_decide::PolicyRecord> {
    record
        .policies
        .iter()
        .find(|p| p.question == portolan_policy::QuestionKind::Routing)
}

fn all_components(record: &PathRecord) -> bool {
    record.policies.len() >= 3
        && record
            .policies
            .iter()
            .all(|p| p.version.len() == 64 && p.outcome == "ok")
}

/// Whether transfer began before prefill ended.
fn overlaps(record: &PathRecord) -> bool {
    let find = |name: &str| record.stages.iter().find(|stage| stage.name == name);
    let (prefill, transfer) = (find("prefill"), find("transfer"));
    prefill
        .zip(transfer)
        .is_some_and(|(prefill, transfer)| transfer.start_ms < prefill.end_ms)
}
