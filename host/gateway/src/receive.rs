//! Orders KV from another site and gathers what comes.

use portolan_base::kv::{KvLayout, KvManifest};
use portolan_base::{Bytes, Clock, Moment, SiteName};
use portolan_ports::{KvOrder, KvPiece, OrderPurpose, Pull, PullEvent, PullReport, TransferError, Transport};
use std::time::Duration;

/// What arrived.
#[derive(Debug)]
pub struct Arrival {
    /// Tokens of the prompt that the set is of: those of the order, or fewer where it was for what the holder holds.
    pub tokens: u32,
    /// Verified pieces; whether they are whole is checked when they are put together.
    pub pieces: Vec<KvPiece>,
    /// How the order went.
    pub report: PullReport,
    /// When the first piece came.
    pub first_piece: Option<Moment>,
}

/// An order that did not bring its KV, and what had crossed by then: it was paid for all the same.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct BrokenOff {
    /// Why.
    pub error: TransferError,
    /// Payload that had arrived.
    pub bytes: Bytes,
    /// The pieces that had arrived whole, each verified.
    pub pieces: Vec<KvPiece>,
}

/// Sends `order` to `peer` and returns when everything has arrived. Dropping the future cancels the work there.
pub async fn receive(
    transport: &dyn Transport,
    peer: &SiteName,
    order: KvOrder,
    layout: &KvLayout,
    clock: &dyn Clock,
) -> Result<Arrival, BrokenOff> {
    receive_within(Duration::MAX, transport, peer, order, layout, clock).await
}

/// As [`receive`], and gives up, cancelling the work there, when that takes longer than `deadline`.
pub async fn receive_within(
    deadline: Duration,
    transport: &dyn Transport,
    peer: &SiteName,
    order: KvOrder,
    layout: &KvLayout,
    clock: &dyn Clock,
) -> Result<Arrival, BrokenOff> {
    let mut arrival = Arrival {
        tokens: 0,
        pieces: Vec::new(),
        report: PullReport::default(),
        first_piece: None,
    };
    let wanted = Wanted {
        layout,
        tokens: u32::try_from(order.tokens.len()).unwrap_or(u32::MAX),
        held: order.held,
        purpose: order.purpose,
    };
    let gathering = async {
        let pull = transport.pull(peer, order).await;
        gather(pull, peer, &wanted, clock, &mut arrival).await
    };
    let late = |_| {
        let peer = peer.clone();
        Err(TransferError::Late { peer, deadline })
    };
    match tokio::time::timeout(deadline, gathering)
        .await
        .unwrap_or_else(late)
    {
        Ok(report) => Ok(Arrival { report, ..arrival }),
        Err(error) => {
            let bytes = arrival
                .pieces
                .iter()
                .map(|piece| Bytes(piece.bytes.len() as u64))
                .sum();
            let pieces = arrival.pieces;
            Err(BrokenOff { error, bytes, pieces })
        }
    }
}

/// What the manifest has to announce.
struct Wanted<'a> {
    layout: &'a KvLayout,
    tokens: u32,
    held: u32,
    purpose: OrderPurpose,
}

impl Wanted<'_> {
    fn fits(&self, manifest: &KvManifest) -> bool {
        let enough = match self.purpose.brings_what_is_held() {
            true => manifest.tokens > self.held && manifest.tokens <= self.tokens,
            false => manifest.tokens == self.tokens,
        };
        enough && manifest.layout == *self.layout && manifest.held == self.held
    }
}

async fn gather(
    pull: Result<Pull, TransferError>,
    peer: &SiteName,
    wanted: &Wanted<'_>,
    clock: &dyn Clock,
    arrival: &mut Arrival,
) -> Result<PullReport, TransferError> {
    let mut pull = pull?;
    while let Some(event) = pull.events.recv().await {
        match event? {
            PullEvent::Manifest(manifest) => {
                if !wanted.fits(&manifest) {
                    let detail = format!(
                        "the manifest announces {} tokens of {} version {} beyond {} held",
                        manifest.tokens, manifest.layout.model, manifest.layout.model_version, manifest.held
                    );
                    return Err(TransferError::Protocol {
                        peer: peer.clone(),
                        detail,
                    });
                }
                arrival.tokens = manifest.tokens;
            }
            PullEvent::Piece(piece) => {
                arrival.first_piece.get_or_insert_with(|| clock.now());
                arrival.pieces.push(piece);
            }
            PullEvent::Done(report) => return Ok(report),
        }
    }
    Err(TransferError::LinkDown {
        peer: peer.clone(),
        detail: "the transfer ended early".to_owned(),
    })
}
