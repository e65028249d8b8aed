//! Second copies: a prefix that requests ask for often here, and that another site holds, is ordered from there. What and
//! when is decided in [`portolan_decide::replicate`]; here it is done, after residency was asked with purpose replicate.

use crate::bring::short;
use crate::copy::{Copied, Copying, Holder, Uncopied, blames_link};
use crate::lookup;
use crate::permission::Permission;
use crate::site::Site;
use parking_lot::Mutex;
use portolan_base::{BlockHash, Bytes, Provenance, TenantKey, Tokens};
use portolan_decide::ask::Asker;
use portolan_decide::{
    FleetView, InstanceIndex, PrefixAsk, ReplicaCounts, ReplicaDue, ReplicaEnd, ReplicaRules, Replicas,
    RequestPolicies, SiteIndex,
};
use portolan_policy::Subject;
use portolan_ports::{Engine, InstanceOutcome, KvOrder, Reading, Sample};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Copies that are remembered for the operator: two screens.
const RECENT: usize = 32;

/// The shortest time a copy may take. Its class waits for every other: a minute lets bursts of them pass.
const SHORTEST_DEADLINE: Duration = Duration::from_secs(60);

/// How often the estimate a copy may take.
const PATIENCE: u32 = 10;

/// What a site orders by itself.
#[derive(Debug)]
pub(crate) struct Replication {
    planner: Mutex<Replicas>,
    recent: Mutex<VecDeque<ReplicaRecord>>,
}

/// A copy, as the operator sees it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ReplicaRecord {
    /// Unix time in milliseconds when it was ordered, or was to be.
    at_ms: u64,
    /// The request that made it due.
    request_id: String,
    tenant: String,
    from_site: String,
    from_instance: String,
    /// The instance that keeps it.
    instance: String,
    wanted_tokens: u32,
    tokens: u32,
    bytes: u64,
    took_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

/// A copy that is due, with what is needed to order it.
pub(crate) struct Replica {
    pub(crate) site: Arc<Site>,
    pub(crate) due: ReplicaDue,
    /// Names of the prompt's pool blocks.
    pub(crate) blocks: Vec<BlockHash>,
    pub(crate) fleet: Arc<FleetView>,
    /// Who holds it, and where.
    pub(crate) from: InstanceIndex,
    pub(crate) from_site: SiteIndex,
    /// Who is to keep it.
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) key: TenantKey,
    pub(crate) about: Arc<Provenance>,
    /// The prompt, whose data it is, and what for.
    pub(crate) order: KvOrder,
    pub(crate) policies: RequestPolicies,
    pub(crate) subject: Subject,
    pub(crate) labels: BTreeMap<String, String>,
}

impl Replication {
    pub(crate) fn new(rules: ReplicaRules) -> Self {
        Self {
            planner: Mutex::new(Replicas::new(rules)),
            recent: Mutex::default(),
        }
    }

    /// Takes a request's ask; says when a copy is due.
    pub(crate) fn asked(&self, site: &Site, ask: &PrefixAsk<'_>) -> Option<ReplicaDue> {
        self.planner.lock().asked(site.parts.clock.now(), ask)
    }

    /// Says that a request found the first so many of these blocks here.
    pub(crate) fn found(&self, blocks: &[BlockHash], found: usize) {
        self.planner.lock().found(blocks, found);
    }

    /// What became of all copies, and how many are under way.
    pub(crate) fn counts(&self) -> (ReplicaCounts, usize) {
        let planner = self.planner.lock();
        (planner.counts(), planner.under_way())
    }

    /// The latest copies, the newest first.
    pub(crate) fn recent(&self) -> Vec<ReplicaRecord> {
        self.recent.lock().iter().rev().cloned().collect()
    }

    fn remember(&self, record: ReplicaRecord) {
        let mut recent = self.recent.lock();
        if recent.len() >= RECENT {
            recent.pop_front();
        }
        recent.push_back(record);
    }
}

/// Tells the planner that an order is over, however it ends.
struct Ending<'a> {
    of: &'a Replica,
    end: ReplicaEnd,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let site = &self.of.site;
        if let Some(replication) = &site.replication {
            let now = site.parts.clock.now();
            replication.planner.lock().ended(now, &self.of.due, self.end);
        }
    }
}

/// What came of an order.
struct Outcome {
    had: Tokens,
    result: Result<Copied, Uncopied>,
}

impl Replica {
    /// Asks residency, orders, keeps, and writes down how that went.
    pub(crate) async fn run(self) {
        let clock = &self.site.parts.clock;
        let begun = clock.now();
        let mut ending = Ending {
            of: &self,
            end: ReplicaEnd::Failed(Bytes(0)),
        };
        let outcome = self.obtain().await;
        ending.end = match &outcome {
            None => ReplicaEnd::NothingMissing,
            Some(Outcome { had, result }) => self.end(*had, result),
        };
        drop(ending);
        if let Some(outcome) = outcome {
            self.note(&outcome, begun.millis(), clock.now().since(begun));
        }
    }

    /// None: the instance lacks nothing of it.
    async fn obtain(&self) -> Option<Outcome> {
        let wanted = Tokens(u32::try_from(self.order.tokens.len()).unwrap_or(u32::MAX));
        if !self.may_come() {
            let result = Err(Uncopied::Residency {
                from: self.names().0,
                to: self.site.parts.name.to_string(),
            });
            return Some(Outcome {
                had: Tokens(0),
                result,
            });
        }
        let (engine, on) = (self.engine.as_ref(), &self.about.dependencies);
        let has = lookup::kept(engine, &self.key, &self.order.tokens, on);
        if has.tokens >= wanted.0 {
            return None;
        }
        let copying = Copying {
            site: &self.site,
            engine: &self.engine,
            key: self.key,
            about: &self.about,
            order: &self.order,
        };
        let result = match self.holder() {
            Ok(holder) => copying.copy(&holder, wanted, &has, self.deadline()).await,
            Err(error) => Err(error),
        };
        Some(Outcome {
            had: Tokens(has.tokens),
            result,
        })
    }

    fn may_come(&self) -> bool {
        let mut permission = Permission {
            fleet: &self.fleet,
            policies: &self.policies,
            subject: self.subject,
            row: Vec::new(),
            origin: self.site.parts.index,
            asker: Asker::new(
                self.site.parts.clock.as_ref(),
                &self.labels,
                self.order.request.as_str(),
            ),
        };
        permission.may_come(self.from_site, self.site.parts.index)
    }

    /// Names of the holder's site and of the holder.
    fn names(&self) -> (String, String) {
        portolan_decide::plan::instance_names(&self.fleet, self.from)
    }

    fn holder(&self) -> Result<Holder, Uncopied> {
        let instance = self.fleet.instance(self.from);
        let site = self.fleet.site(self.from_site);
        let gone = || Uncopied::Gone(self.names().1);
        Ok(Holder {
            site: site.ok_or_else(gone)?.name.clone(),
            instance: instance.ok_or_else(gone)?.name.clone(),
        })
    }

    fn deadline(&self) -> Duration {
        let link = self.fleet.link(self.from_site, self.site.parts.index);
        let takes = link.map_or(Duration::ZERO, |link| {
            link.rtt + self.due.bytes.time_at(link.free())
        });
        takes.saturating_mul(PATIENCE).max(SHORTEST_DEADLINE)
    }

    fn end(&self, had: Tokens, result: &Result<Copied, Uncopied>) -> ReplicaEnd {
        match result {
            Err(Uncopied::Residency { .. }) => ReplicaEnd::Forbidden,
            Err(uncopied) => {
                if let Uncopied::Transfer { error, .. } = uncopied
                    && blames_link(error)
                    && let fleet = &self.site.parts.fleet
                    && let Some(holder) = fleet.view().instance(self.from)
                {
                    fleet.link_outcome(holder.site, InstanceOutcome::Failed);
                }
                ReplicaEnd::Failed(uncopied.bytes())
            }
            Ok(copied) => {
                let block = self.engine.describe().layout.block_tokens.max(1);
                let blocks = ((had.0 + copied.tokens.0) / block) as usize;
                match blocks.checked_sub(1).and_then(|last| self.blocks.get(last)) {
                    Some(last) => ReplicaEnd::Made {
                        bytes: copied.bytes,
                        last: *last,
                        blocks,
                    },
                    None => ReplicaEnd::Failed(copied.bytes),
                }
            }
        }
    }

    fn note(&self, outcome: &Outcome, at_ms: u64, took: Duration) {
        let (from_site, from_instance) = self.names();
        let (tokens, bytes, failed) = match &outcome.result {
            Ok(copied) => (
                copied.tokens.0,
                copied.bytes,
                copied.cut_short.as_ref().map(ToString::to_string),
            ),
            Err(uncopied) => (0, uncopied.bytes(), Some(uncopied.to_string())),
        };
        let record = ReplicaRecord {
            at_ms,
            request_id: self.order.request.as_str().to_owned(),
            tenant: self.order.tenant.to_string(),
            from_site,
            from_instance,
            instance: self.engine.describe().instance.to_string(),
            wanted_tokens: u32::try_from(self.order.tokens.len()).unwrap_or(u32::MAX) - outcome.had.0,
            tokens,
            bytes: bytes.0,
            took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            failed: failed.map(short),
        };
        tracing::info!(
            site = %self.site.parts.name, request = %record.request_id, tenant = %record.tenant,
            from = %record.from_site, instance = %record.instance, tokens, bytes = bytes.0,
            took_ms = record.took_ms, failed = record.failed, "a replica was ordered"
        );
        if let Some(replication) = &self.site.replication {
            replication.remember(record);
        }
    }
}

/// The numbers of `/metrics`; none where the site orders nothing by itself.
pub(crate) fn samples(site: &Site) -> Vec<Sample> {
    let Some(replication) = &site.replication else {
        return Vec::new();
    };
    let (counts, under_way) = replication.counts();
    let outcome = "Copies of prefixes that were due at this site, by what came of them";
    let mut samples: Vec<Sample> = [
        ("made", counts.made),
        ("failed", counts.failed),
        ("forbidden", counts.forbidden),
        ("held-back", counts.held_back),
    ]
    .into_iter()
    .map(|(word, count)| Sample {
        name: "kv_replicas",
        help: outcome,
        labels: vec![("outcome", word.to_owned())],
        value: Reading::Counter(count),
    })
    .collect();
    let plain = |name, help, value| Sample {
        name,
        help,
        labels: Vec::new(),
        value,
    };
    samples.extend([
        plain(
            "kv_replicas_useful",
            "Copies that a later request used",
            Reading::Counter(counts.useful),
        ),
        plain(
            "kv_replica_bytes",
            "What crossed for copies",
            Reading::Counter(counts.bytes),
        ),
        plain(
            "kv_replicas_under_way",
            "Copies that are being ordered",
            Reading::Gauge(under_way as u64),
        ),
    ]);
    samples
}
