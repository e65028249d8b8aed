//! `portolan request list`: the newest requests, page by page.

use super::super::ServerArgs;
use super::super::output::{Failure, text};
use super::super::policy::{client, finish, refused};
use crate::client::segment;
use clap::Args;
use serde_json::Value;

/// Options of `request list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// At most so many lines; a host gives no more than 1000 at once.
    #[arg(long, default_value_t = 20)]
    limit: usize,
    /// Only requests of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Only requests that are so: running, ok, refused, cancelled or failed.
    #[arg(long)]
    status: Option<String>,
    /// Only requests whose prompt was computed, or whose answer was generated, at this site.
    #[arg(long)]
    site: Option<String>,
    /// Only what follows a list before: the number in its last line.
    #[arg(long, value_name = "N")]
    before: Option<u64>,
    /// The running host.
    #[command(flatten)]
    server: ServerArgs,
}

pub(in crate::command) fn list(args: &ListArgs, as_json: bool) -> Result<(), Failure> {
    let mut path = format!("/v1/portolan/requests?limit={}", args.limit);
    for (key, value) in [
        ("tenant", &args.tenant),
        ("status", &args.status),
        ("site", &args.site),
    ] {
        if let Some(value) = value {
            path.push_str(&format!("&{key}={}", segment(value)));
        }
    }
    if let Some(before) = args.before {
        path.push_str(&format!("&before={before}"));
    }
    let listed = client(&args.server).get(&path);
    finish(listed.map_err(|e| refused(&e)), as_json, &said_of_requests)
}

fn said_of_requests(body: &Value) -> Vec<String> {
    let requests = body["data"].as_array().into_iter().flatten();
    let next = body["next"].as_u64();
    let next = next.map(|next| format!("there are older ones: --before {next}"));
    if requests.clone().next().is_none() && next.is_none() {
        return vec!["this site remembers no such request".to_owned()];
    }
    requests
        .map(|request| {
            let ttft = request["ttft_ms"].as_f64();
            format!(
                "{}  {:<9} {:<16} {:<24} {} + {} tokens, first after {}",
                text(request, "request_id"),
                text(request, "status"),
                text(request, "tenant"),
                text(request, "model"),
                request["prompt_tokens"],
                request["completion_tokens"],
                ttft.map_or("–".to_owned(), |ms| format!("{ms:.0} ms"))
            )
        })
        .chain(next)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_list_of_requests_says_how_to_go_on() {
        let request = json!({"request_id": "r", "status": "ok", "prompt_tokens": 1, "completion_tokens": 2});
        let last = said_of_requests(&json!({"data": [request]}));
        assert_eq!(last.len(), 1, "{last:?}");
        let more = said_of_requests(&json!({"data": [request], "next": 7}));
        assert_eq!(more[1], "there are older ones: --before 7");
    }

    #[test]
    fn a_list_without_a_request_says_so() {
        assert_eq!(
            said_of_requests(&json!({"data": []})),
            ["this site remembers no such request"]
        );
    }
}
