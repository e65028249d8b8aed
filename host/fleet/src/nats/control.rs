//! The control stream over JetStream: a stream of subjects `NAME.control.LANE`, kept in files, by as many servers as are
//! asked for.
//!
//! | promise | kept by |
//! |---|---|
//! | acknowledged is durable | the stream's acknowledgement: its server has written it, or a majority of its replicas |
//! | order | the stream's sequence, which is the entry's position |
//! | at least once, without gaps | an ordered consumer: what it misses it asks for again, from the last position it saw |
//! | twice appended, kept once | the event's id, within [`SAME_EVENT`] |
//! | a stream made anew is another one | its identity is the moment it was made |

use super::NatsBus;
use async_nats::Client;
use async_nats::connection::State;
use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::{Ordered, OrderedConfig};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, Info, RetentionPolicy, StorageType, Stream};
use async_nats::jetstream::{self, Context};
use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use portolan_base::Sequence;
use portolan_ports::{
    ControlEntries, ControlEntry, ControlError, ControlEvent, ControlStream, Cursor, StreamId,
};
use std::time::Duration;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

/// Longest wait for an acknowledgement. A cluster that has lost its leader elects another within four seconds.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(5);

/// An event appended again within this time is kept once: longer than whoever orders goes on trying.
const SAME_EVENT: Duration = Duration::from_secs(120);

/// Entries kept of each lane: more than an hour of invalidations at 200 a second, a day at ten. With [`ENTRY_BYTES`] this
/// bounds what a lane takes of the servers' disks, to 8 GiB. A bound on the bytes of the whole stream would drop the oldest
/// entries of any lane, and with them the models' latest.
const KEPT: i64 = 1_000_000;

/// Longest entry: the texts of an order have 2 KiB at most, and take three times that if all has to be escaped.
const ENTRY_BYTES: i32 = 8 << 10;

/// One beat in so many takes the place of its site's earlier ones: they prove nothing once a later one came.
const BEATS: u64 = 64;

/// The header that says so.
const ROLL_UP: &str = "Nats-Rollup";

/// How often whoever follows makes sure that the stream is still the same one.
const SAME_STREAM: Duration = Duration::from_secs(5);

/// The fleet's control stream.
#[derive(Clone)]
pub struct NatsControl {
    jetstream: Context,
    client: Client,
    /// `NAME.control`.
    prefix: String,
    stream: String,
    replicas: usize,
}

impl NatsControl {
    /// The control stream of the fleet that a bus is of, over the bus's connection. `replicas` servers keep it; a majority
    /// of them has to acknowledge.
    pub fn on(bus: &NatsBus, replicas: usize) -> Self {
        let client = bus.client.clone();
        let mut jetstream = jetstream::new(client.clone());
        jetstream.set_timeout(ACKNOWLEDGED_WITHIN);
        Self {
            jetstream,
            client,
            prefix: bus.subjects.control(),
            stream: bus.subjects.control_stream(),
            replicas,
        }
    }

    /// The stream, made where there is none.
    async fn stream(&self) -> Result<Stream<Info>, ControlError> {
        self.connected().map_err(ControlError::Cut)?;
        let config = Config {
            name: self.stream.clone(),
            subjects: vec![format!("{}.>", self.prefix)],
            retention: RetentionPolicy::Limits,
            storage: StorageType::File,
            max_messages_per_subject: KEPT,
            max_message_size: ENTRY_BYTES,
            duplicate_window: SAME_EVENT,
            num_replicas: self.replicas,
            allow_rollup: true,
            deny_delete: true,
            ..Config::default()
        };
        let made = timeout(ACKNOWLEDGED_WITHIN, self.jetstream.get_or_create_stream(config)).await;
        let made = made.map_err(|_| ControlError::Cut("no server answers".to_owned()))?;
        made.map_err(|error| ControlError::Cut(error.to_string()))
    }

    fn connected(&self) -> Result<(), String> {
        match self.client.connection_state() {
            State::Connected => Ok(()),
            State::Pending | State::Disconnected => Err("there is no connection to a server".to_owned()),
        }
    }

    /// A consumer finds its stream again by name: one that was made anew would go on at a position that means nothing.
    async fn is_still(&self, id: &StreamId, last: Sequence) -> Result<(), ControlError> {
        let Ok(stream) = self.jetstream.get_stream(&self.stream).await else {
            return Ok(());
        };
        let info = stream.cached_info();
        if identity(info) == *id && info.state.last_sequence >= last.0 {
            return Ok(());
        }
        Err(ControlError::Lost {
            from: last,
            why: "the stream was made anew".to_owned(),
        })
    }

    /// Whether something after `cursor` was dropped that is no beat.
    async fn dropped_after(&self, stream: &Stream<Info>, cursor: Sequence) -> Result<bool, ControlError> {
        let cut = |error: String| ControlError::Cut(error);
        // A stream that another release made may keep more.
        let kept = stream.cached_info().config.max_messages_per_subject;
        let counts = stream.info_with_subjects(format!("{}.>", self.prefix)).await;
        let mut counts = counts.map_err(|e| cut(e.to_string()))?;
        let mut full = Vec::new();
        while let Some(lane) = counts.next().await {
            let (subject, count) = lane.map_err(|e| cut(e.to_string()))?;
            if i64::try_from(count).is_ok_and(|count| kept > 0 && count >= kept) {
                full.push(subject);
            }
        }
        for subject in full {
            let oldest = stream.get_first_raw_message_by_subject(subject, 1).await;
            let oldest = oldest.map_err(|e| cut(e.to_string()))?;
            if oldest.sequence > cursor.next().0 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[async_trait]
impl ControlStream for NatsControl {
    async fn append(&self, event: ControlEvent) -> Result<Sequence, ControlError> {
        let refused = ControlError::NotAcknowledged;
        // The client would send it whenever there is a connection again.
        self.connected().map_err(refused)?;
        let bytes = event.to_bytes().map_err(|error| refused(error.to_string()))?;
        let mut message = PublishMessage::build().payload(bytes.into());
        if let Some(id) = event.id() {
            message = message.message_id(id);
        }
        if let ControlEvent::Beat(beat) = &event
            && beat.number % BEATS == BEATS - 1
        {
            message = message.header(ROLL_UP, "sub");
        }
        let subject = format!("{}.{}", self.prefix, event.lane());
        let publish = async {
            let sent = self
                .jetstream
                .send_publish(subject.clone(), message.clone())
                .await;
            sent.map_err(|error| error.to_string())?
                .await
                .map_err(|error| error.to_string())
        };
        let acknowledged = match publish.await {
            Ok(acknowledged) => acknowledged,
            // There may be no stream yet: the first that appends makes it.
            Err(first) => {
                self.stream()
                    .await
                    .map_err(|error| refused(format!("{first}; {error}")))?;
                let again = self.jetstream.send_publish(subject, message).await;
                let again = again.map_err(|error| refused(error.to_string()))?;
                again.await.map_err(|error| refused(error.to_string()))?
            }
        };
        Ok(Sequence(acknowledged.sequence))
    }

    async fn follow(&self, after: Option<&Cursor>) -> Result<Box<dyn ControlEntries>, ControlError> {
        let stream = self.stream().await?;
        let info = stream.cached_info();
        let id = identity(info);
        let from = match after {
            None => Sequence::NONE,
            Some(cursor) => {
                let lost = |why: &str| ControlError::Lost {
                    from: cursor.sequence,
                    why: why.to_owned(),
                };
                if cursor.stream != id {
                    return Err(lost("the servers keep another stream"));
                }
                if cursor.sequence.0 > info.state.last_sequence {
                    return Err(lost("the stream is shorter than what was followed"));
                }
                if self.dropped_after(&stream, cursor.sequence).await? {
                    return Err(lost("entries after it were dropped: there were too many"));
                }
                cursor.sequence
            }
        };
        let config = OrderedConfig {
            deliver_subject: self.client.new_inbox(),
            filter_subject: format!("{}.>", self.prefix),
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: from.next().0,
            },
            ..OrderedConfig::default()
        };
        let cut = |error: String| ControlError::Cut(error);
        let consumer = stream
            .create_consumer(config)
            .await
            .map_err(|e| cut(e.to_string()))?;
        let entries = consumer.messages().await.map_err(|e| cut(e.to_string()))?;
        Ok(Box::new(Following {
            control: self.clone(),
            id,
            last: from,
            entries,
            broken: None,
            look: look(),
        }))
    }
}

struct Following {
    control: NatsControl,
    id: StreamId,
    last: Sequence,
    entries: Ordered,
    /// Why there are no more, once that is known.
    broken: Option<ControlError>,
    look: Interval,
}

impl Following {
    /// The entry that a message is; none: it is told again after a reconnect.
    fn entry(&mut self, message: &Message) -> Result<Option<ControlEntry>, ControlError> {
        let info = message.info();
        let sequence = info.map_err(|error| ControlError::Cut(error.to_string()))?;
        let sequence = Sequence(sequence.stream_sequence);
        if sequence <= self.last {
            return Ok(None);
        }
        self.last = sequence;
        Ok(Some(ControlEntry {
            sequence,
            event: ControlEvent::from_bytes(&message.payload),
        }))
    }
}

#[async_trait]
impl ControlEntries for Following {
    fn stream(&self) -> &StreamId {
        &self.id
    }

    async fn next(&mut self) -> Result<ControlEntry, ControlError> {
        if let Some(why) = self.broken.take() {
            return Err(why);
        }
        loop {
            let came = tokio::select! {
                biased;
                came = self.entries.next() => came,
                _ = self.look.tick() => {
                    self.control.is_still(&self.id, self.last).await?;
                    continue;
                }
            };
            let cut = |error: String| ControlError::Cut(error);
            let message = came.ok_or_else(|| cut("the subscription ended".to_owned()))?;
            let message = message.map_err(|error| cut(error.to_string()))?;
            if let Some(entry) = self.entry(&message)? {
                return Ok(entry);
            }
        }
    }

    fn next_ready(&mut self) -> Option<ControlEntry> {
        while self.broken.is_none() {
            let came = self.entries.next().now_or_never()?;
            let entry = match came {
                Some(Ok(message)) => self.entry(&message),
                Some(Err(error)) => Err(ControlError::Cut(error.to_string())),
                None => Err(ControlError::Cut("the subscription ended".to_owned())),
            };
            match entry {
                Ok(None) => {}
                Ok(Some(entry)) => return Some(entry),
                Err(why) => self.broken = Some(why),
            }
        }
        None
    }
}

fn look() -> Interval {
    let mut look = interval_at(Instant::now() + SAME_STREAM, SAME_STREAM);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    look
}

fn identity(info: &Info) -> StreamId {
    StreamId(format!(
        "{}@{}",
        info.config.name,
        info.created.unix_timestamp_nanos()
    ))
}

#[cfg(test)]
mod tests;
