//! Answers the connector. A connection that says what cannot be understood is told why and closed; the engine computes
//! then, and nobody else notices.

use super::super::ForeignError;
use super::frame::{
    Checksums, Count, Frame, FrameError, Hello, Idle, Kind, PAYLOAD_MOST, Prompt, Refused, VERSION, Welcome,
};
use super::parts::{Part, RANKS_MOST};
use super::{Given, KvStore};
use bytes::{Bytes, BytesMut};
use portolan_base::kv::{KvDtype, LayerKv};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Connections of one engine: its scheduler's and two of each worker, and as many of a process before it that are not
/// closed yet.
const CONNECTIONS: usize = 2 * (1 + 2 * RANKS_MOST as usize);

/// Where an engine hands its KV over, and how much of it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvStoreConfig {
    /// Through what.
    pub place: KvPlace,
    /// Most bytes kept.
    pub most: u64,
}

/// What an engine's KV goes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvPlace {
    /// vLLM with the connector: the local socket that the host listens at.
    Socket(PathBuf),
    /// llama.cpp's server: the folder that it saves slots in.
    Slots(PathBuf),
}

/// Begins to listen. A socket that an earlier process left is replaced; any other file is left alone.
pub(in crate::foreign) fn bind(path: &Path) -> Result<UnixListener, ForeignError> {
    let failed = |error: std::io::Error| ForeignError::Socket {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    // Who can write to it can give the engine other KV than it computed.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

/// Serves connections until the instance ends.
pub(in crate::foreign) async fn run(store: Arc<KvStore>, listener: UnixListener) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let Ok((mut stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: without a pause this would be a busy loop.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let store = Arc::clone(&store);
        connections.spawn(async move {
            let _permit = permit;
            if let Err(error) = connection(&store, &mut stream).await {
                tracing::warn!(%error, "the engine's connection is closed");
                let refused = Refused {
                    reason: error.to_string(),
                };
                if let Ok(frame) = Frame::new(Kind::Refused, &refused, Bytes::new()) {
                    // It may be gone.
                    drop(frame.write(&mut stream).await);
                }
            }
        });
    }
}

async fn connection(store: &Arc<KvStore>, stream: &mut UnixStream) -> Result<(), FrameError> {
    let Some(first) = Frame::read(stream).await? else {
        return Ok(());
    };
    if first.kind == Kind::Idle {
        let idle: Idle = first.fields()?;
        store.counts.idle.store(1, Relaxed);
        tracing::warn!(
            engine = idle.engine,
            reason = idle.reason,
            "no KV is handed over by this engine"
        );
        let noted = serde_json::Map::new();
        return Frame::new(Kind::Noted, &noted, Bytes::new())?.write(stream).await;
    }
    if first.kind != Kind::Hello {
        return Err(FrameError::Content("the first frame is not a hello".to_owned()));
    }
    let (welcome, part) = store.admit(&first.fields()?)?;
    store.counts.idle.store(0, Relaxed);
    Frame::new(Kind::Welcome, &welcome, Bytes::new())?
        .write(stream)
        .await?;
    while let Some(frame) = Frame::read(stream).await? {
        // Blocks are copied and every byte of them is summed: up to a payload's, which is too much for a worker.
        let store = Arc::clone(store);
        let answered = tokio::task::spawn_blocking(move || store.answer(&frame, part)).await;
        let broke = |broke: tokio::task::JoinError| FrameError::Content(broke.to_string());
        answered.map_err(broke)??.write(stream).await?;
    }
    Ok(())
}

impl KvStore {
    /// Whether what the engine says of its KV is what is kept here.
    fn admit(&self, hello: &Hello) -> Result<(Welcome, Part), FrameError> {
        let layout = self.layout();
        let dtype = match layout.dtype {
            KvDtype::F32 => "f32",
            KvDtype::Bf16 => "bf16",
            KvDtype::F16 => "f16",
        };
        // Where a model's files alone were read, its values are known and not how they are cut into heads.
        let values = u64::from(hello.kv_heads) * u64::from(hello.head_dim);
        let own = |layer: &LayerKv| match *layer {
            LayerKv::FullAttention { kv_heads, head_dim } => u64::from(kv_heads) * u64::from(head_dim),
            LayerKv::Recurrent { .. } => 0,
        };
        let same = hello.layers as usize == layout.layers.len()
            && layout.layers.iter().all(|layer| own(layer) == values)
            && hello.dtype == dtype
            && hello.block_tokens == layout.block_tokens;
        if !same {
            return Err(FrameError::Content(format!(
                "{} keeps {} layers of {} heads of {} in {}, blocks of {} tokens; here are {} layers, the first of {} values, in \
                 {dtype}, blocks of {} tokens",
                hello.engine,
                hello.layers,
                hello.kv_heads,
                hello.head_dim,
                hello.dtype,
                hello.block_tokens,
                layout.layers.len(),
                layout.layers.first().map_or(0, own),
                layout.block_tokens
            )));
        }
        let part = Part::new(hello.rank, hello.ranks).filter(|part| part.divides(hello.kv_heads.into()));
        let part = part.ok_or_else(|| {
            FrameError::Content(format!(
                "{} is worker {} of {}, for {} heads; each worker has as many heads, and there are at most {RANKS_MOST}",
                hello.engine, hello.rank, hello.ranks, hello.kv_heads
            ))
        })?;
        let welcome = Welcome {
            version: VERSION,
            block_bytes: part.bytes(self.block_bytes()) as u64,
            payload_most: PAYLOAD_MOST,
        };
        Ok((welcome, part))
    }

    fn answer(&self, frame: &Frame, part: Part) -> Result<Frame, FrameError> {
        let prompt: Prompt = frame.fields()?;
        let (tokens, rest) = split(&prompt, &frame.payload)?;
        match frame.kind {
            Kind::Find => {
                self.counts.aside.fetch_add(prompt.aside, Relaxed);
                let blocks = self.find(&prompt.salt, &tokens) as u32;
                Frame::new(Kind::Found, &Count { blocks }, Bytes::new())
            }
            Kind::Load => self.load(&prompt, &tokens, part),
            Kind::Save => self.save(&prompt, (&tokens, &rest), part),
            other => Err(FrameError::Content(format!("{other:?} is not said by an engine"))),
        }
    }

    /// The blocks from `first` to the end of the tokens; fewer where some are gone.
    fn load(&self, prompt: &Prompt, tokens: &[u32], part: Part) -> Result<Frame, FrameError> {
        let size = part.bytes(self.block_bytes());
        let most = usize::try_from(PAYLOAD_MOST).unwrap_or(usize::MAX) / size.max(1);
        let mut blocks = self.take(&prompt.salt, tokens, prompt.first as usize);
        blocks.truncate(most);
        if !part.is_whole() {
            // A part has no checksum from where it came from: it gets one, so the whole is looked at before.
            let whole = blocks.iter().take_while(|block| block.is_whole()).count();
            blocks.truncate(whole);
        }
        let wanted = (tokens.len() / self.block_tokens()).saturating_sub(prompt.first as usize);
        self.counts.loaded.fetch_add(blocks.len() as u64, Relaxed);
        let lacking = wanted.saturating_sub(blocks.len()) as u64;
        self.counts.refused.fetch_add(lacking, Relaxed);
        let mut payload = BytesMut::with_capacity(blocks.len() * size);
        let mut checksums = Vec::with_capacity(blocks.len());
        for block in &blocks {
            let own = part.cut(&block.bytes, self.pieces().into_iter());
            payload.extend_from_slice(&own);
            checksums.push(match part.is_whole() {
                true => block.checksum,
                false => crc32fast::hash(&own),
            });
        }
        Frame::new(Kind::Blocks, &Checksums { checksums }, payload.freeze())
    }

    /// Takes blocks whose bytes are those of their checksums. The first that is not ends them: what follows is of no use
    /// without it.
    fn save(
        &self,
        prompt: &Prompt,
        (tokens, bytes): (&[u32], &Bytes),
        part: Part,
    ) -> Result<Frame, FrameError> {
        let size = part.bytes(self.block_bytes());
        let whole = tokens.len() / self.block_tokens();
        let count = prompt.checksums.len();
        if bytes.len() != count * size || prompt.first as usize + count > whole {
            return Err(FrameError::Content(format!(
                "{count} blocks from block {} on of {} tokens came as {} bytes, not {}",
                prompt.first,
                tokens.len(),
                bytes.len(),
                count * size
            )));
        }
        let given = prompt.checksums.iter().enumerate().map(|(at, checksum)| {
            // Of its own: a slice would keep the whole payload alive.
            (
                Bytes::copy_from_slice(&bytes[at * size..(at + 1) * size]),
                *checksum,
            )
        });
        let blocks: Vec<_> = given
            .take_while(|(bytes, sum)| crc32fast::hash(bytes) == *sum)
            .collect();
        let damaged = (count - blocks.len()) as u64;
        if damaged > 0 {
            self.counts.refused.fetch_add(damaged, Relaxed);
            tracing::warn!(damaged, "blocks came damaged from the engine and are not kept");
        }
        let given = Given {
            salt: &prompt.salt,
            tokens,
            first: prompt.first as usize,
            blocks,
            about: None,
        };
        let kept = match part.is_whole() {
            true => self.put(given),
            false => self.put_parts(given, (part, prompt.turn)),
        };
        self.counts.saved.fetch_add(kept as u64, Relaxed);
        Frame::new(Kind::Saved, &Count { blocks: kept as u32 }, Bytes::new())
    }
}

/// The tokens at a payload's beginning, and the rest of it.
fn split(prompt: &Prompt, payload: &Bytes) -> Result<(Vec<u32>, Bytes), FrameError> {
    let length = (prompt.tokens as usize).saturating_mul(4);
    if payload.len() < length {
        let text = format!("{} tokens are said, {} bytes came", prompt.tokens, payload.len());
        return Err(FrameError::Content(text));
    }
    let numbers = payload[..length].chunks_exact(4);
    let tokens = numbers.map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    Ok((tokens.collect(), payload.slice(length..)))
}
