//! What of a site is out of service: single instances by name, or all of it. Each is taken back by what it was ordered with.

use crate::site::Site;
use parking_lot::Mutex;
use portolan_base::InstanceName;
use portolan_ports::{NoSuchInstance, Service};
use std::collections::BTreeSet;

/// What operators took out of service.
#[derive(Debug, Default)]
pub(crate) struct OutOfService(Mutex<Ordered>);

#[derive(Debug, Default)]
struct Ordered {
    site: bool,
    instances: BTreeSet<InstanceName>,
}

impl Ordered {
    fn of(&self, instance: &InstanceName) -> Service {
        match self.site || self.instances.contains(instance) {
            true => Service::Draining,
            false => Service::Open,
        }
    }
}

impl Site {
    /// Takes an instance out of service, or back. One whose site is out of service stays so with it.
    pub(crate) fn serve_instance_as(
        &self,
        instance: &InstanceName,
        service: Service,
    ) -> Result<(), NoSuchInstance> {
        let mut ordered = self.out_of_service.0.lock();
        match service {
            Service::Draining => ordered.instances.insert(instance.clone()),
            Service::Open => ordered.instances.remove(instance),
        };
        self.parts.fleet.set_service(instance, ordered.of(instance))
    }

    /// Takes the site with all its instances out of service, or back. Instances that were taken out by name stay out.
    pub(crate) fn serve_as(&self, service: Service) -> Result<(), NoSuchInstance> {
        let mut ordered = self.out_of_service.0.lock();
        ordered.site = service == Service::Draining;
        for instance in self.parts.engines.keys() {
            self.parts.fleet.set_service(instance, ordered.of(instance))?;
        }
        Ok(())
    }

    /// Whether it takes no new requests.
    pub(crate) fn is_draining(&self) -> bool {
        self.out_of_service.0.lock().site
    }
}
