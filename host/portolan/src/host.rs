//! The running host: the sites of one configuration, wired together.

mod bus;
mod carrier;
mod configuration;
mod control;
mod following;
mod foreign;
mod live;
mod parts;
mod policies;
mod recovery;
mod residency;
mod site;
mod tiers;
mod tls;

pub use live::SetLogLevel;
pub use parts::{HostError, component_loader, component_loader_with};
pub use recovery::RecoveryState;
pub use site::RunningSite;

use crate::config::{Config, LinkConfig};
use crate::system::{OsRandom, SystemClock};
use crate::watch;
use bus::HostBus;
use live::LiveConfig;
use parts::{Shared, derive_secrets};
use portolan_base::{Clock, Random, SiteName};
use portolan_gateway::policies::{DeskParts, PolicyDesk};
use portolan_plugin::Compilation;
use portolan_ports::{Changer, ConfigDone, ConfigOrder, ConfigRefusal, PolicyState, PolicyStore, Transport};
use portolan_store::SledStore;
use portolan_transport::fault_proxy::FaultProxy;
use recovery::RecoveryDesk;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;

/// All sites of this process. Dropping it leaves them running no longer than the runtime; [`Host::stop`] ends them
/// in order.
pub struct Host {
    sites: Vec<RunningSite>,
    /// Wide-area links that are simulated, by (from, to).
    proxies: BTreeMap<(SiteName, SiteName), FaultProxy>,
    shared: Shared,
    /// What the host does by itself.
    duties: JoinSet<()>,
    _watch: Option<watch::Watch>,
}

impl Host {
    /// Starts everything in `config`: store, policies, models, engines, links, gateways. Components are compiled in this
    /// process.
    pub async fn start(config: Config) -> Result<Self, HostError> {
        Self::start_compiling(config, Compilation::InProcess).await
    }

    /// As [`Host::start`], and says where components are compiled.
    pub async fn start_compiling(config: Config, compilation: Compilation) -> Result<Self, HostError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let random: Arc<dyn Random> = Arc::new(OsRandom);
        let config = live::in_force(config);
        let topology = config.topology()?;
        let fleet_secret = parts::fleet_secret(&config)?;
        let store = Arc::new(SledStore::open(&config.data_dir, random.as_ref())?);
        let secrets = derive_secrets(store.platform_secret(), fleet_secret);
        parts::record_tenants(&config, store.as_ref(), clock.as_ref())?;
        let state = parts::open_state(&config, &clock)?;
        let loader = parts::host_loader(
            config.runtime_quotas(),
            &secrets,
            Arc::clone(&state) as Arc<dyn PolicyState>,
            compilation,
            Arc::clone(&clock),
        )?;
        let live = LiveConfig::start(&config, Arc::clone(&store), Arc::clone(&clock))?;
        let names = Arc::new(topology.names().clone());
        let desk = PolicyDesk::new(DeskParts {
            store: Arc::clone(&store) as Arc<dyn PolicyStore>,
            loader: Arc::new(loader),
            names: Arc::new(move || Arc::clone(&names)),
            clock: Arc::clone(&clock),
        })
        .with_quotas(config.quotas())
        .telling_of(Arc::clone(&state) as Arc<dyn PolicyState>)
        .demanding(Arc::new(config.key_book()?));
        let desk = match config.four_eyes() {
            Some(four_eyes) => desk.with_four_eyes(four_eyes),
            None => desk,
        };
        let bus = HostBus::open(&config, &topology, &secrets, &random).await?;
        if let Some(of_fleet) = bus.configuration() {
            live.join(Arc::new(of_fleet));
        }
        let desk = Arc::new(match bus.policies() {
            Some(policies) => desk.sharing(Arc::new(policies)),
            None => desk,
        });
        let restored = desk.restore().map_err(HostError::Policies)?;
        let models = parts::load_models(&config).await?;
        let public = Arc::new(parts::public_prefixes(&config, &models, clock.now())?);
        let recovery = RecoveryDesk::new(config.clone(), Arc::clone(&store), Arc::clone(&clock));
        let control = control::open(&config, &bus, random.as_ref())?;
        let shared = Shared {
            topology,
            store,
            state,
            desk: Arc::clone(&desk),
            models,
            bus,
            control,
            clock,
            random,
            secrets,
            exact: config.exact_kv(),
            public,
            recovery,
            live,
            config,
        };
        let mut sites = Vec::new();
        for site in shared.config.sites_here() {
            sites.push(RunningSite::prepare(site, &shared).await?);
        }
        let mut proxies = BTreeMap::new();
        for link in shared.config.links_in_use() {
            connect(link, &shared.config, &sites, &mut proxies).await?;
        }
        for site in &mut sites {
            site.wait_until_warm().await;
        }
        for site in &mut sites {
            site.open(&shared)?;
        }
        parts::finish_restoring(&desk, restored.pending)?;
        let mut duties = JoinSet::new();
        shared.recovery.start(&mut duties);
        if let Some(of_fleet) = shared.bus.policies() {
            duties.spawn(policies::follow(of_fleet, Arc::clone(&desk)));
        }
        if let Some(of_fleet) = shared.bus.configuration() {
            duties.spawn(configuration::follow(of_fleet, Arc::clone(&shared.live)));
        }
        let start = |dir| watch::Watch::start(dir, Arc::clone(&desk), Arc::clone(&shared.clock));
        let watch = shared.config.policies_dir.clone().map(start);
        let watch = watch.transpose().map_err(HostError::Watch)?;
        Ok(Self {
            sites,
            proxies,
            shared,
            duties,
            _watch: watch,
        })
    }

    /// The sites in the order of the configuration.
    pub fn sites(&self) -> &[RunningSite] {
        &self.sites
    }

    /// A site by name.
    pub fn site(&self, name: &str) -> Option<&RunningSite> {
        self.sites.iter().find(|site| site.name().as_str() == name)
    }

    /// Changes the configuration as its operators do.
    ///
    /// # Errors
    /// Why nothing was changed.
    pub async fn reconfigure(&self, order: ConfigOrder, by: Changer) -> Result<ConfigDone, ConfigRefusal> {
        let live = Arc::clone(&self.shared.live);
        let done = tokio::task::spawn_blocking(move || live.change(order, by)).await;
        done.map_err(|error| ConfigRefusal::Broken(error.to_string()))?
    }

    /// Lets changes of `observability.log_level` reach the log.
    pub fn on_log_level(&self, set: SetLogLevel) {
        self.shared.live.set_log(set);
    }

    /// The policies.
    pub fn desk(&self) -> &Arc<PolicyDesk> {
        &self.shared.desk
    }

    /// A simulated link, for drills.
    pub fn proxy(&self, from: &str, to: &str) -> Option<&FaultProxy> {
        let found = self
            .proxies
            .iter()
            .find(|((f, t), _)| f.as_str() == from && t.as_str() == to);
        found.map(|(_, proxy)| proxy)
    }

    /// Kills a site as a power cut would: links, doors and engines, at once. For drills.
    pub async fn kill(&mut self, name: &str) {
        if let Some(position) = self.sites.iter().position(|site| site.name().as_str() == name) {
            self.sites.remove(position).kill().await;
        }
    }

    /// Starts a killed site again, with empty caches and new ports where the configuration leaves them open.
    pub async fn revive(&mut self, name: &str) -> Result<(), HostError> {
        let Some(config) = self
            .shared
            .config
            .sites
            .iter()
            .find(|site| site.name.as_str() == name)
        else {
            return Ok(());
        };
        self.sites.push(RunningSite::prepare(config, &self.shared).await?);
        let touches = |link: &&LinkConfig| link.from == config.name || link.to == config.name;
        for link in self.shared.config.links_in_use().iter().filter(touches) {
            connect(link, &self.shared.config, &self.sites, &mut self.proxies).await?;
        }
        match self.sites.last_mut() {
            Some(site) => {
                site.wait_until_warm().await;
                site.open(&self.shared)
            }
            None => Ok(()),
        }
    }

    /// Ends every site in order, all at once: see [`RunningSite::stop`].
    pub async fn stop(mut self) {
        self.duties.shutdown().await;
        let mut stopping = JoinSet::new();
        for site in self.sites {
            stopping.spawn(site.stop());
        }
        while stopping.join_next().await.is_some() {}
        self.shared.bus.close().await;
        // The last change of a policy's state is written before the process ends.
        let state = self.shared.state;
        if let Err(error) = tokio::task::spawn_blocking(move || state.close()).await {
            tracing::error!(%error, "policy state was not closed");
        }
    }
}

/// Lets a link's receiving site in where KV comes from, and tells it how to reach that one, through a simulated link where
/// the configuration says so. Each end is set up by the process that runs it.
async fn connect(
    link: &LinkConfig,
    config: &Config,
    sites: &[RunningSite],
    proxies: &mut BTreeMap<(SiteName, SiteName), FaultProxy>,
) -> Result<(), HostError> {
    let find = |name: &SiteName| sites.iter().find(|site| site.name() == name);
    let from = find(&link.from);
    if let Some(from) = from {
        from.transport().admit(link.to.clone(), link.egress());
    }
    let elsewhere = config.sites.iter().find(|site| site.name == link.from);
    let elsewhere = elsewhere.filter(|site| !config.runs(&site.name));
    let address = from
        .map(|site| site.transport().address())
        .or(elsewhere.map(crate::config::SiteConfig::reached_at));
    let (Some(mut address), Some(to)) = (address, find(&link.to)) else {
        return Ok(());
    };
    if let Some(wan) = link.simulate {
        let proxy = parts::simulate(address, wan).await?;
        address = proxy.address();
        proxies.insert((link.from.clone(), link.to.clone()), proxy);
    }
    to.transport().add_link(link.from.clone(), link.way(address));
    Ok(())
}

/// A transport as the gateway and the agent see it.
pub(crate) fn as_port(transport: &Arc<portolan_transport::SiteTransport>) -> Arc<dyn Transport> {
    Arc::clone(transport) as Arc<dyn Transport>
}

#[cfg(test)]
mod tests;
