//! Tells other sites what one instance holds.

use super::owners::{OwnerId, Owners};
use super::{Disclosure, Telling};
use portolan_base::{BlockHash, InstanceName, Moment, Provenance, SiteName};
use portolan_kv::summary::{LEASE, SummaryKey, SummaryMessage, SummaryWriter};
use portolan_ports::{PrefixSummary, SnapshotRequest};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// A message goes out at least so often: four times a lease, so that three may be lost on the way.
pub const HEARTBEAT: Duration = Duration::from_millis(LEASE.as_millis() as u64 / 4);

/// One instance, with a numbered stream of messages to each receiving site.
pub(super) struct Teller {
    site: SiteName,
    instance: InstanceName,
    disclosure: Arc<dyn Disclosure>,
    owners: Owners,
    streams: Vec<Stream>,
}

struct Stream {
    to: SiteName,
    writer: SummaryWriter,
    told: Option<Moment>,
}

impl Teller {
    pub(super) fn new(
        (site, instance): (&SiteName, &InstanceName),
        receivers: &[SiteName],
        telling: &Telling,
    ) -> Self {
        let stream = |to: &SiteName| {
            let key = SummaryKey::derive(&telling.secret, to.as_str());
            Stream {
                to: to.clone(),
                writer: SummaryWriter::new(key, telling.incarnation),
                told: None,
            }
        };
        Self {
            site: site.clone(),
            instance: instance.clone(),
            disclosure: Arc::clone(&telling.disclosure),
            owners: Owners::default(),
            streams: receivers.iter().map(stream).collect(),
        }
    }

    /// A prompt that begins with this block was sent to the instance. False where whose it is was known, or there is
    /// nobody to tell.
    pub(super) fn expect(&mut self, first: BlockHash, about: &Provenance) -> bool {
        !self.streams.is_empty() && self.owners.expect(first, about)
    }

    /// The instance holds these blocks, of this owner or of the one that the block before them has.
    pub(super) fn stored(
        &mut self,
        about: Option<&Provenance>,
        parent: Option<BlockHash>,
        blocks: &[BlockHash],
    ) {
        if !self.streams.is_empty() {
            self.owners.stored(about, parent, blocks);
        }
    }

    /// The instance holds these blocks, and those no more.
    pub(super) fn note(&mut self, held: &[BlockHash], gone: &[BlockHash]) {
        for Stream { to, writer, .. } in &mut self.streams {
            let mut gate = Gate::new(self.disclosure.as_ref(), &self.owners, to);
            writer.note(held.iter().copied().filter(|block| gate.lets(*block)), true);
            // That it was held is no more for everyone's ears than that it is.
            writer.note(gone.iter().copied().filter(|block| gate.lets(*block)), false);
        }
        self.owners.gone(gone);
    }

    /// What was told is void.
    pub(super) fn restart(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.writer.restart());
    }

    pub(super) fn asked(&mut self, request: &SnapshotRequest) {
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.to == request.by) {
            stream.writer.asked(request.incarnation, request.sequence);
        }
    }

    /// What there is to tell. `held` lists all that the instance holds; it is called when a snapshot is due.
    pub(super) fn messages(&mut self, now: Moment, held: impl Fn() -> Vec<BlockHash>) -> Vec<PrefixSummary> {
        let is_due = self.streams.iter().any(|stream| stream.writer.wants_snapshot());
        let held = if is_due { held() } else { Vec::new() };
        if is_due {
            self.owners.retain(&held);
        }
        let mut messages = Vec::new();
        for Stream { to, writer, told } in &mut self.streams {
            let message: SummaryMessage = if writer.wants_snapshot() {
                let mut gate = Gate::new(self.disclosure.as_ref(), &self.owners, to);
                writer.snapshot(held.iter().copied().filter(|block| gate.lets(*block)))
            } else if writer.pending() > 0 || told.is_none_or(|told| now.since(told) >= HEARTBEAT) {
                writer.changes()
            } else {
                continue;
            };
            *told = Some(now);
            messages.push(PrefixSummary {
                from: self.site.clone(),
                instance: self.instance.clone(),
                to: to.clone(),
                summary: message.encode().into(),
            });
        }
        messages
    }
}

/// Which blocks one receiver may be told of. Asks once for each owner.
struct Gate<'a> {
    disclosure: &'a dyn Disclosure,
    owners: &'a Owners,
    to: &'a SiteName,
    said: HashMap<OwnerId, bool>,
}

impl<'a> Gate<'a> {
    fn new(disclosure: &'a dyn Disclosure, owners: &'a Owners, to: &'a SiteName) -> Self {
        Self {
            disclosure,
            owners,
            to,
            said: HashMap::new(),
        }
    }

    fn lets(&mut self, block: BlockHash) -> bool {
        let Some(id) = self.owners.of(block) else {
            return false;
        };
        let ask = || self.disclosure.may_tell(self.to, self.owners.owner(id));
        *self.said.entry(id).or_insert_with(ask)
    }
}
