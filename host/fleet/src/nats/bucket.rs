//! A key-value bucket of the fleet's: the newest of each key, in files, acknowledged by a majority of its replicas.

use async_nats::jetstream::Context;
use async_nats::jetstream::kv;
use async_nats::jetstream::stream::{self, DiscardPolicy, StorageType};

/// Opens a bucket, made where there is none.
pub(super) async fn open(jetstream: &Context, bucket: &str, replicas: usize) -> Result<kv::Store, String> {
    if let Ok(known) = jetstream.get_key_value(bucket).await {
        return Ok(known);
    }
    // What the client makes a bucket of, without the account's limits: a server whose answer to that the client does
    // not read (Debian's) has buckets all the same.
    let made = jetstream.get_or_create_stream(stream::Config {
        name: format!("KV_{bucket}"),
        subjects: vec![format!("$KV.{bucket}.>")],
        max_messages_per_subject: 1,
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        num_replicas: replicas,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        ..stream::Config::default()
    });
    made.await.map_err(|error| error.to_string())?;
    let made = jetstream.get_key_value(bucket).await;
    made.map_err(|error| error.to_string())
}
