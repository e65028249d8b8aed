//! `policy new`: a project from templates.

use super::{Language, templates};
use portolan_base::id::NameError;
use portolan_policy::QuestionKind;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A project to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scaffold {
    name: String,
    question: QuestionKind,
    language: Language,
}

/// No project could be made.
#[derive(Debug, thiserror::Error)]
pub enum ScaffoldError {
    /// The name cannot be that of a policy.
    #[error("the name cannot be used: {0}")]
    Name(NameError),
    /// The name cannot be that of a package in every toolchain.
    #[error("the name {0:?} begins with a digit or holds a dot; a package's name must not")]
    Package(String),
    /// The folder is in use.
    #[error("{} is not empty; choose another folder with --dir", .0.display())]
    InUse(PathBuf),
    /// A file could not be written.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl Scaffold {
    /// A project for a policy of this name.
    pub fn new(name: &str, question: QuestionKind, language: Language) -> Result<Self, ScaffoldError> {
        portolan_base::id::check_name(name).map_err(ScaffoldError::Name)?;
        if name.starts_with(|c: char| c.is_ascii_digit()) || name.contains('.') {
            return Err(ScaffoldError::Package(name.to_owned()));
        }
        Ok(Self {
            name: name.to_owned(),
            question,
            language,
        })
    }

    /// Writes the project into `dir`, which must be empty or not there yet. Gives the file that its author changes.
    pub fn write(&self, dir: &Path) -> Result<PathBuf, ScaffoldError> {
        let in_use = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        if in_use {
            return Err(ScaffoldError::InUse(dir.to_owned()));
        }
        for (path, text) in templates::files(&self.name, self.question, self.language) {
            write(&dir.join(path), &text)?;
        }
        Ok(dir.join(self.language.source()))
    }
}

fn write(path: &Path, text: &str) -> Result<(), ScaffoldError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, text))
        .map_err(|source| ScaffoldError::Write {
            path: path.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authoring::Manifest;

    #[test]
    fn a_new_project_is_written_once_and_says_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("near-first");
        let scaffold = Scaffold::new("near-first", QuestionKind::Cost, Language::Python).unwrap();
        assert_eq!(scaffold.write(&dir).unwrap(), dir.join("policy.py"));
        let manifest = Manifest::read(&dir).unwrap();
        assert_eq!(
            (&*manifest.name, manifest.question, manifest.language),
            ("near-first", QuestionKind::Cost, Language::Python)
        );
        assert!(matches!(scaffold.write(&dir), Err(ScaffoldError::InUse(_))));
    }

    #[test]
    fn names_that_a_toolchain_would_refuse_are_refused() {
        for name in ["", "Near", "2fast", "a.b", "../up", "-x"] {
            assert!(
                Scaffold::new(name, QuestionKind::Routing, Language::Rust).is_err(),
                "{name:?}"
            );
        }
    }
}
