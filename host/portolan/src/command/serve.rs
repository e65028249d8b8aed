//! `portolan serve`: runs the sites of a configuration file until it is told to stop.

use super::logging::{self, LogFormat};
use super::output::{self, Failure, line};
use crate::config::{Config, FleetSecret};
use crate::host::Host;
use clap::Args;
use portolan_base::SiteName;
use portolan_plugin::Compilation;
use portolan_ports::{Changer, ConfigOrder};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Holds the secret that the sites of a fleet share, where it does not come from a file.
const SECRET: &str = "PORTOLAN_FLEET_SECRET";

/// How long work that nobody waits for any more may take after the host has stopped. What was acknowledged is on disk by then;
/// compilers end with this process.
const LEFT_OVER: Duration = Duration::from_millis(500);

/// What is particular to one process of all that share the file.
#[derive(Debug, Default, Args)]
pub struct Here {
    /// A site that this process runs, instead of those the file names; may be given several times.
    #[arg(long = "site", value_name = "NAME")]
    sites: Vec<String>,
    /// Folder of the store, instead of the file's: for several processes on one machine.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

pub(super) fn run(file: &Path, here: &Here, json: bool) -> Result<(), Failure> {
    serve(file, here, json).map_err(|failure| failure.as_json(json))
}

impl Here {
    /// A file as this process takes it.
    pub(super) fn read(&self, file: &Path) -> Result<Config, Failure> {
        let mut config = Config::read(file).map_err(Failure::new)?;
        if let Some(folder) = &self.data_dir {
            config.data_dir.clone_from(folder);
        }
        if let Ok(secret) = std::env::var(SECRET) {
            config.fleet.secret = Some(FleetSecret::parse(&secret, SECRET).map_err(Failure::new)?);
        }
        if self.sites.is_empty() {
            return Ok(config);
        }
        let sites = self.sites.iter().map(|site| SiteName::new(site));
        let sites = sites.collect::<Result<Vec<_>, _>>().map_err(Failure::new)?;
        config.running(sites).map_err(Failure::new)
    }
}

fn serve(file: &Path, here: &Here, json: bool) -> Result<(), Failure> {
    let config = here.read(file)?;
    let format = if json { LogFormat::Json } else { LogFormat::Text };
    let set_log_level = logging::start(&config.observability.log_level, format)?;
    let compilation = Compilation::child_of_this_program().map_err(Failure::new)?;
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::new)?;
    let served = runtime.block_on(async {
        let host = Host::start_compiling(config, compilation)
            .await
            .map_err(Failure::new)?;
        host.on_log_level(set_log_level);
        for site in host.sites() {
            tracing::info!(site = %site.name(), listen = %site.http(), "the site is open");
            if json {
                output::json(&serde_json::json!({ "site": site.name(), "listen": site.http() }))?;
            } else {
                line(format!("{} listens on http://{}", site.name(), site.http()));
            }
        }
        until_told_to_stop(&host).await.map_err(Failure::new)?;
        tracing::info!("told to stop; answers under way may finish");
        host.stop().await;
        tracing::info!("stopped");
        Ok(())
    });
    // Without this the process would wait for a component that is being compiled, minutes at times.
    runtime.shutdown_timeout(LEFT_OVER);
    served
}

/// Returns when the process is asked to end; until then a hang-up has the host read its file again.
async fn until_told_to_stop(host: &Host) -> std::io::Result<()> {
    let mut hang_up = signal(SignalKind::hangup())?;
    let stop = stop_signal();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            stopped = &mut stop => return stopped,
            _ = hang_up.recv() => reload(host).await,
        }
    }
}

async fn reload(host: &Host) {
    let by = Changer {
        actor: "signal".to_owned(),
        holder: None,
        reason: "SIGHUP".to_owned(),
    };
    match host.reconfigure(ConfigOrder::Reload, by).await {
        Ok(done) => {
            tracing::info!(outcome = ?done.outcome, version = done.version, "the configuration was read again");
        }
        Err(refusal) => {
            tracing::error!(%refusal, "the configuration was read again and nothing of it counts");
        }
    }
}

/// Returns when the process is asked to end.
pub(super) async fn stop_signal() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
