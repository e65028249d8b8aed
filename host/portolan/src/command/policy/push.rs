//! `portolan policy push` and `pull`: to a running host, to a registry, from a registry.

use super::super::output::{Failure, json, line};
use super::super::{ServerArgs, SlotArgs, signing};
use super::check::said_of_report;
use super::{client, config_text, finish, name_of, path, read, refused, said_of_upload};
use crate::host::component_loader;
use crate::registry::client::PlainHttp;
use crate::registry::{Address, Credentials, Pulled, Registry};
use crate::system::{OsRandom, SystemClock};
use clap::Args;
use portolan_plugin::ArtefactKey;
use portolan_policy::QuestionKind;
use portolan_ports::{PolicyLoader, Reuse, VersionSignature};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest configuration sent within the URL; a longer one goes at the beginning of the body. Servers and proxies take
/// URLs of some 8 kB.
const CONFIG_IN_URL_BYTES: usize = 2048;

/// Options of `policy push`.
#[derive(Debug, Args)]
pub struct PushArgs {
    /// The component: a file, or oci://HOST/REPOSITORY:TAG.
    file: PathBuf,
    /// The registry it goes to, oci://HOST/REPOSITORY:TAG; the running host when left out.
    #[arg(value_name = "OCI", conflicts_with_all = ["tenant", "question", "name", "inactive", "budget", "reuse"])]
    to: Option<String>,
    /// Whose; `_platform` for the platform's.
    #[arg(long, required_unless_present = "to")]
    tenant: Option<String>,
    /// residency, cost, routing or invalidation.
    #[arg(long, required_unless_present = "to")]
    question: Option<QuestionKind>,
    /// Its name; the file's name when left out.
    #[arg(long)]
    name: Option<String>,
    /// Text for its `configure`, JSON by convention, or @FILE; that of the version in force stays when left out, where it
    /// has the same name.
    #[arg(long, value_name = "TEXT|@FILE")]
    config: Option<String>,
    /// Why, for the audit log.
    #[arg(long, default_value = "")]
    reason: String,
    /// Keep it without making it active.
    #[arg(long)]
    inactive: bool,
    /// What it may cost before the version before it comes back, as JSON:
    /// {"window": 100, "max_fault_permille": 50, "max_micros_p99": 500}.
    #[arg(long, value_name = "JSON", conflicts_with = "inactive")]
    budget: Option<String>,
    /// fresh: an instance for each call; warm: kept from call to call; by-class: fresh when compact.
    #[arg(long, value_name = "HOW", conflicts_with = "inactive")]
    reuse: Option<Reuse>,
    /// The running host.
    #[command(flatten)]
    server: ServerArgs,
    /// The registry.
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Options of `policy pull`.
#[derive(Debug, Args)]
pub struct PullArgs {
    /// Where it is: oci://HOST/REPOSITORY:TAG, or …@sha256:DIGEST.
    from: String,
    /// Where it goes; the repository's last part and .wasm when left out.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The registry.
    #[command(flatten)]
    registry: RegistryArgs,
}

/// How to reach a registry.
#[derive(Clone, Debug, Args)]
pub(super) struct RegistryArgs {
    /// User at the registry, with the password in PORTOLAN_REGISTRY_PASSWORD; else what `docker login` left is used.
    #[arg(long, env = "PORTOLAN_REGISTRY_USER", value_name = "NAME")]
    username: Option<String>,
    /// The password.
    #[arg(
        long,
        env = "PORTOLAN_REGISTRY_PASSWORD",
        hide = true,
        hide_env_values = true,
        default_value = ""
    )]
    registry_password: String,
    /// Speak plain HTTP to a registry that is not on this machine.
    #[arg(long)]
    plain_http: bool,
}

impl RegistryArgs {
    fn reach(&self, place: &str) -> Result<Registry, Failure> {
        let place: Address = place.parse().map_err(Failure::new)?;
        let plain = match self.plain_http {
            true => PlainHttp::Anywhere,
            false => PlainHttp::Loopback,
        };
        let credentials = match &self.username {
            Some(user) => Some(Credentials::new(user, &self.registry_password)),
            None => docker_config().and_then(|config| Credentials::of_docker(&config, &place.host)),
        };
        Ok(Registry::new(place, plain, credentials))
    }
}

/// Where docker keeps what `docker login` was told.
fn docker_config() -> Option<PathBuf> {
    let folder = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".docker"));
    Some(folder.or_else(home)?.join("config.json"))
}

/// A component to be pushed.
struct Parcel {
    name: Option<String>,
    component: Vec<u8>,
    signatures: String,
}

pub(super) fn push(args: PushArgs, as_json: bool) -> Result<(), Failure> {
    let parcel = fetch(&args).map_err(|e| e.as_json(as_json))?;
    let (Some(tenant), Some(question)) = (args.tenant, args.question) else {
        let to = args.to.unwrap_or_default();
        let registry = args.registry.reach(&to);
        return registry
            .and_then(|registry| push_to(&registry, &parcel, as_json))
            .map_err(|e| e.as_json(as_json));
    };
    let slot = SlotArgs { tenant, question };
    let name = match (args.name, parcel.name) {
        (Some(name), _) | (None, Some(name)) => Ok(name),
        (None, None) => name_of(&args.file),
    };
    let active = if args.inactive { "false" } else { "true" };
    let mut component = parcel.component;
    let pushed = name.and_then(|name| {
        let config = args.config.as_deref().map(config_text).transpose()?;
        let length = config.as_ref().map_or(0, String::len).to_string();
        let mut query = vec![("name", &*name), ("reason", &*args.reason), ("activate", active)];
        match &config {
            Some(config) if config.len() > CONFIG_IN_URL_BYTES => {
                query.push(("config_bytes", &*length));
                component.splice(..0, config.bytes());
            }
            Some(config) => query.push(("config", config)),
            None => {}
        }
        query.extend(args.budget.as_deref().map(|budget| ("budget", budget)));
        query.extend(args.reuse.map(|reuse| ("reuse", reuse.as_str())));
        client(&args.server)
            .put_signed(&path(&slot), &query, (&component, &parcel.signatures))
            .map_err(|e| refused(&e))
    });
    finish(pushed, as_json, &said_of_upload)
}

/// The component of a push, from a file or from a registry.
fn fetch(args: &PushArgs) -> Result<Parcel, Failure> {
    match args.file.to_str().filter(|file| Address::is_meant(file)) {
        None => Ok(Parcel {
            name: None,
            component: read(&args.file)?,
            signatures: signing::beside(&args.file)?,
        }),
        Some(place) => {
            let pulled = args.registry.reach(place)?.pull().map_err(Failure::new)?;
            let last = pulled.pinned.file_name();
            Ok(Parcel {
                name: last.strip_suffix(".wasm").map(str::to_owned),
                component: pulled.component,
                signatures: lines(&pulled.signatures),
            })
        }
    }
}

fn push_to(registry: &Registry, parcel: &Parcel, as_json: bool) -> Result<(), Failure> {
    let signatures = match parcel.signatures.is_empty() {
        true => Vec::new(),
        false => VersionSignature::read_all(&parcel.signatures).map_err(Failure::new)?,
    };
    let pushed = registry
        .push(&parcel.component, &signatures)
        .map_err(Failure::new)?;
    let pinned = pushed.pinned.to_string();
    if as_json {
        return json(&serde_json::json!({ "pinned": pinned, "signatures": signatures }));
    }
    line(format!("pushed; to have exactly this again: {pinned}"));
    Ok(())
}

pub(super) fn pull(args: &PullArgs, as_json: bool) -> Result<(), Failure> {
    let pulled = args
        .registry
        .reach(&args.from)
        .and_then(|registry| registry.pull().map_err(Failure::new));
    pulled
        .and_then(|pulled| keep(&pulled, args.output.as_deref(), as_json))
        .map_err(|e| e.as_json(as_json))
}

/// Checks what was pulled and writes it, with its signatures beside it.
fn keep(pulled: &Pulled, output: Option<&Path>, as_json: bool) -> Result<(), Failure> {
    let loader = component_loader(ArtefactKey::draw(&OsRandom), Arc::new(SystemClock::start()));
    let report = loader.map_err(Failure::new)?.check(None, &pulled.component, None);
    let named = pulled.pinned.file_name();
    let file = output.unwrap_or(Path::new(&named));
    let failed = |path: &Path, e: std::io::Error| Failure::new(format!("{}: {e}", path.display()));
    if report.ok {
        std::fs::write(file, &pulled.component).map_err(|e| failed(file, e))?;
        let beside = signing::beside_name(file, ".sig");
        let written = match pulled.signatures.is_empty() {
            // One that lies there belongs to what lay there before.
            true => match std::fs::remove_file(&beside) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            },
            false => std::fs::write(&beside, lines(&pulled.signatures)),
        };
        written.map_err(|e| failed(&beside, e))?;
    }
    if as_json {
        let pinned = pulled.pinned.to_string();
        json(&serde_json::json!({
            "file": file.display().to_string(), "pinned": pinned, "signatures": pulled.signatures, "report": report,
        }))?;
    } else {
        said_of_report(file, &report).iter().for_each(line);
        line(format!("from {}", pulled.pinned));
        for signature in &pulled.signatures {
            line(format!("signed by {}, not verified", signature.key_id));
        }
    }
    match report.ok {
        true => Ok(()),
        false if as_json => Err(Failure::silent()),
        false => Err(Failure::new("what was pulled cannot be used and was not kept")),
    }
}

fn lines(signatures: &[VersionSignature]) -> String {
    signatures
        .iter()
        .map(|signature| format!("{signature}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::command::Cli;
    use clap::Parser;

    #[test]
    fn a_push_goes_to_a_host_or_to_a_registry_and_comes_from_either() {
        let parses = |line: &str| Cli::try_parse_from(line.split(' ')).is_ok();
        for good in [
            "portolan policy push a.wasm --tenant acme --question cost",
            "portolan policy push a.wasm oci://127.0.0.1:5000/a:1",
            "portolan policy push oci://ghcr.io/acme/a:1 --tenant acme --question cost --username me",
            "portolan policy push oci://ghcr.io/acme/a:1 oci://127.0.0.1:5000/a:1",
            "portolan policy pull oci://127.0.0.1:5000/a:1 -o a.wasm --plain-http",
        ] {
            assert!(parses(good), "{good}");
        }
        for bad in [
            "portolan policy push a.wasm",
            "portolan policy push a.wasm --tenant acme",
            "portolan policy push a.wasm oci://127.0.0.1:5000/a:1 --tenant acme --question cost",
            "portolan policy pull",
        ] {
            assert!(!parses(bad), "{bad}");
        }
    }
}
