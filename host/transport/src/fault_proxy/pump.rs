//! One direction of one connection through a fault proxy.

use super::{Direction, Fault, FaultKind, Path};
use portolan_base::{BitsPerSecond, Bytes as ByteCount};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;

/// Bytes moved at once: fine enough for the rate to look even, coarse enough to be quick.
const BLOCK: usize = 64 << 10;
/// Bytes on their way in one connection when the plan sets no rate: 64 MiB fills 5 Gbit/s at 100 ms.
const UNLIMITED_QUEUE: usize = 64 << 20;
/// What a router on the path buffers besides the bytes in flight.
const ROUTER_QUEUE: u64 = 256 << 10;

struct Block {
    bytes: Vec<u8>,
    due: Instant,
    _room: OwnedSemaphorePermit,
}

/// What a fault does to the pump.
enum Verdict {
    Go,
    Truncate,
    Swallow,
}

/// One direction of one connection.
pub(super) struct Lane<'a> {
    pub(super) path: &'a Path,
    pub(super) direction: Direction,
    pub(super) number: usize,
}

impl Lane<'_> {
    /// Passes bytes on. An error means that the whole connection is to be reset.
    pub(super) async fn run(self, from: OwnedReadHalf, to: OwnedWriteHalf) -> io::Result<()> {
        let (queue, blocks) = mpsc::unbounded_channel();
        tokio::try_join!(self.take(from, queue), self.give(to, blocks))?;
        Ok(())
    }

    /// Reads, applies faults, and stamps each block with the time it is due.
    async fn take(&self, mut from: OwnedReadHalf, queue: mpsc::UnboundedSender<Block>) -> io::Result<()> {
        let room = Arc::new(Semaphore::new(self.queue_bytes()));
        let (mut at, mut last_due) = (0u64, Instant::now());
        let mut jitter = self.path.plan.seed ^ ((self.number as u64) << 1 | self.direction as u64);
        let mut verdict = Verdict::Go;
        loop {
            let mut bytes = vec![0; BLOCK];
            let read = from.read(&mut bytes).await?;
            if read == 0 {
                return Ok(());
            }
            bytes.truncate(read);
            self.thawed().await;
            if matches!(verdict, Verdict::Go) {
                verdict = self.apply(at, &mut bytes).await?;
            } else {
                bytes.clear();
            }
            at += read as u64;
            if !bytes.is_empty() {
                let permits = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                let granted = Arc::clone(&room)
                    .acquire_many_owned(permits)
                    .await
                    .map_err(io::Error::other)?;
                last_due = self.due(bytes.len(), &mut jitter).max(last_due);
                if queue
                    .send(Block {
                        bytes,
                        due: last_due,
                        _room: granted,
                    })
                    .is_err()
                {
                    return Ok(());
                }
            }
            if matches!(verdict, Verdict::Truncate) {
                return Ok(());
            }
        }
    }

    /// Writes each block when it is due; ends the direction in order when there are no more.
    async fn give(
        &self,
        mut to: OwnedWriteHalf,
        mut blocks: mpsc::UnboundedReceiver<Block>,
    ) -> io::Result<()> {
        while let Some(block) = blocks.recv().await {
            tokio::time::sleep_until(block.due).await;
            self.thawed().await;
            to.write_all(&block.bytes).await?;
            self.path.forwarded[self.direction as usize]
                .fetch_add(block.bytes.len() as u64, Ordering::Relaxed);
        }
        to.shutdown().await
    }

    async fn thawed(&self) {
        let mut frozen = self.path.frozen.subscribe();
        // The sender lives as long as the path.
        let _ = frozen.wait_for(|frozen| !frozen).await;
    }

    fn queue_bytes(&self) -> usize {
        let Some(BitsPerSecond(rate)) = self.path.plan.rate else {
            return UNLIMITED_QUEUE;
        };
        let in_flight = u128::from(rate / 8) * self.path.plan.one_way_delay.as_micros() / 1_000_000;
        let bytes = u64::try_from(in_flight)
            .unwrap_or(u64::MAX)
            .saturating_add(ROUTER_QUEUE);
        usize::try_from(bytes)
            .unwrap_or(UNLIMITED_QUEUE)
            .clamp(BLOCK, UNLIMITED_QUEUE)
    }

    /// When a block arrives: after the link was free for it, and the way.
    fn due(&self, len: usize, jitter: &mut u64) -> Instant {
        let plan = &self.path.plan;
        let mut sent = Instant::now();
        if let Some(rate) = plan.rate {
            let mut free_at = self.path.free_at[self.direction as usize].lock();
            let busy = ByteCount(len as u64).time_at(rate).min(Duration::from_secs(3600));
            *free_at = (*free_at).max(sent) + busy;
            sent = *free_at;
        }
        let extra = plan.jitter.mul_f64(draw(jitter));
        sent + plan.one_way_delay + extra
    }

    /// The faults whose byte lies in this block, in order.
    async fn apply(&self, at: u64, bytes: &mut Vec<u8>) -> io::Result<Verdict> {
        while let Some(fault) = self.next_fault(at, bytes.len()) {
            let index = usize::try_from(fault.after.saturating_sub(at)).unwrap_or(0);
            match fault.kind {
                FaultKind::FlipBit(bit) => bytes[index] ^= 1 << (bit & 7),
                FaultKind::Reset => return Err(io::ErrorKind::ConnectionReset.into()),
                FaultKind::Stall(time) => tokio::time::sleep(time).await,
                FaultKind::Duplicate(count) => {
                    let again = bytes[index.saturating_sub(count)..index].to_vec();
                    bytes.splice(index..index, again);
                }
                FaultKind::Truncate => {
                    bytes.truncate(index);
                    return Ok(Verdict::Truncate);
                }
                FaultKind::Swallow => {
                    bytes.truncate(index);
                    return Ok(Verdict::Swallow);
                }
            }
        }
        Ok(Verdict::Go)
    }

    fn next_fault(&self, at: u64, len: usize) -> Option<Fault> {
        let mut faults = self.path.faults.lock();
        let end = at + len as u64;
        let (index, _) = faults
            .iter()
            .enumerate()
            .filter(|(_, fault)| fault.direction == self.direction)
            .filter(|(_, fault)| fault.connection.is_none_or(|number| number == self.number))
            .filter(|(_, fault)| (at..end).contains(&fault.after))
            .min_by_key(|(_, fault)| fault.after)?;
        Some(faults.remove(index))
    }
}

/// A number in 0..1 by SplitMix64.
pub(super) fn draw(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}
