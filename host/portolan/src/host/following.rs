//! A site's invalidation agent, with what it needs of the other parts.

use super::parts::Shared;
use crate::config::SiteConfig;
use portolan_base::SiteName;
use portolan_fleet::{InvalidationParts, SiteInvalidation};
use portolan_gateway::{PolicyReaction, Site};
use portolan_kv::tier::Tiers;
use portolan_ports::{CacheValidity, Deciding};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long a site waits until it may use what is cached before it opens without.
const CAUGHT_UP: Duration = Duration::from_secs(2);

/// A running agent.
pub(super) struct Following {
    agent: Arc<SiteInvalidation>,
    reaction: Arc<PolicyReaction>,
    tasks: JoinSet<()>,
}

impl Following {
    /// Starts a site's agent; none where there is no stream to follow. Before anything that could use what lies in a tier.
    pub(super) fn start(config: &SiteConfig, shared: &Shared, tiers: &Arc<Tiers>) -> Option<Self> {
        let reaction = Arc::new(PolicyReaction::new(shared.config.invalidation.pressure.rules()));
        let versions = shared.models.iter();
        let sites = shared.topology.sites().iter();
        let file = format!("{}.json", config.name);
        let agent = SiteInvalidation::new(InvalidationParts {
            site: config.name.clone(),
            sites: sites.map(|site| site.name.clone()).collect(),
            models: versions
                .map(|(name, model)| (name.clone(), model.version))
                .collect(),
            stream: Arc::clone(shared.control.as_ref()?),
            bus: shared.bus.as_port(),
            tiers: Arc::clone(tiers),
            deciding: Arc::clone(&reaction) as Arc<dyn Deciding>,
            rules: shared.config.lease_rules(),
            file: Some(shared.config.data_dir.join("control").join(file)),
            clock: Arc::clone(&shared.clock),
            random: Arc::clone(&shared.random),
        });
        Some(Self {
            tasks: agent.start(),
            agent,
            reaction,
        })
    }

    /// What the gateway asks.
    pub(super) fn validity(&self) -> Arc<dyn CacheValidity> {
        Arc::clone(&self.agent) as Arc<dyn CacheValidity>
    }

    /// Lets the site's policies decide, and tells what else the gateway keeps.
    pub(super) fn attach(&self, gateway: &Arc<Site>) {
        self.agent.tell_too(gateway.told_of_invalidations());
        self.reaction.attach(gateway);
    }

    /// Waits until what is cached may be used, for a while.
    pub(super) async fn caught_up(&self, site: &SiteName) {
        if tokio::time::timeout(CAUGHT_UP, self.agent.caught_up())
            .await
            .is_err()
        {
            tracing::warn!(%site, "not caught up with the control stream after {CAUGHT_UP:?}; what is cached is not used until it is");
        }
    }

    /// Writes down how far the stream was followed.
    pub(super) fn write_down(&self) {
        self.agent.write_down();
    }

    /// Ends it.
    pub(super) async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}
