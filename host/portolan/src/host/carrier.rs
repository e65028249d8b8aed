//! What carries KV beside a site's connections, where a link asks for it.

use super::parts::Shared;
use crate::config::SiteConfig;
use portolan_transport::Carrier;
use std::sync::Arc;

/// NIXL, when a link of the site uses it. The configuration was refused if it asks for what this build lacks.
#[cfg(feature = "nixl")]
pub(super) fn of(config: &SiteConfig, shared: &Shared) -> Option<Arc<dyn Carrier>> {
    use portolan_base::Bytes;
    use portolan_transport::{NixlCarrier, NixlConfig};

    if !shared.config.uses_nixl(&config.name) {
        return None;
    }
    let program = std::env::current_exe()
        .inspect_err(|error| tracing::warn!(%error, "this program cannot be started again; KV goes over TCP"))
        .ok()?;
    let settings = config.nixl.clone();
    let nixl = NixlConfig {
        program,
        arguments: vec!["nixl-worker".to_owned()],
        libraries: settings.libraries,
        plugins: settings.plugins,
        memory: Bytes(settings.memory_mib << 20),
    };
    Some(Arc::new(NixlCarrier::new(nixl, Arc::clone(&shared.random))))
}

/// None: this build has no NIXL, and a configuration that asks for it was refused.
#[cfg(not(feature = "nixl"))]
pub(super) fn of(_config: &SiteConfig, _shared: &Shared) -> Option<Arc<dyn Carrier>> {
    None
}
