//! `portolan engine modelled`: a server that takes the time a profile says and computes nothing.

use super::output::{Failure, line};
use crate::system::{OsRandom, SystemClock};
use clap::Args;
use portolan_engine::ModelFiles;
use portolan_engine::modelled::{EventPorts, ModelledConfig, ModelledEngine, ModelledText, Profile};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options of `engine modelled`.
#[derive(Debug, Args)]
pub struct ModelledArgs {
    /// One that ships (quick, prfaas-h200x8, …), or a YAML or JSON file.
    #[arg(long, value_name = "NAME|FILE")]
    profile: String,
    /// Where it listens.
    #[arg(long, default_value = "127.0.0.1:8000", value_name = "ADDR")]
    listen: SocketAddr,
    /// The model's name in requests.
    #[arg(long, default_value = "modelled", value_name = "NAME")]
    name: String,
    /// A Hugging Face folder or GGUF file whose tokenizer and chat template it uses; without one a token is a byte.
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    /// Publishes cache events here, such as tcp://127.0.0.1:5557.
    #[arg(long, value_name = "ENDPOINT")]
    kv_events: Option<String>,
    /// Answers replays of them here.
    #[arg(long, value_name = "ENDPOINT", requires = "kv_events")]
    kv_replay: Option<String>,
    /// The events' topic.
    #[arg(long, default_value = "", value_name = "TOPIC")]
    kv_topic: String,
}

/// Runs until it is told to end, or dies as the engine it models would.
pub(super) fn run(args: ModelledArgs) -> Result<(), Failure> {
    let config = ModelledConfig {
        profile: profile(&args.profile)?,
        model: args.name,
        listen: args.listen,
        text: args.model.as_deref().map(text).transpose()?,
        events: args.kv_events.map(|publish| EventPorts {
            publish,
            replay: args.kv_replay,
            topic: args.kv_topic,
        }),
        clock: Arc::new(SystemClock::start()),
        random: Arc::new(OsRandom),
    };
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::new)?;
    runtime.block_on(async {
        let engine = ModelledEngine::start(config).await.map_err(Failure::new)?;
        line(format!("modelled engine on http://{}", engine.address()));
        if let Some(events) = engine.events() {
            line(format!("cache events on {events}"));
        }
        if let Some(replay) = engine.replay() {
            line(format!("replays on {replay}"));
        }
        tokio::select! {
            died = engine.wait() => died.map_err(Failure::new),
            told = tokio::signal::ctrl_c() => told.map_err(Failure::new),
        }
    })
}

fn profile(named: &str) -> Result<Profile, Failure> {
    let path = Path::new(named);
    if !path.is_file() {
        return Profile::shipped(named).map_err(Failure::new);
    }
    let text = std::fs::read_to_string(path).map_err(|e| Failure::new(format!("{named}: {e}")))?;
    // JSON is YAML.
    serde_saphyr::from_str(&text).map_err(|e| Failure::new(format!("{named}: {e}")))
}

fn text(path: &Path) -> Result<ModelledText, Failure> {
    let files = ModelFiles::read(path).map_err(Failure::new)?;
    Ok(ModelledText {
        text: files.text(),
        vocabulary: files.vocabulary(),
    })
}
