//! Backups and drills that a host makes by itself, and how old they are.

use crate::config::{Config, RecoveryConfig};
use crate::dr::{self, DrError, DrillRecord, DrillRules};
use portolan_base::{Clock, Moment};
use portolan_gateway::recovery::Recovery;
use portolan_ports::{Reading, Sample};
use portolan_store::SledStore;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How often it is looked whether something is due.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// What became of backups and drills, kept in the data folder: `recovery.json`. The command line writes it too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecoveryState {
    /// When the last backup was made.
    pub backup_at: Option<Moment>,
    /// The last drill.
    pub drill: Option<DrillRecord>,
}

impl RecoveryState {
    /// What the data folder says; nothing where it says nothing that can be read.
    pub fn read(data_dir: &Path) -> Self {
        let text = std::fs::read(data_dir.join("recovery.json")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Changes what the data folder says.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn change(data_dir: &Path, change: impl FnOnce(&mut Self)) -> std::io::Result<()> {
        let mut state = Self::read(data_dir);
        change(&mut state);
        let beside = data_dir.join("recovery.json.new");
        std::fs::write(&beside, serde_json::to_vec_pretty(&state)?)?;
        std::fs::rename(beside, data_dir.join("recovery.json"))
    }
}

/// One host's disaster recovery.
pub(super) struct RecoveryDesk {
    config: Config,
    store: Arc<SledStore>,
    clock: Arc<dyn Clock>,
}

impl RecoveryDesk {
    pub(super) fn new(config: Config, store: Arc<SledStore>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { config, store, clock })
    }

    /// What a site's doors reach of it.
    pub(super) fn doors(self: &Arc<Self>) -> Recovery {
        let (copier, teller) = (Arc::clone(self), Arc::clone(self));
        Recovery {
            copy_store: Box::new(move || {
                dr::make_snapshot(&copier.config, &copier.store).map_err(|error| error.to_string())
            }),
            ages: Box::new(move || teller.samples()),
        }
    }

    /// Does what is due, for as long as the set lives; nothing where nothing is on a schedule.
    pub(super) fn start(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let recovery = &self.config.recovery;
        if recovery.backup_every_h.is_none() && recovery.drill_stale().is_none() {
            return;
        }
        let desk = Arc::clone(self);
        tasks.spawn(async move {
            let mut look = tokio::time::interval(LOOK_EVERY);
            look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                look.tick().await;
                desk.look().await;
            }
        });
    }

    async fn look(&self) {
        let due = due(&self.config.recovery, &self.state(), self.clock.now());
        if due.backup
            && let Err(error) = self.back_up().await
        {
            tracing::error!(%error, "the scheduled backup failed");
        }
        if due.drill {
            match self.drill().await {
                Ok(record) if record.ok => {
                    tracing::info!(took_ms = record.took_ms, "the drill went as it should");
                }
                Ok(record) => {
                    tracing::error!(problems = ?record.problems, "the drill did not go as it should");
                }
                Err(error) => tracing::error!(%error, "the drill failed"),
            }
        }
        if due.stale {
            tracing::error!(
                "the last drill is too old: nobody knows whether the service can be brought back"
            );
        }
    }

    async fn back_up(&self) -> Result<(), DrError> {
        let (config, store) = (self.config.clone(), Arc::clone(&self.store));
        let copied = tokio::task::spawn_blocking(move || dr::make_snapshot(&config, &store)).await;
        let store = copied.map_err(|broke| DrError::Damaged {
            what: "the backup".to_owned(),
            detail: broke.to_string(),
        })??;
        let place = (self.target()?, self.config.recovery.existing());
        let backed = dr::backup_service(self.config.clone(), store, place, self.clock.as_ref()).await?;
        if backed.damaged > 0 {
            tracing::warn!(
                parts = backed.damaged,
                "parts of earlier backups had been damaged and were sent again"
            );
        }
        tracing::info!(backup = %backed.backup, files = backed.files, sent_bytes = backed.sent_bytes, "backed up");
        let now = self.clock.now();
        self.change(|state| state.backup_at = Some(now))
    }

    async fn drill(&self) -> Result<DrillRecord, DrError> {
        let scratch = self.config.data_dir.join("drill");
        drop(tokio::fs::remove_dir_all(&scratch).await);
        let rules = DrillRules {
            target: self.config.recovery.drill_target(),
        };
        let drilled = dr::drill(self.target()?, &scratch, rules, self.clock.as_ref()).await;
        drop(tokio::fs::remove_dir_all(&scratch).await);
        let record = drilled?;
        let kept = record.clone();
        self.change(|state| state.drill = Some(kept))?;
        Ok(record)
    }

    fn target(&self) -> Result<Arc<dyn dr::Target>, DrError> {
        let recovery = &self.config.recovery;
        dr::open_target(recovery.target.as_deref().unwrap_or_default(), &recovery.s3()).map(Arc::from)
    }

    fn change(&self, change: impl FnOnce(&mut RecoveryState)) -> Result<(), DrError> {
        let written = RecoveryState::change(&self.config.data_dir, change);
        written.map_err(|source| DrError::File {
            path: PathBuf::from("recovery.json"),
            source,
        })
    }

    fn state(&self) -> RecoveryState {
        RecoveryState::read(&self.config.data_dir)
    }

    fn samples(&self) -> Vec<Sample> {
        samples(&self.config.recovery, &self.state(), self.clock.now())
    }
}

/// What is to be done, or said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Due {
    backup: bool,
    drill: bool,
    /// The last drill is too old.
    stale: bool,
}

fn due(recovery: &RecoveryConfig, state: &RecoveryState, now: Moment) -> Due {
    let hours = |hours: u32| Duration::from_secs(3600 * u64::from(hours));
    let older = |at: Option<Moment>, than: Duration| at.is_none_or(|at| now.since(at) >= than);
    let drilled = state.drill.as_ref().map(|drill| drill.at);
    // A drill needs a backup to come back from.
    let is_backed = state.backup_at.is_some() || recovery.backup_every_h.is_none();
    Due {
        backup: recovery
            .backup_every_h
            .is_some_and(|every| older(state.backup_at, hours(every))),
        drill: is_backed
            && recovery
                .drill_every_h
                .is_some_and(|every| older(drilled, hours(every))),
        stale: recovery.drill_stale().is_some_and(|most| older(drilled, most)),
    }
}

fn samples(recovery: &RecoveryConfig, state: &RecoveryState, now: Moment) -> Vec<Sample> {
    let gauge = |name, help, value: u64| Sample {
        name,
        help,
        labels: Vec::new(),
        value: Reading::Gauge(value),
    };
    let mut samples = Vec::new();
    if let Some(at) = state.backup_at {
        samples.push(gauge(
            "recovery_backup_age_seconds",
            "Age of the last backup",
            now.since(at).as_secs(),
        ));
    }
    if let Some(drill) = &state.drill {
        samples.push(gauge(
            "recovery_drill_age_seconds",
            "Age of the last drill",
            now.since(drill.at).as_secs(),
        ));
        samples.push(gauge(
            "recovery_drill_took_seconds",
            "What the last drill took",
            drill.took_ms / 1000,
        ));
        samples.push(gauge(
            "recovery_drill_ok",
            "1 when every model answered as recorded in the last drill, in time",
            u64::from(drill.ok),
        ));
    }
    if recovery.drill_stale().is_some() {
        let stale = due(recovery, state, now).stale;
        samples.push(gauge(
            "recovery_drill_overdue",
            "1 when the last drill is too old",
            u64::from(stale),
        ));
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000;

    fn drilled(at: Moment, ok: bool) -> RecoveryState {
        RecoveryState {
            backup_at: Some(at),
            drill: Some(DrillRecord {
                backup: "b".to_owned(),
                at,
                ok,
                took_ms: 61_000,
                restored_ms: 1,
                target_ms: 1,
                store_records: 1,
                models: Vec::new(),
                problems: Vec::new(),
            }),
        }
    }

    #[test]
    fn what_is_due_is_done_and_what_is_too_old_is_said() {
        let recovery = RecoveryConfig {
            backup_every_h: Some(6),
            drill_every_h: Some(24),
            ..RecoveryConfig::default()
        };
        let at = |state: &RecoveryState, hours: u64| due(&recovery, state, Moment(hours * HOUR));
        let never = at(&RecoveryState::default(), 1);
        assert_eq!(
            (never.backup, never.drill, never.stale),
            (true, false, true),
            "first a backup"
        );
        let state = drilled(Moment(0), true);
        assert_eq!(at(&state, 5), Due::default());
        assert!(at(&state, 6).backup && !at(&state, 6).drill);
        assert!(at(&state, 24).drill && !at(&state, 47).stale && at(&state, 48).stale);
        let nothing = due(&RecoveryConfig::default(), &RecoveryState::default(), Moment(0));
        assert_eq!(nothing, Due::default());
    }

    #[test]
    fn the_age_of_the_last_drill_and_its_alarm_are_on_the_metrics_page() {
        let recovery = RecoveryConfig {
            drill_stale_h: Some(2),
            ..RecoveryConfig::default()
        };
        let read = |hours: u64| -> Vec<(&str, u64)> {
            let samples = samples(&recovery, &drilled(Moment(0), false), Moment(hours * HOUR));
            let value = |sample: &Sample| match &sample.value {
                Reading::Gauge(value) | Reading::Counter(value) => *value,
                Reading::Times { .. } => unreachable!("ages are numbers"),
            };
            samples
                .iter()
                .map(|sample| (sample.name, value(sample)))
                .collect()
        };
        let early = read(1);
        assert!(early.contains(&("recovery_drill_age_seconds", 3600)), "{early:?}");
        assert!(
            early.contains(&("recovery_drill_ok", 0)) && early.contains(&("recovery_drill_took_seconds", 61))
        );
        assert!(early.contains(&("recovery_drill_overdue", 0)));
        assert!(read(2).contains(&("recovery_drill_overdue", 1)));
    }
}
