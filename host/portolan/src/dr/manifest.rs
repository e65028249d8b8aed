//! What a service consists of.

use portolan_base::Moment;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A model's weights.
    Weights,
    /// Its architecture.
    Config,
    /// Its tokenizer.
    Tokenizer,
    /// Its chat template.
    ChatTemplate,
    /// Its defaults for sampling and its stop tokens.
    GenerationConfig,
    /// How its weights are quantised.
    QuantisationConfig,
    /// How its positions are encoded.
    RopeScaling,
    /// An adapter: its manifest or its weights.
    LoraManifest,
    /// How each instance is started.
    EngineFlags,
    /// The host's configuration.
    HostConfig,
    /// What starts the service: units, compose files, images.
    Deployment,
    /// Exact versions of what it is built from.
    DependencyLock,
    /// Policies: components and their versions.
    Policies,
    /// Which policy answers what for whom.
    Bindings,
    /// Tenants.
    Tenants,
    /// Keys, and the secret that they are derived from.
    Keys,
    /// Certificates of sites.
    Certificates,
}

impl Role {
    /// The word used in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Config => "config",
            Self::Tokenizer => "tokenizer",
            Self::ChatTemplate => "chat_template",
            Self::GenerationConfig => "generation_config",
            Self::QuantisationConfig => "quantisation_config",
            Self::RopeScaling => "rope_scaling",
            Self::LoraManifest => "lora_manifest",
            Self::EngineFlags => "engine_flags",
            Self::HostConfig => "host_config",
            Self::Deployment => "deployment",
            Self::DependencyLock => "dependency_lock",
            Self::Policies => "policies",
            Self::Bindings => "bindings",
            Self::Tenants => "tenants",
            Self::Keys => "keys",
            Self::Certificates => "certificates",
        }
    }
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Where it lies in a restored folder: `models/NAME/config.json`, `store/secret`.
    pub path: String,
    /// What it is for; one file may be for several things.
    pub roles: Vec<Role>,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its SHA-256, hexadecimal.
    pub sha256: String,
}

/// A prompt with the answer that the model gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The model.
    pub model: String,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// The tokens it generated greedily.
    pub answer: Vec<u32>,
}

/// Every file that it takes to bring a service back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The release of this program.
    pub portolan: String,
    /// The files, by path.
    pub items: Vec<Item>,
}

impl Manifest {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(|item| item.bytes).sum()
    }
}

/// A part of a file: parts are named by their content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// SHA-256 of the part, hexadecimal.
    pub sha256: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A backup, as it lies at its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    /// When it was begun.
    pub at: Moment,
    /// What it is of.
    pub manifest: Manifest,
    /// The parts of each file, by the file's SHA-256.
    pub parts: BTreeMap<String, Vec<Part>>,
    /// What each model answered.
    pub probes: Vec<Probe>,
}
