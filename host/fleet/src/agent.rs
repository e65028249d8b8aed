//! A site's voice and ear: tells the bus what happens here, and writes what it hears into the chart.

use crate::chart::Chart;
use crate::link::SAMPLE_INTERVAL;
use portolan_base::{Clock, InstanceName, Random, SiteName};
use portolan_ports::{Bus, BusMessage, Engine, InstanceLoadReport, KvEvent, PrefixChange, Transport};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// What an agent is made of.
pub struct Agent {
    /// The site it speaks for.
    pub site: SiteName,
    /// Where it writes what it hears.
    pub chart: Arc<Chart>,
    /// The site's own instances.
    pub engines: BTreeMap<InstanceName, Arc<dyn Engine>>,
    /// Tells the others.
    pub bus: Arc<dyn Bus>,
    /// The site's links.
    pub transport: Arc<dyn Transport>,
    /// Reads the time.
    pub clock: Arc<dyn Clock>,
}

impl Agent {
    /// Starts the agent's tasks; dropping the set ends them. Listens before it returns, so that nothing published
    /// afterwards is missed.
    pub fn start(self, random: &dyn Random) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        tasks.spawn(hear(Arc::clone(&self.chart), self.bus.subscribe()));
        for (name, engine) in &self.engines {
            let source = Source {
                site: self.site.clone(),
                instance: name.clone(),
                engine: Arc::clone(engine),
                bus: Arc::clone(&self.bus),
                incarnation: random.next_u64(),
                sequence: 0,
            };
            tasks.spawn(source.tell(engine.events()));
        }
        tasks.spawn(self.report());
        tasks
    }

    /// Publishes load and reads the links, twice a second.
    async fn report(self) {
        let mut ticks = interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for (instance, engine) in &self.engines {
                self.bus.publish(BusMessage::Load(InstanceLoadReport {
                    site: self.site.clone(),
                    instance: instance.clone(),
                    load: engine.load(),
                    at: self.clock.now(),
                }));
            }
            for peer in self.chart.peers() {
                if let Some(reading) = self.transport.link(peer) {
                    self.chart.read_link(peer, reading);
                }
            }
        }
    }
}

/// Publishes what one instance's cache does.
struct Source {
    site: SiteName,
    instance: InstanceName,
    engine: Arc<dyn Engine>,
    bus: Arc<dyn Bus>,
    incarnation: u64,
    sequence: u64,
}

impl Source {
    async fn tell(mut self, mut events: Receiver<KvEvent>) {
        loop {
            match events.recv().await {
                Ok(event) => self.publish(event),
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!(site = %self.site, instance = %self.instance, missed, "cache events were lost");
                    // The numbers of lost events stay unused, so every listener sees the gap and clears.
                    self.sequence += missed;
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn publish(&mut self, event: KvEvent) {
        let change = PrefixChange {
            site: self.site.clone(),
            instance: self.instance.clone(),
            model: self.engine.describe().model.clone(),
            incarnation: self.incarnation,
            sequence: self.sequence,
            event,
        };
        self.sequence += 1;
        self.bus.publish(BusMessage::Prefix(change));
    }
}

async fn hear(chart: Arc<Chart>, mut messages: Receiver<BusMessage>) {
    loop {
        match messages.recv().await {
            Ok(BusMessage::Load(report)) => chart.heard_load(&report.site, &report.instance, report.load),
            Ok(BusMessage::Prefix(change)) => chart.heard_prefix(&change),
            Err(RecvError::Lagged(missed)) => {
                tracing::warn!(
                    missed,
                    "bus messages were lost; forgetting who holds which prefix"
                );
                chart.lost_messages();
            }
            Err(RecvError::Closed) => return,
        }
    }
}
