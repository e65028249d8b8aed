//! One connection from the ordering site to a holder: dialed, used, re-made.

use crate::frame::{ChunkMeta, Frame, Part, Stage};
use crate::hello::{self, HelloError};
use crate::inbound::Place;
use crate::link::{Fault, Link};
use crate::site::Shared;
use crate::wire::{FrameReader, Halves, Heard, LaneError, connect, write};
use bytes::{Bytes, BytesMut};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use xxhash_rust::xxh3::Xxh3Builder;

/// Bytes read between two updates of the checksum: still in the cache when they are hashed.
const HASH_STEP: usize = 256 << 10;

/// Keeps one lane of a link open for as long as the site lives.
pub(crate) async fn keep(shared: Arc<Shared>, link: Arc<Link>, lane: usize) {
    let timing = link.timing;
    let mut wait = timing.redial();
    loop {
        let kicked = link.kick.notified();
        match tokio::time::timeout(timing.hello(), open(&shared, &link, lane)).await {
            Ok(Ok((halves, chunk, number))) => {
                link.attach(lane, number);
                let broken = run(&link, halves, chunk).await;
                tracing::debug!(peer = %link.peer, lane, %broken, "a lane broke");
                link.detach(lane, broken.to_string());
                wait = timing.redial();
            }
            Ok(Err(error)) => link.dial_failed(lane, fault(&error)),
            Err(_) => {
                link.dial_failed(
                    lane,
                    Fault {
                        detail: "no answer to the hello".into(),
                        firm: false,
                    },
                );
            }
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = kicked => {}
        }
        wait = (wait * 2).min(timing.redial_max());
    }
}

async fn open(shared: &Shared, link: &Link, lane: usize) -> Result<(Halves, u32, u128), HelloError> {
    let stream = connect(&link.addresses, lane).await?;
    let wire = shared.wiring.dialed(stream).await?;
    hello::dial(wire, &shared.identity(), &link.peer, link.session).await
}

fn fault(error: &HelloError) -> Fault {
    let firm = match error {
        HelloError::Lane(LaneError::Io(error)) => error.kind() == io::ErrorKind::ConnectionRefused,
        HelloError::Lane(_) => false,
        HelloError::Preface | HelloError::Proof | HelloError::WrongSite(_) | HelloError::Refused(_) => true,
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
async fn run(link: &Arc<Link>, halves: Halves, chunk: u32) -> LaneError {
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
    let limit = link.timing.stall + link.timing.tick() * 3;
    loop {
        tokio::time::sleep(link.timing.tick()).await;
        if Duration::from_micros(link.now_us().saturating_sub(heard.load(Relaxed))) > limit {
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
    /// Takes what nobody wants.
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
            Frame::Chunk(meta) => self.take_chunk(meta, len).await?,
            Frame::Final(id, outcome) => {
                self.link.finish(id, outcome);
                self.reply(Frame::Ack(id, Part::Final));
            }
            Frame::Pong(at) => {
                self.link
                    .counters
                    .rtt_sample(Duration::from_micros(self.link.now_us().saturating_sub(at)));
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
        let (id, part) = (meta.head.transfer, Part::Chunk(meta.head.no));
        match self.link.place(&meta, len, self.chunk) {
            None => self.skip(len).await?,
            Some(Place::Duplicate) => {
                self.skip(len).await?;
                self.reply(Frame::Ack(id, part));
            }
            Some(Place::Fresh(mut buffer)) => {
                if self.read_hashed(&meta, &mut buffer).await? == meta.checksum {
                    self.link.fill(&meta, self.chunk, buffer);
                    self.reply(Frame::Ack(id, part));
                } else if self.link.damaged(&meta, self.chunk, buffer) {
                    self.reply(Frame::Nack(id, part));
                }
            }
        }
        Ok(())
    }

    async fn read_hashed(&mut self, meta: &ChunkMeta, buffer: &mut [u8]) -> Result<u64, LaneError> {
        let mut hash = Xxh3Builder::new().with_seed(meta.head.seed()).build();
        for part in buffer.chunks_mut(HASH_STEP) {
            self.reader.fill(part).await?;
            hash.update(part);
        }
        Ok(hash.digest())
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
