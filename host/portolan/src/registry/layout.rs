//! The layout of a component in a registry: manifest and config, made and read.

use super::address::is_digest;
use crate::signing::digest;
use portolan_ports::VersionSignature;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Media type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.wasm.config.v0+json";
const LAYER: &str = "application/wasm";
/// The layer's media type in the layout before this one. Read, never written.
const OLD_LAYER: &str = "application/vnd.wasm.content.layer.v1+wasm";

/// The annotation that holds signatures: the lines of `NAME.wasm.sig`, joined by commas.
pub const SIGNATURES: &str = "portolan.signatures";

/// When a config says it was made: always the same, so that the same component has the same digest whoever pushes it.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// What a manifest points at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it is.
    pub media_type: String,
    /// `sha256:` and its digest.
    pub digest: String,
    /// Bytes.
    pub size: u64,
}

/// A manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    schema_version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    media_type: String,
    /// The config.
    pub config: Descriptor,
    /// The layers: one, the component.
    pub layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WasmConfig {
    created: &'static str,
    author: Option<String>,
    architecture: &'static str,
    os: &'static str,
    layer_digests: Vec<String>,
    component: ComponentConfig,
}

#[derive(Serialize)]
struct ComponentConfig {
    exports: Vec<String>,
    imports: Vec<String>,
    target: Option<String>,
}

/// A component as it is pushed.
#[derive(Debug)]
pub struct Package {
    /// The manifest's bytes.
    pub manifest: Vec<u8>,
    /// The config's bytes.
    pub config: Vec<u8>,
}

/// A manifest that is not of a policy.
#[derive(Debug, thiserror::Error)]
pub enum BadLayout {
    /// It is no manifest.
    #[error("it is no manifest: {0}")]
    NoManifest(#[from] serde_json::Error),
    /// It is of something else.
    #[error("it holds {0}, not one layer of {LAYER}")]
    NoComponent(String),
    /// A digest is not of the kind that is checked here.
    #[error("its digest {0:?} is not sha256")]
    Digest(String),
    /// Its signatures cannot be read.
    #[error("its annotation {SIGNATURES} cannot be read: {0}")]
    Signatures(#[from] portolan_ports::BadSignatureText),
    /// What is to be pushed is no component.
    #[error("the file is no component: {0}")]
    File(String),
}

/// The digest of bytes as registries write it.
pub fn name_of(bytes: &[u8]) -> String {
    format!("sha256:{}", digest(bytes))
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: name_of(bytes),
        size: bytes.len() as u64,
    }
}

/// Packs a component with its signatures.
pub fn pack(component: &[u8], signatures: &[VersionSignature]) -> Result<Package, BadLayout> {
    let decoded = wit_component::decode(component).map_err(|e| BadLayout::File(e.to_string()))?;
    let wit_component::DecodedWasm::Component(resolve, world) = decoded else {
        return Err(BadLayout::File("it is an encoded WIT package".to_owned()));
    };
    let world = &resolve.worlds[world];
    let exports = world
        .exports
        .keys()
        .map(|key| resolve.name_world_key(key))
        .collect();
    let imports = world
        .imports
        .keys()
        .map(|key| resolve.name_world_key(key))
        .collect();
    let config = serde_json::to_vec(&WasmConfig {
        created: CREATED,
        author: None,
        architecture: "wasm",
        os: "wasip2",
        layer_digests: vec![name_of(component)],
        component: ComponentConfig {
            exports,
            imports,
            target: None,
        },
    })?;
    let lines: Vec<String> = signatures.iter().map(VersionSignature::to_string).collect();
    let annotations = match lines.is_empty() {
        true => BTreeMap::new(),
        false => BTreeMap::from([(SIGNATURES.to_owned(), lines.join(","))]),
    };
    let manifest = serde_json::to_vec(&Manifest {
        schema_version: 2,
        media_type: MANIFEST.to_owned(),
        config: descriptor(CONFIG, &config),
        layers: vec![descriptor(LAYER, component)],
        annotations,
    })?;
    Ok(Package { manifest, config })
}

/// Reads a manifest: where the component is, and its signatures.
pub fn unpack(manifest: &[u8]) -> Result<(Descriptor, Vec<VersionSignature>), BadLayout> {
    let manifest: Manifest = serde_json::from_slice(manifest)?;
    let [layer] = &manifest.layers[..] else {
        return Err(BadLayout::NoComponent(format!(
            "{} layers",
            manifest.layers.len()
        )));
    };
    if layer.media_type != LAYER && layer.media_type != OLD_LAYER {
        return Err(BadLayout::NoComponent(format!(
            "a layer of {:?}",
            layer.media_type
        )));
    }
    let is_sha256 = layer.digest.strip_prefix("sha256:").is_some_and(is_digest);
    if !is_sha256 {
        return Err(BadLayout::Digest(layer.digest.clone()));
    }
    let signatures = match manifest.annotations.get(SIGNATURES) {
        None => Vec::new(),
        Some(text) => VersionSignature::read_all(text)?,
    };
    Ok((layer.clone(), signatures))
}
