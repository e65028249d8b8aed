//! `portolan dr`: backups of a model service, and drills.

use super::ServerArgs;
use super::output::{Failure, json, line};
use super::serve::Here;
use crate::client::{Client, ClientError};
use crate::config::Config;
use crate::dr::{self, Backed, DrError, DrillRecord, DrillRules, Existing, Manifest, Target, Verdict};
use crate::host::RecoveryState;
use crate::system::{OsRandom, SystemClock};
use clap::{Args, Subcommand};
use portolan_base::Clock;
use portolan_ports::StoreError;
use portolan_store::SledStore;
use serde::Serialize;
use serde_json::json as object;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// `dr` commands.
#[derive(Debug, Subcommand)]
pub enum DrCommand {
    /// List every file that it takes to bring the service back, with sizes and SHA-256.
    Manifest(DrArgs),
    /// Send what the backup's place lacks of the service, or has damaged.
    Backup {
        /// Take parts that are there in their full size for good: do not read them. Damage is then left to `dr verify`.
        #[arg(long)]
        trust_existing: bool,
        /// Which service, and where its backups are.
        #[command(flatten)]
        dr: DrArgs,
    },
    /// Compare the service with its latest backup, byte by byte. Exits 1 when they are not the same.
    Verify(DrArgs),
    /// Bring the service back into a scratch folder, and have its models answer as recorded.
    Drill(DrillArgs),
}

/// Which service, and where its backups are.
#[derive(Debug, Args)]
pub struct DrArgs {
    /// The host's configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// A folder, or s3://BUCKET/PREFIX; `recovery.target` of the file when left out.
    #[arg(long, value_name = "PLACE")]
    target: Option<String>,
    /// Which of the processes that share the file: as it was told to `serve`.
    #[command(flatten)]
    here: Here,
    /// The running host, asked to copy its store; a host that is down need not be.
    #[command(flatten)]
    server: ServerArgs,
}

/// Which backup, and where it is brought back.
#[derive(Debug, Args)]
pub struct DrillArgs {
    /// The host's configuration file, for where backups are and what the drill is held to.
    #[arg(long, value_name = "FILE", required_unless_present = "target")]
    config: Option<PathBuf>,
    /// A folder, or s3://BUCKET/PREFIX; `recovery.target` of the file when left out.
    #[arg(long, value_name = "PLACE")]
    target: Option<String>,
    /// Which of the processes that share the file: as it was told to `serve`.
    #[command(flatten)]
    here: Here,
    /// Where the files go: a folder that is empty or not there, and stays. A temporary one when left out.
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Minutes in which the service has to be back; `recovery.drill_target_min` of the file when left out, else 30.
    #[arg(long, value_name = "MINUTES")]
    within: Option<u32>,
}

/// Minutes in which a service has to be back when nobody says otherwise.
const WITHIN_MINUTES: u32 = 30;

/// Does what was typed.
pub(super) fn run(command: DrCommand, as_json: bool) -> Result<(), Failure> {
    let done = match command {
        DrCommand::Manifest(args) => manifest(&args, as_json),
        DrCommand::Backup { trust_existing, dr } => backup(&dr, trust_existing, as_json),
        DrCommand::Verify(args) => verify(&args, as_json),
        DrCommand::Drill(args) => drill(&args, as_json),
    };
    done.map_err(|failure| failure.as_json(as_json))
}

fn manifest(args: &DrArgs, as_json: bool) -> Result<(), Failure> {
    let config = args.here.read(&args.config)?;
    let copy = copy_of_store(&config, &args.server)?;
    let manifest = dr::collect(&config, &copy.folder).map_err(Failure::new)?.manifest;
    if as_json {
        return json(&manifest);
    }
    said_of_manifest(&manifest).into_iter().for_each(line);
    Ok(())
}

fn said_of_manifest(manifest: &Manifest) -> Vec<String> {
    let mut lines = Vec::new();
    for item in &manifest.items {
        let roles: Vec<&str> = item.roles.iter().map(|role| role.as_str()).collect();
        lines.push(format!(
            "{}  {:>12}  {}  ({})",
            item.sha256,
            item.bytes,
            item.path,
            roles.join(", ")
        ));
    }
    let bytes = portolan_base::Bytes(manifest.bytes());
    lines.push(format!("{} files, {bytes}", manifest.items.len()));
    lines
}

/// What a backup did, and of which store.
#[derive(Serialize)]
struct Said<'a> {
    #[serde(flatten)]
    done: &'a Backed,
    store: &'a CopiedBy,
}

fn backup(args: &DrArgs, trust_existing: bool, as_json: bool) -> Result<(), Failure> {
    let config = args.here.read(&args.config)?;
    let target = target_of(args.target.as_ref(), Some(&config))?;
    let copy = copy_of_store(&config, &args.server)?;
    let data_dir = config.data_dir.clone();
    let existing = match trust_existing {
        true => Existing::Trust,
        false => config.recovery.existing(),
    };
    let clock = SystemClock::start();
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::new)?;
    let place = (target, existing);
    let backed = runtime.block_on(dr::backup_service(config, copy.folder.clone(), place, &clock));
    let backed = backed.map_err(Failure::new)?;
    let now = clock.now();
    RecoveryState::change(&data_dir, |state| state.backup_at = Some(now)).map_err(Failure::new)?;
    if as_json {
        let (done, store) = (&backed, &copy.by);
        return json(&Said { done, store });
    }
    line(copy.said());
    line(said_of_backup(&backed));
    Ok(())
}

fn said_of_backup(backed: &Backed) -> String {
    let again = |count: usize, what: &str| match count {
        0 => String::new(),
        count => format!("; {count} {what} were sent again"),
    };
    format!(
        "backup {}: {} files, {}; {} sent{}{}",
        backed.backup,
        backed.files,
        portolan_base::Bytes(backed.bytes),
        portolan_base::Bytes(backed.sent_bytes),
        again(backed.torn, "torn uploads"),
        again(backed.damaged, "damaged parts"),
    )
}

fn verify(args: &DrArgs, as_json: bool) -> Result<(), Failure> {
    let config = args.here.read(&args.config)?;
    let target = target_of(args.target.as_ref(), Some(&config))?;
    let copy = copy_of_store(&config, &args.server)?;
    let manifest = dr::collect(&config, &copy.folder).map_err(Failure::new)?.manifest;
    let verdict = dr::verify(&manifest, target.as_ref()).map_err(Failure::new)?;
    if as_json {
        json(&verdict)?;
    } else {
        line(copy.said());
        said_of_verdict(&verdict).into_iter().for_each(line);
    }
    if verdict.ok {
        Ok(())
    } else {
        Err(Failure::silent())
    }
}

fn said_of_verdict(verdict: &Verdict) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(verdict.missing.iter().map(|path| format!("missing    {path}")));
    let different = verdict.different.iter();
    lines.extend(different.map(|one| format!("different  {}: {}", one.path, one.why)));
    lines.extend(verdict.extra.iter().map(|path| format!("extra      {path}")));
    lines.push(match verdict.ok {
        true => format!("backup {} is the service as it is", verdict.backup),
        false => format!(
            "backup {} is not the service as it is: make another",
            verdict.backup
        ),
    });
    lines
}

fn drill(args: &DrillArgs, as_json: bool) -> Result<(), Failure> {
    let config = args
        .config
        .as_ref()
        .map(|file| args.here.read(file))
        .transpose()?;
    let target = target_of(args.target.as_ref(), config.as_ref())?;
    let of_file = config.as_ref().map(|config| config.recovery.drill_target_min);
    let minutes = args.within.or(of_file).unwrap_or(WITHIN_MINUTES);
    let rules = DrillRules {
        target: Duration::from_secs(60 * u64::from(minutes)),
    };
    let temporary = tempfile::tempdir().map_err(Failure::new)?;
    let scratch = args
        .scratch
        .clone()
        .unwrap_or_else(|| temporary.path().join("drill"));
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::new)?;
    let clock = SystemClock::start();
    let drilled = runtime.block_on(dr::drill(target, &scratch, rules, &clock));
    let record = drilled.map_err(Failure::new)?;
    if let Some(config) = &config
        && config.data_dir.is_dir()
    {
        let kept = record.clone();
        let written = RecoveryState::change(&config.data_dir, |state| state.drill = Some(kept));
        written.map_err(Failure::new)?;
    }
    if as_json {
        json(&record)?;
    } else {
        said_of_drill(&record).into_iter().for_each(line);
    }
    if record.ok { Ok(()) } else { Err(Failure::silent()) }
}

fn said_of_drill(record: &DrillRecord) -> Vec<String> {
    let seconds = |ms: u64| ms as f64 / 1000.0;
    let mut lines: Vec<String> = record
        .models
        .iter()
        .map(|model| {
            let same = if model.answered == model.expected {
                "as recorded"
            } else {
                "otherwise than recorded"
            };
            format!(
                "model {} answered {same}: {} tokens",
                model.model,
                model.answered.len()
            )
        })
        .collect();
    lines.extend(
        record
            .problems
            .iter()
            .map(|problem| format!("problem: {problem}")),
    );
    lines.push(format!(
        "backup {} was back after {:.1} s ({:.1} s of it for the files), {} min are allowed",
        record.backup,
        seconds(record.took_ms),
        seconds(record.restored_ms),
        record.target_ms / 60_000
    ));
    lines
}

fn target_of(typed: Option<&String>, config: Option<&Config>) -> Result<Arc<dyn Target>, Failure> {
    let recovery = config.map(|config| config.recovery.clone()).unwrap_or_default();
    let place = typed.cloned().or_else(|| recovery.target.clone());
    let place =
        place.ok_or_else(|| Failure::new("name a place with --target, or recovery.target in the file"))?;
    dr::open_target(&place, &recovery.s3())
        .map(Arc::from)
        .map_err(Failure::new)
}

/// A copy of the store, and who made it.
struct Copied {
    folder: PathBuf,
    by: CopiedBy,
    of: PathBuf,
}

/// Who copied the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CopiedBy {
    /// This process: no host had it open.
    Here,
    /// The host that is reached at this address.
    Host(String),
}

impl Copied {
    fn said(&self) -> String {
        let of = self.of.display();
        match &self.by {
            CopiedBy::Here => format!("the store is that of {of}, which no host has open"),
            CopiedBy::Host(server) => format!("the store is that of {of}, copied by its host at {server}"),
        }
    }
}

/// A copy of the store: made here where no host has it open, by the host where one does.
fn copy_of_store(config: &Config, server: &ServerArgs) -> Result<Copied, Failure> {
    if !config.data_dir.join("db").exists() {
        let text = format!(
            "there is no store in {}: nothing was ever started with this file",
            config.data_dir.display()
        );
        return Err(Failure::new(text));
    }
    let (folder, by) = match SledStore::open(&config.data_dir, &OsRandom) {
        Ok(store) => {
            let folder = dr::make_snapshot(config, &store).map_err(Failure::new)?;
            (folder, CopiedBy::Here)
        }
        Err(StoreError::InUse(_)) => {
            let client = Client::new(&server.server, &server.key);
            let folder = copied_by_host(config, &client)?;
            (folder, CopiedBy::Host(client.server().to_owned()))
        }
        Err(error) => return Err(Failure::new(DrError::from(error))),
    };
    let of = config.data_dir.clone();
    Ok(Copied { folder, by, of })
}

/// Has the host that is reached copy its store, and sees whether that was the store of `config`: another host copies its own,
/// elsewhere, and what lies here is from another day.
fn copied_by_host(config: &Config, client: &Client) -> Result<PathBuf, Failure> {
    let folder = dr::snapshot_folder(config);
    let before = stamp(&folder);
    let copied = client.post("/v1/portolan/store/snapshot", &object!({}));
    let said = |error: ClientError| {
        format!(
            "the store in {} is open, and the host at {} was asked to copy it: {error}",
            config.data_dir.display(),
            client.server()
        )
    };
    let reply = copied.map_err(|error| Failure::new(said(error)))?.body;
    let after = stamp(&folder);
    if after.is_some() && after != before {
        return Ok(folder);
    }
    Err(Failure::new(format!(
        "the host at {} is not the one of --config: it copied its own store to {}, and nothing came to {}; name the host \
         that has {} open with --server, or PORTOLAN_SERVER",
        client.server(),
        reply["folder"].as_str().unwrap_or("another place"),
        folder.display(),
        config.data_dir.display()
    )))
}

/// What tells a folder from the one that lay in its place before.
fn stamp(folder: &Path) -> Option<(u64, u64, i64, i64)> {
    let about = std::fs::metadata(folder).ok()?;
    Some((about.dev(), about.ino(), about.ctime(), about.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use tempfile::TempDir;
    use tokio::runtime::Runtime;

    /// A host without models, of a file of its own.
    struct Started {
        config: Config,
        host: Host,
        runtime: Runtime,
        folder: TempDir,
    }

    impl Started {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("portolan.yaml");
            let text = "data_dir: data\noperator_keys: [op]\nmodels: []\n\
                        sites: [{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}]\n";
            std::fs::write(&file, text).unwrap();
            let config = Config::read(&file).unwrap();
            let runtime = Runtime::new().unwrap();
            let host = runtime.block_on(Host::start(config.clone())).unwrap();
            Self {
                config,
                host,
                runtime,
                folder,
            }
        }

        fn server(&self) -> ServerArgs {
            ServerArgs {
                server: format!("http://{}", self.host.sites()[0].http()),
                key: "op".to_owned(),
            }
        }

        /// What it leaves behind.
        fn stop(self) -> TempDir {
            self.runtime.block_on(self.host.stop());
            self.folder
        }
    }

    #[test]
    fn the_store_that_is_copied_is_that_of_the_file_or_none() {
        let (own, other) = (Started::new(), Started::new());
        let copied = copy_of_store(&own.config, &own.server()).unwrap();
        assert_eq!(copied.by, CopiedBy::Host(own.server().server));
        assert!(copied.said().contains(&own.server().server), "{}", copied.said());
        // Now there is a copy from before, which would be taken for that of today.
        let refused = copy_of_store(&own.config, &other.server()).err().unwrap();
        let said = format!("{refused:?}");
        assert!(
            said.contains("is not the one of --config") && said.contains("PORTOLAN_SERVER"),
            "{said}"
        );
        assert!(said.contains(&other.server().server), "{said}");
        assert!(
            copy_of_store(&own.config, &own.server()).is_ok(),
            "asked again, it is made anew"
        );
        let config = own.config.clone();
        let server = other.server();
        let _folder = own.stop();
        let copied = copy_of_store(&config, &server).unwrap();
        assert_eq!(copied.by, CopiedBy::Here, "no host has it open: none is asked");
        other.stop();
    }
}
