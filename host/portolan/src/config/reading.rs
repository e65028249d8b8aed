//! Reads the file: YAML, shorthands written out, checked; and says where it is wrong.

use super::unknown::{UnknownKey, unknown_keys};
use super::wording::said_of;
use super::{Config, ConfigError, Source, engine, pool};
use serde_json::Value;
use std::path::{Path, PathBuf};

impl Config {
    /// Reads and checks a file. Relative paths in it are relative to the file's own folder.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::of_file(path, text)
    }

    /// As [`Config::read`], of a file that holds `text`.
    pub fn of_file(path: &Path, text: String) -> Result<Self, ConfigError> {
        let mut config = Self::parse(&text).map_err(|error| match error {
            ConfigError::Parse { detail, .. } => ConfigError::Parse {
                path: path.to_owned(),
                detail,
            },
            other => other,
        })?;
        config.resolve_paths(path.parent().unwrap_or(Path::new(".")));
        config.source = Some(Source {
            path: path.to_owned(),
            text,
        });
        Ok(config)
    }

    /// Parses and checks a document.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let parse = |detail: String| ConfigError::Parse {
            path: PathBuf::from("configuration"),
            detail,
        };
        let mut config: Self = serde_saphyr::from_str(text).map_err(|e| parse(explain(text, &e)))?;
        config.check_shorthands()?;
        if config.has_shorthands() {
            let document = serde_saphyr::from_str::<Value>(text);
            let mut document = document.map_err(|e| parse(said_of(text, &e)))?;
            pool::write_out(&mut document);
            config = serde_json::from_value(document).map_err(|e| parse(e.to_string()))?;
        }
        config.check()?;
        Ok(config)
    }

    /// Makes relative paths relative to `base`.
    pub fn resolve_paths(&mut self, base: &Path) {
        let instances = self.sites.iter_mut().flat_map(|site| &mut site.instances);
        instances.for_each(|instance| engine::resolve(instance, base));
        let models = self.models.iter_mut().map(|m| &mut m.path);
        let of_sites = self.sites.iter_mut().flat_map(|site| {
            let tls = site.tls.iter_mut();
            let tls = tls.flat_map(|tls| [&mut tls.ca, &mut tls.certificate, &mut tls.key]);
            tls.chain(site.kv_tiers.disk_dir.as_mut())
        });
        for path in models
            .chain(of_sites)
            .chain([&mut self.data_dir])
            .chain(self.policies_dir.as_mut())
            .chain(self.fleet.paths())
        {
            if path.is_relative() {
                *path = base.join(&*path);
            }
        }
        for path in self.recovery_paths().filter(|path| path.is_relative()) {
            *path = base.join(&*path);
        }
        if let Some(target) = self
            .recovery
            .target
            .as_mut()
            .filter(|target| !target.starts_with("s3://"))
        {
            *target = base.join(&*target).display().to_string();
        }
    }
}

/// Why a document is not a configuration: a key that there is not is named with its place and what was meant.
fn explain(text: &str, error: &serde_saphyr::Error) -> String {
    let document = serde_saphyr::from_str::<Value>(text).unwrap_or_default();
    let unknown = unknown_keys(&document);
    if unknown.is_empty() {
        return said_of(text, error);
    }
    // The parser stops at the first one, and knows the line.
    let at = error.location();
    let said = error.to_string();
    let here = |key: &UnknownKey| said.contains(&format!("`{}`", key.key));
    let mut lines: Vec<String> = unknown.iter().map(ToString::to_string).collect();
    if let Some(at) = at
        && let Some(position) = unknown.iter().position(here)
    {
        lines.swap(0, position);
        lines[0] = format!("line {}, column {}: {}", at.line(), at.column(), lines[0]);
    }
    lines.join("\n")
}
