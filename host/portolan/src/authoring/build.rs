//! `policy build`: drives a project's toolchain to a component.

use super::toolchain::{Tool, ToolError};
use super::{Language, Manifest, ManifestError};
use portolan_plugin::{ComponentizeError, POLICY_WIT, componentize};
use portolan_policy::QuestionKind;
use std::path::{Path, PathBuf};
use std::{fs, io};
use wit_component::StringEncoding;
use wit_parser::Resolve;

pub(super) const CARGO: Tool = Tool {
    program: "cargo",
    own: None,
    install: "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y\n\
              rustup target add wasm32-unknown-unknown",
};
const RUSTC: Tool = Tool {
    program: "rustc",
    ..CARGO
};
pub(super) const QJS: Tool = Tool {
    program: "componentize-qjs",
    own: Some("node_modules/.bin"),
    install: "apt-get install nodejs npm   # unless Node.js 20 or later is there\n\
              npm install                  # in the project's folder",
};
pub(super) const PY: Tool = Tool {
    program: "componentize-py",
    own: Some(".venv/bin"),
    install: "apt-get install python3-venv   # unless Python 3.10 or later is there\n\
              python3 -m venv .venv          # in the project's folder\n\
              .venv/bin/pip install -r requirements.txt",
};
/// Fetches `QJS`.
pub(super) const NPM: Tool = Tool {
    program: "npm",
    own: None,
    ..QJS
};
/// Fetches `PY`.
pub(super) const PYTHON: Tool = Tool {
    program: "python3",
    own: None,
    ..PY
};
pub(super) const CLANG: Tool = Tool {
    program: "clang",
    own: None,
    install: "apt-get install clang lld",
};
pub(super) const LLD: Tool = Tool {
    program: "wasm-ld",
    ..CLANG
};

const RUST_TARGET: &str = "wasm32-unknown-unknown";

/// A component that was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// The component.
    pub component: PathBuf,
    /// The question it is to answer.
    pub question: QuestionKind,
}

/// No component came of it.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The folder is no project.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A toolchain is missing or failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The Rust toolchain cannot compile for WebAssembly.
    #[error(
        "the Rust toolchain in {sysroot} has no target {RUST_TARGET}. Run:\n    rustup target add {RUST_TARGET}\n\
         or put the toolchain that has it first in PATH"
    )]
    NoRustTarget {
        /// Where the toolchain lies that builds here.
        sysroot: String,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The module that the toolchain made is none of the contract's.
    #[error("the module does not fit the contract: {0}")]
    Contract(String),
    /// The module could not be made a component.
    #[error(transparent)]
    Componentize(#[from] ComponentizeError),
}

/// Builds the project in `dir`; the component lies in it, named after the policy.
pub fn build(dir: &Path) -> Result<Built, BuildError> {
    let manifest = Manifest::read(dir)?;
    let component = format!("{}.wasm", manifest.name);
    match manifest.language {
        Language::Rust => build_rust(dir, &manifest, &component)?,
        Language::Js => QJS.run(dir, &qjs_arguments(manifest.question, &component))?,
        Language::Python => PY.run(dir, &py_arguments(manifest.question, &component))?,
        Language::C => build_c(dir, &manifest, &component)?,
    }
    Ok(Built {
        component: dir.join(component),
        question: manifest.question,
    })
}

fn build_rust(dir: &Path, manifest: &Manifest, component: &str) -> Result<(), BuildError> {
    CARGO.find(dir)?;
    if !has_rust_target(dir)? {
        return Err(BuildError::NoRustTarget {
            sysroot: rustc_says(dir, &["--print", "sysroot"])?,
        });
    }
    // A target folder of its own, wherever the environment points to: the module is looked for there.
    let arguments = [
        "build",
        "--release",
        "--target",
        RUST_TARGET,
        "--target-dir",
        "target",
    ];
    CARGO.run(dir, &arguments)?;
    let module = format!(
        "target/{RUST_TARGET}/release/{}.wasm",
        manifest.name.replace('-', "_")
    );
    let module = read(&dir.join(module))?;
    write(&dir.join(component), &componentize(&module)?)
}

/// Whether the standard library for the target lies in the sysroot of the toolchain that builds in `dir`.
pub(super) fn has_rust_target(dir: &Path) -> Result<bool, BuildError> {
    let libraries = rustc_says(dir, &["--print", "target-libdir", "--target", RUST_TARGET])?;
    Ok(Path::new(&libraries).is_dir())
}

/// What the compiler that builds in `dir` prints, without the line's end.
fn rustc_says(dir: &Path, arguments: &[&str]) -> Result<String, BuildError> {
    let asked = std::process::Command::new(RUSTC.find(dir)?)
        .args(arguments)
        .current_dir(dir)
        .output();
    let asked = asked.map_err(|source| ToolError::Start {
        program: RUSTC.program,
        source,
    })?;
    Ok(String::from_utf8_lossy(&asked.stdout).trim().to_owned())
}

/// Without WASI, without the async ABI, with the smaller of the two interpreters.
fn qjs_arguments(question: QuestionKind, component: &str) -> [&str; 11] {
    let (source, world) = (Language::Js.source(), question.as_str());
    [
        "--wit",
        "wit",
        "--world",
        world,
        "--js",
        source,
        "--stub-wasi",
        "--sync",
        "--opt-size",
        "--output",
        component,
    ]
}

fn py_arguments(question: QuestionKind, component: &str) -> [&str; 9] {
    let world = question.as_str();
    [
        "-d",
        "wit",
        "-w",
        world,
        "componentize",
        "policy",
        "--stub-wasi",
        "-o",
        component,
    ]
}

fn build_c(dir: &Path, manifest: &Manifest, component: &str) -> Result<(), BuildError> {
    LLD.find(dir)?;
    let folder = dir.join("target");
    fs::create_dir_all(&folder).map_err(|source| BuildError::File {
        path: folder.clone(),
        source,
    })?;
    let module = "target/policy.core.wasm";
    let question = format!("-DPORTOLAN_{}", manifest.question.as_str().to_uppercase());
    let flags = [
        "--target=wasm32-unknown-unknown",
        "-std=c11",
        "-O2",
        "-Wall",
        "-Wextra",
        // There is no C library, and loops that clear or copy must not become calls to one.
        "-ffreestanding",
        "-fno-builtin",
        "-nostdlib",
        "-Wl,--no-entry",
        // The names of functions stay, so that a trap says where.
        "-Wl,--strip-debug",
        // An overflowing stack then traps instead of running into the data. 64 KiB: a policy recurses little, and a
        // small instance starts faster.
        "-Wl,--stack-first",
        "-Wl,-z,stack-size=65536",
        &question,
        "-o",
        module,
    ];
    let sources = c_sources(dir)?;
    let arguments: Vec<&str> = flags
        .into_iter()
        .chain(sources.iter().map(String::as_str))
        .collect();
    CLANG.run(dir, &arguments)?;
    let mut module = read(&dir.join(module))?;
    embed_contract(&mut module, manifest.question)?;
    write(&dir.join(component), &componentize(&module)?)
}

fn c_sources(dir: &Path) -> Result<Vec<String>, BuildError> {
    let failed = |source| BuildError::File {
        path: dir.to_owned(),
        source,
    };
    let mut sources = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".c") {
            sources.push(name);
        }
    }
    sources.sort();
    Ok(sources)
}

/// Describes the module as one of the question's world, as wit-bindgen would have done.
fn embed_contract(module: &mut Vec<u8>, question: QuestionKind) -> Result<(), BuildError> {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("policy.wit", POLICY_WIT).map_err(contract)?;
    let world = resolve
        .select_world(&[package], Some(question.as_str()))
        .map_err(contract)?;
    wit_component::embed_component_metadata(module, &resolve, world, StringEncoding::UTF8, false)
        .map_err(contract)
}

fn contract(error: impl std::fmt::Display) -> BuildError {
    BuildError::Contract(format!("{error:#}"))
}

fn read(path: &Path) -> Result<Vec<u8>, BuildError> {
    fs::read(path).map_err(|source| BuildError::File {
        path: path.to_owned(),
        source,
    })
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), BuildError> {
    fs::write(path, bytes).map_err(|source| BuildError::File {
        path: path.to_owned(),
        source,
    })
}
