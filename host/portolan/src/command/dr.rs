//! `portolan dr`: backups of a model service, and drills.

use super::ServerArgs;
use super::output::{Failure, json, line};
use crate::client::{Client, ClientError};
use crate::config::Config;
use crate::dr::{self, DrError, DrillRecord, DrillRules, Manifest, Target, Verdict};
use crate::host::RecoveryState;
use crate::system::{OsRandom, SystemClock};
use clap::{Args, Subcommand};
use portolan_base::Clock;
use portolan_ports::StoreError;
use portolan_store::SledStore;
use serde_json::json as object;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// `dr` commands.
#[derive(Debug, Subcommand)]
pub enum DrCommand {
    /// List every file that it takes to bring the service back, with sizes and SHA-256.
    Manifest(DrArgs),
    /// Send what the backup's place lacks of the service.
    Backup(DrArgs),
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
        DrCommand::Backup(args) => backup(&args, as_json),
        DrCommand::Verify(args) => verify(&args, as_json),
        DrCommand::Drill(args) => drill(&args, as_json),
    };
    done.map_err(|failure| failure.as_json(as_json))
}

fn manifest(args: &DrArgs, as_json: bool) -> Result<(), Failure> {
    let config = Config::read(&args.config).map_err(Failure::new)?;
    let store = copy_of_store(&config, &args.server)?;
    let manifest = dr::collect(&config, &store).map_err(Failure::new)?.manifest;
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

fn backup(args: &DrArgs, as_json: bool) -> Result<(), Failure> {
    let config = Config::read(&args.config).map_err(Failure::new)?;
    let target = target_of(args.target.as_ref(), Some(&config))?;
    let store = copy_of_store(&config, &args.server)?;
    let data_dir = config.data_dir.clone();
    let clock = SystemClock::start();
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::new)?;
    let backed = runtime.block_on(dr::backup_service(config, store, target, &clock));
    let backed = backed.map_err(Failure::new)?;
    let now = clock.now();
    RecoveryState::change(&data_dir, |state| state.backup_at = Some(now)).map_err(Failure::new)?;
    if as_json {
        return json(&backed);
    }
    line(format!(
        "backup {}: {} files, {}; {} sent{}",
        backed.backup,
        backed.files,
        portolan_base::Bytes(backed.bytes),
        portolan_base::Bytes(backed.sent_bytes),
        match backed.torn {
            0 => String::new(),
            torn => format!("; {torn} torn uploads were sent again"),
        }
    ));
    Ok(())
}

fn verify(args: &DrArgs, as_json: bool) -> Result<(), Failure> {
    let config = Config::read(&args.config).map_err(Failure::new)?;
    let target = target_of(args.target.as_ref(), Some(&config))?;
    let store = copy_of_store(&config, &args.server)?;
    let manifest = dr::collect(&config, &store).map_err(Failure::new)?.manifest;
    let verdict = dr::verify(&manifest, target.as_ref()).map_err(Failure::new)?;
    if as_json {
        json(&verdict)?;
    } else {
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
    let config = args.config.as_ref().map(|file| Config::read(file)).transpose();
    let config = config.map_err(Failure::new)?;
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

/// A copy of the store: made here where no host has it open, by the host where one does.
fn copy_of_store(config: &Config, server: &ServerArgs) -> Result<PathBuf, Failure> {
    if !config.data_dir.join("db").exists() {
        let text = format!(
            "there is no store in {}: nothing was ever started with this file",
            config.data_dir.display()
        );
        return Err(Failure::new(text));
    }
    match SledStore::open(&config.data_dir, &OsRandom) {
        Ok(store) => dr::make_snapshot(config, &store).map_err(Failure::new),
        Err(StoreError::InUse(_)) => {
            let client = Client::new(&server.server, &server.key);
            let copied = client.post("/v1/portolan/store/snapshot", &object!({}));
            let said = |error: ClientError| {
                format!("the host that has the store open was asked to copy it: {error}")
            };
            copied.map_err(|error| Failure::new(said(error)))?;
            Ok(dr::snapshot_folder(config))
        }
        Err(error) => Err(Failure::new(DrError::from(error))),
    }
}
