//! Brings a service back into a scratch folder, starts an engine of each model from there, and has it answer as it did.

use super::error::DrError;
use super::probe;
use super::restore::restore;
use super::target::Target;
use crate::system::OsRandom;
use portolan_base::{Clock, Moment};
use portolan_ports::PolicyStore;
use portolan_store::SledStore;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What a drill is held to.
#[derive(Clone, Copy, Debug)]
pub struct DrillRules {
    /// How long bringing the service back may take.
    pub target: Duration,
}

/// How a drill went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrillRecord {
    /// Which backup.
    pub backup: String,
    /// When it began.
    pub at: Moment,
    /// Whether every model answered as recorded, in time.
    pub ok: bool,
    /// From its beginning to the last model's answer, in ms.
    pub took_ms: u64,
    /// Of it, until the files were there.
    pub restored_ms: u64,
    /// How long it may take, in ms.
    pub target_ms: u64,
    /// Records of the store that came back.
    pub store_records: usize,
    /// Each model.
    pub models: Vec<Drilled>,
    /// What was wrong.
    pub problems: Vec<String>,
}

/// One model in a drill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drilled {
    /// Its name.
    pub model: String,
    /// The tokens it was recorded to answer.
    pub expected: Vec<u32>,
    /// The tokens it answered.
    pub answered: Vec<u32>,
}

/// Drills the latest backup at `target` in `scratch`, an empty folder, which is left to the caller.
///
/// # Errors
/// When the backup cannot be brought back or a model does not run. An answer other than the recorded one, and a target
/// that was missed, are told in the record.
pub async fn drill(
    target: Arc<dyn Target>,
    scratch: &Path,
    rules: DrillRules,
    clock: &dyn Clock,
) -> Result<DrillRecord, DrError> {
    let at = clock.now();
    let folder = scratch.to_owned();
    let restored = tokio::task::spawn_blocking(move || {
        let restored = restore(target.as_ref(), &folder)?;
        let store = SledStore::open(&folder.join("data"), &OsRandom)?;
        let records = store.audit(usize::MAX)?.len();
        Ok::<_, DrError>((restored, records))
    });
    let broken = |error: tokio::task::JoinError| DrError::Damaged {
        what: "the drill".to_owned(),
        detail: error.to_string(),
    };
    let (restored, store_records) = restored.await.map_err(broken)??;
    let restored_ms = millis(clock.now().since(at));
    let (mut models, mut problems) = (Vec::new(), Vec::new());
    for model in &restored.config.models {
        let name = model.name.as_str();
        let Some(recorded) = restored.backup.probes.iter().find(|probe| probe.model == name) else {
            problems.push(format!("no answer of model {name} was recorded"));
            continue;
        };
        let loaded = probe::load(&model.name, &model.path, model.window).await?;
        let most = u32::try_from(recorded.answer.len().max(1)).unwrap_or(u32::MAX);
        let answered = probe::answer(&loaded, &model.name, &recorded.prompt, most).await?;
        if answered != recorded.answer {
            problems.push(format!("model {name} answers otherwise than recorded"));
        }
        models.push(Drilled {
            model: name.to_owned(),
            expected: recorded.answer.clone(),
            answered,
        });
    }
    let took = clock.now().since(at);
    if took > rules.target {
        problems.push(format!(
            "it took {:.1?}, and {:.1?} were allowed",
            took, rules.target
        ));
    }
    Ok(DrillRecord {
        backup: restored.name,
        at,
        ok: problems.is_empty(),
        took_ms: millis(took),
        restored_ms,
        target_ms: millis(rules.target),
        store_records,
        models,
        problems,
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
