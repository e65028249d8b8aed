//! The control stream of the host's sites.

use super::bus::HostBus;
use super::parts::HostError;
use crate::config::Config;
use portolan_base::Random;
use portolan_fleet::EmbeddedControl;
use portolan_fleet::nats::NatsControl;
use portolan_ports::ControlStream;
use std::sync::Arc;

/// Opens the stream: a file where all sites are in this process, JetStream where they are not.
pub(super) fn open(
    config: &Config,
    bus: &HostBus,
    random: &dyn Random,
) -> Result<Option<Arc<dyn ControlStream>>, HostError> {
    match bus {
        HostBus::Embedded(_) => {
            let stream = EmbeddedControl::open(&config.data_dir.join("control"), random)?;
            Ok(Some(Arc::new(stream)))
        }
        HostBus::Nats { bus, .. } => Ok(Some(Arc::new(NatsControl::on(bus, config.replicas())))),
    }
}
