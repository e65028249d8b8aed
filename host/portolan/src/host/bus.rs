//! The bus of the host's sites: in this process, or over NATS where sites run elsewhere.

use super::parts::{HostError, Secrets};
use crate::config::Config;
use portolan_base::{Random, SiteName};
use portolan_fleet::nats::{NatsConfiguration, NatsPolicies};
use portolan_fleet::{EmbeddedBus, NatsBus, Topology};
use portolan_ports::Bus;
use std::sync::Arc;

/// What carries facts between sites.
#[derive(Clone)]
pub(super) enum HostBus {
    /// All sites are in this process.
    Embedded(Arc<EmbeddedBus>),
    /// Some are not.
    Nats {
        /// What they say of themselves.
        bus: Arc<NatsBus>,
        /// Which policies answer.
        policies: NatsPolicies,
        /// What all have in common of their configuration.
        configuration: NatsConfiguration,
    },
}

impl HostBus {
    pub(super) async fn open(
        config: &Config,
        topology: &Topology,
        secrets: &Secrets,
        random: &Arc<dyn Random>,
    ) -> Result<Self, HostError> {
        let Some(nats) = config.bus()? else {
            return Ok(Self::Embedded(Arc::new(EmbeddedBus::new())));
        };
        let here: Vec<SiteName> = config.sites_here().map(|site| site.name.clone()).collect();
        let bus = NatsBus::connect(&nats, topology, &here, &secrets.bus).await?;
        let policies = NatsPolicies::on(&bus, config.replicas());
        let configuration = NatsConfiguration::on(&bus, config.replicas(), &secrets.bus, Arc::clone(random));
        Ok(Self::Nats {
            bus: Arc::new(bus),
            policies,
            configuration,
        })
    }

    /// The configuration of the fleet; none where this process is all of it.
    pub(super) fn configuration(&self) -> Option<NatsConfiguration> {
        match self {
            Self::Embedded(_) => None,
            Self::Nats { configuration, .. } => Some(configuration.clone()),
        }
    }

    /// The policies of the fleet; none where this process is all of it.
    pub(super) fn policies(&self) -> Option<NatsPolicies> {
        match self {
            Self::Embedded(_) => None,
            Self::Nats { policies, .. } => Some(policies.clone()),
        }
    }

    /// As sites see it.
    pub(super) fn as_port(&self) -> Arc<dyn Bus> {
        match self {
            Self::Embedded(bus) => Arc::clone(bus) as Arc<dyn Bus>,
            Self::Nats { bus, .. } => Arc::clone(bus) as Arc<dyn Bus>,
        }
    }

    /// Sends the last words of the sites.
    pub(super) async fn close(&self) {
        if let Self::Nats { bus, .. } = self {
            bus.close().await;
        }
    }
}
