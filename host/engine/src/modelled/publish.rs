//! Cache events over ZeroMQ in vLLM's form: `[topic, number, payload]` to subscribers, and from a ring of the last
//! batches to whoever asks for a replay.

use super::blocks::Change;
use super::{EventPorts, ModelledError};
use bytes::Bytes;
use parking_lot::Mutex;
use portolan_base::Clock;
use rmp::encode::{write_array_len, write_f64, write_map_len, write_nil, write_str, write_uint};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::task::JoinHandle;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// Batches that can be replayed, as many as vLLM keeps.
const RING: usize = 10_000;

/// The number that ends a replay.
const END: [u8; 8] = [0xff; 8];

pub(super) struct PublisherConfig {
    pub(super) ports: EventPorts,
    pub(super) clock: Arc<dyn Clock>,
}

pub(super) struct Publisher {
    socket: PubSocket,
    address: String,
    replay: Option<(String, JoinHandle<()>)>,
    topic: Bytes,
    clock: Arc<dyn Clock>,
    next: u64,
    ring: Ring,
}

type Ring = Arc<Mutex<VecDeque<(u64, Bytes)>>>;

impl Drop for Publisher {
    fn drop(&mut self) {
        if let Some((_, task)) = &self.replay {
            task.abort();
        }
    }
}

impl Publisher {
    pub(super) async fn bind(config: PublisherConfig) -> Result<Self, ModelledError> {
        let ports = config.ports;
        let refused = |address: &str, reason: String| ModelledError::Listen {
            address: address.to_owned(),
            reason,
        };
        let mut socket = PubSocket::new();
        let bound = socket.bind(&ports.publish).await;
        let bound = bound.map_err(|e| refused(&ports.publish, e.to_string()))?;
        let topic = Bytes::from(ports.topic);
        let ring = Ring::default();
        let replay = match &ports.replay {
            None => None,
            Some(address) => {
                let mut router = RouterSocket::new();
                let bound = router.bind(address).await;
                let bound = bound.map_err(|e| refused(address, e.to_string()))?;
                let task = tokio::spawn(replay(router, topic.clone(), Arc::clone(&ring)));
                Some((bound.to_string(), task))
            }
        };
        Ok(Self {
            socket,
            address: bound.to_string(),
            replay,
            topic,
            clock: config.clock,
            next: 0,
            ring,
        })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn replay(&self) -> Option<&str> {
        self.replay.as_ref().map(|(address, _)| address.as_str())
    }

    /// Publishes one batch. One that is lost is numbered and can be replayed, as on a full network.
    pub(super) async fn publish(
        &mut self,
        changes: &[Change],
        block_tokens: u32,
        loses: impl Fn(u64) -> bool,
    ) {
        let number = self.next;
        self.next += 1;
        let payload = Bytes::from(batch(self.clock.now().0 as f64 / 1e6, changes, block_tokens));
        {
            let mut ring = self.ring.lock();
            ring.push_back((number, payload.clone()));
            if ring.len() > RING {
                ring.pop_front();
            }
        }
        if loses(number) {
            return;
        }
        let message = message([self.topic.clone(), number_frame(number), payload]);
        if let Err(error) = self.socket.send(message).await {
            tracing::debug!(%error, number, "cache events were not sent");
        }
    }
}

async fn replay(mut router: RouterSocket, topic: Bytes, ring: Ring) {
    // The loop ends with the socket.
    while let Ok(asked) = router.recv().await {
        let frames = asked.into_vec();
        let [client, .., from] = frames.as_slice() else {
            continue;
        };
        let Ok(from) = <[u8; 8]>::try_from(from.as_ref()) else {
            continue;
        };
        let from = u64::from_be_bytes(from);
        let past: Vec<_> = ring
            .lock()
            .iter()
            .filter(|(number, _)| *number >= from)
            .cloned()
            .collect();
        let answer = |number: Bytes, topic: Bytes, payload: Bytes| {
            message([client.clone(), Bytes::new(), topic, number, payload])
        };
        for (number, payload) in past {
            if router
                .send(answer(number_frame(number), topic.clone(), payload))
                .await
                .is_err()
            {
                break;
            }
        }
        drop(
            router
                .send(answer(Bytes::from_static(&END), Bytes::new(), Bytes::new()))
                .await,
        );
    }
}

fn number_frame(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

fn message<const N: usize>(frames: [Bytes; N]) -> ZmqMessage {
    let mut all = VecDeque::from(frames);
    let first = all.pop_front().unwrap_or_default();
    let mut message = ZmqMessage::from(first);
    for frame in all {
        message.push_back(frame);
    }
    message
}

/// `[seconds, [event, …], rank]`. Writing to memory cannot fail.
fn batch(seconds: f64, changes: &[Change], block_tokens: u32) -> Vec<u8> {
    let mut out = Vec::new();
    write_array_len(&mut out, 3).ok();
    write_f64(&mut out, seconds).ok();
    write_array_len(&mut out, changes.len() as u32).ok();
    for change in changes {
        event(&mut out, change, block_tokens);
    }
    write_uint(&mut out, 0).ok();
    out
}

fn event(out: &mut Vec<u8>, change: &Change, block_tokens: u32) {
    let text = |out: &mut Vec<u8>, text: &str| {
        write_str(out, text).ok();
    };
    let number = |out: &mut Vec<u8>, number: u64| {
        write_uint(out, number).ok();
    };
    let list = |out: &mut Vec<u8>, length: usize| {
        write_array_len(out, length as u32).ok();
    };
    let nil = |out: &mut Vec<u8>| {
        let _ = write_nil(out);
    };
    let hashes = |out: &mut Vec<u8>, hash: u64| {
        text(out, "block_hashes");
        list(out, 1);
        number(out, hash);
    };
    let medium = |out: &mut Vec<u8>| {
        text(out, "medium");
        text(out, "GPU");
        text(out, "group_idx");
        number(out, 0);
    };
    match change {
        Change::Cleared => {
            write_map_len(out, 1).ok();
            text(out, "type");
            text(out, "AllBlocksCleared");
        }
        Change::Removed(hash) => {
            write_map_len(out, 4).ok();
            text(out, "type");
            text(out, "BlockRemoved");
            hashes(out, *hash);
            medium(out);
        }
        Change::Stored {
            hash,
            parent,
            tokens,
            salt,
        } => {
            write_map_len(out, 11).ok();
            text(out, "type");
            text(out, "BlockStored");
            hashes(out, *hash);
            text(out, "parent_block_hash");
            match parent {
                Some(parent) => number(out, *parent),
                None => nil(out),
            }
            text(out, "token_ids");
            list(out, tokens.len());
            tokens.iter().for_each(|token| number(out, u64::from(*token)));
            text(out, "block_size");
            number(out, u64::from(block_tokens));
            text(out, "lora_id");
            nil(out);
            text(out, "lora_name");
            nil(out);
            text(out, "extra_keys");
            list(out, 1);
            match salt {
                None => nil(out),
                Some(salt) => {
                    list(out, 1);
                    text(out, salt);
                }
            }
            medium(out);
            text(out, "kv_cache_spec_kind");
            text(out, "full_attention");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_events::decode;
    use portolan_kv::index::event::{CacheEvent, ExtraKey};

    #[test]
    fn what_is_published_reads_as_vllm_events() {
        let changes = [
            Change::Removed(7),
            Change::Stored {
                hash: u64::MAX,
                parent: None,
                tokens: vec![1, 300, 70_000],
                salt: Some("s".to_owned()),
            },
            Change::Cleared,
        ];
        let read = decode(&batch(1.5, &changes, 3)).unwrap();
        assert_eq!((read.timestamp, read.rank), (1.5, Some(0)));
        assert!(matches!(&read.events[0], CacheEvent::Removed(r) if r.hashes[0].0 == 7));
        let CacheEvent::Stored(stored) = &read.events[1] else {
            panic!("{:?}", read.events)
        };
        assert_eq!((stored.hashes[0].0, stored.block_tokens), (u64::MAX, 3));
        assert_eq!(stored.tokens, [1, 300, 70_000]);
        assert_eq!(stored.extra, [vec![ExtraKey::Salt("s".to_owned())]]);
        assert!(matches!(read.events[2], CacheEvent::Cleared));
    }
}
