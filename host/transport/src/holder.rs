//! The holding side: accepts lanes, takes orders, streams what the source yields.

use crate::frame::{ChunkMeta, DialerHello, Frame, OrderBody, Stage, Welcome, encode_chunk};
use crate::hello::{self, HelloError};
use crate::session::{Body, Outgoing, Session, SessionSink};
use crate::site::Shared;
use crate::wire::{FrameReader, Halves, Heard, LaneError, write};
use bytes::Bytes;
use portolan_base::TransferId;
use portolan_ports::PrefillReport;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

/// Connections that have not proven the secret yet. More are closed at once, so that strangers cannot use up the
/// process's file descriptors.
const UNPROVEN_MAX: usize = 256;

/// Accepts connections until the site shuts down.
pub(crate) async fn listen(shared: Arc<Shared>, listener: TcpListener) {
    let unproven = Arc::new(Semaphore::new(UNPROVEN_MAX));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, most likely: without a pause this would be a busy loop.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(shared.config.timing().tick()).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&unproven).try_acquire_owned() else {
            continue;
        };
        let task_shared = Arc::clone(&shared);
        shared.spawn(async move {
            let limit = task_shared.config.timing().hello();
            let opened = tokio::time::timeout(limit, open(&task_shared, stream)).await;
            drop(permit);
            match opened {
                Ok(Ok((halves, membership))) => run(&membership, halves).await,
                Ok(Err(error)) => tracing::warn!(%error, "a connection was refused"),
                Err(_) => tracing::debug!("a connection sent no hello"),
            }
        });
    }
}

async fn open(shared: &Arc<Shared>, stream: TcpStream) -> Result<(Halves, Membership), HelloError> {
    stream.set_nodelay(true)?;
    let wire = shared.wiring.accepted(stream).await?;
    let (mut halves, theirs) = hello::accept(wire, &shared.identity()).await?;
    match join(shared, &theirs) {
        Ok(membership) => {
            hello::welcome(&mut halves, Welcome::Open(membership.session.number)).await?;
            Ok((halves, membership))
        }
        Err(refused) => {
            hello::welcome(&mut halves, Welcome::Refused(refused.clone())).await?;
            Err(HelloError::Refused(refused))
        }
    }
}

/// Finds or begins the session a lane belongs to.
fn join(shared: &Arc<Shared>, theirs: &DialerHello) -> Result<Membership, String> {
    let site = &shared.config.site;
    if theirs.to != *site {
        return Err(format!("this is site {site}, not {}", theirs.to));
    }
    let key = (theirs.from.clone(), theirs.session);
    let counters = shared.counters_of(&theirs.from);
    let mut sessions = shared.sessions.lock();
    if let Some(session) = sessions.get(&key)
        && let Some(lane) = session.attach()
    {
        return Ok(Membership {
            shared: Arc::clone(shared),
            session: Arc::clone(session),
            lane,
        });
    }
    let chunk = theirs.chunk.min(shared.config.chunk_bytes()).max(1);
    let number = shared.draw_u128();
    let session = Arc::new(Session::new(
        theirs.from.clone(),
        number,
        chunk,
        shared.config.timing(),
        counters,
    ));
    let lane = session.attach().ok_or("the session is over")?;
    sessions.insert(key, Arc::clone(&session));
    Ok(Membership {
        shared: Arc::clone(shared),
        session,
        lane,
    })
}

/// A lane's place in its session. Dropping it, at whatever point, takes the lane out; a session that stays without
/// lanes ends.
struct Membership {
    shared: Arc<Shared>,
    session: Arc<Session>,
    lane: u64,
}

impl Drop for Membership {
    fn drop(&mut self) {
        let Some(then) = self.session.detach(self.lane) else {
            return;
        };
        let (sessions, session) = (Arc::clone(&self.shared.sessions), Arc::clone(&self.session));
        self.shared.spawn(async move {
            tokio::time::sleep(session.timing.retention()).await;
            let mut sessions = sessions.lock();
            if session.close_if_unused_since(then) {
                sessions.retain(|_, other| !Arc::ptr_eq(other, &session));
            }
        });
    }
}

/// Notes when a lane was last heard.
struct LaneHeard {
    session: Arc<Session>,
    start: Instant,
    last_us: Arc<AtomicU64>,
}

fn since_us(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX)
}

impl Heard for LaneHeard {
    fn heard(&self, bytes: usize) {
        self.last_us.store(since_us(self.start), Relaxed);
        self.session.counters.received.fetch_add(bytes as u64, Relaxed);
    }
}

async fn run(membership: &Membership, halves: Halves) {
    let Membership {
        shared,
        session,
        lane,
    } = membership;
    let start = Instant::now();
    let last_us = Arc::new(AtomicU64::new(0));
    let (reader, out) = halves;
    let heard = LaneHeard {
        session: Arc::clone(session),
        start,
        last_us: Arc::clone(&last_us),
    };
    let (pongs, outbox) = mpsc::unbounded_channel();
    let broken = tokio::select! {
        error = receive(shared, session, reader.listen(heard), pongs) => error,
        error = send(session, *lane, out, outbox) => error,
        error = watch(session, start, &last_us) => error,
    };
    tracing::debug!(peer = %session.peer, lane, %broken, "a lane broke");
}

/// The dialer pings four times in a stall time; a lane silent for longer has lost its other end.
async fn watch(session: &Session, start: Instant, last_us: &AtomicU64) -> LaneError {
    let timing = session.timing;
    loop {
        tokio::time::sleep(timing.ping()).await;
        if Duration::from_micros(since_us(start).saturating_sub(last_us.load(Relaxed))) > timing.stall {
            return LaneError::Protocol("the connection is silent");
        }
    }
}

async fn receive<R: AsyncRead + Unpin>(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    mut reader: FrameReader<R, LaneHeard>,
    pongs: mpsc::UnboundedSender<Frame>,
) -> LaneError {
    loop {
        // A receiver never sends chunks.
        match reader.frame(Stage::Open { chunk: 0 }).await {
            Ok((Frame::Order(order), _)) => begin(shared, session, *order),
            Ok((Frame::Ack(id, part), _)) => session.ack(id, part),
            Ok((Frame::Nack(id, part), _)) => session.nack(id, part),
            Ok((Frame::Cancel(id), _)) => session.cancel(id),
            Ok((Frame::Ping(at), _)) => {
                // The sender of this lane ends together with this receiver.
                let _ = pongs.send(Frame::Pong(at));
            }
            Ok(_) => return LaneError::Protocol("a receiver sent a frame that only a holder sends"),
            Err(error) => return error,
        }
    }
}

async fn send<W: AsyncWrite + Unpin>(
    session: &Session,
    lane: u64,
    mut out: W,
    mut outbox: mpsc::UnboundedReceiver<Frame>,
) -> LaneError {
    loop {
        let woken = session.wake.notified();
        tokio::pin!(woken);
        woken.as_mut().enable();
        let written = if let Ok(frame) = outbox.try_recv() {
            write_counted(session, &mut out, frame.encode(), Bytes::new()).await
        } else if let Some(outgoing) = session.take(lane) {
            send_item(session, &mut out, outgoing).await
        } else {
            tokio::select! {
                Some(frame) = outbox.recv() => write_counted(session, &mut out, frame.encode(), Bytes::new()).await,
                () = woken => Ok(()),
            }
        };
        if let Err(error) = written {
            return error.into();
        }
    }
}

async fn send_item<W: AsyncWrite + Unpin>(
    session: &Session,
    out: &mut W,
    outgoing: Outgoing,
) -> std::io::Result<()> {
    if let Some(manifest) = outgoing.manifest {
        write_counted(session, out, manifest.encode(), Bytes::new()).await?;
    }
    match outgoing.item.body {
        Body::Manifest => Ok(()),
        Body::Chunk {
            head,
            payload,
            checksum,
        } => {
            // Kept for resends: memory that changed meanwhile shows at the receiver.
            let checksum = *checksum.get_or_init(|| head.checksum(&payload));
            let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            let meta = ChunkMeta {
                head,
                attempt: outgoing.item.attempt,
                checksum,
            };
            write_counted(session, out, encode_chunk(&meta, len), payload).await
        }
        Body::Final(outcome) => {
            let frame = Frame::Final(outgoing.transfer, outcome);
            write_counted(session, out, frame.encode(), Bytes::new()).await
        }
    }
}

async fn write_counted<W: AsyncWrite + Unpin>(
    session: &Session,
    out: &mut W,
    head: Bytes,
    payload: Bytes,
) -> std::io::Result<()> {
    let bytes = (head.len() + payload.len()) as u64;
    write(out, head, payload).await?;
    session.counters.sent.fetch_add(bytes, Relaxed);
    Ok(())
}

/// Begins the work of an order, unless it was begun before.
fn begin(shared: &Arc<Shared>, session: &Arc<Session>, body: OrderBody) {
    let transfer = body.transfer;
    let Some(cancelled) = session.begin(transfer, body.priority) else {
        return;
    };
    if session.is_full() {
        session.end(
            transfer,
            Err("this site has too many transfers for your site under way".into()),
        );
        return;
    }
    let sink = SessionSink {
        session: Arc::clone(session),
        transfer,
        cancelled,
    };
    let ending = Ending {
        session: Arc::clone(session),
        transfer,
        result: None,
    };
    let source = Arc::clone(&shared.source);
    shared.spawn(async move {
        let mut ending = ending;
        let peer = ending.session.peer.clone();
        ending.result = Some(source.serve(peer, body.order, Box::new(sink)).await);
    });
}

/// Says how an order ended even when its source panicked: the receiver must not wait for ever.
struct Ending {
    session: Arc<Session>,
    transfer: TransferId,
    result: Option<Result<PrefillReport, String>>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let result = self
            .result
            .take()
            .unwrap_or_else(|| Err("the holder failed while it served the order".into()));
        self.session.end(self.transfer, result);
    }
}
