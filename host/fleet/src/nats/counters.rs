//! What the bus counts, and what it says in the log.

use async_nats::Event;
use portolan_ports::{Reading, Sample};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Refused messages between two log lines about them: whoever has a login could fill the log.
const EVERY: u64 = 1000;

/// Counts of one connection.
#[derive(Debug, Default)]
pub(super) struct Counters {
    connected: AtomicBool,
    connections: AtomicU64,
    sent: AtomicU64,
    heard: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
    overrun: AtomicU64,
    /// What was said last of a connection that is not made.
    trouble: Mutex<String>,
}

impl Counters {
    pub(super) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    pub(super) fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn heard(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self, subject: &str, why: &str) {
        if self.refused.fetch_add(1, Ordering::Relaxed).is_multiple_of(EVERY) {
            tracing::warn!(subject, why, "a message on the bus is not taken");
        }
    }

    /// Takes note of what became of the connection.
    pub(super) fn event(&self, event: &Event) {
        match event {
            Event::Connected => {
                self.trouble(String::new());
                self.connected.store(true, Ordering::Relaxed);
                self.connections.fetch_add(1, Ordering::Relaxed);
                tracing::info!("the bus is connected");
            }
            Event::Disconnected => {
                self.connected.store(false, Ordering::Relaxed);
                tracing::warn!("the bus is cut; sites of this process go on with what they know");
            }
            // More came than was taken: the oldest of each stream are missing, and their numbers show it.
            Event::SlowConsumer(_) => {
                self.overrun.fetch_add(1, Ordering::Relaxed);
            }
            Event::ServerError(_) | Event::ClientError(_) => {
                let what = event.to_string();
                if self.trouble(what.clone()) {
                    tracing::warn!(
                        what,
                        "the bus reports trouble; it is tried again, and the same is not said again"
                    );
                }
            }
            Event::LameDuckMode | Event::Draining | Event::Closed => tracing::info!(what = %event, "the bus"),
        }
    }

    /// Whether this is not what was said last: a server that is away is tried every second, for hours.
    fn trouble(&self, what: String) -> bool {
        let mut said = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let new = *said != what;
        *said = what;
        new
    }

    pub(super) fn samples(&self) -> Vec<Sample> {
        let count = |name, help, value: &AtomicU64| Sample {
            name,
            help,
            labels: Vec::new(),
            value: Reading::Counter(value.load(Ordering::Relaxed)),
        };
        vec![
            Sample {
                name: "bus_connected",
                help: "Whether this process has a connection to the bus",
                labels: Vec::new(),
                value: Reading::Gauge(u64::from(self.is_connected())),
            },
            count(
                "bus_connections",
                "Connections to the bus that were made",
                &self.connections,
            ),
            count("bus_sent", "Messages sent to other processes", &self.sent),
            count("bus_heard", "Messages heard from other processes", &self.heard),
            count(
                "bus_dropped",
                "Messages not sent: no connection, or too many waited for it",
                &self.dropped,
            ),
            count(
                "bus_refused",
                "Messages that are not of this fleet, or make no sense",
                &self.refused,
            ),
            count(
                "bus_overrun",
                "Messages that came faster than they were taken",
                &self.overrun,
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_trouble_is_said_once_until_there_was_a_connection() {
        let counters = Counters::default();
        let said = |what: &str| counters.trouble(what.to_owned());
        assert_eq!(
            ["IO", "IO", "login", "login"].map(said),
            [true, false, true, false]
        );
        counters.event(&Event::Connected);
        assert!(counters.is_connected() && said("login"));
    }
}
