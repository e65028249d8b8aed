//! `portolan residency explain`: which sites were allowed to see the data of a request, and why.

use super::ServerArgs;
use super::output::{Failure, json, line};
use crate::client::{Client, segment};
use clap::Subcommand;
use serde_json::Value;

/// `residency` commands.
#[derive(Debug, Subcommand)]
pub enum ResidencyCommand {
    /// Say for each site what it was allowed, by whom and why. A tenant's key shows its own requests only.
    Explain {
        /// The request's id.
        id: String,
        /// The running host: the site that took the request.
        #[command(flatten)]
        server: ServerArgs,
    },
}

/// Does what was typed.
pub(super) fn run(command: &ResidencyCommand, as_json: bool) -> Result<(), Failure> {
    let ResidencyCommand::Explain { id, server } = command;
    let client = Client::new(&server.server, &server.key);
    let reply = client.get(&format!("/v1/portolan/requests/{}/residency", segment(id)));
    let body = reply.map_err(|error| Failure::new(error).as_json(as_json))?.body;
    if as_json {
        return json(&body);
    }
    explain(&body).into_iter().for_each(line);
    Ok(())
}

/// In lines for people.
fn explain(body: &Value) -> Vec<String> {
    let text = |of: &Value, key: &str| of[key].as_str().unwrap_or("–").to_owned();
    let bound = match body["jurisdiction"].as_str() {
        Some("") | None => "bound to no jurisdiction".to_owned(),
        Some(jurisdiction) => format!("bound to {jurisdiction}"),
    };
    let mut lines = vec![format!(
        "{}  tenant {}  {bound}",
        text(body, "request_id"),
        text(body, "tenant")
    )];
    let sites = body["sites"].as_array().map_or(&[][..], Vec::as_slice);
    if sites.is_empty() {
        lines.push("the request ended before residency was asked".to_owned());
    }
    for site in sites {
        lines.push(format!(
            "{:<16} {:<10} platform {:<10} tenant {:<10} {}",
            text(site, "site"),
            text(site, "placement"),
            text(site, "platform"),
            text(site, "tenant"),
            text(site, "why")
        ));
    }
    lines
}
