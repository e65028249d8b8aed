//! The KV tiers of a site.

use super::parts::{HostError, Shared};
use super::residency;
use crate::config::SiteConfig;
use portolan_base::kv::LandingId;
use portolan_base::{Bytes, Clock, ModelName, Provenance};
use portolan_disk::{DiskConfig, DiskLanding, DiskTier, Realm};
use portolan_engine::LoadedModel;
use portolan_kv::PoolBlock;
use portolan_kv::tier::{BlockTier, HostTier, Tiers};
use portolan_ports::{Engine, LandedSet, Landing};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// The tiers of a site, and those of them that write files.
#[derive(Default)]
pub(super) struct SiteTiers {
    pub(super) all: Arc<Tiers>,
    disks: Vec<Arc<DiskTier>>,
}

impl SiteTiers {
    /// Where transfers land that a poor link cuts; none without a disk.
    pub(super) fn landing(&self, clock: Arc<dyn Clock>) -> Option<Arc<dyn Landing>> {
        let landing = || -> Arc<dyn Landing> {
            Arc::new(TrustedLanding {
                disks: DiskLanding::new(self.disks.iter().cloned(), Arc::clone(&clock)),
                tiers: Arc::clone(&self.all),
                clock,
            })
        };
        (!self.disks.is_empty()).then(landing)
    }

    /// Writes to disk what lies in memory and nowhere else, the latest first, until it is all there or `until` has come;
    /// then waits for what was taken, which is no more than the queue holds.
    pub(super) async fn write_down(self, engines: Vec<Arc<dyn Engine>>, until: Instant) {
        let written = tokio::task::spawn_blocking(move || {
            for disk in &self.disks {
                self.fill(disk, &engines, until);
                disk.settle();
            }
        });
        if let Err(error) = written.await {
            tracing::error!(%error, "KV was not written to disk to the end");
        }
    }

    /// Hands one disk the KV of its model: that of the instances, which was used last, then that of host memory.
    fn fill(&self, disk: &DiskTier, engines: &[Arc<dyn Engine>], until: Instant) {
        let mut room = disk.usage().budget.0;
        let mut take = |block: Arc<PoolBlock>, used_at| {
            if block.about.model != *disk.model() {
                return true;
            }
            // What comes later was used earlier, and must not push out what came before it.
            let Some(left) = room.checked_sub(block.size().0) else {
                return false;
            };
            room = left;
            disk.take(block, used_at, until)
        };
        let models = engines
            .iter()
            .filter(|engine| engine.describe().model == *disk.model());
        for cache in models.filter_map(|engine| engine.cache()) {
            cache.hand_down(&mut take);
        }
        for tier in self.all.each() {
            tier.hand_down(&mut take);
        }
    }
}

/// Where transfers land, as long as what lies there may be used: an order that has not come yet may be about it.
struct TrustedLanding {
    disks: DiskLanding,
    tiers: Arc<Tiers>,
    clock: Arc<dyn Clock>,
}

impl Landing for TrustedLanding {
    fn open(&self, set: LandingId, about: Arc<Provenance>) -> Option<Arc<dyn LandedSet>> {
        let is_trusted = self.tiers.is_trusted(self.clock.now());
        is_trusted.then(|| self.disks.open(set, about)).flatten()
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
            // KV of engines that are not ours never comes here.
            let Some(loaded) = model.loaded() else { continue };
            let computed = model.everywhere();
            let disk = Arc::new(disk(config, shared, name, (loaded, computed, model.version)).await?);
            if let Some(gate) = residency::gate(config, shared) {
                disk.guard(gate);
            }
            tiers.push(disk.clone());
            disks.push(disk);
        }
    }
    Ok(SiteTiers {
        all: Arc::new(Tiers::new(tiers)),
        disks,
    })
}

/// Opens the disk tier of one model. Its realm is found by running the model wherever instances do, which takes as long
/// as a prefill of a block.
async fn disk(
    config: &SiteConfig,
    shared: &Shared,
    name: &ModelName,
    (loaded, computed, version): (Arc<LoadedModel>, Vec<Arc<LoadedModel>>, u64),
) -> Result<DiskTier, HostError> {
    let wanted = config.kv_tiers.clone();
    let root = wanted
        .disk_dir
        .clone()
        .unwrap_or_else(|| shared.config.data_dir.join("kv"));
    let folder = root.join(config.name.as_str()).join(name.as_str());
    let landing = wanted.landing();
    let (pool, secret, name) = (
        shared.config.tier(wanted.blocks_mib()),
        shared.secrets.files,
        name.clone(),
    );
    let opened = tokio::task::spawn_blocking(move || {
        let layout = loaded.layout(name.clone(), version);
        let probes = computed.iter().map(|model| model.probe());
        let probe = probes
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| HostError::Broken(error.to_string()))?
            .concat();
        let config = DiskConfig {
            folder,
            model: name,
            realm: Realm::of(&layout, probe.iter().map(|part| &part[..])),
            secret,
            pool,
            queue: Bytes(wanted.disk_queue_mib << 20),
            landing,
            secure_delete: wanted.secure_delete,
        };
        DiskTier::open(config).map_err(HostError::Disk)
    });
    opened
        .await
        .map_err(|error| HostError::Broken(error.to_string()))?
}
