//! Bus, control stream and links of one process of a site, each under the weather.

use super::flaw::Flaw;
use super::ledger::Ledger;
use super::life::Life;
use super::weather::{Cut, Weather};
use async_trait::async_trait;
use parking_lot::Mutex;
use portolan_base::kv::KvManifest;
use portolan_base::{Bytes, Sequence, SiteName, TransferId};
use portolan_gateway::peer::PeerService;
use portolan_ports::{
    Bus, BusMessage, ControlEntries, ControlEntry, ControlError, ControlEvent, ControlStream, Cursor,
    KvOrder, KvPiece, KvSource, LinkReading, MemoryControl, PieceSink, Pull, PullEvent, PullReport, StreamId,
    TransferError, Transport,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};
use tokio::time::sleep;

/// How long whoever appends or follows waits before it is told that nothing comes.
const PATIENCE: Duration = Duration::from_millis(200);
/// How long an order waits for a site that says nothing.
const STALLED: Duration = Duration::from_millis(300);

/// Where the processes of all sites meet.
pub(crate) struct Hub {
    pub(crate) names: Vec<SiteName>,
    pub(crate) weather: Weather,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) stream: MemoryControl,
    pub(crate) flaw: Flaw,
    ears: Vec<broadcast::Sender<BusMessage>>,
    /// Who serves orders at each site.
    pub(crate) doors: Mutex<Vec<Option<Arc<Door>>>>,
}

/// Where a site takes orders.
pub(crate) struct Door {
    pub(crate) peers: PeerService,
    pub(crate) life: Life,
}

impl Hub {
    pub(crate) fn new(names: Vec<SiteName>, weather: Weather, flaw: Flaw) -> Self {
        Self {
            ears: names.iter().map(|_| broadcast::channel(4096).0).collect(),
            doors: Mutex::new(names.iter().map(|_| None).collect()),
            names,
            weather,
            flaw,
            ledger: Arc::new(Ledger::new()),
            stream: MemoryControl::new(),
        }
    }

    fn index(&self, site: &SiteName) -> Option<usize> {
        self.names.iter().position(|name| name == site)
    }
}

/// A site's end of everything.
#[derive(Clone)]
pub(crate) struct Carrier {
    pub(crate) here: usize,
    pub(crate) life: Life,
    pub(crate) hub: Arc<Hub>,
}

impl Bus for Carrier {
    fn publish(&self, message: BusMessage) {
        if self.life.is_over() {
            return;
        }
        let weather = &self.hub.weather;
        for (to, ear) in self.hub.ears.iter().enumerate() {
            if to == self.here {
                drop(ear.send(message.clone()));
                continue;
            }
            let times = 1 + usize::from(weather.dice.chance(weather.doubled));
            for _ in 0..times {
                if weather.is(Cut::Bus(self.here, to)) || weather.dice.chance(weather.lost) {
                    continue;
                }
                let (ear, message, delay) = (ear.clone(), message.clone(), weather.delay());
                tokio::spawn(async move {
                    sleep(delay).await;
                    drop(ear.send(message));
                });
            }
        }
    }

    fn subscribe(&self) -> broadcast::Receiver<BusMessage> {
        self.hub.ears[self.here].subscribe()
    }
}

#[async_trait]
impl ControlStream for Carrier {
    async fn append(&self, event: ControlEvent) -> Result<Sequence, ControlError> {
        self.life.or_never().await;
        let weather = &self.hub.weather;
        let silent = || ControlError::NotAcknowledged("nobody answers".to_owned());
        sleep(weather.delay()).await;
        self.life.or_never().await;
        if weather.is(Cut::ToStream(self.here)) {
            sleep(PATIENCE).await;
            return Err(silent());
        }
        if let ControlEvent::Invalidation(order) = &event {
            self.hub.ledger.appending(order);
            if self.hub.flaw == Flaw::ForgetsOrders {
                let last = self.hub.stream.entries().last().map(|entry| entry.sequence);
                return Ok(last.unwrap_or_default());
            }
        }
        let appended = self.hub.stream.append(event).await;
        sleep(weather.delay()).await;
        self.life.or_never().await;
        if weather.is(Cut::FromStream(self.here)) || weather.dice.chance(weather.lost / 2) {
            sleep(PATIENCE).await;
            return Err(silent());
        }
        appended
    }

    async fn follow(&self, after: Option<&Cursor>) -> Result<Box<dyn ControlEntries>, ControlError> {
        self.life.or_never().await;
        sleep(self.hub.weather.delay()).await;
        if self.hub.weather.is(Cut::FromStream(self.here)) {
            return Err(ControlError::Cut("nobody answers".to_owned()));
        }
        Ok(Box::new(Following {
            entries: self.hub.stream.follow(after).await?,
            at: self.clone(),
            next: None,
            again: None,
        }))
    }
}

/// Entries on their way to a site.
struct Following {
    entries: Box<dyn ControlEntries>,
    at: Carrier,
    /// One that is on its way.
    next: Option<ControlEntry>,
    /// One that comes a second time.
    again: Option<ControlEntry>,
}

#[async_trait]
impl ControlEntries for Following {
    fn stream(&self) -> &StreamId {
        self.entries.stream()
    }

    async fn next(&mut self) -> Result<ControlEntry, ControlError> {
        let weather = &self.at.hub.weather;
        if let Some(again) = self.again.take() {
            return Ok(again);
        }
        if self.next.is_none() {
            self.next = Some(self.entries.next().await?);
        }
        if weather.is(Cut::Slow(self.at.here)) {
            sleep(weather.dice.millis(30, 120)).await;
        } else if weather.dice.chance(20) {
            sleep(weather.delay()).await;
        }
        self.at.life.or_never().await;
        if weather.is(Cut::FromStream(self.at.here)) {
            sleep(PATIENCE).await;
            return Err(ControlError::Cut("nothing comes".to_owned()));
        }
        let entry = self
            .next
            .take()
            .ok_or_else(|| ControlError::Cut("nothing came".to_owned()))?;
        self.again = weather.dice.chance(weather.doubled).then(|| entry.clone());
        Ok(entry)
    }

    fn next_ready(&mut self) -> Option<ControlEntry> {
        let weather = &self.at.hub.weather;
        let is_late = weather.is(Cut::Slow(self.at.here)) || weather.is(Cut::FromStream(self.at.here));
        if is_late || self.at.life.is_over() || self.next.is_some() || weather.dice.chance(500) {
            return None;
        }
        self.again.take().or_else(|| self.entries.next_ready())
    }
}

#[async_trait]
impl Transport for Carrier {
    async fn pull(&self, peer: &SiteName, order: KvOrder) -> Result<Pull, TransferError> {
        self.life.or_never().await;
        let there = self
            .hub
            .index(peer)
            .ok_or_else(|| TransferError::UnknownPeer(peer.clone()))?;
        let weather = &self.hub.weather;
        let there = match self.hub.flaw {
            Flaw::AsksAnyone => weather.dice.pick(self.hub.names.len()),
            _ => there,
        };
        sleep(weather.delay()).await;
        self.life.or_never().await;
        let down = |detail: &str| TransferError::LinkDown {
            peer: peer.clone(),
            detail: detail.to_owned(),
        };
        if weather.is(Cut::Order(self.here, there)) {
            sleep(STALLED).await;
            return Err(down("no connection"));
        }
        let door = self.hub.doors.lock()[there].clone();
        let door = door
            .filter(|door| !door.life.is_over())
            .ok_or_else(|| down("refused"))?;
        let about = order.provenance();
        self.hub
            .ledger
            .reached(self.hub.names[there].as_str(), &about, "ordered from");
        self.hub
            .ledger
            .reached(self.hub.names[self.here].as_str(), &about, "ordered by");
        let (events, receiver) = mpsc::channel(10_000);
        let breaks = weather.dice.chance(weather.broken).then(|| weather.dice.pick(8));
        let on_its_way = OnItsWay {
            from: there,
            to: self.clone(),
            door,
            breaks,
        };
        tokio::spawn(on_its_way.run(order, events));
        Ok(Pull {
            transfer: TransferId(u128::from(weather.dice.roll(u64::MAX))),
            events: receiver,
        })
    }

    fn link(&self, peer: &SiteName) -> Option<LinkReading> {
        let there = self.hub.index(peer)?;
        Some(LinkReading {
            rtt: Duration::from_millis(1),
            up: !self.hub.weather.is(Cut::Kv(there, self.here)),
            ..LinkReading::default()
        })
    }
}

type Arriving = mpsc::Sender<Result<PullEvent, TransferError>>;

/// An order that is being served.
struct OnItsWay {
    from: usize,
    to: Carrier,
    door: Arc<Door>,
    /// After how many pieces it breaks off.
    breaks: Option<usize>,
}

impl OnItsWay {
    async fn run(self, order: KvOrder, arriving: Arriving) {
        let hub = Arc::clone(&self.to.hub);
        let (peer, asks) = (hub.names[self.from].clone(), hub.names[self.to.here].clone());
        let (sent, mut sending) = mpsc::unbounded_channel();
        let sink = Sink {
            sent,
            arriving: arriving.clone(),
        };
        let serve = self.door.peers.serve(asks, order, Box::new(sink));
        let mut serve = std::pin::pin!(serve);
        let mut served = None;
        let down = |detail: &str| TransferError::LinkDown {
            peer: peer.clone(),
            detail: detail.to_owned(),
        };
        let (mut pieces, mut bytes) = (0, 0);
        loop {
            tokio::select! {
                biased;
                () = self.door.life.over() => {
                    sleep(STALLED).await;
                    drop(arriving.send(Err(down("the peer is gone"))).await);
                    return;
                }
                event = sending.recv() => {
                    let Some(event) = event else { break };
                    pieces += 1;
                    sleep(hub.weather.delay() / 8).await;
                    let is_cut = hub.weather.is(Cut::Kv(self.from, self.to.here));
                    if is_cut || self.breaks.is_some_and(|after| pieces > after) {
                        sleep(STALLED / 4).await;
                        drop(arriving.send(Err(down("the connection broke"))).await);
                        return;
                    }
                    if let PullEvent::Piece(piece) = &event {
                        bytes += piece.bytes.len() as u64;
                    }
                    drop(arriving.send(Ok(event)).await);
                }
                done = &mut serve, if served.is_none() => served = Some(done),
            }
        }
        // The sink is dropped when whoever served is done.
        let last = match served {
            Some(done) => done,
            None => serve.await,
        };
        let last = match last {
            Ok(prefill) => Ok(PullEvent::Done(PullReport {
                prefill,
                bytes: Bytes(bytes),
                ..PullReport::default()
            })),
            Err(detail) => Err(TransferError::Refused { peer, detail }),
        };
        drop(arriving.send(last).await);
    }
}

struct Sink {
    sent: mpsc::UnboundedSender<PullEvent>,
    arriving: Arriving,
}

impl PieceSink for Sink {
    fn manifest(&mut self, manifest: KvManifest) {
        drop(self.sent.send(PullEvent::Manifest(manifest)));
    }

    fn piece(&mut self, piece: KvPiece) {
        drop(self.sent.send(PullEvent::Piece(piece)));
    }

    fn is_cancelled(&self) -> bool {
        self.arriving.is_closed()
    }
}
