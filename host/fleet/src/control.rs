//! The control stream of sites that share a process, in one file.

mod embedded;
mod file;
mod held;
#[cfg(test)]
pub(crate) mod suite;
#[cfg(test)]
mod tests;

pub use embedded::{EmbeddedControl, OpenControlError};
