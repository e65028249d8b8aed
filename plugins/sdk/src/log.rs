//! Lines in the tenant's policy log. The host limits their rate and length.

use crate::bindings::invalidation::portolan::policy::host::{self, Level};

/// Logs at level debug.
pub fn debug(message: &str) {
    host::log(Level::Debug, message);
}

/// Logs at level info.
pub fn info(message: &str) {
    host::log(Level::Info, message);
}

/// Logs at level warn.
pub fn warn(message: &str) {
    host::log(Level::Warn, message);
}

/// Logs at level error.
pub fn error(message: &str) {
    host::log(Level::Error, message);
}
