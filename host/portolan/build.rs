//! Embeds the sources of the Rust SDK, so that `portolan policy new` makes a project that builds without this
//! repository.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// What a policy in Rust is built from, relative to the repository.
const PARTS: [&str; 6] = [
    "Cargo.toml",
    "host/base",
    "host/policy",
    "plugins/Cargo.toml",
    "plugins/sdk",
    "wit/policy.wit",
];

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?)
        .join("../..")
        .canonicalize()?;
    let mut files = Vec::new();
    for part in PARTS {
        println!("cargo::rerun-if-changed={}", root.join(part).display());
        collect(&root.join(part), &mut files)?;
    }
    files.sort();
    let mut list = String::from("&[\n");
    for file in files {
        let name = file.strip_prefix(&root)?.display().to_string().replace('\\', "/");
        list.push_str(&format!(
            "    ({name:?}, include_str!({:?})),\n",
            file.display().to_string()
        ));
    }
    list.push_str("]\n");
    fs::write(Path::new(&env::var("OUT_DIR")?).join("sdk_sources.rs"), list)?;
    Ok(())
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?.path();
        // Left by test runs and builds, and no source.
        let is_source = entry.is_dir() || entry.extension().is_some_and(|e| e == "rs" || e == "toml");
        if is_source && entry.file_name().is_none_or(|name| name != "target") {
            collect(&entry, files)?;
        }
    }
    Ok(())
}
