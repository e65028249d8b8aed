//! NIXL, as the file says it.

use super::{Config, ConfigError};
use portolan_transport::Backend;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What carries KV on a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LinkBackend {
    /// TCP connections.
    #[default]
    Tcp,
    /// NIXL, and TCP connections for what it does not bring.
    Nixl,
}

impl From<LinkBackend> for Backend {
    fn from(backend: LinkBackend) -> Self {
        match backend {
            LinkBackend::Tcp => Self::Own,
            LinkBackend::Nixl => Self::Carrier,
        }
    }
}

/// Where NIXL is on the machine of a site, and how much memory it gets.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NixlSettings {
    /// Folders of `libnixl_capi.so` and of NIXL's plug-ins, for links with `backend: nixl`.
    pub libraries: Option<PathBuf>,
    /// Folders of `libnixl_capi.so` and of NIXL's plug-ins, for links with `backend: nixl`.
    pub plugins: Option<PathBuf>,
    /// Memory that peers write into, and as much again for what is on its way to them.
    pub memory_mib: u64,
}

impl Default for NixlSettings {
    fn default() -> Self {
        Self {
            libraries: None,
            plugins: None,
            // Four transfers of 64 chunks at once.
            memory_mib: 256,
        }
    }
}

impl Config {
    pub(super) fn check_nixl(&self) -> Result<(), ConfigError> {
        for link in self.links.iter().filter(|link| link.backend == LinkBackend::Nixl) {
            let key = || format!("links.{}-{}.backend", link.from, link.to);
            if !cfg!(feature = "nixl") {
                let problem =
                    "this build has no NIXL: build it with `--features nixl`, or leave `backend` out";
                return Err(ConfigError::value(key(), problem));
            }
            if link.simulate.is_some() {
                let problem = "NIXL goes past a simulated link: take `backend` or `simulate` out";
                return Err(ConfigError::value(key(), problem));
            }
        }
        for site in &self.sites {
            if site.nixl.memory_mib == 0 {
                let key = format!("sites.{}.nixl.memory_mib", site.name);
                return Err(ConfigError::value(key, "at least 1 is needed"));
            }
        }
        Ok(())
    }

    /// Whether KV comes to or goes from a site by NIXL.
    pub fn uses_nixl(&self, site: &portolan_base::SiteName) -> bool {
        let mut links = self
            .links_in_use()
            .iter()
            .filter(|link| link.backend == LinkBackend::Nixl);
        links.any(|link| link.from == *site || link.to == *site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(link: &str, site: &str) -> Result<Config, ConfigError> {
        Config::parse(&format!(
            "{{data_dir: data, operator_keys: [op], models: [],
               sites: [{{name: a, jurisdiction: eu, listen: '127.0.0.1:0', instances: [] {site}}},
                       {{name: b, jurisdiction: eu, listen: '127.0.0.1:0', instances: []}}],
               links: [{{from: a, to: b, capacity_mbps: 100 {link}}}]}}"
        ))
    }

    #[test]
    fn a_link_by_nixl_needs_a_build_that_has_it() {
        let config = parse(", backend: nixl", "");
        if cfg!(feature = "nixl") {
            let config = config.unwrap();
            assert!(config.sites.iter().all(|site| config.uses_nixl(&site.name)));
        } else {
            let refused = config.unwrap_err().to_string();
            assert!(
                refused.contains("--features nixl") && refused.contains("a-b.backend"),
                "{refused}"
            );
        }
        let config = parse(", backend: tcp", "").unwrap();
        assert!(!config.uses_nixl(&config.sites[0].name));
        for (link, site, named) in [
            (", backend: nixl, simulate: {one_way_delay_ms: 1}", "", "backend"),
            ("", ", nixl: {memory_mib: 0}", "memory_mib"),
            (", backend: rdma", "", "rdma"),
        ] {
            let refused = parse(link, site).unwrap_err().to_string();
            assert!(refused.contains(named), "{refused}");
        }
    }
}
