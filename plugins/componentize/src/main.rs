//! Turns core modules that carry WIT metadata into components: `portolan-componentize OUT_DIR MODULE.wasm...`.
//!
//! A component is named after its module, with `-` for the `_` that Rust puts into file names, and written only when
//! its bytes changed, so that a host watching the folder has nothing to do after a second run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};
use wit_component::ComponentEncoder;

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("usage: portolan-componentize OUT_DIR MODULE.wasm...")]
    Usage,
    #[error("{path}: {source}", path = .0.display(), source = .1)]
    File(PathBuf, io::Error),
    #[error("{path} does not become a component: {reason}", path = .0.display(), reason = .1)]
    Module(PathBuf, String),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Error> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let out_dir = arguments.next().ok_or(Error::Usage)?;
    fs::create_dir_all(&out_dir).map_err(|e| Error::File(out_dir.clone(), e))?;
    for module in arguments {
        let name = module
            .file_stem()
            .and_then(|stem| stem.to_str())
            .ok_or(Error::Usage)?;
        let component = out_dir.join(format!("{}.wasm", name.replace('_', "-")));
        let bytes = encode(&module)?;
        if fs::read(&component).ok().as_ref() != Some(&bytes) {
            println!("  {:>6} bytes  {}", bytes.len(), component.display());
            write_whole(&component, &bytes)?;
        }
    }
    Ok(())
}

fn encode(module: &Path) -> Result<Vec<u8>, Error> {
    let bytes = fs::read(module).map_err(|e| Error::File(module.to_owned(), e))?;
    let mut encoder = ComponentEncoder::default();
    let encoded = encoder
        .validate(true)
        .module(&bytes)
        .and_then(|encoder| encoder.encode());
    encoded.map_err(|e| Error::Module(module.to_owned(), format!("{e:#}")))
}

/// By way of a second file, since a host may be watching the folder.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let unfinished = path.with_extension("wasm.part");
    let written = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, path));
    written.map_err(|e| Error::File(path.to_owned(), e))
}
