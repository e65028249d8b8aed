//! Finding and running the programs that guests are built with.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, io};

/// A program that builds guests, and the command lines that install it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tool {
    pub(super) program: &'static str,
    /// Where a project keeps one of its own, looked at before `PATH`.
    pub(super) own: Option<&'static str>,
    /// How to get it.
    pub(super) install: &'static str,
}

/// A toolchain is missing or did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// A program is not installed.
    #[error("{program} is not installed. Run:\n{}", indented(install))]
    Missing {
        /// The program.
        program: &'static str,
        /// Command lines that install it.
        install: &'static str,
    },
    /// A program could not be started.
    #[error("{program} could not be started: {source}")]
    Start {
        /// The program.
        program: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A program failed; it has said why.
    #[error("{program} failed; its message is above")]
    Failed {
        /// The program.
        program: &'static str,
    },
}

fn indented(lines: &str) -> String {
    lines
        .lines()
        .map(|line| format!("    {line}\n"))
        .collect::<String>()
        .trim_end()
        .to_owned()
}

impl Tool {
    /// Where the program is, for a project in `dir`.
    pub(super) fn find(&self, dir: &Path) -> Result<PathBuf, ToolError> {
        let own = self.own.map(|folder| dir.join(folder).join(self.program));
        let on_path = env::var_os("PATH").unwrap_or_default();
        own.into_iter()
            .chain(env::split_paths(&on_path).map(|folder| folder.join(self.program)))
            .find(|candidate| candidate.is_file())
            .ok_or(ToolError::Missing {
                program: self.program,
                install: self.install,
            })
    }

    /// Runs the program in `dir`. Whatever it says goes to standard error, which leaves standard output to us.
    pub(super) fn run<A: AsRef<OsStr>>(&self, dir: &Path, arguments: &[A]) -> Result<(), ToolError> {
        // A relative path would be looked for from `dir`.
        let program = std::path::absolute(self.find(dir)?).map_err(|source| self.not_started(source))?;
        let status = Command::new(program)
            .args(arguments)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(io::stderr())
            .status()
            .map_err(|source| self.not_started(source))?;
        match status.success() {
            true => Ok(()),
            false => Err(ToolError::Failed {
                program: self.program,
            }),
        }
    }

    fn not_started(&self, source: io::Error) -> ToolError {
        ToolError::Start {
            program: self.program,
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_comes_with_the_lines_that_install_it() {
        let tool = Tool {
            program: "no-such-compiler",
            own: Some("bin"),
            install: "apt-get install one\napt-get install two",
        };
        let folder = tempfile::tempdir().unwrap();
        let said = tool.find(folder.path()).unwrap_err().to_string();
        assert_eq!(
            said,
            "no-such-compiler is not installed. Run:\n    apt-get install one\n    apt-get install two"
        );
        std::fs::create_dir(folder.path().join("bin")).unwrap();
        std::fs::write(folder.path().join("bin/no-such-compiler"), "").unwrap();
        assert!(tool.find(folder.path()).is_ok());
    }
}
