//! A site's voice and ear: tells the bus what happens here, and writes what it hears into the chart.

use crate::chart::Chart;
use crate::link::SAMPLE_INTERVAL;
use crate::prefixes::{HEARTBEAT, Told};
use crate::slow::LOOK_INTERVAL;
use portolan_base::{Clock, InstanceName, SiteName};
use portolan_decide::Standing;
use portolan_ports::{
    Bus, BusMessage, Engine, InstanceLoadReport, KvEvent, PrefixSummary, SitePresence, SiteState, Transport,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often changes are gathered into messages: a request that follows another one by a tenth of a second finds what
/// that left at another site, and a busy instance's changes still share a message.
const TELL_INTERVAL: Duration = Duration::from_millis(HEARTBEAT.as_millis() as u64 / 5);

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
    /// How long the others take the site to be there when it says nothing.
    pub lease: Duration,
}

/// Ends what a site said: tells the others that it left. Kept by whoever ends the site.
pub struct Farewell {
    site: SiteName,
    incarnation: u64,
    bus: Arc<dyn Bus>,
}

impl Farewell {
    /// Tells the others that the site ends in order: its routes vanish at once and not with its lease.
    pub fn say(&self) {
        self.bus.publish(BusMessage::Presence(SitePresence {
            site: self.site.clone(),
            incarnation: self.incarnation,
            // Nothing of this incarnation follows.
            sequence: u64::MAX,
            state: SiteState::Left,
            lease_ms: 0,
        }));
    }
}

impl Agent {
    /// What to say when the site ends.
    pub fn farewell(&self) -> Farewell {
        Farewell {
            site: self.site.clone(),
            incarnation: self.chart.prefixes().incarnation(),
            bus: Arc::clone(&self.bus),
        }
    }

    /// The site's next heartbeat. A site all of whose instances drain says that it does.
    fn presence(&self, sequence: u64) -> SitePresence {
        let mut standings = self.engines.keys().map(|name| self.chart.own_standing(name));
        let drains = !self.engines.is_empty() && standings.all(|standing| standing == Standing::Draining);
        SitePresence {
            site: self.site.clone(),
            incarnation: self.chart.prefixes().incarnation(),
            sequence,
            state: match drains {
                true => SiteState::Draining,
                false => SiteState::Up,
            },
            lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Starts the agent's tasks; dropping the set ends them. Listens before it returns, so that nothing published
    /// afterwards is missed.
    pub fn start(self) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let ear = Ear {
            site: self.site.clone(),
            chart: Arc::clone(&self.chart),
            bus: Arc::clone(&self.bus),
            clock: Arc::clone(&self.clock),
            strangers: BTreeSet::new(),
        };
        tasks.spawn(ear.hear(self.bus.subscribe()));
        for (name, engine) in &self.engines {
            if let Some(number) = self.chart.number_of(&self.site, name) {
                tasks.spawn(follow(Arc::clone(&self.chart), number, engine.events()));
            }
        }
        tasks.spawn(tell(
            Arc::clone(&self.chart),
            Arc::clone(&self.bus),
            Arc::clone(&self.clock),
        ));
        tasks.spawn(plan(Arc::clone(&self.chart)));
        tasks.spawn(self.report());
        tasks
    }

    /// Publishes that the site is there and its load, and reads the links, twice a second.
    async fn report(self) {
        let mut ticks = every(SAMPLE_INTERVAL);
        for sequence in 0.. {
            ticks.tick().await;
            self.bus.publish(BusMessage::Presence(self.presence(sequence)));
            for (instance, engine) in &self.engines {
                self.bus.publish(BusMessage::Load(InstanceLoadReport {
                    site: self.site.clone(),
                    instance: instance.clone(),
                    load: engine.load(),
                    standing: self.chart.own_standing(instance),
                    duty: self.chart.duty(instance),
                    at: self.clock.now(),
                }));
            }
            for peer in self.chart.peers() {
                let Some(reading) = self.transport.link(peer) else {
                    continue;
                };
                if !reading.up && self.chart.hears_of(peer) {
                    self.transport.redial(peer);
                }
                self.chart.read_link(peer, reading);
            }
            self.chart.sample_offload();
        }
    }
}

/// Writes into the chart what one instance's cache does. Its events go no further.
async fn follow(chart: Arc<Chart>, number: u32, mut events: Receiver<KvEvent>) {
    loop {
        match events.recv().await {
            Ok(event) => chart.prefixes().own_event(number, &event),
            Err(RecvError::Lagged(missed)) => {
                tracing::warn!(
                    number,
                    missed,
                    "cache events were lost; forgetting what the instance holds"
                );
                chart.prefixes().lost_events(number);
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Tells the other sites what this one's instances hold, and who asked.
async fn tell(chart: Arc<Chart>, bus: Arc<dyn Bus>, clock: Arc<dyn Clock>) {
    let mut ticks = every(TELL_INTERVAL);
    loop {
        ticks.tick().await;
        let visits = chart.visits_to_tell().into_iter().map(BusMessage::Visits);
        for message in chart.prefixes().to_tell(clock.now()).into_iter().chain(visits) {
            bus.publish(message);
        }
    }
}

/// Runs the slow loop.
async fn plan(chart: Arc<Chart>) {
    let mut ticks = every(LOOK_INTERVAL);
    loop {
        ticks.tick().await;
        chart.plan_if_due();
    }
}

/// Hears the other sites.
struct Ear {
    site: SiteName,
    chart: Arc<Chart>,
    bus: Arc<dyn Bus>,
    clock: Arc<dyn Clock>,
    /// Sites whose messages could not be read, named in the log once each.
    strangers: BTreeSet<SiteName>,
}

impl Ear {
    async fn hear(mut self, mut messages: Receiver<BusMessage>) {
        loop {
            match messages.recv().await {
                Ok(BusMessage::Presence(presence)) => self.chart.heard_presence(&presence),
                Ok(BusMessage::Load(report)) => {
                    self.chart.heard_load(&report);
                    if let Some(duty) = report.duty.filter(|_| report.site != self.site) {
                        self.chart.heard_duty(&report.site, &report.instance, duty);
                    }
                }
                Ok(BusMessage::Prefixes(told)) => self.heard(&told),
                Ok(BusMessage::SnapshotWanted(request)) if request.of == self.site => {
                    if let Some(number) = self.chart.number_of(&self.site, &request.instance) {
                        self.chart.prefixes().asked(number, &request);
                    }
                }
                // The last three: heard by whoever follows the control stream.
                Ok(
                    BusMessage::SnapshotWanted(_)
                    | BusMessage::Applied(_)
                    | BusMessage::EffectWanted(_)
                    | BusMessage::Effect(_),
                ) => {}
                Ok(BusMessage::Visits(visits)) if visits.to == self.site => self.chart.heard_visits(&visits),
                Ok(BusMessage::Visits(_)) => {}
                // Summaries are numbered: the next one of each stream shows what was missed of it.
                Err(RecvError::Lagged(missed)) => tracing::warn!(missed, "bus messages were lost"),
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn heard(&mut self, told: &PrefixSummary) {
        if told.to != self.site {
            return;
        }
        let Some(number) = self.chart.number_of(&told.from, &told.instance) else {
            return;
        };
        match self.chart.prefixes().heard(number, told, self.clock.now()) {
            Told::Taken => {}
            Told::Ask(request) => self.bus.publish(BusMessage::SnapshotWanted(request)),
            Told::OtherSecret => self.warn(told, "its secret is not this site's"),
            Told::Unreadable(error) => self.warn(told, &error.to_string()),
        }
    }

    fn warn(&mut self, told: &PrefixSummary, why: &str) {
        if self.strangers.insert(told.from.clone()) {
            tracing::warn!(site = %self.site, from = %told.from, why, "what another site caches stays unknown");
        }
    }
}

fn every(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests;
