//! `portolan kv stats|ls|show|evict`: what a site keeps for reuse, and orders to forget it.

use crate::client::Client;
use crate::command::ServerArgs;
use crate::command::output::{Failure, json, line, text};
use clap::{Args, ValueEnum};
use serde_json::{Value, json as object};

/// Which blocks to list.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only of this tenant; `_public` for public prefixes.
    #[arg(long)]
    tenant: Option<String>,
    /// Only in the pool of this instance.
    #[arg(long)]
    instance: Option<String>,
    /// Only in this tier.
    #[arg(long)]
    tier: Option<Place>,
    /// What comes first.
    #[arg(long, default_value = "use")]
    sort: Sort,
    /// How many, at most 1000.
    #[arg(long, default_value_t = 20)]
    limit: usize,
    /// The running host.
    #[command(flatten)]
    server: ServerArgs,
}

/// A tier.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Place {
    /// An instance's own pool.
    Engine,
    /// Host memory.
    Host,
    /// Files.
    Disk,
}

/// An order of blocks.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sort {
    /// Used last.
    Use,
    /// Largest.
    Size,
}

/// What to forget.
#[derive(Debug, Args)]
pub struct EvictArgs {
    #[command(flatten)]
    what: What,
    /// The running host.
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct What {
    /// All blocks of this tenant; `_public` for public prefixes.
    #[arg(long)]
    tenant: Option<String>,
    /// This block, and what was computed on top of it.
    #[arg(long)]
    block: Option<String>,
    /// Everything.
    #[arg(long)]
    all: bool,
}

/// What each pool and tier holds.
pub(super) fn stats(server: &ServerArgs, as_json: bool) -> Result<(), Failure> {
    let body = get(server, "/v1/portolan/kv/stats", as_json)?;
    if as_json {
        return json(&body);
    }
    line("TIER    INSTANCE          BLOCKS        MIB  BUDGET MIB       HITS     MISSES    EVICTED");
    for place in data(&body) {
        row(
            place,
            &text(place, "tier"),
            &text(place, "instance"),
            "budget_bytes",
        );
        for tenant in place
            .get("tenants")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            row(
                tenant,
                "",
                &format!("  {}", text(tenant, "tenant")),
                "share_bytes",
            );
        }
        let (damaged, refused) = (number(place, "damaged"), number(place, "refused"));
        if damaged + refused > 0 {
            line(format!(
                "          {damaged} found damaged and dropped, {refused} refused by a full queue"
            ));
        }
    }
    if let Some(replicas) = body.get("replicas") {
        said_of_replicas(replicas).iter().for_each(line);
    }
    Ok(())
}

/// What a site ordered by itself, and the latest of it.
fn said_of_replicas(replicas: &Value) -> Vec<String> {
    let mib = |of: &Value| number(of, "bytes") as f64 / f64::from(1 << 20);
    let count = |key| number(replicas, key);
    let mut said = vec![format!(
        "replicas  {} made of {} ordered, {:.1} MiB; {} of use, {} failed, {} forbidden by residency, {} times held back, \
         {} under way",
        count("made"),
        count("ordered"),
        mib(replicas),
        count("useful"),
        count("failed"),
        count("forbidden"),
        count("held_back"),
        count("under_way"),
    )];
    let recent = replicas.get("recent").and_then(Value::as_array);
    said.extend(recent.into_iter().flatten().map(|of| {
        let failed = of.get("failed").and_then(Value::as_str);
        format!(
            "          {} of {}: {}/{} → {}, {} of {} tokens, {:.1} MiB in {} ms{}",
            text(of, "request_id"),
            text(of, "tenant"),
            text(of, "from_site"),
            text(of, "from_instance"),
            text(of, "instance"),
            number(of, "tokens"),
            number(of, "wanted_tokens"),
            mib(of),
            number(of, "took_ms"),
            failed.map_or_else(String::new, |why| format!("; {why}")),
        )
    }));
    said
}

fn row(of: &Value, tier: &str, name: &str, budget: &str) {
    let mib = |key| number(of, key) as f64 / f64::from(1 << 20);
    line(format!(
        "{tier:<7} {name:<16} {:>7} {:>10.1} {:>11.1} {:>10} {:>10} {:>10}",
        number(of, "blocks"),
        mib("bytes"),
        mib(budget),
        number(of, "hits"),
        number(of, "misses"),
        number(of, "evicted"),
    ));
}

/// Lists blocks.
pub(super) fn list(args: &ListArgs, as_json: bool) -> Result<(), Failure> {
    let word = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
    let mut path = format!(
        "/v1/portolan/kv/blocks?sort={}&limit={}",
        word(&args.sort),
        args.limit
    );
    let tier = args.tier.map(|tier| word(&tier));
    for (key, value) in [
        ("tenant", &args.tenant),
        ("instance", &args.instance),
        ("tier", &tier),
    ] {
        if let Some(value) = value {
            plain(key, value)?;
            path.push_str(&format!("&{key}={value}"));
        }
    }
    let body = get(&args.server, &path, as_json)?;
    if as_json {
        return json(&body);
    }
    line("BLOCK                             TIER    INSTANCE   TENANT            KIB  IDLE S  REUSES");
    for block in data(&body) {
        line(format!(
            "{:<33} {:<7} {:<10} {:<14} {:>6} {:>7} {:>7}",
            text(block, "id"),
            text(block, "tier"),
            text(block, "instance"),
            text(block, "tenant"),
            number(block, "bytes") >> 10,
            number(block, "idle_s"),
            number(block, "reuses"),
        ));
    }
    Ok(())
}

/// Shows every copy of a block.
pub(super) fn show(server: &ServerArgs, id: &str, as_json: bool) -> Result<(), Failure> {
    plain("the block", id)?;
    let body = get(server, &format!("/v1/portolan/kv/blocks/{id}"), as_json)?;
    if as_json {
        return json(&body);
    }
    for block in data(&body) {
        line(format!(
            "{} in {} {}",
            text(block, "id"),
            text(block, "tier"),
            text(block, "instance")
        ));
        for (key, value) in block.as_object().into_iter().flatten() {
            if !matches!(key.as_str(), "id" | "tier" | "instance") && !value.is_null() {
                line(format!(
                    "    {key}: {}",
                    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
                ));
            }
        }
    }
    Ok(())
}

/// Forgets blocks.
pub(super) fn evict(args: &EvictArgs, as_json: bool) -> Result<(), Failure> {
    let what = &args.what;
    let order = match (&what.tenant, &what.block) {
        (Some(tenant), _) => object!({ "tenant": tenant }),
        (_, Some(block)) => object!({ "block": block }),
        _ => object!({ "all": what.all }),
    };
    let client = Client::new(&args.server.server, &args.server.key);
    let reply = client.post("/v1/portolan/kv/evict", &order);
    let body = reply.map_err(|e| Failure::new(e).as_json(as_json))?.body;
    if as_json {
        return json(&body);
    }
    line(format!(
        "{} blocks were forgotten and cannot be found any more",
        number(&body, "evicted")
    ));
    Ok(())
}

pub(super) fn get(server: &ServerArgs, path: &str, as_json: bool) -> Result<Value, Failure> {
    let reply = Client::new(&server.server, &server.key).get(path);
    Ok(reply.map_err(|e| Failure::new(e).as_json(as_json))?.body)
}

/// Names and ids need no escaping; what does is none.
fn plain(what: &str, value: &str) -> Result<(), Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if value.chars().all(is_plain) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{what} {value:?} is no name; use a-z, 0-9, '-', '_' and '.'"
    )))
}

pub(super) fn data(body: &Value) -> &[Value] {
    body.get("data")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice)
}

pub(super) fn number(of: &Value, key: &str) -> u64 {
    of.get(key).and_then(Value::as_u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_said_in_two_kinds_of_lines() {
        let said = said_of_replicas(&object!({
            "made": 1, "ordered": 2, "bytes": 3 << 20, "useful": 1, "failed": 1, "forbidden": 4, "held_back": 5,
            "under_way": 0,
            "recent": [{
                "request_id": "r9", "tenant": "acme", "from_site": "virginia", "from_instance": "v1", "instance": "p1",
                "tokens": 0, "wanted_tokens": 960, "bytes": 0, "took_ms": 7, "failed": "it was late",
            }],
        }));
        assert_eq!(
            said,
            [
                "replicas  1 made of 2 ordered, 3.0 MiB; 1 of use, 1 failed, 4 forbidden by residency, 5 times held \
                 back, 0 under way",
                "          r9 of acme: virginia/v1 → p1, 0 of 960 tokens, 0.0 MiB in 7 ms; it was late",
            ]
        );
    }
}
