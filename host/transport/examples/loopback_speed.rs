//! How fast KV moves over loopback, with checksums: `cargo run -p portolan-transport --example loopback_speed`.

use async_trait::async_trait;
use portolan_base::id::NameError;
use portolan_base::kv::{KvDtype, KvLayout, KvManifest, LayerKv, PieceId};
use portolan_base::{InstanceName, ModelName, Random, RequestId, SiteName, TenantName};
use portolan_ports::{KvOrder, KvPiece, KvSource, PieceSink, PrefillReport, PullEvent, Transport};
use portolan_transport::{ClusterSecret, SiteTransport, TransportConfig};
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// 256 MiB: 16 layers of 1024 tokens of 16 KiB.
const LAYERS: u16 = 16;
const TOKENS: u32 = 1024;
const RUNS: usize = 5;

/// Distinct numbers are all a demonstration on one machine needs.
struct Counting(AtomicU64);

impl Random for Counting {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

struct Source {
    layout: KvLayout,
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
            tokens: TOKENS,
            held: 0,
        });
        for piece in &self.pieces {
            sink.piece(piece.clone());
        }
        Ok(PrefillReport::default())
    }
}

fn source(model: &ModelName) -> Source {
    let layer = LayerKv::FullAttention {
        kv_heads: 16,
        head_dim: 128,
    };
    let layout = KvLayout {
        model: model.clone(),
        model_version: 1,
        dtype: KvDtype::F32,
        block_tokens: 16,
        layers: vec![layer; usize::from(LAYERS)],
    };
    let bytes = (TOKENS * 16 * 1024) as usize;
    let pieces = (0..LAYERS).map(|layer| {
        let values: Vec<u8> = (0..bytes).map(|i| (i / 7) as u8 ^ layer as u8).collect();
        KvPiece {
            id: PieceId {
                layer,
                tokens: 0..TOKENS,
            },
            bytes: values.into(),
        }
    });
    Source {
        layout,
        pieces: pieces.collect(),
    }
}

fn order(model: ModelName) -> Result<KvOrder, NameError> {
    Ok(KvOrder {
        request: RequestId::draw(&Counting(AtomicU64::new(0))),
        tenant: TenantName::new("tenant")?,
        jurisdiction: String::new(),
        user_class: String::new(),
        model,
        model_version: 1,
        instance: InstanceName::new("instance")?,
        tokens: vec![0; TOKENS as usize].into(),
        held: 0,
        retention: portolan_ports::Retention::Keep,
        draw: Default::default(),
    })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (model, holder_name) = (ModelName::new("model")?, SiteName::new("holder")?);
    let (any, secret) = (
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        ClusterSecret::derive("example"),
    );
    let source = Arc::new(source(&model));
    let random = |from| Arc::new(Counting(AtomicU64::new(from)));
    let config = TransportConfig::new(holder_name.clone(), any, secret);
    let holder = SiteTransport::bind(config, source.clone(), random(1)).await?;
    let mut config = TransportConfig::new(SiteName::new("asker")?, any, secret);
    config.peers.insert(holder_name.clone(), vec![holder.address()]);
    let asker = SiteTransport::bind(config, source, random(1 << 40)).await?;
    let mut speeds = Vec::new();
    for _ in 0..RUNS {
        let mut pull = asker.pull(&holder_name, order(model.clone())?).await?;
        let begun = Instant::now();
        while let Some(event) = pull.events.recv().await {
            if let PullEvent::Done(report) = event? {
                speeds.push(report.bytes.0 as f64 / begun.elapsed().as_secs_f64() / f64::from(1 << 30));
            }
        }
    }
    speeds.sort_by(f64::total_cmp);
    report(&speeds);
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the example's output")]
fn report(speeds: &[f64]) {
    println!("256 MiB, 4 lanes, XXH3 at both ends, GiB/s over {RUNS} runs: {speeds:.2?}");
}
