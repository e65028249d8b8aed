//! Writing policies: projects from templates, and the guest toolchains that make components of them.

mod accessors;
mod build;
mod fix;
mod install;
mod language;
mod lock;
mod manifest;
mod scaffold;
mod sdk;
mod templates;
mod toolchain;

pub use build::{BuildError, Built, build};
pub use fix::{Deed, FixError, Fixed, Stubbed, fix};
pub use install::to_install;
pub use language::Language;
pub use manifest::{MANIFEST, Manifest, ManifestError};
pub use scaffold::{Scaffold, ScaffoldError};
pub use toolchain::ToolError;
