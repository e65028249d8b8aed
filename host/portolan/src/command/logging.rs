//! Log lines: to standard error, `RUST_LOG` chooses which.

use super::output::Failure;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging at `level` unless `RUST_LOG` says otherwise. A second start in one process does nothing.
///
/// # Errors
/// When `RUST_LOG` cannot be read: lines that were asked for would silently be missing.
pub(super) fn start(level: &str, format: LogFormat) -> Result<(), Failure> {
    let filter = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(wanted) => EnvFilter::try_new(&wanted).map_err(|e| {
            Failure::new(format!(
                "RUST_LOG: {wanted:?} cannot be read: {e}; try RUST_LOG=info"
            ))
        })?,
        Err(_) => EnvFilter::new(level),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let started = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    drop(started);
    Ok(())
}
