//! One copy: KV that an instance of another site holds comes here and is kept by an instance of this site.

use crate::receive::{Arrival, BrokenOff, receive_within};
use crate::site::Site;
use portolan_base::{Bytes, InstanceName, Provenance, SiteName, TenantKey, Tokens};
use portolan_ports::{
    Engine, Fidelity, HeldPrefix, KeepJob, KvMade, KvOrder, KvPast, KvSet, KvSetError, Stale, TransferError,
};
use std::sync::Arc;
use std::time::Duration;

/// What is copied, to where.
pub(crate) struct Copying<'a> {
    /// This site.
    pub(crate) site: &'a Site,
    /// Keeps what comes.
    pub(crate) engine: &'a Arc<dyn Engine>,
    /// The key of the prompt's blocks.
    pub(crate) key: TenantKey,
    /// Whose KV it is and what it depends on.
    pub(crate) about: &'a Arc<Provenance>,
    /// The prompt, whose data it is and what it is for. Who holds it and how much is wanted are filled in.
    pub(crate) order: &'a KvOrder,
}

/// Who holds it.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) site: SiteName,
    pub(crate) instance: InstanceName,
}

/// What came and was kept.
#[derive(Debug)]
pub(crate) struct Copied {
    /// Tokens that the instance lacked before.
    pub(crate) tokens: Tokens,
    /// What crossed.
    pub(crate) bytes: Bytes,
    /// Why no more came: then this is the beginning of what was ordered.
    pub(crate) cut_short: Option<TransferError>,
}

/// Why nothing was copied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Uncopied {
    #[error("the residency answer does not let this data come from {from} and stay in {to}")]
    Residency { from: String, to: String },
    #[error("{0}")]
    Stale(Stale),
    #[error("instance {0} is gone")]
    Gone(String),
    #[error("{error}")]
    Kv { error: KvSetError, bytes: Bytes },
    #[error("the instance has no room to keep what came")]
    NoRoom { bytes: Bytes },
    #[error("{error}")]
    Transfer { error: TransferError, bytes: Bytes },
}

impl Uncopied {
    /// What crossed all the same.
    pub(crate) fn bytes(&self) -> Bytes {
        match self {
            Self::Residency { .. } | Self::Stale(_) | Self::Gone(_) => Bytes(0),
            Self::Kv { bytes, .. } | Self::NoRoom { bytes } | Self::Transfer { bytes, .. } => *bytes,
        }
    }
}

/// KV that is whole, as it came.
struct Whole {
    kv: KvSet,
    bytes: Bytes,
    cut_short: Option<TransferError>,
}

impl Copying<'_> {
    /// Copies the first `tokens` of the prompt, of which the instance has `has`. What does not come within `deadline`
    /// is not waited for; whole blocks that came before are kept.
    pub(crate) async fn copy(
        &self,
        holder: &Holder,
        tokens: Tokens,
        has: &HeldPrefix,
        deadline: Duration,
    ) -> Result<Copied, Uncopied> {
        let validity = &self.site.parts.validity;
        let now = self.site.parts.clock.now();
        validity.check(now).map_err(Uncopied::Stale)?;
        let past = self.engine.cache().map(|cache| KvPast {
            since: cache.tiers().epoch(),
            made: KvMade::FromCache,
        });
        let wanted = self.order.tokens.len().min(tokens.0 as usize);
        let order = KvOrder {
            instance: holder.instance.clone(),
            tokens: self.order.tokens[..wanted].into(),
            held: has.tokens,
            // What is kept serves later requests, which may have to be exact.
            fidelity: Fidelity::Exact,
            fetch_from: Arc::default(),
            as_of: validity.place(),
            ..self.order.clone()
        };
        let whole = self.receive(holder, order, has, deadline).await?;
        let kv = match past {
            Some(past) => whole.kv.made(past),
            None => whole.kv,
        };
        self.keep(Whole { kv, ..whole }, has).await
    }

    async fn receive(
        &self,
        holder: &Holder,
        order: KvOrder,
        has: &HeldPrefix,
        deadline: Duration,
    ) -> Result<Whole, Uncopied> {
        let (parts, layout) = (&self.site.parts, &self.engine.describe().layout);
        let (transport, clock) = (parts.transport.as_ref(), parts.clock.as_ref());
        // States of a shorter prefix are of no use to a longer one.
        let had = has.pieces.iter().filter(|piece| !piece.id.is_empty()).cloned();
        match receive_within(deadline, transport, &holder.site, order, layout, clock).await {
            Ok(Arrival {
                tokens,
                mut pieces,
                report,
                ..
            }) => {
                let bytes = report.bytes;
                pieces.extend(had);
                let kv = KvSet::assemble(Arc::clone(layout), tokens, pieces);
                Ok(Whole {
                    kv: kv.map_err(|error| Uncopied::Kv { error, bytes })?,
                    bytes,
                    cut_short: None,
                })
            }
            Err(BrokenOff {
                error,
                bytes,
                mut pieces,
            }) => {
                if !leaves_a_beginning(&error) {
                    return Err(Uncopied::Transfer { error, bytes });
                }
                pieces.extend(had);
                let kv = KvSet::beginning(Arc::clone(layout), &pieces);
                if kv.tokens() <= has.tokens {
                    return Err(Uncopied::Transfer { error, bytes });
                }
                Ok(Whole {
                    kv,
                    bytes,
                    cut_short: Some(error),
                })
            }
        }
    }

    /// Gives it to the instance, which copies the bytes.
    async fn keep(&self, whole: Whole, has: &HeldPrefix) -> Result<Copied, Uncopied> {
        let Whole { kv, bytes, cut_short } = whole;
        let job = KeepJob {
            key: self.key,
            tokens: self.order.tokens[..kv.tokens() as usize].into(),
            kv,
            about: Arc::clone(self.about),
        };
        let engine = Arc::clone(self.engine);
        let kept = tokio::task::spawn_blocking(move || engine.keep(&job)).await;
        match kept.unwrap_or_default() - Tokens(has.tokens) {
            Tokens(0) => Err(Uncopied::NoRoom { bytes }),
            tokens => Ok(Copied {
                tokens,
                bytes,
                cut_short,
            }),
        }
    }
}

/// Whether what came before this is as good as if it had been all: each piece was verified by itself, and the holder and
/// its link did nothing but end. After damage, a breach or a refusal nothing of a set is believed.
fn leaves_a_beginning(error: &TransferError) -> bool {
    matches!(
        error,
        TransferError::Late { .. } | TransferError::LinkDown { .. } | TransferError::Stalled { .. }
    )
}

/// Whether the link is to blame when KV did not arrive. What a peer declined it did not break, and a peer counts its own
/// instances' failures itself and tells of them.
pub(crate) fn blames_link(error: &TransferError) -> bool {
    match error {
        TransferError::UnknownPeer(_)
        | TransferError::LinkDown { .. }
        | TransferError::Stalled { .. }
        | TransferError::Damaged { .. }
        | TransferError::Protocol { .. } => true,
        TransferError::Refused { .. }
        | TransferError::Quarantined { .. }
        | TransferError::Late { .. }
        | TransferError::Cancelled => false,
    }
}
