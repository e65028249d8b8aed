//! Measures parts of the host, on the paths that production takes.

pub mod index;
pub mod summary;
pub mod together;
