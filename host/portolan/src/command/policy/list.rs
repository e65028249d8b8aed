//! `portolan policy list`: what each question of a tenant has, and what of it is in force.

use super::super::output::tame;
use super::super::request::short;
use super::super::times::when;
use super::history::{self, configuration};
use super::said_of_finding;
use portolan_ports::{EnforcedRecord, Finding};
use serde_json::Value;

pub(super) fn said(body: &Value) -> Vec<String> {
    let mut out = Vec::new();
    for slot in body["policies"].as_array().into_iter().flatten() {
        let active = slot["binding"]["sha256"].as_str();
        let trial = &slot["rollout"]["trial"];
        let on_trial = trial["sha256"].as_str();
        out.push(slot["question"].as_str().unwrap_or("?").to_owned());
        out.extend(said_of_holds(&slot["rollout"]));
        out.extend(history::enforced(&slot["rollout"]).last().map(said_of_enforced));
        out.extend(said_of_config(&slot["binding"]));
        for version in slot["versions"].as_array().into_iter().flatten() {
            let sha = version["sha256"].as_str().unwrap_or("?");
            let state = match () {
                () if Some(sha) == active => "active",
                () if Some(sha) == on_trial => trial["stage"].as_str().unwrap_or("on trial"),
                () => "",
            };
            let text = |key: &str| tame(version[key].as_str().unwrap_or("?"));
            let said = format!(
                "  {} {state:<7} {:<20} {} {:>9} bytes  by {}",
                short(sha),
                text("name"),
                when(&version["at"]),
                version["bytes"],
                text("actor")
            );
            let reason = text("reason");
            let said = said + &signed_by(version);
            out.push(if reason.is_empty() {
                said
            } else {
                format!("{said}: {reason}")
            });
        }
        let findings = slot["signature_findings"].clone();
        let findings: Vec<Finding> = serde_json::from_value(findings).unwrap_or_default();
        out.extend(findings.iter().flat_map(said_of_finding));
    }
    if out.is_empty() {
        out.push("nothing is stored; the built-in policies answer".to_owned());
    }
    out
}

/// What the active version was configured with.
fn said_of_config(binding: &Value) -> Option<String> {
    let config = binding["config"].as_str()?;
    Some(format!("  active with {}", configuration(config)))
}

/// What the host took out of force by itself, and why.
fn said_of_enforced(enforced: &EnforcedRecord) -> String {
    let when = when(&Value::from(enforced.at.0));
    format!("  by the host {when}: {}", history::said_of_enforced(enforced))
}

/// What holds a question beside its versions: nothing of them answers, or may be changed.
fn said_of_holds(rollout: &Value) -> Vec<String> {
    let hold = |word: &str, means: &str| {
        let held = rollout.get(word).filter(|held| !held.is_null())?;
        let text = |key: &str| tame(held[key].as_str().unwrap_or_default());
        let reason = match text("reason") {
            reason if reason.is_empty() => reason,
            reason => format!(": {reason}"),
        };
        let when = when(&held["at"]);
        Some(format!("  {word} ({means}), by {} {when}{reason}", text("actor")))
    };
    [
        hold("disabled", "the fallback answers"),
        hold("pinned", "the binding may not be changed"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The keys that signed a version.
fn signed_by(version: &Value) -> String {
    let signatures = version["signatures"].as_array().into_iter().flatten();
    let keys: Vec<&str> = signatures.filter_map(|s| s["key_id"].as_str()).collect();
    match keys.is_empty() {
        true => String::new(),
        false => format!(", signed by {}", keys.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_what_is_disabled_and_what_is_pinned() {
        let hold = |reason: &str| serde_json::json!({"actor": "operator", "reason": reason, "at": 0});
        let slot = |rollout: Value| {
            let slot = serde_json::json!({"question": "cost", "versions": [], "rollout": rollout});
            said(&serde_json::json!({ "policies": [slot] })).join("\n")
        };
        let both = slot(serde_json::json!({"disabled": hold("it traps"), "pinned": hold("")}));
        assert!(
            both.contains("disabled (the fallback answers), by operator"),
            "{both}"
        );
        assert!(both.contains(": it traps"), "{both}");
        assert!(
            both.contains("pinned (the binding may not be changed), by operator"),
            "{both}"
        );
        assert_eq!(slot(serde_json::json!({})), "cost");
    }

    #[test]
    fn a_list_says_what_the_host_withdrew_and_which_configuration_is_in_force() {
        let withdrawn = serde_json::json!({
            "done": "withdrawn", "name": "new", "sha256": "22".repeat(32), "percent": 5, "at": 0,
            "spent": {"on": "faults", "faults": 6, "calls": 6, "allowed": 5},
        });
        let binding = serde_json::json!({"sha256": "11".repeat(32), "config": "{\"a\": 1}"});
        let slot = serde_json::json!({
            "question": "cost", "versions": [], "binding": binding, "rollout": {"enforced": [withdrawn]},
        });
        let said = said(&serde_json::json!({ "policies": [slot] }));
        assert_eq!(
            said[1],
            "  by the host 1970-01-01 00:00:00: withdrew new 222222222222, canary 5 %: 6 faults in 6 calls, 5 \
             allowed; the platform's policy or the built-in one answers instead"
        );
        assert!(said[2].starts_with("  active with configuration "), "{said:?}");
        assert!(said[2].ends_with(": {\"a\": 1}"), "{said:?}");
    }
}
