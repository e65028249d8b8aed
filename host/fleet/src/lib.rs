//! KNOWS the sites: topology, load, links, who holds which prefix, and the bus that tells.
//!
//! One [`Chart`] a site answers the gateway's questions from memory; one [`agent`] a site tells the others what
//! happens here and writes what it hears into the chart.

pub mod agent;
pub mod bus;
pub mod chart;
pub mod control;
pub mod duties;
mod foresight;
pub mod invalidation;
pub mod link;
pub mod nats;
pub mod prefixes;
pub mod slow;
pub mod topology;
pub mod validity;
pub mod warm_up;

pub use agent::{Agent, Farewell};
pub use bus::EmbeddedBus;
pub use chart::{Chart, Conversion};
pub use control::{EmbeddedControl, OpenControlError};
pub use invalidation::{InvalidationParts, SiteInvalidation};
pub use link::{LinkFloor, LinkMonitor, LinkWindow};
pub use nats::{NatsBus, NatsConfig, NatsError, NatsLogin, NatsServer, NatsTls};
pub use prefixes::{Disclosure, Owner, Prefixes, Telling};
pub use topology::{InstanceSpec, LinkSpec, SiteSpec, Topology, TopologyError};
pub use validity::{LeaseRules, Peers, SiteValidity, Waiting};
