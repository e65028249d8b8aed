//! Backups and drills, as the file says it.

use super::{Config, ConfigError};
use crate::dr::{Existing, S3Place};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Backups and drills ([disaster-recovery.md](disaster-recovery.md)).
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RecoveryConfig {
    /// Where backups go: a folder, or `s3://BUCKET/PREFIX`.
    pub target: Option<String>,
    /// The address of the S3 store; none: that of AWS in the region.
    pub endpoint: Option<String>,
    /// Its region; none: `us-east-1`.
    pub region: Option<String>,
    /// Files that start the service: units, compose files, Dockerfiles. `[]` says that there are none; without the key no
    /// backup is made.
    pub deployment: Option<Vec<PathBuf>>,
    /// Exact versions of what the service is built from. `[]` says that there are none; without the key no backup is made.
    pub dependency_locks: Option<Vec<PathBuf>>,
    /// Folders of adapters (LoRA) that lie outside the models' folders.
    pub adapters: Vec<PathBuf>,
    /// Hours between two backups that the host makes by itself; none: it makes none.
    pub backup_every_h: Option<u32>,
    /// Hours between two drills that the host holds by itself; none: it holds none.
    pub drill_every_h: Option<u32>,
    /// Minutes in which the service has to be back.
    pub drill_target_min: u32,
    /// Hours after which the last drill is too old, and an alarm is raised; none: twice `drill_every_h`.
    pub drill_stale_h: Option<u32>,
    /// Parts that are at the place already are taken for good where their size is right, and are not read: for a place that
    /// is far away or bills what is read. Damage there is then found by `portolan dr verify` and by drills only.
    pub trust_existing: bool,
    /// What each model is asked, when a backup is made and in a drill.
    pub probe: ProbeConfig,
}

/// What a model is asked.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProbeConfig {
    /// The prompt.
    pub prompt: String,
    /// Tokens of the answer at most.
    pub tokens: u32,
}

impl Default for ProbeConfig {
    fn default() -> Self {
        Self {
            prompt: "The capital of France is".to_owned(),
            // Enough to show a wrong weight or a wrong position, and some seconds on a slow machine.
            tokens: 16,
        }
    }
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self {
            target: None,
            endpoint: None,
            region: None,
            deployment: None,
            dependency_locks: None,
            adapters: Vec::new(),
            backup_every_h: None,
            drill_every_h: None,
            drill_target_min: 30,
            drill_stale_h: None,
            trust_existing: false,
            probe: ProbeConfig::default(),
        }
    }
}

impl RecoveryConfig {
    /// How an S3 store is reached.
    pub fn s3(&self) -> S3Place {
        S3Place {
            endpoint: self.endpoint.clone(),
            region: self.region.clone(),
            credentials: None,
        }
    }

    /// What a backup does about parts that are at the place already.
    pub fn existing(&self) -> Existing {
        match self.trust_existing {
            true => Existing::Trust,
            false => Existing::Read,
        }
    }

    /// How long bringing the service back may take.
    pub fn drill_target(&self) -> Duration {
        Duration::from_secs(60 * u64::from(self.drill_target_min))
    }

    /// How old the last drill may be.
    pub fn drill_stale(&self) -> Option<Duration> {
        let hours = self
            .drill_stale_h
            .or_else(|| self.drill_every_h.map(|every| every.saturating_mul(2)))?;
        Some(Duration::from_secs(3600 * u64::from(hours)))
    }
}

impl Config {
    pub(super) fn check_recovery(&self) -> Result<(), ConfigError> {
        let recovery = &self.recovery;
        let scheduled = recovery.backup_every_h.is_some() || recovery.drill_every_h.is_some();
        if scheduled && recovery.target.is_none() {
            let problem = "backups and drills on a schedule need a place: a folder, or s3://BUCKET/PREFIX";
            return Err(ConfigError::value("recovery.target", problem));
        }
        for (key, value) in [
            ("backup_every_h", recovery.backup_every_h),
            ("drill_every_h", recovery.drill_every_h),
            ("drill_stale_h", recovery.drill_stale_h),
            ("drill_target_min", Some(recovery.drill_target_min)),
            ("probe.tokens", Some(recovery.probe.tokens)),
        ] {
            if value == Some(0) {
                return Err(ConfigError::value(
                    format!("recovery.{key}"),
                    "at least 1 is needed",
                ));
            }
        }
        if recovery.probe.prompt.is_empty() {
            return Err(ConfigError::value("recovery.probe.prompt", "a prompt is needed"));
        }
        Ok(())
    }

    /// The paths of `recovery`, to be made relative to the file's folder.
    pub(super) fn recovery_paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let recovery = &mut self.recovery;
        let lists = recovery
            .deployment
            .iter_mut()
            .chain(recovery.dependency_locks.iter_mut())
            .flatten();
        lists.chain(recovery.adapters.iter_mut())
    }
}
