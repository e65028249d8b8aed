//! `portolan serve`: runs the sites of a configuration file until it is told to stop.

use super::logging::{self, LogFormat};
use super::output::{self, Failure, line};
use crate::config::Config;
use crate::host::Host;
use portolan_plugin::Compilation;
use std::path::Path;
use tokio::signal::unix::{SignalKind, signal};

pub(super) fn run(file: &Path, json: bool) -> Result<(), Failure> {
    serve(file, json).map_err(|failure| failure.as_json(json))
}

fn serve(file: &Path, json: bool) -> Result<(), Failure> {
    let config = Config::read(file).map_err(Failure::new)?;
    logging::start("info", if json { LogFormat::Json } else { LogFormat::Text })?;
    let compilation = Compilation::child_of_this_program().map_err(Failure::new)?;
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::new)?;
    runtime.block_on(async {
        let host = Host::start_compiling(config, compilation)
            .await
            .map_err(Failure::new)?;
        for site in host.sites() {
            tracing::info!(site = %site.name(), listen = %site.http(), "the site is open");
            if json {
                output::json(&serde_json::json!({ "site": site.name(), "listen": site.http() }))?;
            } else {
                line(format!("{} listens on http://{}", site.name(), site.http()));
            }
        }
        stop_signal().await.map_err(Failure::new)?;
        tracing::info!("told to stop; answers under way may finish");
        host.stop().await;
        tracing::info!("stopped");
        Ok(())
    })
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
