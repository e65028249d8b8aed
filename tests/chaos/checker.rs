//! One checker for every schedule: holds what happened against the five promises of `docs/semantics.md`.

use crate::chaos::history::{Ask, Birth, BirthId, History, Ordered, Outcome, Stamp};
use portolan_policy::Placement;
use portolan_ports::Invalidated;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Promises are numbered as in `docs/semantics.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) promise: u8,
    pub(crate) text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "promise {}: {}", self.promise, self.text)
    }
}

/// Everything that breaks a promise.
pub(crate) fn check(history: &History) -> Vec<Violation> {
    let mut found = Found(Vec::new());
    for ask in &history.asks {
        answer(ask, &mut found);
        patience(history, ask, &mut found);
        limits(ask, &mut found);
        explanation(ask, &mut found);
        residency(history, ask, &mut found);
        reuse(history, ask, &mut found);
    }
    for what in &history.never_ended {
        found.add(2, format!("{what} never ended"));
    }
    reached(history, &mut found);
    begins(history, &mut found);
    acknowledged(history, &mut found);
    audits(history, &mut found);
    bindings(history, &mut found);
    found.0
}

struct Found(Vec<Violation>);

impl Found {
    fn add(&mut self, promise: u8, text: String) {
        self.0.push(Violation { promise, text });
    }
}

/// Promise 2: every token is the one that a site alone would give, or the client gets a clear error.
fn answer(ask: &Ask, found: &mut Found) {
    let id = &ask.request;
    match &ask.outcome {
        Outcome::Answered(tokens) if *tokens != ask.expected => {
            found.add(2, format!("{id}: answered {tokens:?}, not {:?}", ask.expected));
        }
        Outcome::BrokenOff(tokens) if !ask.expected.starts_with(tokens) => {
            found.add(
                2,
                format!("{id}: broke off after {tokens:?}, of {:?}", ask.expected),
            );
        }
        Outcome::CutInSilence(tokens) => {
            found.add(2, format!("{id}: ended without a word after {tokens:?}"));
        }
        Outcome::Refused(status, code) if *status < 400 || code.is_empty() => {
            found.add(2, format!("{id}: no clear error: {status} {code:?}"));
        }
        _ => {}
    }
}

/// Promise 2: what breaks costs latency, and not for ever.
fn patience(history: &History, ask: &Ask, found: &mut Found) {
    let took = Duration::from_micros(ask.ended.0.saturating_sub(ask.sent.0));
    if history.patience.is_some_and(|patience| took > patience) {
        found.add(2, format!("{}: took {took:.1?}: {:?}", ask.request, ask.outcome));
    }
}

/// Promise 1: what served is a route that the host enumerated and did not exclude.
fn limits(ask: &Ask, found: &mut Found) {
    let Some((record, route)) = ask.record.as_ref().and_then(|r| Some((r, r.route.as_ref()?))) else {
        return;
    };
    let allowed = |c: &portolan_decide::record::CandidateRecord| c.route == *route && c.excluded.is_none();
    if !record.candidates.iter().any(allowed) {
        found.add(
            1,
            format!("{}: served by {route:?}, which is no candidate", ask.request),
        );
    }
}

/// Promise 5: an answer has a record that says who gave it, and whatever went otherwise says why.
fn explanation(ask: &Ask, found: &mut Found) {
    let id = &ask.request;
    let Some(record) = &ask.record else {
        if matches!(ask.outcome, Outcome::Answered(_) | Outcome::BrokenOff(_)) && !ask.site_died {
            found.add(5, format!("{id}: answered, and there is no record of it"));
        }
        return;
    };
    let stage = |name: &str| record.stages.iter().any(|stage| stage.name == name);
    match &ask.outcome {
        Outcome::Answered(_) if record.status != "ok" || record.route.is_none() => {
            found.add(
                5,
                format!(
                    "{id}: answered, and its record says {} by {:?}",
                    record.status, record.route
                ),
            );
        }
        Outcome::Answered(_) if !["admit", "locate", "decide", "decode"].into_iter().all(stage) => {
            found.add(5, format!("{id}: its record lacks stages: {:?}", record.stages));
        }
        Outcome::Refused(..) | Outcome::BrokenOff(_) if record.status == "ok" => {
            found.add(5, format!("{id}: failed, and its record says ok"));
        }
        Outcome::Refused(..) | Outcome::BrokenOff(_) if record.error.is_none() => {
            found.add(5, format!("{id}: failed, and its record does not say why"));
        }
        _ => {}
    }
    if record.status == "running" {
        found.add(5, format!("{id}: ended, and its record says that it runs"));
    }
    for fallback in record.fallbacks.iter().filter(|f| f.reason.is_empty()) {
        found.add(
            5,
            format!(
                "{id}: {} instead of {}, nobody knows why",
                fallback.to, fallback.from
            ),
        );
    }
}

/// Promise 3 by the record: nothing that served, or was fetched from, is denied.
fn residency(history: &History, ask: &Ask, found: &mut Found) {
    let Some(record) = &ask.record else { return };
    let denied: Vec<&String> = record
        .placements
        .iter()
        .filter(|(_, placement)| *placement == Placement::Denied)
        .map(|(site, _)| site)
        .collect();
    let route = record
        .route
        .iter()
        .flat_map(|r| [&r.prefill_site, &r.decode_site]);
    let fetched = record.fetches.iter().filter(|f| f.bytes > 0 || f.tokens > 0);
    for site in route.chain(fetched.flat_map(|f| [&f.site, &f.to_site])) {
        let bound = history.tenants.get(&ask.tenant).map_or("", String::as_str);
        let lies = history.sites.get(site).map(String::as_str);
        if denied.contains(&site) || (!bound.is_empty() && lies != Some(bound)) {
            found.add(
                3,
                format!("{}: data of {} was at {site}", ask.request, ask.tenant),
            );
        }
    }
}

/// Promise 3 by what was seen: nothing of a request is where it may not be.
fn reached(history: &History, found: &mut Found) {
    for seen in &history.reached {
        let bound = history.tenants.get(&seen.tenant).map_or("", String::as_str);
        let lies = history.sites.get(&seen.site).map_or("", String::as_str);
        let bounds = [bound, seen.jurisdiction.as_str()];
        if bounds.into_iter().any(|bound| !bound.is_empty() && bound != lies) {
            found.add(3, format!("{} of {} at {}", seen.how, seen.tenant, seen.site));
        }
    }
}

/// Promise 2 for invalidations: nothing begins on what an order is about, once whoever gave it and waited was answered.
fn begins(history: &History, found: &mut Found) {
    let over: Vec<(Stamp, &str)> = history
        .orders
        .iter()
        .filter(|order| order.waited && order.acknowledged)
        .map(|order| (order.answered, order.reason.as_str()))
        .collect();
    for begin in &history.begins {
        for (answered, reason) in over.iter().filter(|(answered, _)| *answered < begin.at) {
            for (id, birth) in begin
                .births
                .iter()
                .filter_map(|id| Some((id, born(history, *id)?)))
            {
                if is_about(history, reason, birth) {
                    found.add(
                        2,
                        format!(
                            "{:?} of {} at {} began at {:?} on {id:?} of {}, after {reason} was over at {answered:?}",
                            begin.what, begin.request, begin.site, begin.at, birth.request
                        ),
                    );
                }
            }
        }
    }
}

/// The same by path records, where nobody sees what engines begin on: KV is reused after an order is over only if
/// somebody could have computed it again since the order was given.
fn reuse(history: &History, ask: &Ask, found: &mut Found) {
    // One that began anew may have found what it had computed itself.
    let reused = |r: &&portolan_decide::PathRecord| r.kv.cached_tokens > 0 && r.fallbacks.is_empty();
    let Some(record) = ask.record.as_ref().filter(reused) else {
        return;
    };
    let about = history.orders.iter().filter(|order| {
        let theirs = order.tenant.as_ref().is_none_or(|tenant| *tenant == ask.tenant);
        order.waited
            && order.acknowledged
            && order.answered < ask.sent
            && theirs
            && order.families.contains(&ask.family)
    });
    for order in about {
        let again = history.asks.iter().any(|other| {
            other.request != ask.request
                && other.family == ask.family
                && other.tenant == ask.tenant
                && other.ended > order.sent
                && other.sent < ask.ended
        });
        if !again {
            found.add(
                2,
                format!(
                    "{}: {} tokens of family {} were reused after {} was over, and nobody computed them since",
                    ask.request, record.kv.cached_tokens, ask.family, order.reason
                ),
            );
        }
    }
}

/// Promise 4: what was acknowledged is in the stream and has been applied by every site that has caught up.
fn acknowledged(history: &History, found: &mut Found) {
    for order in history.orders.iter().filter(|order| order.acknowledged) {
        if history
            .stream
            .as_ref()
            .is_some_and(|stream| !stream.contains_key(&order.reason))
        {
            found.add(
                4,
                format!(
                    "{} was acknowledged and is not in the control stream",
                    order.reason
                ),
            );
        }
        // One that has not caught up uses nothing, and is told below.
        for end in history.ends.iter().filter(|end| end.behind.is_none()) {
            let mut usable = end.usable.iter().filter_map(|id| born(history, *id));
            if let Some(birth) = usable.find(|birth| is_about(history, &order.reason, birth)) {
                found.add(
                    4,
                    format!(
                        "{} was acknowledged, and {} would still use KV of {} from {:?}: {:?}; the order: {:?}",
                        order.reason,
                        end.site,
                        birth.request,
                        birth.at,
                        birth.about,
                        history.stream.as_ref().and_then(|stream| stream.get(&order.reason))
                    ),
                );
            }
        }
    }
    for end in &history.ends {
        if let Some(why) = &end.behind {
            found.add(4, format!("{} never caught up: {why}", end.site));
        }
    }
}

/// Promise 4: audit logs have no gaps, and hold a line for everything that was acknowledged.
fn audits(history: &History, found: &mut Found) {
    for (site, lines) in &history.audits {
        let in_order = lines
            .windows(2)
            .all(|pair| pair[1].sequence == pair[0].sequence + 1);
        if !in_order {
            found.add(4, format!("the audit log of {site} has gaps"));
        }
    }
    let mut said: BTreeMap<&str, usize> = BTreeMap::new();
    for line in history.audits.values().flatten() {
        *said.entry(line.reason.as_str()).or_default() += 1;
    }
    let kept = |order: &&Ordered| order.acknowledged && !history.rolled_back.contains(&order.site);
    for order in history.orders.iter().filter(kept) {
        if !said.contains_key(order.reason.as_str()) {
            found.add(
                4,
                format!("{} was acknowledged and is in no audit log", order.reason),
            );
        }
    }
}

/// Promise 4: every site has the version bound that was acknowledged last, or one whose binding nobody knows the end of.
fn bindings(history: &History, found: &mut Found) {
    let Some(last) = history.bound.iter().rposition(|bound| bound.acknowledged) else {
        return;
    };
    let may_be: Vec<&str> = history.bound[last..]
        .iter()
        .map(|bound| bound.version.as_str())
        .collect();
    let mut in_force = history.in_force.iter();
    for (site, version) in in_force.clone() {
        if version
            .as_deref()
            .is_none_or(|version| !may_be.contains(&version))
        {
            found.add(4, format!("{site} has {version:?} bound, not one of {may_be:?}"));
        }
    }
    if let Some((first, version)) = in_force.next()
        && let Some((other, differs)) = in_force.find(|(_, other)| *other != version)
    {
        found.add(
            4,
            format!("{first} has {version:?} bound, and {other} {differs:?}"),
        );
    }
}

fn born(history: &History, id: BirthId) -> Option<&Birth> {
    history.births.get(usize::try_from(id.0).ok()?)
}

/// Whether an order is about KV that had been computed when it was given.
fn is_about(history: &History, reason: &str, birth: &Birth) -> bool {
    let Some(order) = history.stream.as_ref().and_then(|stream| stream.get(reason)) else {
        return false;
    };
    let older = birth.at < order.before;
    match &order.what {
        Invalidated::Model { model } => older && birth.about.model == *model,
        Invalidated::Dependency { by, of } => {
            let mut on = birth.about.dependencies.iter();
            older
                && of.as_ref().is_none_or(|of| *of == birth.about.scope)
                && on.any(|d| d.kind == by.kind && d.name == by.name && d.version != by.version)
        }
        Invalidated::Prefix { block, of } => {
            older && of.as_ref().is_none_or(|of| *of == birth.about.scope) && birth.chain.contains(block)
        }
        Invalidated::Tenant { scope } => older && *scope == birth.about.scope,
    }
}

#[cfg(test)]
mod tests;
