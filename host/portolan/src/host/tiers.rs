//! The KV tiers of a site.

use super::parts::{HostError, Model, Shared};
use crate::config::SiteConfig;
use portolan_base::{Bytes, ModelName};
use portolan_disk::{DiskConfig, DiskTier, Realm};
use portolan_kv::tier::{BlockTier, HostTier, Tiers};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The tiers of a site, and those of them that write files.
#[derive(Default)]
pub(super) struct SiteTiers {
    pub(super) all: Arc<Tiers>,
    disks: Vec<Arc<DiskTier>>,
}

impl SiteTiers {
    /// Waits until what was to be on disk is there.
    pub(super) async fn settle(self) {
        let settled = tokio::task::spawn_blocking(move || self.disks.iter().for_each(|disk| disk.settle()));
        if let Err(error) = settled.await {
            tracing::error!(%error, "KV was not written to disk to the end");
        }
    }
}

/// Opens what the configuration asks for: host memory for all models together, then a disk tier for each.
pub(super) async fn open(config: &SiteConfig, shared: &Shared) -> Result<SiteTiers, HostError> {
    let mut disks = Vec::new();
    let wanted = &config.kv_tiers;
    let mut tiers: Vec<Arc<dyn BlockTier>> = Vec::new();
    if wanted.host_mib > 0 {
        tiers.push(Arc::new(HostTier::new(shared.config.tier(wanted.host_mib))));
    }
    if wanted.disk_mib > 0 {
        let names: BTreeSet<&ModelName> = config.instances.iter().map(|instance| &instance.model).collect();
        for (name, model) in names
            .into_iter()
            .filter_map(|name| Some((name, shared.models.get(name)?)))
        {
            let disk = Arc::new(disk(config, shared, name, model.clone()).await?);
            tiers.push(disk.clone());
            disks.push(disk);
        }
    }
    Ok(SiteTiers {
        all: Arc::new(Tiers::new(tiers)),
        disks,
    })
}

/// Opens the disk tier of one model. Its realm is found by running the model, which takes as long as a prefill of a
/// block.
async fn disk(
    config: &SiteConfig,
    shared: &Shared,
    name: &ModelName,
    model: Model,
) -> Result<DiskTier, HostError> {
    let wanted = config.kv_tiers.clone();
    let root = wanted
        .disk_dir
        .unwrap_or_else(|| shared.config.data_dir.join("kv"));
    let folder = root.join(config.name.as_str()).join(name.as_str());
    let (pool, secret, name) = (
        shared.config.tier(wanted.disk_mib),
        shared.secrets.files,
        name.clone(),
    );
    let opened = tokio::task::spawn_blocking(move || {
        let layout = model.loaded.layout(name.clone(), model.version);
        let probe = model
            .loaded
            .probe()
            .map_err(|error| HostError::Broken(error.to_string()))?;
        let config = DiskConfig {
            folder,
            model: name,
            realm: Realm::of(&layout, probe.iter().map(|part| &part[..])),
            secret,
            pool,
            queue: Bytes(wanted.disk_queue_mib << 20),
            secure_delete: wanted.secure_delete,
        };
        DiskTier::open(config).map_err(HostError::Disk)
    });
    opened
        .await
        .map_err(|error| HostError::Broken(error.to_string()))?
}
