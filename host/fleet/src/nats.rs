//! The bus of sites that run in several processes: core subjects of a NATS server or cluster.
//!
//! ```text
//! NAME.facts.JURISDICTION.SITE                 a site's heartbeats and load       read by every other site
//! NAME.prefixes.JURISDICTION.RECEIVER.SITE     what SITE's instances hold         read by RECEIVER only
//! NAME.wanted.JURISDICTION.HOLDER.SITE         SITE asks HOLDER for a snapshot    read by HOLDER only
//! NAME.control.LANE                            what must survive: see [`NatsControl`]
//! ```
//!
//! Nothing but the last is durable: a message that is lost is said again, or its number shows that it is missing. While there is
//! no connection nothing is kept either, since what a site said a minute ago says nothing about it.
//!
//! | part | what it does |
//! |---|---|
//! | [`Subjects`] | who publishes and reads which subject |
//! | `envelope` | a message's bytes, under a key that only the fleet's sites have |
//! | `connection` | logs in, and says what becomes of the connection |
//! | [`NatsServer`] | a server of one's own, for demos and tests |

mod bucket;
mod configuration;
mod connection;
mod control;
mod counters;
mod envelope;
mod policies;
mod server;
mod subjects;

pub use configuration::{ConfigFeed, ConfigNews, NatsConfiguration};
pub use connection::{NatsConfig, NatsError, NatsLogin, NatsTls};
pub use control::NatsControl;
pub use policies::{NatsPolicies, SharedSlots};
pub use server::{NatsServer, NatsServerError};
pub use subjects::{Permissions, Subjects};

use crate::topology::Topology;
use async_nats::Client;
use async_nats::connection::State;
use bytes::Bytes;
use counters::Counters;
use envelope::{Assembly, Seal};
use futures_util::StreamExt;
use parking_lot::Mutex;
use portolan_base::SiteName;
use portolan_ports::{Bus, BusMessage, Sample};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinSet;

/// Messages that a slow subscriber of this process may be behind: as for the embedded bus.
const BEHIND: usize = 4096;

/// Messages that may wait for the connection. A site says some ten a second for each instance; when this many wait, the
/// connection has stood still for minutes and what waits is worth nothing.
const WAITING: usize = 1024;

/// How long the last words may take when a process ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Carries messages between the sites of this process and those of others.
pub struct NatsBus {
    local: broadcast::Sender<BusMessage>,
    outbound: mpsc::Sender<Outbound>,
    subjects: Arc<Subjects>,
    seal: Arc<Seal>,
    counters: Arc<Counters>,
    here: BTreeSet<SiteName>,
    client: Client,
    tasks: Mutex<JoinSet<()>>,
}

enum Outbound {
    Message { subject: String, payload: Bytes },
    Flush(oneshot::Sender<()>),
}

impl NatsBus {
    /// Connects the sites `here` of `topology`, in a runtime. A server that cannot be reached is tried again for as long
    /// as the bus lives: its sites serve alone meanwhile. `secret` is shared by all sites of the fleet.
    ///
    /// # Errors
    /// When an address, a login or a certificate cannot be used as it is.
    pub async fn connect(
        config: &NatsConfig,
        topology: &Topology,
        here: &[SiteName],
        secret: &[u8; 32],
    ) -> Result<Self, NatsError> {
        let counters = Arc::new(Counters::default());
        let subjects = Arc::new(Subjects::new(&config.name, topology));
        let inbox = here.first().map_or_else(String::new, |site| subjects.inbox(site));
        let client = connection::connect(config, &counters, inbox).await?;
        let seal = Arc::new(Seal::new(secret));
        let (outbound, waiting) = mpsc::channel(WAITING);
        let bus = Self {
            local: broadcast::channel(BEHIND).0,
            outbound,
            subjects: Arc::clone(&subjects),
            seal,
            counters,
            here: here.iter().cloned().collect(),
            client: client.clone(),
            tasks: Mutex::new(JoinSet::new()),
        };
        let wanted: Vec<String> = here.iter().flat_map(|site| subjects.read_by(site)).collect();
        // Sites of one process read the same facts, and what those say of each other needs no server.
        let own: BTreeSet<String> = here.iter().filter_map(|site| subjects.facts(site)).collect();
        let wanted: BTreeSet<String> = wanted
            .into_iter()
            .filter(|subject| !own.contains(subject))
            .collect();
        for subject in wanted {
            let subscription = client.subscribe(subject).await;
            let subscription = subscription.map_err(|e| NatsError::Subscribe(e.to_string()))?;
            let ear = Ear {
                local: bus.local.clone(),
                subjects: Arc::clone(&bus.subjects),
                seal: Arc::clone(&bus.seal),
                counters: Arc::clone(&bus.counters),
                assembly: Assembly::default(),
            };
            bus.tasks.lock().spawn(ear.hear(subscription));
        }
        let write = write(client, waiting, Arc::clone(&bus.counters));
        bus.tasks.lock().spawn(write);
        Ok(bus)
    }

    /// Whether there is a connection at this moment.
    pub fn is_connected(&self) -> bool {
        self.counters.is_connected()
    }

    /// Sends what was published so far, waits for it at most a second, and closes the connection.
    pub async fn close(&self) {
        let (done, sent) = oneshot::channel();
        let last = async {
            self.outbound.send(Outbound::Flush(done)).await.ok()?;
            sent.await.ok()
        };
        if tokio::time::timeout(LAST_WORDS, last).await.is_err() {
            tracing::warn!("the bus was closed before its last messages were sent");
        }
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
    }

    /// Hands a message to the connection, which may be too far behind to take it.
    fn send(&self, message: &BusMessage) {
        let Some(subject) = self.subjects.of(message) else {
            tracing::debug!(from = %message.from(), "a message about a site that is not in the topology");
            return;
        };
        for payload in self.seal.payloads(&subject, message) {
            let message = Outbound::Message {
                subject: subject.clone(),
                payload,
            };
            if self.outbound.try_send(message).is_err() {
                self.counters.dropped();
            }
        }
    }
}

impl Bus for NatsBus {
    fn publish(&self, message: BusMessage) {
        let elsewhere = message.receiver().is_none_or(|site| !self.here.contains(site));
        if elsewhere {
            self.send(&message);
        }
        // No subscriber is no error: the first site to start has nobody to tell.
        drop(self.local.send(message));
    }

    fn subscribe(&self) -> broadcast::Receiver<BusMessage> {
        self.local.subscribe()
    }

    fn samples(&self) -> Vec<Sample> {
        self.counters.samples()
    }
}

/// Sends what is published, in order.
async fn write(client: Client, mut waiting: mpsc::Receiver<Outbound>, counters: Arc<Counters>) {
    while let Some(next) = waiting.recv().await {
        match next {
            // The client would keep it and send it whenever there is a connection, long after it was true.
            Outbound::Message { .. } if client.connection_state() != State::Connected => counters.dropped(),
            Outbound::Message { subject, payload } => match client.publish(subject, payload).await {
                Ok(()) => counters.sent(),
                Err(error) => {
                    counters.dropped();
                    tracing::debug!(%error, "a message was not sent");
                }
            },
            Outbound::Flush(done) => {
                if let Err(error) = client.flush().await {
                    tracing::debug!(%error, "the last messages may not have been sent");
                }
                // Whoever waited may have given up.
                done.send(()).ok();
            }
        }
    }
}

/// Reads one subject.
struct Ear {
    local: broadcast::Sender<BusMessage>,
    subjects: Arc<Subjects>,
    seal: Arc<Seal>,
    counters: Arc<Counters>,
    assembly: Assembly,
}

impl Ear {
    async fn hear(mut self, mut subscription: async_nats::Subscriber) {
        while let Some(message) = subscription.next().await {
            let subject = message.subject.as_str();
            let opened = self.seal.open(subject, &message.payload, &mut self.assembly);
            match opened {
                Ok(None) => {}
                // The subject says who may publish and read it, so that what is said there has to agree with it.
                Ok(Some(said)) if self.subjects.of(&said).as_deref() == Some(subject) => {
                    self.counters.heard();
                    drop(self.local.send(said));
                }
                Ok(Some(_)) => self
                    .counters
                    .refused(subject, "it is about another site than its subject says"),
                Err(error) => self.counters.refused(subject, &error.to_string()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
