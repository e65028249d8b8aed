//! Which blocks hang on what: found without looking through the pool.

use portolan_base::{BlockId, Dependency};
use std::collections::{HashMap, HashSet};

/// Blocks by what they depend on: kind, name, version.
#[derive(Debug, Default)]
pub(super) struct Dependants(HashMap<String, HashMap<String, HashMap<String, HashSet<BlockId>>>>);

impl Dependants {
    pub(super) fn add(&mut self, id: BlockId, on: &[Dependency]) {
        for Dependency { kind, name, version } in on {
            let names = self.0.entry(kind.clone()).or_default();
            let versions = names.entry(name.clone()).or_default();
            versions.entry(version.clone()).or_default().insert(id);
        }
    }

    pub(super) fn remove(&mut self, id: &BlockId, on: &[Dependency]) {
        for Dependency { kind, name, version } in on {
            let Some(names) = self.0.get_mut(kind) else {
                continue;
            };
            let Some(versions) = names.get_mut(name) else {
                continue;
            };
            if let Some(blocks) = versions.get_mut(version) {
                blocks.remove(id);
                if blocks.is_empty() {
                    versions.remove(version);
                }
            }
            if versions.is_empty() {
                names.remove(name);
            }
            if names.is_empty() {
                self.0.remove(kind);
            }
        }
    }

    /// Blocks that depend on the thing at another version than the one it has.
    pub(super) fn outdated(&self, by: &Dependency) -> Vec<BlockId> {
        let versions = self.0.get(&by.kind).and_then(|names| names.get(&by.name));
        let others = versions
            .into_iter()
            .flatten()
            .filter(|(version, _)| **version != by.version);
        others.flat_map(|(_, blocks)| blocks).copied().collect()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
