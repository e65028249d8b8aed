//! `portolan config`: looks at a configuration file, and changes that of a running host.

use super::ServerArgs;
use super::output::{Failure, json, line, tame};
use crate::client::Client;
use crate::config::{Config, fill, mask, schema};
use clap::{Args, Subcommand};
use serde_json::{Value, json as object};
use std::path::{Path, PathBuf};

/// `config` commands.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say whether a file is right; files and servers that it names are looked at when a host starts.
    Check {
        /// The configuration file (YAML).
        file: PathBuf,
    },
    /// Print a file with everything it leaves out, secrets hidden.
    Print {
        /// The configuration file (YAML).
        file: PathBuf,
    },
    /// Print the JSON schema of the file, for editors.
    Schema {
        /// Make the tables of a page of the manual anew instead.
        #[arg(long, hide = true, value_name = "FILE")]
        fill: Option<PathBuf>,
    },
    /// Have a host read its file again. All of it counts, or nothing.
    Reload(ChangeArgs),
    /// List the versions that were in force, newest first.
    History {
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Put an earlier version back into the file and into force.
    Rollback {
        /// Its number; the one before the one in force when left out.
        version: Option<u64>,
        /// Overwrite edits of the file that were not reloaded; they are kept beside it.
        #[arg(long)]
        force: bool,
        /// Why, and where.
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Show which configuration each site of the fleet runs.
    Sites {
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show the change that waits for a second operator.
    Pending {
        /// The running host.
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Stand behind the change that waits.
    Approve(ChangeArgs),
    /// Turn the change that waits down.
    Reject(ChangeArgs),
}

/// Why, and where.
#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// For the audit log.
    #[arg(long, default_value = "")]
    reason: String,
    /// The running host.
    #[command(flatten)]
    server: ServerArgs,
}

/// Does what was typed.
pub(super) fn run(command: ConfigCommand, as_json: bool) -> Result<(), Failure> {
    let done = match command {
        ConfigCommand::Check { file } => check(&file, as_json),
        ConfigCommand::Print { file } => print(&file, as_json),
        ConfigCommand::Schema { fill: None } => pretty(&schema()),
        ConfigCommand::Schema { fill: Some(page) } => fill_page(&page),
        ConfigCommand::Reload(change) => ask("reload", &change, &Value::Null, as_json),
        ConfigCommand::History { server } => history(&server, as_json),
        ConfigCommand::Rollback {
            version,
            force,
            change,
        } => {
            let more = object!({ "version": version, "force": force });
            ask("rollback", &change, &more, as_json)
        }
        ConfigCommand::Sites { server } => sites(&server, as_json),
        ConfigCommand::Pending { server } => pending(&server, as_json),
        ConfigCommand::Approve(change) => ask("approve", &change, &Value::Null, as_json),
        ConfigCommand::Reject(change) => ask("reject", &change, &Value::Null, as_json),
    };
    done.map_err(|failure| failure.as_json(as_json))
}

fn check(file: &Path, as_json: bool) -> Result<(), Failure> {
    let config = Config::read(file).map_err(Failure::new)?;
    let instances: usize = config.sites.iter().map(|site| site.instances.len()).sum();
    let (sites, models, tenants) = (config.sites.len(), config.models.len(), config.tenants.len());
    if as_json {
        return json(&object!({
            "ok": true, "sites": sites, "instances": instances, "models": models, "tenants": tenants,
        }));
    }
    line(format!(
        "{}: good: sites {sites}, instances {instances}, models {models}, tenants {tenants}",
        file.display()
    ));
    Ok(())
}

fn print(file: &Path, as_json: bool) -> Result<(), Failure> {
    let config = Config::read(file).map_err(Failure::new)?;
    let mut value = config.to_value();
    mask(&mut value);
    if as_json {
        return json(&value);
    }
    let text = serde_saphyr::to_string(&value).map_err(Failure::new)?;
    line(text.trim_end());
    Ok(())
}

fn pretty(value: &Value) -> Result<(), Failure> {
    line(serde_json::to_string_pretty(value).map_err(Failure::new)?);
    Ok(())
}

fn fill_page(page: &Path) -> Result<(), Failure> {
    let fail = |e: std::io::Error| Failure::new(format!("{}: {e}", page.display()));
    let text = std::fs::read_to_string(page).map_err(fail)?;
    let wrong = |titles: Vec<String>| {
        Failure::new(format!(
            "these tables are on the page or in the code, and not in both: {}",
            titles.join(", ")
        ))
    };
    std::fs::write(page, fill(&text).map_err(wrong)?).map_err(fail)
}

fn ask(verb: &str, change: &ChangeArgs, more: &Value, as_json: bool) -> Result<(), Failure> {
    let client = Client::new(&change.server.server, &change.server.key);
    let mut order = object!({ "reason": change.reason });
    if let (Some(order), Some(more)) = (order.as_object_mut(), more.as_object()) {
        order.extend(more.clone().into_iter().filter(|(_, value)| !value.is_null()));
    }
    let path = format!("/v1/portolan/config/{verb}");
    let body = client.post(&path, &order).map_err(Failure::new)?.body;
    if as_json {
        return json(&body);
    }
    let outcome = body.get("outcome").and_then(Value::as_str).unwrap_or("done");
    let version = body.get("version").and_then(Value::as_u64);
    let changes = body.get("changes").and_then(Value::as_array);
    let said = match (outcome, version) {
        ("applied", Some(version)) => format!("version {version} is in force"),
        ("unchanged", _) => "nothing is different".to_owned(),
        ("proposed", _) => "the change waits for another operator: portolan config approve".to_owned(),
        (outcome, _) => outcome.to_owned(),
    };
    line(said);
    changes
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .for_each(|change| line(format!("  {change}")));
    Ok(())
}

fn history(server: &ServerArgs, as_json: bool) -> Result<(), Failure> {
    let client = Client::new(&server.server, &server.key);
    let body = client
        .get("/v1/portolan/config/history")
        .map_err(Failure::new)?
        .body;
    if as_json {
        return json(&body);
    }
    for version in body.get("data").and_then(Value::as_array).into_iter().flatten() {
        let text = |key| tame(version.get(key).and_then(Value::as_str).unwrap_or_default());
        let number = |key| version.get(key).and_then(Value::as_u64).unwrap_or(0);
        line(format!(
            "{:>5}  {}  {}  {}",
            number("version"),
            super::times::when(version.get("at").unwrap_or(&Value::Null)),
            text("actor"),
            text("reason")
        ));
        let changes = version.get("changes").and_then(Value::as_array);
        for change in changes.into_iter().flatten().filter_map(Value::as_str) {
            line(format!("       {}", tame(change)));
        }
    }
    Ok(())
}

fn sites(server: &ServerArgs, as_json: bool) -> Result<(), Failure> {
    let client = Client::new(&server.server, &server.key);
    let body = client
        .get("/v1/portolan/config/sites")
        .map_err(Failure::new)?
        .body;
    if as_json {
        return json(&body);
    }
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_u64).unwrap_or(0);
    let told = |value: &Value| value.get("fleet").map_or(0, |fleet| number(fleet, "number"));
    let newest = told(&body);
    match newest {
        0 => line("nothing was told to the fleet"),
        newest => line(format!("the fleet's newest is {newest}")),
    }
    for site in body.get("sites").and_then(Value::as_array).into_iter().flatten() {
        let name = site.get("site").and_then(Value::as_str).unwrap_or_default();
        let Some(runs) = site.get("runs").filter(|runs| !runs.is_null()) else {
            line(format!("{name:<16}  has said nothing yet"));
            continue;
        };
        let (has, own) = (told(runs), number(runs, "version"));
        let differs = runs.get("differs").and_then(Value::as_bool) == Some(true);
        let refused = runs.get("refused").and_then(|refused| refused.get(1)?.as_str());
        let how = match (refused, differs) {
            (Some(why), _) => format!("; a newer one was not taken over: {why}"),
            (None, true) => "; its file says something else".to_owned(),
            (None, false) if has < newest => "; behind".to_owned(),
            (None, false) => String::new(),
        };
        line(format!("{name:<16}  {has:>5}, its own version {own}{how}"));
    }
    Ok(())
}

fn pending(server: &ServerArgs, as_json: bool) -> Result<(), Failure> {
    let client = Client::new(&server.server, &server.key);
    let body = client
        .get("/v1/portolan/config/pending")
        .map_err(Failure::new)?
        .body;
    if as_json {
        return json(&body);
    }
    let Some(pending) = body.get("pending").filter(|pending| !pending.is_null()) else {
        line("nothing waits");
        return Ok(());
    };
    let list = |key| {
        pending
            .get(key)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
    };
    line(format!(
        "behind it: {}",
        list("actors").collect::<Vec<_>>().join(", ")
    ));
    list("changes").for_each(|change| line(format!("  {}", tame(change))));
    Ok(())
}
