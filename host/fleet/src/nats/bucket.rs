//! A key-value bucket of the fleet's: the newest of each key, in files, acknowledged by a majority of its replicas.

use super::NatsBus;
use async_nats::Client;
use async_nats::connection::State;
use async_nats::jetstream::kv::{self, Entry, Operation, Watch};
use async_nats::jetstream::stream::{self, DiscardPolicy, StorageType};
use async_nats::jetstream::{self, Context};
use futures_util::StreamExt;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Longest wait for the servers: a cluster that has lost its leader elects another within four seconds.
const WITHIN: Duration = Duration::from_secs(5);

/// Between two tries to follow a bucket.
const AGAIN: Duration = Duration::from_millis(500);

/// A bucket, over a bus's connection.
pub(super) struct Bucket {
    pub(super) jetstream: Context,
    pub(super) replicas: usize,
    pub(super) name: String,
    client: Client,
    runtime: Handle,
}

/// What is put into a bucket, as it comes.
#[derive(Default)]
pub(super) struct Puts {
    /// None while it is not followed. With it, when the bucket was founded.
    watch: Option<(Watch, u64)>,
}

impl Bucket {
    /// The bucket of this name. In a runtime.
    pub(super) fn on(bus: &NatsBus, name: String, replicas: usize) -> Self {
        let client = bus.client.clone();
        let mut jetstream = jetstream::new(client.clone());
        jetstream.set_timeout(WITHIN);
        Self {
            jetstream,
            replicas,
            name,
            client,
            runtime: Handle::current(),
        }
    }

    pub(super) fn connected(&self) -> Result<(), String> {
        match self.client.connection_state() {
            State::Connected => Ok(()),
            State::Pending | State::Disconnected => Err("there is no connection to a server".to_owned()),
        }
    }

    /// Opens it, made where there is none.
    pub(super) async fn open(&self) -> Result<kv::Store, String> {
        self.connected()?;
        let (jetstream, name) = (&self.jetstream, &self.name);
        if let Ok(known) = jetstream.get_key_value(name).await {
            return Ok(known);
        }
        // What the client makes a bucket of, without the account's limits: a server whose answer to that the client does
        // not read (Debian's) has buckets all the same.
        let made = jetstream.get_or_create_stream(stream::Config {
            name: format!("KV_{name}"),
            subjects: vec![format!("$KV.{name}.>")],
            max_messages_per_subject: 1,
            discard: DiscardPolicy::New,
            storage: StorageType::File,
            num_replicas: self.replicas,
            allow_rollup: true,
            deny_delete: true,
            allow_direct: true,
            ..stream::Config::default()
        });
        made.await.map_err(|error| error.to_string())?;
        let made = jetstream.get_key_value(name).await;
        made.map_err(|error| error.to_string())
    }

    /// Waits for the servers, on a thread that may wait; `late` says that they did not answer.
    pub(super) fn within<T, E>(
        &self,
        asked: impl Future<Output = Result<T, E>>,
        late: impl FnOnce(String) -> E,
    ) -> Result<T, E> {
        let answered = self.runtime.block_on(timeout(2 * WITHIN, asked));
        answered.unwrap_or_else(|_| Err(late("no server answers".to_owned())))
    }

    /// Begins to follow it; waits a moment where that fails.
    async fn watch(&self) -> Option<(Watch, u64)> {
        let begun = async {
            let states = self.open().await?;
            let watch = states.watch_with_history(">").await;
            let watch = watch.map_err(|error| error.to_string())?;
            Ok((watch, founded(&states)))
        };
        match begun.await {
            Ok(begun) => Some(begun),
            Err::<_, String>(error) => {
                tracing::debug!(bucket = self.name, error, "it cannot be followed at this moment");
                tokio::time::sleep(AGAIN).await;
                None
            }
        }
    }
}

impl Puts {
    /// The next entry, first the newest of each key, and when its bucket was founded; waits for it, through cuts. May be
    /// dropped while it waits.
    pub(super) async fn next(&mut self, bucket: &Bucket) -> (Entry, u64) {
        loop {
            let Some((watch, founded)) = &mut self.watch else {
                self.watch = bucket.watch().await;
                continue;
            };
            match watch.next().await {
                Some(Ok(entry)) if entry.operation == Operation::Put => return (entry, *founded),
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(bucket = bucket.name, %error, "it is followed anew");
                    self.watch = None;
                }
                None => self.watch = None,
            }
        }
    }
}

/// When a bucket was founded, in nanoseconds since the Unix epoch by the servers' clocks.
pub(super) fn founded(states: &kv::Store) -> u64 {
    u64::try_from(states.stream.cached_info().created.unix_timestamp_nanos()).unwrap_or(0)
}
