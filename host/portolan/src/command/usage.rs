//! `portolan tenant usage`: what tenants used of what they may.

use super::TenantCommand;
use super::output::{Failure, text};
use super::policy::{client, finish, refused};
use crate::client::segment;
use serde_json::Value;

pub(super) fn tenant(command: TenantCommand, as_json: bool) -> Result<(), Failure> {
    let TenantCommand::Usage { tenant, server } = command;
    let path = tenant.map_or_else(
        || "/v1/portolan/usage".to_owned(),
        |tenant| format!("/v1/portolan/tenants/{}/usage", segment(&tenant)),
    );
    let used = client(&server).get(&path);
    finish(used.map_err(|e| refused(&e)), as_json, &said_of_usages)
}

/// One tenant's usage, or each of a list under the tenant's name.
fn said_of_usages(body: &Value) -> Vec<String> {
    let Some(listed) = body["data"].as_array() else {
        return said_of_usage(body);
    };
    let mut out = Vec::new();
    for usage in listed {
        out.push(text(usage, "tenant"));
        out.extend(said_of_usage(usage).into_iter().map(|line| format!("  {line}")));
    }
    out
}

fn said_of_usage(body: &Value) -> Vec<String> {
    let mut out = Vec::new();
    for (key, word) in [
        ("uploads_last_hour", "uploads, last hour"),
        ("stored_versions", "versions kept"),
        ("stored_bytes", "bytes kept"),
        ("state_keys", "state keys"),
        ("state_bytes", "state bytes"),
    ] {
        let limit = body[key]["limit"].as_u64();
        let limit = limit.map_or("no limit".to_owned(), |limit| format!("of {limit}"));
        out.push(format!("{word:<20} {:>12} {limit}", body[key]["used"]));
    }
    if body.get("log_lines").is_some() {
        let lines = &body["log_lines"];
        out.push(format!(
            "{:<20} {:>12} written, {} dropped",
            "log lines", lines["written"], lines["dropped"]
        ));
    }
    for policy in body["policies"].as_array().into_iter().flatten() {
        out.push(format!(
            "policy {:<10} {:<20} {} calls, {} faults, {} as a shadow, {} fuel, {} µs",
            text(policy, "question"),
            text(policy, "name"),
            policy["calls"],
            policy["faults"],
            policy["shadow_calls"],
            policy["fuel"],
            policy["micros"]
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn usages_of_a_list_stand_under_their_tenants() {
        let said = said_of_usages(&json!({"data": [{"tenant": "acme"}, {"tenant": "globex"}]}));
        assert_eq!(said.len(), 12, "{said:?}");
        assert_eq!((&*said[0], &*said[6]), ("acme", "globex"));
        assert!(said[1].starts_with("  uploads"), "{said:?}");
    }

    #[test]
    fn usage_names_every_quantity_with_its_limit() {
        let share = json!({"used": 3, "limit": 5});
        let said = said_of_usage(&json!({
            "uploads_last_hour": share, "stored_versions": share, "stored_bytes": {"used": 3}, "state_keys": share,
            "state_bytes": share, "log_lines": {"written": 7, "dropped": 2}, "policies": [{"question": "cost", "name": "mine", "calls": 1, "faults": 0,
            "shadow_calls": 0, "fuel": 9, "micros": 2}],
        }));
        assert_eq!(said.len(), 7);
        assert!(said[5].ends_with(" 7 written, 2 dropped"), "{said:?}");
        assert!(
            said[0].ends_with(" 3 of 5") && said[2].ends_with(" 3 no limit"),
            "{said:?}"
        );
    }
}
