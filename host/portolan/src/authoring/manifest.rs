//! `policy.yaml`: what `policy build` has to know about a project.

use super::Language;
use portolan_base::id::NameError;
use portolan_policy::QuestionKind;
use serde::Deserialize;
use std::path::Path;

/// The file's name in a project's folder.
pub const MANIFEST: &str = "policy.yaml";

/// A project as its `policy.yaml` describes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The policy's name: that of the component, too.
    pub name: String,
    /// The question it answers.
    pub question: QuestionKind,
    /// What it is written in.
    pub language: Language,
}

/// The folder is no project.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// There is no readable `policy.yaml`.
    #[error(
        "there is no project: {0}; `portolan policy new` makes one, and an existing project needs a file {MANIFEST} \
         with name, question and language (rust, js, python or c)"
    )]
    Missing(std::io::Error),
    /// The file does not say what it has to.
    #[error("{MANIFEST}: {0}")]
    Unreadable(Box<serde_saphyr::Error>),
    /// The name cannot be that of a policy.
    #[error("{MANIFEST}: name: {0}")]
    Name(NameError),
}

impl Manifest {
    /// Reads the manifest in `dir`.
    pub fn read(dir: &Path) -> Result<Self, ManifestError> {
        let text = std::fs::read_to_string(dir.join(MANIFEST)).map_err(ManifestError::Missing)?;
        let manifest: Self =
            serde_saphyr::from_str(&text).map_err(|e| ManifestError::Unreadable(Box::new(e)))?;
        portolan_base::id::check_name(&manifest.name).map_err(ManifestError::Name)?;
        Ok(manifest)
    }
}
