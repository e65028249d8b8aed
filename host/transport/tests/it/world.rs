//! Sites, sources and orders for the tests.

use async_trait::async_trait;
use bytes::Bytes;
use portolan_base::kv::{KvDtype, KvLayout, KvManifest, LayerKv, PieceId};
use portolan_base::{Bytes as ByteCount, InstanceName, ModelName, Random, RequestId, SiteName, TenantName};
use portolan_ports::{
    KvOrder, KvPiece, KvSource, PieceSink, PrefillReport, Pull, PullEvent, PullReport, TransferError,
};
use portolan_transport::{ClusterSecret, SiteTransport, TransportConfig};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// SplitMix64.
pub(crate) struct Seed(pub(crate) AtomicU64);

impl Seed {
    pub(crate) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    pub(crate) fn below(&self, end: u64) -> u64 {
        self.next_u64() % end
    }
}

impl Random for Seed {
    fn next_u64(&self) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

pub(crate) fn site(name: &str) -> SiteName {
    SiteName::new(name).unwrap()
}

pub(crate) fn layout() -> KvLayout {
    let attention = LayerKv::FullAttention {
        kv_heads: 1,
        head_dim: 128,
    };
    let recurrent = LayerKv::Recurrent {
        conv_channels: 64,
        conv_width: 4,
        heads: 4,
        key_dim: 64,
        value_dim: 65,
    };
    KvLayout {
        model: ModelName::new("m").unwrap(),
        model_version: 1,
        dtype: KvDtype::F32,
        block_tokens: 16,
        window: None,
        layers: vec![attention, recurrent, attention],
    }
}

/// An order of so many tokens; the seed makes its content.
pub(crate) fn order(seed: u32, tokens: usize) -> KvOrder {
    KvOrder {
        as_of: portolan_ports::AsOf::default(),
        request: RequestId::from_client("r").unwrap(),
        tenant: TenantName::new("t").unwrap(),
        jurisdiction: "eu".into(),
        user_class: String::new(),
        model: ModelName::new("m").unwrap(),
        model_version: 1,
        instance: InstanceName::new("i").unwrap(),
        tokens: vec![seed; tokens].into(),
        held: 0,
        retention: portolan_ports::Retention::Keep,
        draw: Default::default(),
        fidelity: Default::default(),
        dependencies: Arc::default(),
        fetch_from: Default::default(),
        purpose: Default::default(),
    }
}

/// Orders seeded from here on bring values that compress well.
pub(crate) const COMPRESSIBLE: u32 = 1 << 20;

/// Orders seeded with this bring numbers between -1 and 1, as KV does; others bring any bytes.
pub(crate) const NUMBERS: u32 = (1 << 20) - 1;

/// The pieces an order must bring: sizes from none to many chunks.
pub(crate) fn pieces(order: &KvOrder) -> Vec<KvPiece> {
    let end = u32::try_from(order.tokens.len()).unwrap();
    let number = order.tokens.first().copied().unwrap_or(0);
    let seed = Seed::new(u64::from(number));
    let piece = |seed: &Seed, id: PieceId| match number {
        COMPRESSIBLE.. => dull(&id),
        NUMBERS => between_one_and_minus_one(seed, id),
        _ => piece(seed, id),
    };
    let mut pieces = Vec::new();
    for layer in [0, 2] {
        let mut start = 0;
        pieces.push(piece(&seed, PieceId { layer, tokens: 0..0 }));
        while start < end {
            let stop = (start + 1 + u32::try_from(seed.below(u64::from(end / 3 + 2))).unwrap()).min(end);
            pieces.push(piece(
                &seed,
                PieceId {
                    layer,
                    tokens: start..stop,
                },
            ));
            start = stop;
        }
    }
    if end > 0 {
        pieces.push(piece(
            &seed,
            PieceId {
                layer: 1,
                tokens: end..end,
            },
        ));
    }
    pieces
}

fn between_one_and_minus_one(seed: &Seed, id: PieceId) -> KvPiece {
    let values = layout().piece_bytes(id.layer, id.len()).unwrap().0 / 4;
    let value = |_| (seed.below(1 << 24) as f32 / (1 << 23) as f32) - 1.0;
    let bytes: Vec<u8> = (0..values).map(value).flat_map(f32::to_le_bytes).collect();
    KvPiece {
        id,
        bytes: bytes.into(),
    }
}

fn dull(id: &PieceId) -> KvPiece {
    let len = layout().piece_bytes(id.layer, id.len()).unwrap().0 as usize;
    let bytes: Vec<u8> = (0..len).map(|i| (i / 50) as u8 ^ id.layer as u8).collect();
    KvPiece {
        id: id.clone(),
        bytes: bytes.into(),
    }
}

fn piece(seed: &Seed, id: PieceId) -> KvPiece {
    let len = layout().piece_bytes(id.layer, id.len()).unwrap().0 as usize;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&seed.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    KvPiece {
        id,
        bytes: Bytes::from(bytes),
    }
}

pub(crate) fn manifest(order: &KvOrder) -> KvManifest {
    KvManifest {
        layout: layout(),
        tokens: u32::try_from(order.tokens.len()).unwrap(),
        held: order.held,
    }
}

/// How a source behaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conduct {
    Whole,
    /// Sends the manifest, then works until nobody wants it.
    UntilCancelled,
    Fails,
    Panics,
    WrongManifest,
    ForeignPiece,
    NoManifest,
    TwicePiece,
}

pub(crate) struct Source {
    pub(crate) conduct: Conduct,
    pub(crate) begun: AtomicUsize,
    pub(crate) cancelled: Mutex<Option<Instant>>,
}

impl Source {
    pub(crate) fn new(conduct: Conduct) -> Arc<Self> {
        Arc::new(Self {
            conduct,
            begun: AtomicUsize::new(0),
            cancelled: Mutex::new(None),
        })
    }
}

#[async_trait]
impl KvSource for Source {
    async fn serve(
        &self,
        _peer: SiteName,
        order: KvOrder,
        mut sink: Box<dyn PieceSink>,
    ) -> Result<PrefillReport, String> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let mut manifest = manifest(&order);
        match self.conduct {
            Conduct::Fails => return Err("no such instance".into()),
            Conduct::Panics => panic!("a source that panics, as the test wants it"),
            Conduct::WrongManifest => manifest.layout.model_version += 1,
            _ => {}
        }
        if self.conduct != Conduct::NoManifest {
            sink.manifest(manifest);
        }
        match self.conduct {
            Conduct::UntilCancelled => {
                while !sink.is_cancelled() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                *self.cancelled.lock().unwrap() = Some(Instant::now());
                return Err("cancelled".into());
            }
            Conduct::ForeignPiece => {
                sink.piece(KvPiece {
                    id: PieceId {
                        layer: 7,
                        tokens: 0..1,
                    },
                    bytes: Bytes::from_static(b"x"),
                });
            }
            _ => {}
        }
        for piece in pieces(&order) {
            if self.conduct == Conduct::TwicePiece && piece.id.tokens.start > 0 {
                sink.piece(piece.clone());
            }
            sink.piece(piece);
            if sink.is_cancelled() {
                return Err("cancelled".into());
            }
            tokio::task::yield_now().await;
        }
        Ok(PrefillReport {
            computed: 7,
            ..PrefillReport::default()
        })
    }
}

pub(crate) fn config(name: &str) -> TransportConfig {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut config = TransportConfig::new(site(name), any, ClusterSecret::derive("open sesame"));
    config.chunk = ByteCount(64 << 10);
    config.stall = Duration::from_millis(800);
    config
}

/// Sites started so far: two of one name must not draw the same ids.
static STARTED: AtomicU64 = AtomicU64::new(1);

pub(crate) async fn start(config: TransportConfig, source: Arc<Source>) -> SiteTransport {
    let first = STARTED.fetch_add(1 << 40, Ordering::Relaxed);
    let seed = config
        .site
        .as_str()
        .bytes()
        .fold(first, |a, b| a.wrapping_mul(31).wrapping_add(u64::from(b)));
    SiteTransport::bind(config, source, Arc::new(Seed::new(seed)))
        .await
        .unwrap()
}

/// A holder called `holder`, and a site called `asker` that knows it by `address`.
pub(crate) async fn asker(mut config: TransportConfig, address: SocketAddr) -> SiteTransport {
    config.peers.insert(site("holder"), vec![address].into());
    start(config, Source::new(Conduct::Fails)).await
}

/// Everything a transfer brought.
pub(crate) async fn drain(pull: &mut Pull) -> Result<(Vec<KvPiece>, PullReport), TransferError> {
    let (mut pieces, mut manifests) = (Vec::new(), 0);
    while let Some(event) = pull.events.recv().await {
        match event? {
            PullEvent::Manifest(_) => manifests += 1,
            PullEvent::Piece(piece) => {
                assert_eq!(manifests, 1, "a piece before the manifest");
                pieces.push(piece);
            }
            PullEvent::Done(report) => {
                assert!(
                    pull.events.recv().await.is_none(),
                    "nothing comes after the report"
                );
                return Ok((pieces, report));
            }
        }
    }
    panic!("the events ended without a report or an error");
}

/// Compares what came with what the order must bring.
pub(crate) fn assert_whole(order: &KvOrder, mut got: Vec<KvPiece>) {
    let mut want = pieces(order);
    for set in [&mut want, &mut got] {
        set.sort_by_key(|piece| (piece.id.layer, piece.id.tokens.start, piece.id.tokens.end));
    }
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(got.id, want.id);
        assert!(got.bytes == want.bytes, "piece {:?} differs", got.id);
    }
}

/// Waits for something that must come true.
pub(crate) async fn until(what: &str, limit: Duration, mut check: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !check() {
        assert!(begun.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
