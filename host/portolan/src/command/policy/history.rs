//! `portolan policy history`: what answered a question when, and what the host took out of force by itself.

use super::super::output::tame;
use super::super::request::short;
use super::super::times::when;
use portolan_ports::{BindingChange, BindingRecord, Enforced, EnforcedRecord, HoldRecord, config_digest};
use serde_json::Value;

/// Longest configuration that is shown, in characters: a line of a terminal.
const CONFIG_SHOWN: usize = 60;

/// The bindings of a slot and what the host withdrew, oldest first.
pub(super) fn said(body: &Value) -> Vec<String> {
    let bindings: Vec<BindingRecord> = serde_json::from_value(body["history"].clone()).unwrap_or_default();
    let mut lines: Vec<_> = bindings.iter().map(|b| (b.at, said_of_binding(b))).collect();
    let unbound = bindings.iter().filter_map(|binding| binding.ended.as_ref());
    lines.extend(unbound.map(|ended| (ended.at, said_of_end(ended))));
    for enforced in enforced(&body["rollout"]) {
        let text = format!("by the host: {}", said_of_enforced(&enforced));
        lines.push((enforced.at, text));
    }
    if lines.is_empty() {
        return vec!["nothing was ever bound; the platform's policy or the built-in one answers".to_owned()];
    }
    lines.sort_by_key(|(at, _)| *at);
    let told = lines.into_iter();
    told.map(|(at, text)| format!("{}  {text}", when(&Value::from(at.0))))
        .collect()
}

/// What the host took out of force, oldest first.
pub(super) fn enforced(rollout: &Value) -> Vec<EnforcedRecord> {
    serde_json::from_value(rollout["enforced"].clone()).unwrap_or_default()
}

/// What was taken out of force, why, and who answers instead.
pub(super) fn said_of_enforced(enforced: &EnforcedRecord) -> String {
    let done = match enforced.done {
        Enforced::Withdrawn => "withdrew",
        Enforced::RolledBack => "rolled back from",
    };
    let (percent, generation) = (enforced.percent.map(u8::from), enforced.generation);
    let place = match (percent, generation) {
        (Some(percent), _) => format!(", canary {percent} %"),
        (None, Some(generation)) => format!(", generation {generation}"),
        (None, None) => String::new(),
    };
    let last_fault = enforced.last_fault.as_deref();
    let last_fault = last_fault.map_or_else(String::new, |fault| format!(" (the last: {})", tame(fault)));
    let instead = enforced.instead.as_ref().map_or_else(
        || "the platform's policy or the built-in one".to_owned(),
        |instead| format!("{} {}", tame(&instead.name), short(&instead.sha256)),
    );
    format!(
        "{done} {} {}{place}: {}{last_fault}; {instead} answers instead",
        tame(&enforced.name),
        short(&enforced.sha256),
        enforced.spent
    )
}

fn said_of_binding(binding: &BindingRecord) -> String {
    let how = match binding.how {
        BindingChange::Activate => "activated",
        BindingChange::Promote => "promoted",
        BindingChange::RollBack => "brought back",
    };
    format!(
        "generation {}: {how} {} {}, {}, by {}",
        binding.generation,
        tame(&binding.name),
        short(&binding.sha256),
        configuration(&binding.config),
        said_of_who(&binding.actor, &binding.reason)
    )
}

fn said_of_end(ended: &HoldRecord) -> String {
    format!(
        "unbound, by {}; the platform's policy or the built-in one answers",
        said_of_who(&ended.actor, &ended.reason)
    )
}

/// Who, and why where that was said.
pub(in crate::command) fn said_of_who(actor: &str, reason: &str) -> String {
    match tame(reason) {
        reason if reason.is_empty() => tame(actor),
        reason => format!("{}: {reason}", tame(actor)),
    }
}

/// A configuration in a few words: its digest, as path records have it, and its beginning.
pub(in crate::command) fn configuration(config: &str) -> String {
    let Some(digest) = config_digest(config) else {
        return "no configuration".to_owned();
    };
    let mut shown: String = config.chars().take(CONFIG_SHOWN).collect();
    if shown.len() < config.len() {
        shown.push('…');
    }
    format!("configuration {digest}: {}", tame(&shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_history_tells_bindings_and_what_the_host_did_in_the_order_of_time() {
        let binding = |generation: u64, how: &str, at: u64| {
            json!({
                "scope": "platform", "question": "cost", "name": "mine", "sha256": "11".repeat(32), "config": "",
                "how": how, "generation": generation, "actor": "tenant acme", "reason": "", "at": at,
            })
        };
        let rolled_back = json!({
            "done": "rolled-back", "name": "new", "sha256": "22".repeat(32), "generation": 2,
            "spent": {"on": "time", "slow": 2, "calls": 90, "allowed": 1, "micros": 500}, "at": 3_000_000,
            "last_fault": "the policy trapped:\u{1b} x", "instead": {"name": "mine", "sha256": "11".repeat(32)},
        });
        let history = [
            binding(1, "activate", 1_000_000),
            binding(3, "roll-back", 3_000_000),
        ];
        let said = said(&json!({ "history": history, "rollout": { "enforced": [rolled_back] } }));
        assert_eq!(
            said[0],
            "1970-01-01 00:00:01  generation 1: activated mine 111111111111, no configuration, by tenant acme"
        );
        assert!(said[1].contains("generation 3: brought back mine"), "{said:?}");
        assert_eq!(
            said[2],
            "1970-01-01 00:00:03  by the host: rolled back from new 222222222222, generation 2: 2 of 90 calls took \
             more than 500 µs, 1 allowed (the last: the policy trapped:\\u{1b} x); mine 111111111111 answers instead"
        );
    }

    #[test]
    fn a_history_says_from_when_on_nothing_was_bound() {
        let ended = json!({"actor": "operator alice", "reason": "it traps", "at": 5_000_000});
        let binding = |generation: u64, at: u64| {
            json!({
                "scope": "platform", "question": "cost", "name": "mine", "sha256": "11".repeat(32), "config": "",
                "generation": generation, "actor": "tenant acme", "reason": "", "at": at,
            })
        };
        let mut first = binding(1, 1_000_000);
        first["ended"] = ended;
        let said = said(&json!({ "history": [first, binding(3, 9_000_000)] }));
        assert_eq!(
            said[1],
            "1970-01-01 00:00:05  unbound, by operator alice: it traps; the platform's policy or the built-in one answers"
        );
        assert!(said[2].contains("generation 3: activated mine"), "{said:?}");
    }

    #[test]
    fn a_long_configuration_is_cut_between_characters() {
        let long = configuration(&"é".repeat(100));
        assert!(long.ends_with("é…"), "{long}");
        assert_eq!(long.chars().filter(|c| *c == 'é').count(), CONFIG_SHOWN);
    }
}
