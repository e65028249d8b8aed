//! Tells other sites what one instance holds.

use super::{Disclosure, Telling};
use portolan_base::{BlockHash, InstanceName, Moment, SiteName};
use portolan_kv::summary::{LEASE, SummaryKey, SummaryMessage, SummaryWriter};
use portolan_ports::{PrefixSummary, SnapshotRequest};
use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

/// A message goes out at least so often: four times a lease, so that three may be lost on the way.
pub const HEARTBEAT: Duration = Duration::from_millis(LEASE.as_millis() as u64 / 4);

/// One instance, with a numbered stream of messages to each receiving site.
pub(super) struct Teller {
    site: SiteName,
    instance: InstanceName,
    disclosure: Arc<dyn Disclosure>,
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
            streams: receivers.iter().map(stream).collect(),
        }
    }

    /// The instance holds these blocks, and those no more.
    pub(super) fn note(&mut self, held: &[BlockHash], gone: &[BlockHash]) {
        for Stream { to, writer, .. } in &mut self.streams {
            for (blocks, is_held) in [(held, true), (gone, false)] {
                let told = blocks
                    .iter()
                    .copied()
                    .filter(|block| self.disclosure.may_tell(to, *block));
                writer.note(told, is_held);
            }
        }
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
        let listed = OnceCell::new();
        let mut messages = Vec::new();
        for Stream { to, writer, told } in &mut self.streams {
            let message: SummaryMessage = if writer.wants_snapshot() {
                let held = listed.get_or_init(&held).iter().copied();
                writer.snapshot(held.filter(|block| self.disclosure.may_tell(to, *block)))
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
