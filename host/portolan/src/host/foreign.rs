//! Instances of engines that are not ours.

use super::parts::{HostError, Model, Shared};
use crate::config::{EngineKind, InstanceConfig, SiteConfig};
use portolan_base::kv::{KvDtype, KvLayout, LayerKv};
use portolan_engine::foreign::{ForeignConfig, ForeignInstance};
use portolan_ports::{Engine, EngineDescription};
use std::sync::Arc;

/// Begins to watch one, and starts its process where the configuration says how.
pub(super) fn start(
    (site, instance): (&SiteConfig, &InstanceConfig),
    model: &Model,
    shared: &Shared,
) -> Result<Arc<dyn Engine>, HostError> {
    let broken = || HostError::Broken(format!("instance {} has no engine's address", instance.name));
    let server = instance.server.as_ref().ok_or_else(broken)?;
    let log = format!("{}-{}.log", site.name, instance.name);
    let config = ForeignConfig {
        description: described(model, instance),
        make: instance.engine.make().ok_or_else(broken)?,
        url: server.address().ok_or_else(broken)?,
        served_name: server.served_name.clone(),
        command: server.process(shared.config.data_dir.join("engines").join(log)),
        key: server.api_key.clone(),
        events: server.events(),
        connector: server.connector(),
        kv_store: server.store(),
        text: model.text(),
        random: Arc::clone(&shared.random),
        clock: Arc::clone(&shared.clock),
    };
    let started = ForeignInstance::start(config).map_err(|source| HostError::Foreign {
        instance: instance.name.as_str().to_owned(),
        site: site.name.as_str().to_owned(),
        source,
    })?;
    Ok(Arc::new(started))
}

/// What it is. Where its KV lies with the host, that is cut into the engine's own blocks.
fn described(model: &Model, instance: &InstanceConfig) -> EngineDescription {
    let description = model.described(instance);
    let store = instance
        .server
        .as_ref()
        .and_then(|server| server.kv_store.as_ref());
    let Some(store) = store else { return description };
    let layout = description.layout.as_ref().clone();
    let slots = instance.engine == EngineKind::LlamaCpp;
    let usual = if slots { KvDtype::F16 } else { layout.dtype };
    EngineDescription {
        layout: Arc::new(KvLayout {
            block_tokens: store.block_tokens,
            dtype: store.dtype.unwrap_or(usual),
            layers: match slots {
                true => layout.layers.into_iter().map(channel_by_channel).collect(),
                false => layout.layers,
            },
            ..layout
        }),
        ..description
    }
}

/// Saved slots are kept with each channel's numbers side by side. No other engine's KV has this shape, so that none is
/// taken for it: llama.cpp rotates other pairs of a head's values than others do.
fn channel_by_channel(layer: LayerKv) -> LayerKv {
    match layer {
        LayerKv::FullAttention { kv_heads, head_dim } => LayerKv::FullAttention {
            kv_heads: kv_heads.saturating_mul(head_dim),
            head_dim: 1,
        },
        recurrent @ LayerKv::Recurrent { .. } => recurrent,
    }
}
