//! One connection from the ordering site to a holder: dialed, used, re-made.

use crate::codec;
use crate::config::LinkPath;
use crate::frame::{Carriage, ChunkMeta, Frame, Part, Stage};
use crate::hello::{self, HelloError};
use crate::inbound::{Place, slot_len};
use crate::landing::Ground;
use crate::link::{Fault, Link};
use crate::site::Shared;
use crate::wire::{FrameReader, Halves, Heard, LaneError, connect, write};
use bytes::{Bytes, BytesMut};
use portolan_base::kv::LandedChunk;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use xxhash_rust::xxh3::Xxh3Builder;

/// Bytes read between two updates of the checksum: still in the cache when they are hashed.
const HASH_STEP: usize = 256 << 10;

/// A lane that is open, its chunk size, and the number of the listener's session.
type Opened = (Halves, u32, u128);

/// Keeps one lane of a link open for as long as the site lives.
pub(crate) async fn keep(shared: Arc<Shared>, link: Arc<Link>, lane: usize) {
    let timing = link.timing;
    let mut wait = timing.redial();
    let mut home = None;
    loop {
        let kicked = link.kick.notified();
        let (path, opened) = match home.take() {
            Some((path, opened)) => (Some(path), Ok(opened)),
            None => {
                let path = link.paths.pick(lane, Instant::now());
                (path, open(&shared, &link, path.map(|(_, path)| path)).await)
            }
        };
        match opened {
            Ok((halves, chunk, number)) => {
                link.attach(lane, number);
                wait = timing.redial();
                let on = path.map(|(index, _)| index);
                let broken = tokio::select! {
                    broken = run(&link, halves, chunk, on) => broken,
                    back = way_home(&shared, &link, lane, on) => {
                        tracing::debug!(peer = %link.peer, lane, "a lane goes back to its own path");
                        link.detach(lane, "it went back to its own path".into());
                        home = Some(back);
                        continue;
                    }
                };
                tracing::debug!(peer = %link.peer, lane, %broken, "a lane broke");
                link.detach(lane, broken.to_string());
            }
            Err(fault) => link.dial_failed(lane, fault),
        }
        if let Some((index, _)) = path {
            link.paths.failed(index, Instant::now());
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = kicked => {}
        }
        wait = (wait * 2).min(timing.redial_max());
    }
}

/// Opens a lane along the path that a lane left, once that is due and nothing is under way that would have to be sent
/// once more.
async fn way_home(
    shared: &Shared,
    link: &Link,
    lane: usize,
    on: Option<usize>,
) -> ((usize, LinkPath), Opened) {
    loop {
        tokio::time::sleep(link.timing.stall).await;
        let home = link.paths.way_home(lane, on, Instant::now());
        let Some((index, path)) = home.filter(|_| link.transfers() == 0) else {
            continue;
        };
        match open(shared, link, Some(path)).await {
            Ok(opened) => return ((index, path), opened),
            Err(_) => link.paths.failed(index, Instant::now()),
        }
    }
}

/// Makes a connection along `path` and opens a lane on it.
async fn open(shared: &Shared, link: &Link, path: Option<LinkPath>) -> Result<Opened, Fault> {
    let timing = link.timing;
    let path = path.ok_or_else(|| Fault {
        detail: "the peer has no address".into(),
        firm: true,
    })?;
    // With another path to go to, a silent one is not worth the whole time.
    let patience = if link.paths.have_choice() {
        timing.connect()
    } else {
        timing.hello()
    };
    let silent = |what: &str| Fault {
        detail: format!("no answer from {}: {what}", path.to),
        firm: false,
    };
    let connected = tokio::time::timeout(patience, connect(path, shared.config.dscp)).await;
    let stream = connected.map_err(|_| silent("the connection did not come about"))?;
    let stream = stream.map_err(|error| fault(&HelloError::from(error)))?;
    let greet = async {
        let wire = shared.wiring.dialed(stream, &link.peer).await?;
        hello::dial(wire, &shared.identity(), link).await
    };
    let greeted = tokio::time::timeout(timing.hello(), greet).await;
    greeted
        .map_err(|_| silent("the hello was not answered"))?
        .map_err(|error| fault(&error))
}

fn fault(error: &HelloError) -> Fault {
    let firm = match error {
        HelloError::Lane(LaneError::Io(error)) => error.kind() == io::ErrorKind::ConnectionRefused,
        HelloError::Lane(_) => false,
        HelloError::Preface
        | HelloError::Proof
        | HelloError::HungUp
        | HelloError::WrongSite(_)
        | HelloError::Refused(_) => true,
    };
    Fault {
        detail: error.to_string(),
        firm,
    }
}

/// Notes when a lane and its link were last heard.
struct LaneHeard {
    link: Arc<Link>,
    lane: Arc<AtomicU64>,
}

impl Heard for LaneHeard {
    fn heard(&self, bytes: usize) {
        self.lane.store(self.link.heard_now(), Relaxed);
        self.link.counters.received.fetch_add(bytes as u64, Relaxed);
    }
}

/// Uses an open lane until it breaks.
async fn run(link: &Arc<Link>, halves: Halves, chunk: u32, path: Option<usize>) -> LaneError {
    let heard = Arc::new(AtomicU64::new(link.now_us()));
    let (reader, out) = halves;
    let reader = reader.listen(LaneHeard {
        link: Arc::clone(link),
        lane: Arc::clone(&heard),
    });
    let (replies, outbox) = mpsc::unbounded_channel();
    let receiver = Receiver {
        link,
        chunk,
        replies,
        reader,
        path,
        scratch: BytesMut::new(),
    };
    tokio::select! {
        error = receiver.run() => error,
        error = send(link, out, outbox) => error,
        error = watch(link, &heard) => error,
    }
}

/// Ends a lane that says nothing though it is pinged. A little later than the link as a whole is judged, so that
/// silence everywhere is reported as a stall and not as a broken link.
async fn watch(link: &Link, heard: &AtomicU64) -> LaneError {
    let timing = link.timing;
    let limit = timing.stall + timing.tick() * 3;
    let silence = |heard: u64| Duration::from_micros(link.now_us().saturating_sub(heard));
    loop {
        // Pings come back twice in this time: a sound lane is looked at once or twice a second.
        let due = timing.lane_silence().saturating_sub(silence(heard.load(Relaxed)));
        let (pause, slept) = (due.max(timing.tick()), Instant::now());
        tokio::time::sleep(pause).await;
        if timing.overslept(pause, slept.elapsed()) {
            heard.store(link.heard_now(), Relaxed);
        }
        let (lane, any) = (silence(heard.load(Relaxed)), silence(link.last_heard()));
        // Others are heard and this one is not: its chunks come sooner over them.
        if lane > limit || (lane > timing.lane_silence() && any < timing.lane_silence() / 2) {
            return LaneError::Protocol("the connection is silent");
        }
    }
}

async fn send(
    link: &Link,
    mut out: impl tokio::io::AsyncWrite + Unpin,
    mut outbox: mpsc::UnboundedReceiver<Frame>,
) -> LaneError {
    let mut pings = tokio::time::interval(link.timing.ping());
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let woken = link.wake.notified();
        tokio::pin!(woken);
        woken.as_mut().enable();
        let frame = match outbox.try_recv().ok().or_else(|| link.next_frame()) {
            Some(frame) => frame,
            None => tokio::select! {
                Some(frame) = outbox.recv() => frame,
                () = woken => continue,
                _ = pings.tick() => Frame::Ping(link.now_us()),
            },
        };
        let bytes = frame.encode();
        let len = bytes.len() as u64;
        if let Err(error) = write(&mut out, bytes, Bytes::new()).await {
            return error.into();
        }
        link.counters.sent.fetch_add(len, Relaxed);
    }
}

struct Receiver<'a, R> {
    link: &'a Link,
    chunk: u32,
    replies: mpsc::UnboundedSender<Frame>,
    reader: FrameReader<R, LaneHeard>,
    /// Which of the link's paths it goes along.
    path: Option<usize>,
    /// Takes what nobody wants, and what has to be decoded.
    scratch: BytesMut,
}

impl<R: AsyncRead + Unpin> Receiver<'_, R> {
    async fn run(mut self) -> LaneError {
        loop {
            if let Err(error) = self.frame().await {
                return error;
            }
        }
    }

    fn reply(&self, frame: Frame) {
        // The sender of this lane ends together with this receiver.
        let _ = self.replies.send(frame);
    }

    async fn frame(&mut self) -> Result<(), LaneError> {
        let (frame, len) = self.reader.frame(Stage::Open { chunk: self.chunk }).await?;
        match frame {
            Frame::Manifest(id, manifest) => {
                self.link.manifest(id, *manifest);
                self.reply(Frame::Ack(id, Part::Manifest));
            }
            Frame::Chunk(meta) => {
                self.take_chunk(meta, len).await?;
                // A lane whose bytes lie ready would read for long without a pause, while chunks of the same layer wait
                // on lanes that have no core.
                tokio::task::yield_now().await;
            }
            Frame::Final(id, outcome) => {
                self.link.finish(id, outcome);
                self.reply(Frame::Ack(id, Part::Final));
            }
            Frame::Pong(at, report) => {
                if let Some(path) = self.path {
                    self.link.paths.worked(path);
                }
                self.link.pong(at, report);
            }
            _ => {
                return Err(LaneError::Protocol(
                    "a holder sent a frame that only a receiver sends",
                ));
            }
        }
        Ok(())
    }

    async fn take_chunk(&mut self, meta: ChunkMeta, len: u32) -> Result<(), LaneError> {
        if !meta.carriage.is_behind() {
            return self.take_absent(&meta, len).await;
        }
        let (id, part) = (meta.head.transfer, Part::Chunk(meta.head.no));
        match self.link.place(&meta, len, self.chunk) {
            None => self.skip(len).await?,
            Some(Place::Duplicate) => {
                self.skip(len).await?;
                self.reply(Frame::Ack(id, part));
            }
            Some(Place::Fresh(mut buffer)) => {
                let found = if meta.carriage == Carriage::Coded {
                    buffer.resize(slot_len(&meta.head, self.chunk), 0);
                    self.read_coded(&meta, len, &mut buffer).await?
                } else {
                    self.read_hashed(&meta, len, &mut buffer).await?
                };
                if found == meta.checksum {
                    if let Some(ground) = self.link.landing_of(id) {
                        buffer = land(ground, &meta, buffer).await?;
                    }
                    self.link.fill(&meta, self.chunk, buffer);
                    self.reply(Frame::Ack(id, part));
                } else if self.link.damaged(&meta, found, self.chunk, buffer) {
                    self.reply(Frame::Nack(id, part));
                }
            }
        }
        Ok(())
    }

    /// A chunk whose bytes did not come behind its head: checked like one whose did.
    async fn take_absent(&mut self, meta: &ChunkMeta, len: u32) -> Result<(), LaneError> {
        if len > 0 {
            return Err(LaneError::Protocol("bytes with a chunk that lies elsewhere"));
        }
        let (id, part) = (meta.head.transfer, Part::Chunk(meta.head.no));
        match self.link.place(meta, len, self.chunk) {
            None => {}
            Some(Place::Duplicate) => self.reply(Frame::Ack(id, part)),
            Some(Place::Fresh(mut buffer)) => {
                if fetch(self.link, meta, self.chunk, &mut buffer).await {
                    if meta.carriage != Carriage::Landed
                        && let Some(ground) = self.link.landing_of(id)
                    {
                        buffer = land(ground, meta, buffer).await?;
                    }
                    self.link.fill(meta, self.chunk, buffer);
                    self.reply(Frame::Ack(id, part));
                } else {
                    self.link.not_there(meta, self.chunk, buffer);
                    self.reply(Frame::Nack(id, part));
                }
            }
        }
        Ok(())
    }

    async fn read_hashed(
        &mut self,
        meta: &ChunkMeta,
        len: u32,
        buffer: &mut BytesMut,
    ) -> Result<u64, LaneError> {
        let (len, mut done) = (len as usize, 0);
        let mut hash = Xxh3Builder::new().with_seed(meta.head.seed()).build();
        while done < len {
            self.reader.append(buffer, HASH_STEP.min(len - done)).await?;
            hash.update(&buffer[done..]);
            done = buffer.len();
        }
        Ok(hash.digest())
    }

    /// Reads a compressed chunk and decodes it into its place; the checksum is that of the plain bytes.
    async fn read_coded(&mut self, meta: &ChunkMeta, len: u32, buffer: &mut [u8]) -> Result<u64, LaneError> {
        let mut coded = std::mem::take(&mut self.scratch);
        coded.resize(len as usize, 0);
        self.reader.fill(&mut coded).await?;
        let decoded = codec::decode(self.link.coding(meta.head.transfer), &coded, buffer);
        self.scratch = coded;
        let found = meta.head.checksum(buffer);
        // What cannot be decoded is damaged, whatever lies in its place.
        Ok(if decoded { found } else { !meta.checksum })
    }

    async fn skip(&mut self, len: u32) -> Result<(), LaneError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(HASH_STEP.min(len as usize), 0);
        let mut left = len as usize;
        while left > 0 {
            let step = left.min(scratch.len());
            self.reader.fill(&mut scratch[..step]).await?;
            left -= step;
        }
        self.scratch = scratch;
        Ok(())
    }
}

/// Keeps a verified chunk before it is acknowledged, so that what was acknowledged never crosses again. The lane waits
/// for the file system, and with it the holder: a link on which chunks land is slower than that.
async fn land(ground: Ground, meta: &ChunkMeta, bytes: BytesMut) -> Result<BytesMut, LaneError> {
    let chunk = LandedChunk {
        piece: meta.head.piece.clone(),
        piece_len: meta.head.piece_len,
        offset: meta.head.offset,
        len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        digest: [0; 16],
    };
    let kept = tokio::task::spawn_blocking(move || {
        let digest = LandedChunk::digest_of(&bytes);
        ground.set.land(LandedChunk { digest, ..chunk }, &bytes);
        bytes
    });
    kept.await
        .map_err(|_| LaneError::Protocol("a chunk was lost while it was kept"))
}

/// The bytes of a chunk that landed, if they are what the holder would have sent.
async fn read_landed(ground: Option<Ground>, meta: &ChunkMeta, len: usize) -> Option<Vec<u8>> {
    let (ground, head) = (ground?, meta.head.clone());
    let read = tokio::task::spawn_blocking(move || {
        let claim = ground.before.at(&head.piece, head.piece_len, head.offset, len)?;
        ground
            .set
            .read(claim)
            .filter(|bytes| bytes.len() == len)
            .map(|bytes| (head.checksum(&bytes), bytes))
    });
    let (found, bytes) = read.await.ok().flatten()?;
    (found == meta.checksum).then_some(bytes)
}

/// Gets a chunk's bytes from where they lie; false when they are not what the holder would have sent.
async fn fetch(link: &Link, meta: &ChunkMeta, chunk: u32, buffer: &mut BytesMut) -> bool {
    let (id, len) = (meta.head.transfer, slot_len(&meta.head, chunk));
    let Carriage::Beside(at) = meta.carriage else {
        let read = read_landed(link.ground(id), meta, len).await;
        return read.is_some_and(|bytes| {
            buffer.extend_from_slice(&bytes);
            true
        });
    };
    buffer.resize(len, 0);
    let read = link.window(id).map(|window| window.read(at, buffer));
    matches!(read, Some(Ok(()))) && meta.head.checksum(buffer) == meta.checksum
}
