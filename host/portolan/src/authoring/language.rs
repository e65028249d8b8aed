//! The languages a policy can be written in.

use serde::Deserialize;
use std::fmt;

/// A guest language with a template and a toolchain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Rust for `wasm32-unknown-unknown`, with the SDK.
    Rust,
    /// JavaScript, with componentize-qjs.
    Js,
    /// Python, with componentize-py.
    Python,
    /// C, with clang and wasm-ld.
    C,
}

impl Language {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Rust, Self::Js, Self::Python, Self::C];

    /// The word used on the command line and in `policy.yaml`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Js => "js",
            Self::Python => "python",
            Self::C => "c",
        }
    }

    /// The language's own name.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Rust => "Rust",
            Self::Js => "JavaScript",
            Self::Python => "Python",
            Self::C => "C",
        }
    }

    /// The file of a project that its author changes.
    pub const fn source(self) -> &'static str {
        match self {
            Self::Rust => "src/lib.rs",
            Self::Js => "policy.js",
            Self::Python => "policy.py",
            Self::C => "policy.c",
        }
    }

    /// The command line that brings the toolchain, to be run in the project's folder.
    pub const fn install(self) -> &'static str {
        match self {
            Self::Rust => "rustup target add wasm32-unknown-unknown",
            Self::Js => "npm install",
            Self::Python => "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt",
            Self::C => "apt-get install clang lld",
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
