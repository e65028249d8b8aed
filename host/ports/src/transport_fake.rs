//! The fake beside [`Transport`]: a site that stands alone.

use crate::{KvOrder, LinkReading, Pull, TransferError, Transport};
use async_trait::async_trait;
use portolan_base::SiteName;

/// A [`Transport`] without peers: every order fails as one to an unknown site does.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoLinks;

#[async_trait]
impl Transport for NoLinks {
    async fn pull(&self, peer: &SiteName, _order: KvOrder) -> Result<Pull, TransferError> {
        Err(TransferError::UnknownPeer(peer.clone()))
    }

    fn link(&self, _peer: &SiteName) -> Option<LinkReading> {
        None
    }
}
