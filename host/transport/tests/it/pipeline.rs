//! Layer by layer: how much later than a local prefill the KV of a remote one is whole.

use crate::world::*;
use async_trait::async_trait;
use portolan_base::kv::{KvDtype, KvLayout, KvManifest, LayerKv, PieceId};
use portolan_base::{BitsPerSecond, Bytes, ModelName, SiteName};
use portolan_ports::{KvOrder, KvPiece, KvSource, PieceSink, PrefillReport, PullEvent, Transport};
use portolan_transport::fault_proxy::{FaultPlan, FaultProxy};
use portolan_transport::{PeerLink, SiteTransport, TransportConfig};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Attention layers; one recurrent layer comes on top.
const LAYERS: u16 = 12;
const TOKENS: u32 = 1024;
const RATE: BitsPerSecond = BitsPerSecond(100_000_000);
const ONE_WAY: Duration = Duration::from_millis(10);

/// The time all pieces take on the link: 12 layers of 1 MiB at 100 Mbit/s.
fn transfer_time() -> Duration {
    Bytes(u64::from(LAYERS) << 20).time_at(RATE)
}

fn layout() -> KvLayout {
    let attention = LayerKv::FullAttention {
        kv_heads: 1,
        head_dim: 128,
    };
    let recurrent = LayerKv::Recurrent {
        conv_channels: 16,
        conv_width: 4,
        heads: 1,
        key_dim: 64,
        value_dim: 64,
    };
    let mut layers = vec![attention; usize::from(LAYERS)];
    layers.push(recurrent);
    KvLayout {
        model: ModelName::new("m").unwrap(),
        model_version: 1,
        dtype: KvDtype::F32,
        block_tokens: 16,
        window: None,
        layers,
    }
}

/// Computes its layers one after the other in `prefill`, and sends each when it is done.
struct Prefill {
    prefill: Duration,
}

#[async_trait]
impl KvSource for Prefill {
    async fn serve(
        &self,
        _: SiteName,
        _: KvOrder,
        mut sink: Box<dyn PieceSink>,
    ) -> Result<PrefillReport, String> {
        let (begun, layout) = (Instant::now(), layout());
        let piece = |layer: u16, tokens: std::ops::Range<u32>| {
            let id = PieceId { layer, tokens };
            let len = layout.piece_bytes(layer, id.len()).unwrap().0 as usize;
            let bytes: Vec<u8> = (0..len)
                .map(|i| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8)
                .collect();
            KvPiece {
                id,
                bytes: bytes.into(),
            }
        };
        let pieces: Vec<_> = (0..LAYERS).map(|layer| piece(layer, 0..TOKENS)).collect();
        sink.manifest(KvManifest {
            layout: layout.clone(),
            tokens: TOKENS,
            held: 0,
        });
        for (done, piece) in (1..).zip(pieces) {
            tokio::time::sleep_until(begun + self.prefill * done / u32::from(LAYERS)).await;
            sink.piece(piece);
        }
        // The recurrent state is known last; it goes once.
        sink.piece(piece(LAYERS, TOKENS..TOKENS));
        Ok(PrefillReport::default())
    }
}

/// How much later than the prefill everything was there; and how many pieces were left when the recurrent state came.
async fn late(prefill: Duration) -> (Duration, usize) {
    let mut holder_config = config("holder");
    holder_config.compression = portolan_transport::Compression::Off;
    holder_config.stall = Duration::from_secs(5);
    let source = Arc::new(Prefill { prefill });
    let holder = SiteTransport::bind(holder_config, source, Arc::new(Seed::new(1)))
        .await
        .unwrap();
    let plan = FaultPlan {
        rate: Some(RATE),
        one_way_delay: ONE_WAY,
        ..FaultPlan::clear(holder.address())
    };
    let proxy = FaultProxy::start(plan).await.unwrap();
    let mut asker_config: TransportConfig = config("asker");
    asker_config.stall = Duration::from_secs(5);
    let link = PeerLink {
        capacity: Some(RATE),
        rtt: ONE_WAY * 2,
        ..PeerLink::from(vec![proxy.address()])
    };
    asker_config.peers.insert(site("holder"), link);
    let asker = start(asker_config, Source::new(Conduct::Fails)).await;
    // The lanes are open before the clock starts, as they are on a link in use.
    until("a lane", Duration::from_secs(3), || {
        asker.link(&site("holder")).unwrap().rtt > Duration::ZERO
    })
    .await;
    let begun = Instant::now();
    let mut pull = asker
        .pull(&site("holder"), order(1, TOKENS as usize))
        .await
        .unwrap();
    let (mut pieces, mut after_state) = (0, None);
    while let Some(event) = pull.events.recv().await {
        if let PullEvent::Piece(piece) = event.unwrap() {
            pieces += 1;
            if piece.id.layer == LAYERS {
                assert_eq!(after_state.replace(pieces), None, "the state came twice");
            }
        }
    }
    let left = usize::from(LAYERS) + 1 - after_state.expect("the state came");
    (begun.elapsed().saturating_sub(prefill), left)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_prefill_is_late_by_little_more_than_what_cannot_overlap() {
    let transfer = transfer_time();
    for ratio in [0.5, 1.0, 2.0] {
        let prefill = transfer.mul_f64(ratio);
        let layer = transfer / u32::from(LAYERS);
        let overlap = prefill.mul_f64(1.0 - 1.0 / f64::from(LAYERS));
        let unavoidable = layer.max(transfer.saturating_sub(overlap));
        let bound = unavoidable.mul_f64(1.25) + ONE_WAY * 4;
        // A busy machine makes a timing test late; three tries tell a slow machine from a slow transport.
        let mut tries = Vec::new();
        while tries.len() < 3 && !tries.iter().any(|(late, _)| *late <= bound) {
            tries.push(late(prefill).await);
        }
        println!("P/T = {ratio}: T = {transfer:?}, later by {tries:?}, bound {bound:?}");
        assert!(
            tries.iter().any(|(late, _)| *late <= bound),
            "P/T = {ratio}: {tries:?} > {bound:?}"
        );
    }
}
