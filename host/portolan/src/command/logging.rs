//! Log lines: to standard error, `RUST_LOG` chooses which.

use super::output::Failure;
use crate::host::SetLogLevel;
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
pub(super) fn start(level: &str, format: LogFormat) -> Result<SetLogLevel, Failure> {
    let fixed = std::env::var_os(EnvFilter::DEFAULT_ENV).is_some();
    let filter = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(wanted) => EnvFilter::try_new(&wanted).map_err(|e| {
            Failure::new(format!(
                "RUST_LOG: {wanted:?} cannot be read: {e}; try RUST_LOG=info"
            ))
        })?,
        Err(_) => EnvFilter::new(of_program(level)),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    Ok(match format {
        LogFormat::Text => {
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            drop(builder.try_init());
            level_setter(fixed, move |filter| drop(handle.reload(filter)))
        }
        LogFormat::Json => {
            let builder = builder.json().with_filter_reloading();
            let handle = builder.reload_handle();
            drop(builder.try_init());
            level_setter(fixed, move |filter| drop(handle.reload(filter)))
        }
    })
}

/// Lines of the configuration's level, without those of the NATS client: what it says each second of a server that is away
/// the host says once.
fn of_program(level: &str) -> String {
    match level.contains("async_nats") {
        true => level.to_owned(),
        false => format!("{level},async_nats=off"),
    }
}

/// Changes which lines are written, unless `RUST_LOG` fixed that for the life of the process.
fn level_setter(fixed: bool, set: impl Fn(EnvFilter) + Send + Sync + 'static) -> SetLogLevel {
    Box::new(move |level| match EnvFilter::try_new(of_program(level)) {
        Ok(filter) if !fixed => set(filter),
        Ok(_) => tracing::warn!(
            level,
            "RUST_LOG is set and goes before the configuration's log level"
        ),
        Err(error) => tracing::warn!(level, %error, "the log level cannot be read"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nats_client_is_heard_where_it_is_named() {
        assert_eq!(of_program("info"), "info,async_nats=off");
        assert_eq!(of_program("warn,async_nats=debug"), "warn,async_nats=debug");
        assert!(EnvFilter::try_new(of_program("warn,portolan_gateway=debug")).is_ok());
    }
}
