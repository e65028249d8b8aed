//! Orders KV from another site and gathers what comes.

use portolan_base::kv::KvLayout;
use portolan_base::{Clock, Moment, SiteName};
use portolan_ports::{KvOrder, KvPiece, PullEvent, PullReport, TransferError, Transport};

/// What arrived.
#[derive(Debug)]
pub struct Arrival {
    /// Verified pieces; whether they are whole is checked when they are put together.
    pub pieces: Vec<KvPiece>,
    /// How the order went.
    pub report: PullReport,
    /// When the first piece came.
    pub first_piece: Option<Moment>,
}

/// Sends `order` to `peer` and returns when everything has arrived. Dropping the future cancels the work there.
pub async fn receive(
    transport: &dyn Transport,
    peer: &SiteName,
    order: KvOrder,
    layout: &KvLayout,
    clock: &dyn Clock,
) -> Result<Arrival, TransferError> {
    let held = order.held;
    let tokens = u32::try_from(order.tokens.len()).unwrap_or(u32::MAX);
    let mut pull = transport.pull(peer, order).await?;
    let mut pieces = Vec::new();
    let mut first_piece = None;
    while let Some(event) = pull.events.recv().await {
        match event? {
            PullEvent::Manifest(manifest) => {
                if manifest.layout != *layout || manifest.tokens != tokens || manifest.held != held {
                    let detail = format!(
                        "the manifest announces {} tokens of {} version {} beyond {} held",
                        manifest.tokens, manifest.layout.model, manifest.layout.model_version, manifest.held
                    );
                    return Err(TransferError::Protocol {
                        peer: peer.clone(),
                        detail,
                    });
                }
            }
            PullEvent::Piece(piece) => {
                first_piece.get_or_insert_with(|| clock.now());
                pieces.push(piece);
            }
            PullEvent::Done(report) => {
                return Ok(Arrival {
                    pieces,
                    report,
                    first_piece,
                });
            }
        }
    }
    Err(TransferError::LinkDown {
        peer: peer.clone(),
        detail: "the transfer ended early".to_owned(),
    })
}
