//! Cache events of one rank, from its sockets into the site's index.

use super::{EventsConfig, ForeignError, Shared};
use crate::kv_events::{EventFeed, Replayed, Wanted, live, replay};
use bytes::Bytes;
use portolan_ports::KvEvent;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::watch;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

/// Memory for the names of one rank's blocks: some 500,000 blocks.
const NAMES: portolan_base::Bytes = portolan_base::Bytes(64 << 20);

/// How long a replay may say nothing before it is given up.
const REPLAY_PAUSE: Duration = Duration::from_secs(2);

/// How long a replay may take that goes on: an engine keeps 10,000 batches, and a site that forgets what one holds never
/// hears of it again.
const REPLAY_WHOLE: Duration = Duration::from_secs(60);

/// How long after a failed replay the next is tried: an engine that cannot answer is not asked again and again.
const REPLAY_AGAIN: Duration = Duration::from_secs(30);

/// How long a publisher may be gone before the next try to connect.
const CONNECT_AGAIN: Duration = Duration::from_millis(500);

/// One rank's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rank {
    number: u16,
    /// Whether no other is listened to: then it is whichever the engine says, as one of several that each have a server
    /// of their own does.
    only: bool,
    endpoint: String,
    replay: Option<String>,
}

/// The ports of every rank.
pub(super) fn ranks(config: &EventsConfig) -> Result<Vec<Rank>, ForeignError> {
    let rank = |number: u16| {
        Ok(Rank {
            number,
            only: config.ranks <= 1,
            endpoint: shifted(&config.endpoint, number)?,
            replay: config
                .replay
                .as_deref()
                .map(|replay| shifted(replay, number))
                .transpose()?,
        })
    };
    (0..config.ranks.max(1)).map(rank).collect()
}

fn shifted(endpoint: &str, by: u16) -> Result<String, ForeignError> {
    let bad = || ForeignError::Endpoint(endpoint.to_owned());
    let (host, port) = endpoint
        .strip_prefix("tcp://")
        .and_then(|rest| rest.rsplit_once(':'))
        .ok_or_else(bad)?;
    let port: u16 = port.parse().map_err(|_| bad())?;
    let port = port.checked_add(by).ok_or_else(bad)?;
    match host.is_empty() || host == "*" {
        true => Err(bad()),
        false => Ok(format!("tcp://{host}:{port}")),
    }
}

/// Listens for as long as the instance is there.
pub(super) async fn run(shared: Arc<Shared>, rank: Rank, mut restarts: watch::Receiver<u64>) {
    let feed = EventFeed::new(rank.number, NAMES);
    let mut listener = Listener {
        feed: if rank.only { feed.by_any_name() } else { feed },
        not_before: None,
        refused: 0,
        shared,
        rank,
    };
    loop {
        if let Err(error) = listener.listen(&mut restarts).await {
            tracing::debug!(instance = %listener.shared.description.instance, rank = listener.rank.number, %error,
                "cache events broke off");
        }
        tokio::time::sleep(CONNECT_AGAIN).await;
    }
}

struct Listener {
    shared: Arc<Shared>,
    rank: Rank,
    feed: EventFeed,
    /// When a replay may be asked for again, after one that failed.
    not_before: Option<tokio::time::Instant>,
    /// What of the feed's refusals was counted.
    refused: u64,
}

impl Listener {
    async fn listen(&mut self, restarts: &mut watch::Receiver<u64>) -> Result<(), zeromq::ZmqError> {
        let mut socket = SubSocket::new();
        socket.connect(&self.rank.endpoint).await?;
        socket.subscribe("").await?;
        // What was said before, and what is missed until the subscription takes effect.
        self.replay(0).await;
        loop {
            tokio::select! {
                Ok(()) = restarts.changed() => {
                    self.feed.restarted();
                    self.tell(KvEvent::Cleared { rank: self.rank.number });
                    self.replay(0).await;
                }
                message = socket.recv() => self.take(message?).await,
            }
        }
    }

    async fn take(&mut self, message: ZmqMessage) {
        let frames = message.into_vec();
        let frames: Vec<&[u8]> = frames.iter().map(AsRef::as_ref).collect();
        let Ok(message) = live(&frames) else {
            self.shared.counts.bad_messages.fetch_add(1, Relaxed);
            return;
        };
        let (salts, events) = (&self.shared.salts, &self.shared.events);
        let root = |salt: Option<&str>| salts.root(salt);
        let taken = self
            .feed
            .live(message, &root, &mut |event| drop(events.send(event)));
        self.shared.heard();
        self.count_refused();
        match taken {
            Ok(Wanted::Nothing) => {}
            Ok(Wanted::Replay { from }) => self.replay(from).await,
            Err(error) => {
                self.shared.counts.bad_messages.fetch_add(1, Relaxed);
                tracing::warn!(instance = %self.shared.description.instance, %error, "a cache event was not taken");
            }
        }
    }

    /// Asks for what was missed. Where there is no replay to be had, what waits is taken as it is, and the feed knows
    /// that it misses something.
    async fn replay(&mut self, from: u64) {
        let due = self.not_before.is_none_or(|at| tokio::time::Instant::now() >= at);
        if let Some(address) = self.rank.replay.clone().filter(|_| due) {
            self.shared.counts.replays.fetch_add(1, Relaxed);
            let answered = tokio::time::timeout(REPLAY_WHOLE, self.ask(&address, from)).await;
            self.not_before = match answered {
                Ok(Ok(())) => None,
                Ok(Err(_)) | Err(_) => Some(tokio::time::Instant::now() + REPLAY_AGAIN),
            };
        }
        let (salts, events) = (&self.shared.salts, &self.shared.events);
        let root = |salt: Option<&str>| salts.root(salt);
        self.feed
            .replay_ended(&root, &mut |event| drop(events.send(event)));
        self.count_refused();
    }

    fn count_refused(&mut self) {
        let all = self.feed.refused().malformed + self.feed.skipped().malformed;
        let more = all.saturating_sub(std::mem::replace(&mut self.refused, all));
        self.shared.counts.refused_events.fetch_add(more, Relaxed);
    }

    async fn ask(&mut self, address: &str, from: u64) -> Result<(), zeromq::ZmqError> {
        let mut socket = DealerSocket::new();
        let late = |_| zeromq::ZmqError::NoMessage;
        tokio::time::timeout(REPLAY_PAUSE, socket.connect(address))
            .await
            .map_err(late)??;
        let mut ask = ZmqMessage::from(Bytes::new());
        ask.push_back(Bytes::copy_from_slice(&from.to_be_bytes()));
        socket.send(ask).await?;
        loop {
            let message = tokio::time::timeout(REPLAY_PAUSE, socket.recv()).await;
            let message = message.map_err(late)??;
            let frames = message.into_vec();
            let frames: Vec<&[u8]> = frames.iter().map(AsRef::as_ref).collect();
            let (salts, events) = (&self.shared.salts, &self.shared.events);
            let root = |salt: Option<&str>| salts.root(salt);
            match replay(&frames) {
                Ok(Replayed::End) => return Ok(()),
                Ok(Replayed::Batch(past)) => {
                    if self
                        .feed
                        .replayed(past, &root, &mut |event| drop(events.send(event)))
                        .is_err()
                    {
                        self.shared.counts.bad_messages.fetch_add(1, Relaxed);
                    }
                }
                Err(_) => {
                    self.shared.counts.bad_messages.fetch_add(1, Relaxed);
                }
            }
        }
    }

    fn tell(&self, event: KvEvent) {
        // Nobody listens before the agent starts.
        drop(self.shared.events.send(event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_ports_of_its_own_and_nonsense_is_named() {
        let config = EventsConfig {
            endpoint: "tcp://10.0.0.1:5557".to_owned(),
            replay: Some("tcp://10.0.0.1:6557".to_owned()),
            ranks: 2,
        };
        let ranks = ranks(&config).unwrap();
        assert_eq!(ranks[1].endpoint, "tcp://10.0.0.1:5558");
        assert_eq!(ranks[1].replay.as_deref(), Some("tcp://10.0.0.1:6558"));
        for bad in [
            "10.0.0.1:5557",
            "tcp://*:5557",
            "tcp://h",
            "tcp://h:99999",
            "ipc://x",
        ] {
            let config = EventsConfig {
                endpoint: bad.to_owned(),
                replay: None,
                ranks: 1,
            };
            assert!(super::ranks(&config).is_err(), "{bad}");
        }
    }
}
