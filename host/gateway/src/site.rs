//! One site's gateway: everything its stages and doors use.

use crate::accepted::Accepted;
use crate::ahead::Ahead;
use crate::answer::Answer;
use crate::error::RequestError;
use crate::evacuate::Evacuation;
use crate::in_flight::TenantsInFlight;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::out_of_service::OutOfService;
use crate::outputs::OutputMeans;
use crate::policies::PolicyDesk;
use crate::prewarmed::PrewarmedPrompts;
use crate::public::PublicPrefixes;
use crate::reaction::Decisions;
use crate::records::RecordLog;
use crate::recovery::Recovery;
use crate::replicate::Replication;
use crate::rollout;
use crate::stage;
use crate::stage::accept::Warm;
use crate::turns::Turns;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use portolan_base::kv::KvLayout;
use portolan_base::{
    BlockHash, Clock, InstanceName, ModelName, Provenance, Random, Scope, SiteName, TenantKey, TenantName,
};
use portolan_decide::{PrewarmRules, ReplicaRules, RetryBudget, RetryConfig, SiteIndex, Timeouts};
use portolan_ports::{
    Applied, CacheSalt, CacheValidity, Cancel, Configuration, Engine, EngineDescription, Fidelity, Fleet,
    Invalidated, PolicyStore, TextModel, Transport,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A model this site can take requests for.
#[derive(Clone)]
pub struct ServedModel {
    /// Its tokenizer and chat template.
    pub text: Arc<dyn TextModel>,
    /// One instance's description: layout, context, vocabulary. The same for every instance of the model.
    pub description: EngineDescription,
    /// Unix time in seconds, for `/v1/models`.
    pub created: u64,
    /// Which kinds of engines serve it here.
    pub served: ServedBy,
}

/// Which kinds of engines serve a model at a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServedBy {
    /// Those that take prompts and KV.
    #[default]
    Pieces,
    /// Those that answer whole requests.
    Whole,
    /// Both.
    Both,
}

impl ServedBy {
    /// What one more instance of a kind makes of it.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match self == other {
            true => self,
            false => Self::Both,
        }
    }
}

/// Policy calls a tenant may have under way. Each may hold a component of 32 MiB and a thread that waits for the
/// compiler; four let a person and a pipeline work side by side.
const AT_DESK: usize = 4;

/// Long prompts cut into tokens at once. Each takes a core and some forty times its own size in memory: two leave the
/// serving threads their share, and a third would not be done sooner.
const TOKENISING: usize = 2;

/// What the gateway holds back or gives up on. Each default argues for itself.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests in flight before new ones are told to come back: bounds memory, not throughput.
    pub in_flight: usize,
    /// Requests in flight of one tenant before its own are told to come back: half, so that no tenant can fill a site. As
    /// many more may be read and understood at the same time.
    pub tenant_in_flight: usize,
    /// Longest request body in bytes. 2 MiB hold a prompt of 128k tokens, as text (0.5 MB) or as ids (0.9 MB), twice
    /// over.
    pub body_bytes: usize,
    /// Path records kept in memory.
    pub records: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_flight: 512,
            tenant_in_flight: 256,
            body_bytes: 2 << 20,
            records: 10_000,
        }
    }
}

/// What a [`Site`] is made of.
pub struct SiteParts {
    /// The site's name.
    pub name: SiteName,
    /// Its position in the fleet.
    pub index: SiteIndex,
    /// Engine instances at this site.
    pub engines: BTreeMap<InstanceName, Arc<dyn Engine>>,
    /// Models it takes requests for.
    pub models: BTreeMap<ModelName, ServedModel>,
    /// What is known about all sites.
    pub fleet: Arc<dyn Fleet>,
    /// Links to the others.
    pub transport: Arc<dyn Transport>,
    /// What outlives the process.
    pub store: Arc<dyn PolicyStore>,
    /// The active policies.
    pub desk: Arc<PolicyDesk>,
    /// Reads the time.
    pub clock: Arc<dyn Clock>,
    /// Draws ids and seeds.
    pub random: Arc<dyn Random>,
    /// The platform's secret, from which tenants' cache keys are derived. The same at every site.
    pub secret: [u8; 32],
    /// Prefixes that all tenants share.
    pub public: Arc<PublicPrefixes>,
    /// Limits.
    pub limits: Limits,
    /// How long a stage may take.
    pub timeouts: Timeouts,
    /// How much may be tried again.
    pub retries: RetryConfig,
    /// Whose KV never comes quantised.
    pub exact: ExactKv,
    /// Whether what is cached may be used.
    pub validity: Arc<dyn CacheValidity>,
    /// What the site orders by itself for prefixes that are asked for often; none: nothing.
    pub replicate: Option<ReplicaRules>,
    /// What it sends to, and takes from, the site that is likely to be asked next; none: nothing.
    pub prewarm: Option<PrewarmRules>,
}

/// Whose KV never comes quantised, whatever a link is configured for.
#[derive(Clone, Debug, Default)]
pub struct ExactKv {
    /// Tenants, by name.
    pub tenants: BTreeSet<TenantName>,
    /// User classes, by name.
    pub user_classes: BTreeSet<String>,
}

impl ExactKv {
    /// How true the KV of a request of this tenant and class has to be.
    pub fn fidelity(&self, tenant: &TenantName, user_class: &str) -> Fidelity {
        if self.tenants.contains(tenant) || self.user_classes.contains(user_class) {
            Fidelity::Exact
        } else {
            Fidelity::Quantised
        }
    }
}

/// Tells the engines that answer whole requests whose blocks they may still hold from before: salts are derived, so that
/// a host that was restarted knows them again. Salts of clients' own are learned when they come.
fn expect_salts(parts: &SiteParts) {
    let whole: Vec<_> = parts
        .engines
        .values()
        .filter(|engine| engine.whole().is_some())
        .collect();
    if whole.is_empty() {
        return;
    }
    let tenants = parts.store.tenants().unwrap_or_default();
    for engine in whole {
        let layout = &engine.describe().layout;
        for tenant in &tenants {
            let (model, version) = (layout.model.as_str(), layout.model_version);
            let key = TenantKey::derive(&parts.secret, tenant.name.as_str(), model, version);
            let salt = CacheSalt {
                text: key.cache_salt().into(),
                root: Some(BlockHash::root(&key)),
            };
            if let Some(whole) = engine.whole() {
                whole.expect(&salt);
            }
        }
    }
}

/// One site's gateway.
pub struct Site {
    /// What it is made of.
    pub parts: SiteParts,
    /// Prompts that were computed ahead.
    pub prewarmed: Arc<PrewarmedPrompts<Warm>>,
    /// Second tries that are left.
    pub retries: Mutex<RetryBudget>,
    /// Invalidations that each tenant may give, in hand.
    pub(crate) orders: Mutex<BTreeMap<TenantName, RetryBudget>>,
    /// Changes of policies that each tenant may make, in hand.
    changes: Mutex<BTreeMap<TenantName, RetryBudget>>,
    /// Recent requests.
    pub records: RecordLog,
    /// What invalidation policies were asked and said lately.
    pub(crate) decisions: Decisions,
    /// How much each tenant's requests produce.
    pub outputs: OutputMeans,
    /// Counters and histograms.
    pub metrics: Metrics,
    /// Requests in flight by tenant.
    pub tenants: Arc<TenantsInFlight>,
    /// Policy calls under way by tenant.
    pub at_desk: Arc<TenantsInFlight>,
    /// Requests by tenant that are read and understood, before they are admitted.
    pub reading: Arc<TenantsInFlight>,
    /// Long prompts that are cut into tokens at once; further ones wait for their tenant's turn.
    pub tokenising: Arc<Turns>,
    /// Requests in flight.
    pub permits: Arc<tokio::sync::Semaphore>,
    /// What it orders by itself.
    pub(crate) replication: Option<Replication>,
    /// What it sends and takes ahead of requests.
    pub(crate) ahead: Option<Ahead>,
    /// What it is asked for, which moves when it is emptied.
    pub(crate) evacuation: Arc<Evacuation>,
    /// The host's configuration, where it was read from a file.
    configuration: OnceLock<Arc<dyn Configuration>>,
    /// Backups and drills, where the host has them.
    pub(crate) recovery: OnceLock<Recovery>,
    /// What operators took out of service.
    pub(crate) out_of_service: OutOfService,
    /// The doors close: what was not asked for in full is not waited for.
    pub(crate) closing: Cancel,
    /// Ends what is still under way, once the host cannot wait for it.
    pub(crate) cut: Cancel,
    /// What may change while it serves.
    pub(crate) live: ArcSwap<Live>,
    /// Requests whose shadows are asked.
    pub(crate) shadow_permits: Arc<tokio::sync::Semaphore>,
}

/// Prompts that are kept beside their KV.
struct KeptPrompts {
    prewarmed: Arc<PrewarmedPrompts<Warm>>,
    served: Arc<Evacuation>,
}

impl Applied for KeptPrompts {
    fn applied(&self, what: &Invalidated) {
        self.prewarmed.applied(what);
        self.served.applied(what);
    }
}

/// Invalidations of one tenant: 50 at once, ten a second. A site remembers the last 1,024 of each tenant for what is under
/// way, and a document that changes is one order.
const ORDERS: RetryConfig = RetryConfig {
    percent: 0,
    reserve: 50,
    refill: Duration::from_secs(5),
};

/// Changes of policies that a tenant may make with its own keys: at once, and in an hour. Each is kept in the audit log, and
/// writes the slot with its configuration anew.
const CHANGES: RetryConfig = RetryConfig {
    percent: 0,
    reserve: 240,
    refill: Duration::from_secs(3600),
};

impl Site {
    /// Puts a site together.
    pub fn new(parts: SiteParts) -> Arc<Self> {
        let limits = parts.limits;
        expect_salts(&parts);
        let replication = parts.replicate.map(Replication::new);
        let ahead = parts.prewarm.map(Ahead::new);
        let live = Live {
            timeouts: parts.timeouts,
            retries: parts.retries,
            exact: parts.exact.clone(),
            ..Live::default()
        };
        Arc::new(Self {
            prewarmed: Arc::default(),
            evacuation: Arc::default(),
            retries: Mutex::new(RetryBudget::new(parts.retries)),
            orders: Mutex::default(),
            changes: Mutex::default(),
            parts,
            replication,
            ahead,
            configuration: OnceLock::new(),
            recovery: OnceLock::new(),
            out_of_service: OutOfService::default(),
            closing: Cancel::new(),
            cut: Cancel::new(),
            live: ArcSwap::from_pointee(live),
            records: RecordLog::new(limits.records),
            decisions: Decisions::default(),
            outputs: OutputMeans::default(),
            metrics: Metrics::new(),
            tenants: TenantsInFlight::new(limits.tenant_in_flight),
            at_desk: TenantsInFlight::new(AT_DESK),
            reading: TenantsInFlight::new(limits.tenant_in_flight),
            tokenising: Turns::new(TOKENISING),
            permits: Arc::new(tokio::sync::Semaphore::new(limits.in_flight)),
            shadow_permits: Arc::new(tokio::sync::Semaphore::new(rollout::SHADOWS_AT_ONCE)),
        })
    }

    /// Whether a tenant may give an invalidation: each reaches every site, and stays in what they remember.
    pub(crate) fn may_order(&self, tenant: &TenantName) -> bool {
        let now = self.parts.clock.now();
        let mut orders = self.orders.lock();
        let left = orders
            .entry(tenant.clone())
            .or_insert_with(|| RetryBudget::new(ORDERS));
        left.take(now)
    }

    /// Whether a tenant may change its policies once more.
    pub(crate) fn may_change(&self, tenant: &TenantName) -> bool {
        let now = self.parts.clock.now();
        let mut changes = self.changes.lock();
        let left = changes
            .entry(tenant.clone())
            .or_insert_with(|| RetryBudget::new(CHANGES));
        left.take(now)
    }

    /// Ends every answer that is still under way: a stream with its error event, a whole answer with 503. Each is settled, and
    /// what comes later is answered the same. For a host that stops and cannot wait any longer.
    pub fn cut_answers(&self) {
        self.closing.cancel();
        self.cut.cancel();
    }

    /// Clients' requests between admit and settle.
    pub fn in_flight(&self) -> usize {
        let most = self.parts.limits.in_flight;
        most.saturating_sub(self.permits.available_permits())
    }

    /// Lets operators change the host's configuration through this site. Only the first call counts.
    pub fn set_configuration(&self, configuration: Arc<dyn Configuration>) {
        drop(self.configuration.set(configuration));
    }

    /// The host's configuration, where it was read from a file.
    pub(crate) fn configuration(&self) -> Option<Arc<dyn Configuration>> {
        self.configuration.get().cloned()
    }

    /// The version of a model's KV: what is configured, and what invalidations raised it by.
    pub(crate) fn model_version(&self, layout: &KvLayout) -> u64 {
        self.parts.validity.version(&layout.model, layout.model_version)
    }

    /// The key of a prompt's blocks at a version of the model: the tenant's, shared where the prompt begins as a public
    /// prefix does. `tokens` may end before the prompt does.
    pub(crate) fn cache_key(
        &self,
        tenant: &TenantName,
        (layout, version): (&KvLayout, u64),
        tokens: &[u32],
    ) -> TenantKey {
        let model = layout.model.as_str();
        let key = |owner: &str| TenantKey::derive(&self.parts.secret, owner, model, version);
        let public = self.parts.public.common(&layout.model, tokens);
        match public / layout.block_tokens.max(1) * layout.block_tokens {
            0 => key(tenant.as_str()),
            whole => key(tenant.as_str()).with_public(&key(Scope::PUBLIC), whole),
        }
    }

    /// The key of the same prompt in a cache that the host cannot search: of an engine that is not ours. It has one salt
    /// from end to end, which changes with every order that may be about what is there.
    pub(crate) fn salted_key(&self, key: TenantKey, about: &Provenance) -> TenantKey {
        let epoch = self.parts.validity.epoch(about).0;
        key.without_public().at_epoch(epoch, &about.dependencies)
    }

    /// A key that finds nothing, ever: for what must not use anything cached. What is computed with it is not to be kept.
    pub(crate) fn key_of_nothing(&self, layout: &KvLayout) -> TenantKey {
        let random = &self.parts.random;
        // No tenant can be named so.
        let nobody = format!("_{:016x}{:016x}", random.next_u64(), random.next_u64());
        TenantKey::derive(
            &self.parts.secret,
            &nobody,
            layout.model.as_str(),
            layout.model_version,
        )
    }

    /// What is to be told of invalidations beside the caches.
    pub fn told_of_invalidations(&self) -> Arc<dyn Applied> {
        Arc::new(KeptPrompts {
            prewarmed: Arc::clone(&self.prewarmed),
            served: Arc::clone(&self.evacuation),
        })
    }

    /// Serves an accepted request: admits it, then runs the other stages in a task of their own. An error means that
    /// no answer began.
    pub async fn serve(self: &Arc<Self>, request: Accepted) -> Result<Answer, RequestError> {
        stage::serve(Arc::clone(self), request).await
    }
}
