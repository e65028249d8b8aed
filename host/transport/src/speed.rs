//! Measures the transport over loopback between two processes: what `portolan bench transport` runs at either end.

mod process;

pub use process::{SpeedReport, compare, hold};

use crate::{ClusterSecret, Compression, PeerLink, SiteIssuer, SiteTransport, TlsIdentity, TransportConfig};
use crate::{MutualTls, PlainTcp, Wiring};
use async_trait::async_trait;
use portolan_base::id::NameError;
use portolan_base::kv::{KvDtype, KvLayout, KvManifest, KvQuant, LayerKv, PieceId};
use portolan_base::{Bytes, InstanceName, ModelName, Random, RequestId, SiteName, TenantName};
use portolan_kv::quant::PieceShape;
use portolan_ports::{
    Fidelity, KvOrder, KvPiece, KvSource, PieceSink, PrefillReport, PullEvent, TransferError, Transport,
};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Layers of the set that is moved; each is one piece.
const LAYERS: u16 = 32;

/// Bytes of KV of one token in one layer: 8 KV heads of 128 in bfloat16, keys and values.
const TOKEN: u64 = 2 * 8 * 128 * 2;

/// What is measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SpeedPlan {
    /// Size of the KV set.
    pub size: Bytes,
    /// TCP connections.
    pub lanes: u16,
    /// Under TLS 1.3, with certificates made for the occasion.
    pub tls: bool,
    /// Compression, always.
    pub compression: Option<crate::Coding>,
    /// How often the set is moved; the median counts.
    pub runs: usize,
}

/// What the holding process tells the ordering one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SpeedInvitation {
    /// Where it listens.
    pub address: SocketAddr,
    /// The ordering site's certificate, key and authority, when TLS is measured.
    tls: Option<TlsTexts>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct TlsTexts {
    ca: String,
    certificate: String,
    key: String,
}

/// One measured transfer.
#[derive(Clone, Copy, Debug)]
pub struct SpeedSample {
    /// From the order to the last verified byte.
    pub took: Duration,
    /// From the order to the first whole layer.
    pub first_layer: Duration,
    /// Bytes of the set as it was computed and is used.
    pub bytes: Bytes,
    /// Every byte was compared with what the holder made.
    pub verified: bool,
    /// Processor time of both ends.
    pub cpu: Duration,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum SpeedError {
    /// No socket.
    #[error("the benchmark cannot listen: {0}")]
    Listen(#[from] std::io::Error),
    /// No certificate.
    #[error(transparent)]
    Issue(#[from] crate::IssueError),
    /// No TLS.
    #[error(transparent)]
    Tls(#[from] crate::TlsError),
    /// A constant name is no name.
    #[error("a name cannot be used: {0}")]
    Name(#[from] NameError),
    /// The transfer failed.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The transfer ended without a report.
    #[error("the transfer ended early")]
    Early,
    /// The other process cannot be understood.
    #[error("the holding process said something else than where it listens: {0}")]
    Invitation(#[from] serde_json::Error),
}

struct Source {
    layout: KvLayout,
    tokens: u32,
    pieces: Vec<KvPiece>,
}

#[async_trait]
impl KvSource for Source {
    async fn serve(
        &self,
        _: SiteName,
        _: KvOrder,
        mut sink: Box<dyn PieceSink>,
    ) -> Result<PrefillReport, String> {
        sink.manifest(KvManifest {
            layout: self.layout.clone(),
            tokens: self.tokens,
            held: 0,
        });
        for piece in &self.pieces {
            sink.piece(piece.clone());
        }
        Ok(PrefillReport::default())
    }
}

/// Nobody orders from the ordering side.
struct Nothing;

#[async_trait]
impl KvSource for Nothing {
    async fn serve(&self, _: SiteName, _: KvOrder, _: Box<dyn PieceSink>) -> Result<PrefillReport, String> {
        Err("this side serves no orders".to_owned())
    }
}

impl SpeedPlan {
    fn tokens(&self) -> u32 {
        u32::try_from((self.size.0 / TOKEN / u64::from(LAYERS)).max(1)).unwrap_or(u32::MAX)
    }

    /// How the KV is quantised, if that is what is measured.
    fn quant(&self) -> Option<KvQuant> {
        self.compression.and_then(crate::Coding::quant)
    }

    fn config(&self, site: SiteName) -> TransportConfig {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        TransportConfig {
            lanes: self.lanes,
            compression: self.compression.map_or(Compression::Off, Compression::Always),
            window: self.size.max(Bytes(256 << 20)),
            ..TransportConfig::new(site, any, ClusterSecret::from_bytes([7; 32]))
        }
    }
}

fn layout() -> Result<KvLayout, NameError> {
    let layer = LayerKv::FullAttention {
        kv_heads: 8,
        head_dim: 128,
    };
    Ok(KvLayout {
        model: ModelName::new("speed")?,
        model_version: 1,
        dtype: KvDtype::Bf16,
        block_tokens: 16,
        window: None,
        layers: vec![layer; usize::from(LAYERS)],
    })
}

/// The bytes of a layer: bfloat16 values between -1 and 1 with eight bits of noise, as KV has.
fn layer_bytes(layer: u16, len: usize) -> Vec<u8> {
    let mut state = u64::from(layer) + 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        for value in (state >> 16).to_le_bytes().chunks_exact(2).take(3) {
            let exponent = 0x3c + (value[1] & 3) + (value[1] & 0x80);
            bytes.extend_from_slice(&[value[0], exponent]);
        }
    }
    bytes.truncate(len);
    bytes
}

/// The holding process: listens and serves until it is dropped.
#[derive(Debug)]
pub struct SpeedHolder {
    _transport: SiteTransport,
    invitation: SpeedInvitation,
}

impl SpeedHolder {
    /// Makes the set and listens.
    pub async fn start(plan: &SpeedPlan, random: Arc<dyn Random>, year: i32) -> Result<Self, SpeedError> {
        let (layout, tokens) = (layout()?, plan.tokens());
        let pieces = (0..LAYERS).map(|layer| KvPiece {
            id: PieceId {
                layer,
                tokens: 0..tokens,
            },
            bytes: layer_bytes(layer, (u64::from(tokens) * TOKEN) as usize).into(),
        });
        let source = Arc::new(Source {
            pieces: pieces.collect(),
            layout,
            tokens,
        });
        let (holder, asker) = (SiteName::new("holder")?, SiteName::new("asker")?);
        let (wiring, tls): (Arc<dyn Wiring>, _) = if plan.tls {
            let (issuer, ca) = SiteIssuer::create(year)?;
            let identity = |site: &SiteName| {
                issuer.issue(site).map(|issued| TlsTexts {
                    ca: ca.certificate.clone(),
                    certificate: issued.certificate,
                    key: issued.key,
                })
            };
            let mine = identity(&holder)?.identity();
            (Arc::new(MutualTls::new(&holder, &mine)?), Some(identity(&asker)?))
        } else {
            (Arc::new(PlainTcp), None)
        };
        let transport = SiteTransport::bind_with(plan.config(holder), source, random, wiring).await?;
        let invitation = SpeedInvitation {
            address: transport.address(),
            tls,
        };
        Ok(Self {
            _transport: transport,
            invitation,
        })
    }

    /// What the ordering process needs.
    pub fn invitation(&self) -> &SpeedInvitation {
        &self.invitation
    }
}

impl TlsTexts {
    fn identity(&self) -> TlsIdentity {
        TlsIdentity {
            ca: self.ca.clone(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
        }
    }
}

/// The ordering process: moves the set as often as planned, once more before to warm up.
pub async fn measure(
    plan: &SpeedPlan,
    invitation: &SpeedInvitation,
    random: Arc<dyn Random>,
    cpu: &(dyn Fn() -> Duration + Sync),
) -> Result<Vec<SpeedSample>, SpeedError> {
    let (holder, asker) = (SiteName::new("holder")?, SiteName::new("asker")?);
    let wiring: Arc<dyn Wiring> = match &invitation.tls {
        Some(texts) => Arc::new(MutualTls::new(&asker, &texts.identity())?),
        None => Arc::new(PlainTcp),
    };
    let mut config = plan.config(asker);
    let link = PeerLink {
        quantised: plan.quant(),
        ..vec![invitation.address].into()
    };
    config.peers.insert(holder.clone(), link);
    let transport = SiteTransport::bind_with(config, Arc::new(Nothing), Arc::clone(&random), wiring).await?;
    let mut samples = Vec::new();
    for run in 0..=plan.runs {
        let sample = one(plan, &transport, (&holder, random.as_ref()), cpu).await?;
        if run > 0 {
            samples.push(sample);
        }
    }
    Ok(samples)
}

async fn one(
    plan: &SpeedPlan,
    transport: &SiteTransport,
    (holder, random): (&SiteName, &dyn Random),
    cpu: &(dyn Fn() -> Duration + Sync),
) -> Result<SpeedSample, SpeedError> {
    let cpu_before = cpu();
    let begun = Instant::now();
    let mut pull = transport.pull(holder, order(plan, random)?).await?;
    let (mut pieces, mut first_layer) = (Vec::new(), None);
    while let Some(event) = pull.events.recv().await {
        match event? {
            PullEvent::Manifest(_) => {}
            PullEvent::Piece(piece) => {
                first_layer.get_or_insert_with(|| begun.elapsed());
                pieces.push(piece);
            }
            PullEvent::Done(report) => {
                // Comparing the bytes is not what is measured.
                let (took, cpu) = (begun.elapsed(), cpu().saturating_sub(cpu_before));
                let right = |piece: &KvPiece| is_right(plan, piece);
                let verified = pieces.len() == usize::from(LAYERS)
                    && report.quantised == plan.quant()
                    && pieces.iter().all(right);
                return Ok(SpeedSample {
                    took,
                    first_layer: first_layer.unwrap_or(took),
                    bytes: pieces.iter().map(|piece| Bytes(piece.bytes.len() as u64)).sum(),
                    verified,
                    cpu,
                });
            }
        }
    }
    Err(SpeedError::Early)
}

/// Whether a piece is what the holder made, or what quantising makes of that.
fn is_right(plan: &SpeedPlan, piece: &KvPiece) -> bool {
    let made = layer_bytes(piece.id.layer, piece.bytes.len());
    let Some(quant) = plan.quant() else {
        return made == piece.bytes;
    };
    let shape = layout()
        .ok()
        .and_then(|layout| PieceShape::of(&layout, &piece.id));
    shape.is_some_and(|shape| {
        let coded = shape.encode(quant, &made);
        coded.is_some_and(|coded| {
            shape
                .decode(quant, &coded)
                .is_ok_and(|bytes| bytes == piece.bytes)
        })
    })
}

fn order(plan: &SpeedPlan, random: &dyn Random) -> Result<KvOrder, SpeedError> {
    Ok(KvOrder {
        as_of: portolan_ports::AsOf::default(),
        request: RequestId::draw(random),
        tenant: TenantName::new("speed")?,
        jurisdiction: String::new(),
        user_class: String::new(),
        model: ModelName::new("speed")?,
        model_version: 1,
        instance: InstanceName::new("speed")?,
        tokens: vec![0; plan.tokens() as usize].into(),
        held: 0,
        retention: portolan_ports::Retention::Keep,
        draw: Default::default(),
        fidelity: plan.quant().map_or(Fidelity::Exact, |_| Fidelity::Quantised),
        dependencies: Arc::default(),
        fetch_from: Default::default(),
        purpose: Default::default(),
    })
}
