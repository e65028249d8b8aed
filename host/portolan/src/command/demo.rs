//! `portolan demo`: two sites, two tenants, and a tour that checks what it tells.

pub(super) mod narrator;
mod scenes;
mod stage_play;
pub(super) mod texts;

use super::DemoArgs;
use super::logging::{self, LogFormat};
use super::output::{Failure, line};
use crate::config::Config;
use crate::host::Host;
use portolan_plugin::Compilation;
use stage_play::Tour;
use std::path::Path;
use std::sync::Arc;

/// The demo runs the very file that is shipped as an example.
const CONFIG: &str = include_str!("../../../../examples/02-two-sites/portolan.yaml");

pub(super) fn run(args: &DemoArgs) -> Result<(), Failure> {
    // The tour tells the story; log lines would talk over it.
    drop(logging::start("error", LogFormat::Text)?);
    need(&args.model, "the demo model", "`make demo` fetches it")?;
    need(
        &args.plugins,
        "the folder of shipped policies",
        "`make plugins` builds it",
    )?;
    let folder = tempfile::Builder::new()
        .prefix("portolan-demo-")
        .tempdir()
        .map_err(Failure::new)?;
    let config = config(args, folder.path())?;
    let compilation = Compilation::child_of_this_program().map_err(Failure::new)?;
    let runtime = Arc::new(tokio::runtime::Runtime::new().map_err(Failure::new)?);
    let started = runtime.block_on(Host::start_compiling(config, compilation));
    let mut host = started.map_err(Failure::new)?;
    let mut tour = Tour::new(&mut host, Arc::clone(&runtime), args.plugins.clone())?;
    scenes::play(&mut tour)?;
    let unkept = tour.close();
    if !args.once {
        invite(&host);
        runtime
            .block_on(super::serve::stop_signal())
            .map_err(Failure::new)?;
    }
    runtime.block_on(host.stop());
    match unkept {
        0 => Ok(()),
        n => Err(Failure::new(format!(
            "{n} of the things the tour tells did not happen"
        ))),
    }
}

pub(super) fn need(path: &Path, what: &str, help: &str) -> Result<(), Failure> {
    let found = path.exists().then_some(());
    found.ok_or_else(|| Failure::new(format!("{what} is not at {}; {help}", path.display())))
}

fn config(args: &DemoArgs, folder: &Path) -> Result<Config, Failure> {
    let mut config = Config::parse(CONFIG).map_err(Failure::new)?;
    config.data_dir = folder.join("data");
    config.policies_dir = Some(folder.join("policies"));
    for model in &mut config.models {
        model.path.clone_from(&args.model);
    }
    if let Some(first) = config.sites.first_mut() {
        first.listen = args.listen;
    }
    Ok(config)
}

fn invite(host: &Host) {
    let Some(paris) = host.sites().first() else { return };
    let address = paris.http();
    line("");
    line("Still serving. Try it (Ctrl-C ends it):");
    line(format!(
        "  curl -N http://{address}/v1/chat/completions -H 'authorization: Bearer demo-acme' \\\n    -H 'content-type: application/json' -d '{{\"model\": \"smollm2-135m-instruct\", \"stream\": true, \
         \"messages\": [{{\"role\": \"user\", \"content\": \"What is the capital of France?\"}}]}}'"
    ));
    line("Why a request went where it went (its id is in the x-portolan-request-id header):");
    line(format!(
        "  portolan request show ID --server http://{address} --key demo-acme"
    ));
}
