//! The configuration of the running host: read again, put back, approved. All of a change counts, or nothing does.

mod edits;
mod fleet;
mod force;
mod pinned;
mod versions;
mod waiting;

use crate::config::{Change, Config, ConfigError, Takes, mask, takes_of};
use async_trait::async_trait;
use fleet::Fleet;
use pinned::Pinned;
use portolan_base::{Clock, SiteName};
use portolan_gateway::live::Switch;
use portolan_gateway::{Live, Site};
use portolan_ports::{
    Changer, ConfigDone, ConfigOrder, ConfigOutcome, ConfigRefusal, ConfigVersion, Configuration,
    FleetConfiguration, PendingConfig,
};
use portolan_store::SledStore;
use portolan_transport::SiteTransport;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use versions::Versions;
use waiting::{Waiting, WaitingFile};

pub(super) use waiting::in_force;

/// Changes which log lines are written.
pub type SetLogLevel = Box<dyn Fn(&str) + Send + Sync>;

/// A running site, as far as the configuration reaches it.
struct Reached {
    name: SiteName,
    gateway: Weak<Site>,
    transport: Weak<SiteTransport>,
}

/// What one host's configuration is at the moment.
struct State {
    config: Arc<Config>,
    waiting: Option<Waiting>,
}

/// The configuration of the running host.
pub(super) struct LiveConfig {
    file: Option<PathBuf>,
    pinned: Pinned,
    state: Mutex<State>,
    /// Held while a change is made.
    changing: Mutex<()>,
    sites: Mutex<Vec<Reached>>,
    versions: Versions,
    waits: WaitingFile,
    fleet: Fleet,
    store: Arc<SledStore>,
    clock: Arc<dyn Clock>,
    log: OnceLock<SetLogLevel>,
}

impl LiveConfig {
    /// That of a host which starts with `config`. What differs from the version that was in force last is noted.
    pub(super) fn start(
        config: &Config,
        store: Arc<SledStore>,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, ConfigRefusal> {
        let folder = config.data_dir.join("config");
        let live = Self {
            file: config.source.as_ref().map(|source| source.path.clone()),
            pinned: Pinned::of(config),
            state: Mutex::new(State {
                config: Arc::new(config.clone()),
                waiting: None,
            }),
            changing: Mutex::default(),
            sites: Mutex::default(),
            waits: WaitingFile::in_folder(&folder),
            fleet: Fleet::of(config),
            versions: Versions::new(folder),
            store,
            clock,
            log: OnceLock::new(),
        };
        live.note_start(config)?;
        live.remember()?;
        Ok(Arc::new(live))
    }

    /// Lets changes reach a site, and has it behave as the configuration says at the moment.
    pub(super) fn reach(self: &Arc<Self>, gateway: &Arc<Site>, transport: &Arc<SiteTransport>) {
        gateway.apply(live_of(&self.config()));
        if self.file.is_some() {
            gateway.set_configuration(Arc::new(Door(Arc::clone(self))));
        }
        let mut sites = lock(&self.sites);
        sites.retain(|site| site.gateway.strong_count() > 0);
        sites.push(Reached {
            name: gateway.parts.name.clone(),
            gateway: Arc::downgrade(gateway),
            transport: Arc::downgrade(transport),
        });
    }

    /// Lets changes of `observability.log_level` reach the log. Only the first call counts.
    pub(super) fn set_log(&self, log: SetLogLevel) {
        drop(self.log.set(log));
    }

    /// What is in force.
    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&lock(&self.state).config)
    }

    fn note_start(&self, config: &Config) -> Result<(), ConfigRefusal> {
        let Some(source) = &config.source else {
            return Ok(());
        };
        let last = self.versions.last()?;
        if last.as_ref().is_some_and(|last| last.text == source.text) {
            return Ok(());
        }
        let before = last.and_then(|last| Config::of_file(&source.path, last.text).ok());
        let before = before.map(|before| self.pinned.over(before));
        let changes = before.map(|before| before.changes_to(config)).unwrap_or_default();
        let by = Changer {
            actor: "configuration".to_owned(),
            holder: None,
            reason: "the host started".to_owned(),
        };
        let version = self
            .versions
            .stage(&source.text, &lines(&changes), &by, self.clock.now())?;
        self.versions.put(version)?;
        self.versions.prune(config.changing.keep_versions)
    }

    /// What waited before the start waits on, unless something else is in force since.
    fn remember(&self) -> Result<(), ConfigRefusal> {
        let Some(waiting) = self.waits.read() else {
            return Ok(());
        };
        if self.versions.newest()? == waiting.over && self.clock.now() <= waiting.expires {
            lock(&self.state).waiting = Some(waiting);
            return Ok(());
        }
        tracing::warn!(
            "a change of the configuration waits no more: it is too old, or another one is in force"
        );
        self.waits.write(None)
    }

    /// On disk first: what is said to wait waits after a crash too.
    fn set_waiting(&self, waiting: Option<Waiting>) -> Result<(), ConfigRefusal> {
        self.waits.write(waiting.as_ref())?;
        lock(&self.state).waiting = waiting;
        Ok(())
    }

    pub(super) fn change(&self, order: ConfigOrder, by: Changer) -> Result<ConfigDone, ConfigRefusal> {
        let _one_at_a_time = lock(&self.changing);
        let file = self.file.as_ref().ok_or_else(|| {
            ConfigRefusal::Missing("this host was started without a configuration file".to_owned())
        })?;
        match order {
            ConfigOrder::Reload => {
                let text = std::fs::read_to_string(file)
                    .map_err(|error| ConfigRefusal::Bad(format!("{}: {error}", file.display())))?;
                let done = self.bring(text.clone(), by)?;
                if done.outcome == ConfigOutcome::Unchanged {
                    self.adopt(&text)?;
                }
                Ok(done)
            }
            ConfigOrder::Rollback(version, edits) => {
                let text = self.versions.earlier(version)?.text;
                self.mind_edits(&self.config(), &text, edits)?;
                self.bring(text, by)
            }
            ConfigOrder::Approve => self.approve(by),
            ConfigOrder::Reject => {
                let waiting = lock(&self.state).waiting.clone().ok_or_else(nothing_waits)?;
                self.set_waiting(None)?;
                tracing::warn!(actor = %by.actor, reason = %by.reason, "the waiting change of the configuration was rejected");
                self.done(ConfigOutcome::Rejected, waiting.changes)
            }
        }
    }

    /// What says the same in other words, with other comments: what is written into the file from here on goes into that.
    fn adopt(&self, text: &str) -> Result<(), ConfigRefusal> {
        let (same, _) = self.weigh(&self.config(), text)?;
        lock(&self.state).config = Arc::new(same);
        Ok(())
    }

    /// Puts a text into force, or has it wait for a second operator.
    fn bring(&self, text: String, by: Changer) -> Result<ConfigDone, ConfigRefusal> {
        let now = self.config();
        let (next, changes) = self.weigh(&now, &text)?;
        if changes.is_empty() {
            return self.done(ConfigOutcome::Unchanged, Vec::new());
        }
        if now.changing.four_eyes {
            let waiting = Waiting {
                text,
                over: self.versions.newest()?,
                changes: lines(&changes),
                behind: vec![(by.actor.clone(), by.holder)],
                reason: by.reason,
                expires: self.clock.now() + now.changing.expiry(),
            };
            for change in &waiting.changes {
                tracing::warn!(actor = %by.actor, change, "proposed for the configuration");
            }
            self.set_waiting(Some(waiting))?;
            return self.done(ConfigOutcome::Proposed, lines(&changes));
        }
        self.put_into_force_everywhere((next, &text), &changes, &by)
    }

    fn approve(&self, by: Changer) -> Result<ConfigDone, ConfigRefusal> {
        let mut waiting = lock(&self.state).waiting.clone().ok_or_else(nothing_waits)?;
        let Some(holder) = by.holder else {
            let text = "this key names no operator; give it a name under operator_keys";
            return Err(ConfigRefusal::Forbidden(text.to_owned()));
        };
        if self.clock.now() > waiting.expires {
            self.set_waiting(None)?;
            return Err(ConfigRefusal::Missing(
                "the change waited for too long; propose it again".to_owned(),
            ));
        }
        if self.versions.newest()? != waiting.over {
            self.set_waiting(None)?;
            let text = "the configuration changed since this was proposed; propose it again";
            return Err(ConfigRefusal::Missing(text.to_owned()));
        }
        if waiting
            .behind
            .iter()
            .any(|(_, known)| known.as_ref() == Some(&holder))
        {
            let text = format!("{holder} stands behind this already; another operator has to");
            return Err(ConfigRefusal::Forbidden(text));
        }
        waiting.behind.push((by.actor, Some(holder)));
        let named = waiting
            .behind
            .iter()
            .filter(|(_, holder)| holder.is_some())
            .count();
        if named < 2 {
            let changes = waiting.changes.clone();
            self.set_waiting(Some(waiting))?;
            return self.done(ConfigOutcome::Proposed, changes);
        }
        let actors: Vec<&str> = waiting.behind.iter().map(|(actor, _)| actor.as_str()).collect();
        let by = Changer {
            actor: actors.join(", "),
            holder: None,
            reason: [waiting.reason.as_str(), by.reason.as_str()]
                .join(" ")
                .trim()
                .to_owned(),
        };
        let now = self.config();
        let (next, changes) = self.weigh(&now, &waiting.text)?;
        self.set_edits_aside(&now, &waiting.text)?;
        let done = self.put_into_force_everywhere((next, &waiting.text), &changes, &by)?;
        // It is in force: what is left of it in the file follows an earlier version, and counts no more.
        if let Err(error) = self.set_waiting(None) {
            tracing::warn!(%error, "the approved change could not be taken off the waiting ones");
            lock(&self.state).waiting = None;
        }
        Ok(done)
    }

    /// What a text says, and what is different in it. Refused where something of that needs a restart.
    fn weigh(&self, now: &Config, text: &str) -> Result<(Config, Vec<Change>), ConfigRefusal> {
        let file = self.file.clone().unwrap_or_default();
        let bad = |error: ConfigError| ConfigRefusal::Bad(error.to_string());
        let next = self
            .pinned
            .over(Config::of_file(&file, text.to_owned()).map_err(bad)?);
        let changes = now.changes_to(&next);
        let later = |change: &&Change| takes_of(change) == Takes::Restart;
        let restart: Vec<String> = changes
            .iter()
            .filter(later)
            .map(|change| change.key.clone())
            .collect();
        match restart.is_empty() {
            true => Ok((next, changes)),
            false => Err(ConfigRefusal::NeedsRestart(restart)),
        }
    }

    fn done(&self, outcome: ConfigOutcome, changes: Vec<String>) -> Result<ConfigDone, ConfigRefusal> {
        let version = self.versions.newest()?;
        Ok(ConfigDone {
            outcome,
            version,
            changes,
        })
    }
}

/// What operators reach over HTTP.
struct Door(Arc<LiveConfig>);

#[async_trait]
impl Configuration for Door {
    async fn change(&self, order: ConfigOrder, by: Changer) -> Result<ConfigDone, ConfigRefusal> {
        let live = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || live.change(order, by)).await;
        done.map_err(|error| ConfigRefusal::Broken(error.to_string()))?
    }

    fn history(&self) -> Result<Vec<ConfigVersion>, ConfigRefusal> {
        self.0.versions.history()
    }

    fn pending(&self) -> Option<PendingConfig> {
        let waiting = lock(&self.0.state).waiting.clone()?;
        Some(PendingConfig {
            actors: waiting.behind.into_iter().map(|(actor, _)| actor).collect(),
            changes: waiting.changes,
            expires: waiting.expires,
        })
    }

    fn sites(&self) -> FleetConfiguration {
        self.0.sites_run()
    }

    fn effective(&self) -> Value {
        let mut value = self.0.config().to_value();
        mask(&mut value);
        value
    }
}

/// What of a configuration a site follows while it serves.
fn live_of(config: &Config) -> Live {
    Live {
        timeouts: config.timeouts(),
        retries: config.retry_budget(),
        exact: config.exact_kv(),
        prefill: config.routing.rule(),
        metrics: Switch::when(config.observability.metrics_enabled),
        tracing: Switch::when(config.observability.tracing_enabled),
    }
}

fn lines(changes: &[Change]) -> Vec<String> {
    changes.iter().map(ToString::to_string).collect()
}

fn nothing_waits() -> ConfigRefusal {
    ConfigRefusal::Missing("no change of the configuration waits".to_owned())
}

/// What a panic left behind is still whole: every change of what a lock holds is one assignment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
