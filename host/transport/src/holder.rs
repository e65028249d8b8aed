//! The holding side: accepts lanes, takes orders, streams what the source yields.

use crate::carrier::{INVITATION_MAX, Slots};
use crate::codec;
use crate::config::purpose_of_wire;
use crate::frame::{
    Carriage, ChunkHead, ChunkMeta, DialerHello, Frame, OrderBody, Stage, Welcome, encode_chunk,
};
use crate::hello::{self, HelloError};
use crate::landing::Claims;
use crate::probe::Watched;
use crate::session::{Body, Carried, Outgoing, Packer, Session, SessionSink, SessionSpec, Terms};
use crate::site::Shared;
use crate::wire::{Accepted, FrameReader, Halves, Heard, LaneError, PeerProof, mark, write};
use bytes::Bytes;
use portolan_base::TransferId;
use portolan_base::kv::LandedChunk;
use portolan_ports::{KvOrder, PrefillReport};
use std::os::fd::AsFd;
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
                Ok(Ok((halves, membership, watched))) => run(&membership, halves, watched).await,
                Ok(Err(error)) => tracing::warn!(%error, "a connection was refused"),
                Err(_) => tracing::debug!("a connection sent no hello"),
            }
        });
    }
}

async fn open(shared: &Arc<Shared>, stream: TcpStream) -> Result<(Halves, Membership, Watched), HelloError> {
    stream.set_nodelay(true)?;
    hold_back(&stream)?;
    mark(
        &socket2::SockRef::from(&stream),
        stream.peer_addr()?,
        shared.config.dscp,
    )?;
    let watched = Watched::new(stream.as_fd());
    let Accepted { wire, proof } = shared.wiring.accepted(stream).await?;
    let (mut halves, theirs) = hello::accept(wire, &shared.identity()).await?;
    match check(shared, &theirs, &proof).and_then(|()| join(shared, &theirs)) {
        Ok(membership) => {
            hello::welcome(&mut halves, Welcome::Open(membership.session.number)).await?;
            Ok((halves, membership, watched))
        }
        Err(refused) => {
            hello::welcome(&mut halves, Welcome::Refused(refused.clone())).await?;
            Err(HelloError::Refused(refused))
        }
    }
}

/// Bytes that may lie in the kernel beyond what is on its way: what an urgent chunk has to wait for on its lane. Two
/// pieces of what is read at once; less costs throughput.
const NOT_SENT: u32 = 512 << 10;

/// Keeps chunks here, where the most urgent goes first, instead of in the kernel's buffer, where the oldest does.
fn hold_back(stream: &TcpStream) -> std::io::Result<()> {
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(NOT_SENT)
}

/// Whether the peer is who it says it is, means this site, and may order here.
fn check(shared: &Shared, theirs: &DialerHello, proof: &PeerProof) -> Result<(), String> {
    let (site, peer) = (&shared.config.site, &theirs.from);
    if theirs.to != *site {
        return Err(format!("this is site {site}, not {}", theirs.to));
    }
    if !proof.allows(peer) {
        return Err(format!("the certificate is not that of site {peer}"));
    }
    if !shared.admits(peer) {
        return Err(format!("no link leads from site {site} to site {peer}"));
    }
    Ok(())
}

/// Finds or begins the session a lane belongs to.
fn join(shared: &Arc<Shared>, theirs: &DialerHello) -> Result<Membership, String> {
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
    let session = Arc::new(Session::new(SessionSpec {
        peer: theirs.from.clone(),
        number,
        chunk,
        timing: shared.config.timing(),
        memory: shared.config.memory.0,
        counters,
        pacer: shared.pacer_of(&theirs.from),
    }));
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
    last_us: Arc<AtomicU64>,
}

impl Heard for LaneHeard {
    fn heard(&self, bytes: usize) {
        self.last_us.store(self.session.heard_now(), Relaxed);
        self.session.counters.received.fetch_add(bytes as u64, Relaxed);
    }
}

async fn run(membership: &Membership, halves: Halves, watched: Watched) {
    let Membership {
        shared,
        session,
        lane,
    } = membership;
    let last_us = Arc::new(AtomicU64::new(session.heard_now()));
    let (reader, out) = halves;
    let heard = LaneHeard {
        session: Arc::clone(session),
        last_us: Arc::clone(&last_us),
    };
    let (pongs, outbox) = mpsc::unbounded_channel();
    let broken = tokio::select! {
        error = receive(shared, session, reader.listen(heard), pongs) => error,
        error = send(session, *lane, out, outbox) => error,
        error = watch(shared, session, &last_us, watched) => error,
    };
    tracing::debug!(peer = %session.peer, lane, %broken, "a lane broke");
}

/// The dialer pings four times in a stall time; a lane silent for longer has lost its other end. It is given up sooner
/// when others of the session are heard, so that its chunks go to them.
async fn watch(shared: &Shared, session: &Session, last_us: &AtomicU64, mut watched: Watched) -> LaneError {
    let timing = session.timing;
    let silence = |heard: u64| Duration::from_micros(session.now_us().saturating_sub(heard));
    loop {
        let (pause, slept) = (timing.lane_silence() / 4, Instant::now());
        tokio::time::sleep(pause).await;
        if timing.overslept(pause, slept.elapsed()) {
            last_us.store(session.heard_now(), Relaxed);
        }
        session.add_segments(watched.delta(shared.probe.as_ref()));
        let (lane, any) = (silence(last_us.load(Relaxed)), silence(session.last_heard()));
        if lane > timing.stall || (lane > timing.lane_silence() && any < timing.lane_silence() / 2) {
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
                let _ = pongs.send(Frame::Pong(at, session.report()));
            }
            Ok((Frame::Credit(id, bytes), _)) => session.credit(id, bytes),
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
        let pause = session.pacer.wait(Instant::now());
        let written = if let Ok(frame) = outbox.try_recv() {
            write_counted(session, &mut out, frame.encode(), Bytes::new()).await
        } else if let Some(outgoing) = pause.is_none().then(|| session.take(lane)).flatten() {
            let sent = send_item(session, &mut out, outgoing).await;
            // Lanes take turns, or chunks that are numbered side by side would leave far apart.
            tokio::task::yield_now().await;
            sent
        } else {
            tokio::select! {
                Some(frame) = outbox.recv() => write_counted(session, &mut out, frame.encode(), Bytes::new()).await,
                () = woken => Ok(()),
                () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => Ok(()),
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
    if let Some(manifest) = &outgoing.manifest {
        write_counted(session, out, manifest.encode(), Bytes::new()).await?;
    }
    let Outgoing {
        transfer,
        item,
        judge,
        claims,
        slots,
        ..
    } = outgoing;
    match item.body {
        Body::Manifest => Ok(()),
        Body::Chunk {
            head,
            payload,
            carried,
        } => {
            let checksum = checksum(session, &head, &payload, &carried);
            let (carriage, payload) = if has_landed(&claims, &head, &payload, &carried) {
                (Carriage::Landed, Bytes::new())
            } else if let Some(at) = carry(session, slots.as_deref(), &payload, &carried).await {
                carried.wire.store(payload.len() as u64, Relaxed);
                session.pacer.spend(Instant::now(), payload.len() as u64);
                (Carriage::Beside(at), Bytes::new())
            } else {
                match code(session, &judge, &payload) {
                    Some(coded) => (Carriage::Coded, coded),
                    None => (Carriage::Plain, payload),
                }
            };
            let meta = ChunkMeta {
                head,
                attempt: item.attempt,
                carriage,
                checksum,
            };
            let bytes = payload.len();
            if carriage.is_behind() {
                carried.wire.store(bytes as u64, Relaxed);
                session.pacer.spend(Instant::now(), bytes as u64);
            }
            let len = u32::try_from(bytes).unwrap_or(u32::MAX);
            write_counted(session, out, encode_chunk(&meta, len), payload).await
        }
        Body::Final(outcome) => {
            let frame = Frame::Final(transfer, outcome);
            write_counted(session, out, frame.encode(), Bytes::new()).await
        }
    }
}

fn checksum(session: &Session, head: &ChunkHead, payload: &[u8], carried: &Carried) -> u64 {
    let mut first = false;
    let checksum = *carried.checksum.get_or_init(|| {
        first = true;
        head.checksum(payload)
    });
    if first {
        session.hashed(head.transfer, checksum);
    }
    checksum
}

/// Puts a chunk into the receiver's window; says where it lies there. None when it has to go over the connection.
async fn carry(session: &Session, slots: Option<&Slots>, payload: &Bytes, carried: &Carried) -> Option<u64> {
    let slots = slots.filter(|_| !carried.asked_for.load(Relaxed))?;
    if carried.slot.get().is_none() {
        let slot = slots.carry(payload, session.timing.stall).await?;
        // Only the lane that has taken a chunk carries it.
        let _ = carried.slot.set(slot);
    }
    carried.slot.get().map(|slot| slots.place(*slot))
}

/// Whether the receiver has these very bytes and did not ask for them.
fn has_landed(claims: &Claims, head: &ChunkHead, payload: &[u8], carried: &Carried) -> bool {
    let claim = claims.at(&head.piece, head.piece_len, head.offset, payload.len());
    let known = claim.filter(|_| !carried.asked_for.load(Relaxed));
    known.is_some_and(|claim| claim.digest == LandedChunk::digest_of(payload))
}

/// The payload compressed, where that pays on this link.
fn code(session: &Session, judge: &codec::Judge, payload: &[u8]) -> Option<Bytes> {
    let rate = session.rate();
    if !judge.wants(payload.len(), rate) {
        return None;
    }
    let begun = Instant::now();
    let coded = codec::encode(judge.coding(), payload);
    let len = coded.as_ref().map_or(payload.len(), Bytes::len);
    judge.learn(payload.len(), len, begun.elapsed(), rate);
    coded
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
    let judge = session.judge(shared.compression_for(&session.peer), &body.accepts);
    let packer = Packer::new(judge.coding());
    let (priority, credit) = (body.priority, body.credit);
    let window = body
        .beside
        .filter(|window| window.invitation.len() <= INVITATION_MAX);
    let slots = window.zip(shared.carrier.clone()).map(|(window, carrier)| {
        Arc::new(Slots::new(
            carrier,
            window.invitation,
            window.bytes,
            session.chunk,
        ))
    });
    let terms = Terms {
        priority,
        credit,
        judge,
        claims: Arc::new(Claims::of(body.landed)),
        slots,
    };
    let begun = session.begin(transfer, terms);
    let Some(cancelled) = begun else {
        return;
    };
    if session.is_full() {
        session.end(
            transfer,
            Err("this site has too much under way for your site".into()),
        );
        return;
    }
    let sink = SessionSink {
        session: Arc::clone(session),
        transfer,
        cancelled,
        packer,
    };
    let ending = Ending {
        session: Arc::clone(session),
        transfer,
        result: None,
    };
    let source = Arc::clone(&shared.source);
    let order = KvOrder {
        purpose: purpose_of_wire(priority),
        ..body.order
    };
    shared.spawn(async move {
        let mut ending = ending;
        let peer = ending.session.peer.clone();
        ending.result = Some(source.serve(peer, order, Box::new(sink)).await);
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
