//! Prefixes that go ahead of their requests: to the site that is likely to be asked next, and from sites that think so of
//! this one. What and when is decided in [`portolan_decide::foresee`]; here it is done, after residency was asked with
//! purpose prewarm.

use crate::copy::blames_link;
use crate::permission::Permission;
use crate::receive::{Arrival, BrokenOff, receive_within};
use crate::site::Site;
use parking_lot::Mutex;
use portolan_base::kv::KvLayout;
use portolan_base::{BlockHash, Bytes, INDEX_BLOCK_TOKENS, Moment};
use portolan_decide::ask::Asker;
use portolan_decide::foresee::Moved;
use portolan_decide::{
    FleetView, Foreseen, ForeseenCounts, PrewarmAsk, PrewarmCounts, PrewarmDue, PrewarmEnd, PrewarmRules,
    Prewarms, RequestPolicies,
};
use portolan_policy::Subject;
use portolan_ports::{InstanceOutcome, KvOrder, Reading, Sample};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};

/// How long after a request its prefix is sent. The other site fetches from whoever it knows holds it, and is told of this
/// request's blocks within a tenth of a second; a client's next turn takes longer.
const TOLD_AFTER: Duration = Duration::from_millis(300);

/// The shortest time an order may take: what goes ahead waits for everything that someone waits for.
const SHORTEST_DEADLINE: Duration = Duration::from_secs(60);

/// How often the estimate an order may take.
const PATIENCE: u32 = 10;

/// What a site sends and takes ahead of requests.
#[derive(Debug)]
pub(crate) struct Ahead {
    sent: Mutex<Prewarms>,
    taken: Mutex<Foreseen>,
    /// Orders of other sites that are being served.
    taking: Semaphore,
}

impl Ahead {
    pub(crate) fn new(rules: PrewarmRules) -> Self {
        Self {
            sent: Mutex::new(Prewarms::new(rules)),
            taken: Mutex::default(),
            taking: Semaphore::new(rules.bounds.at_once as usize),
        }
    }

    /// Says whether a prefix is to be sent.
    pub(crate) fn asked(&self, now: Moment, ask: &PrewarmAsk<'_>) -> Option<PrewarmDue> {
        self.sent.lock().asked(now, ask)
    }

    /// A request came with these blocks.
    pub(crate) fn request(&self, now: Moment, blocks: &[BlockHash], moved: Moved) {
        self.taken.lock().request(now, blocks, moved);
    }

    /// A prefix came ahead, to its last block.
    pub(crate) fn arrived(&self, now: Moment, blocks: &[BlockHash]) {
        if let Some(last) = blocks.last() {
            self.taken.lock().arrived(now, *last, blocks.len());
        }
    }

    /// Room to take one; none when as many as may be are being taken.
    pub(crate) fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.taking.try_acquire().ok()
    }

    /// What was sent, how many orders are under way, and how good the forecasts of others were.
    fn counts(&self) -> (PrewarmCounts, usize, ForeseenCounts) {
        let sent = self.sent.lock();
        (sent.counts(), sent.under_way(), self.taken.lock().counts())
    }
}

/// The names of a prompt's pool blocks.
pub(crate) fn pool_blocks(chain: &[BlockHash], layout: &KvLayout) -> Vec<BlockHash> {
    let hashes = layout.block_tokens as usize / INDEX_BLOCK_TOKENS;
    chain
        .chunks_exact(hashes.max(1))
        .filter_map(|block| block.last().copied())
        .collect()
}

/// A prefix that is to go ahead, with what is needed to order it.
pub(crate) struct Prewarm {
    pub(crate) site: Arc<Site>,
    pub(crate) due: PrewarmDue,
    pub(crate) fleet: Arc<FleetView>,
    pub(crate) layout: Arc<KvLayout>,
    /// The prefix, whose data it is, who is to hold it, and whom it may be fetched from.
    pub(crate) order: KvOrder,
    pub(crate) policies: RequestPolicies,
    pub(crate) subject: Subject,
    pub(crate) labels: BTreeMap<String, String>,
}

/// Why a prefix did not go ahead.
#[derive(Debug, thiserror::Error)]
enum NotSent {
    #[error("the residency answer does not let this data stay at {0}")]
    Residency(String),
    #[error("the site is not in the fleet")]
    Unknown,
    #[error(transparent)]
    Order(#[from] BrokenOff),
}

/// Tells the planner that an order is over, however it ends.
struct Ending<'a> {
    of: &'a Prewarm,
    end: PrewarmEnd,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if let Some(ahead) = &self.of.site.ahead {
            ahead.sent.lock().ended(&self.of.due, self.end);
        }
    }
}

impl Prewarm {
    /// Asks residency, orders, and writes down how that went.
    pub(crate) async fn run(self) {
        let mut ending = Ending {
            of: &self,
            end: PrewarmEnd::Failed(Bytes(0)),
        };
        tokio::time::sleep(TOLD_AFTER).await;
        let sent = self.send().await;
        ending.end = match &sent {
            Ok(arrival) => {
                let fetched = arrival
                    .report
                    .prefill
                    .fetches
                    .iter()
                    .map(|fetch| Bytes(fetch.bytes));
                PrewarmEnd::Made(fetched.sum())
            }
            Err(NotSent::Residency(_)) => PrewarmEnd::Forbidden,
            Err(_) => PrewarmEnd::Failed(Bytes(0)),
        };
        drop(ending);
        let to = self.fleet.site(self.due.site).map(|site| site.name.to_string());
        let held = sent.as_ref().ok().map(|arrival| {
            let prefill = &arrival.report.prefill;
            (prefill.cached, prefill.computed)
        });
        tracing::info!(
            site = %self.site.parts.name, request = %self.order.request, tenant = %self.order.tenant, to,
            instance = %self.order.instance, tokens = self.order.tokens.len(), ?held,
            failed = sent.as_ref().err().map(ToString::to_string), "a prefix went ahead"
        );
    }

    async fn send(&self) -> Result<Arrival, NotSent> {
        let peer = self
            .fleet
            .site(self.due.site)
            .ok_or(NotSent::Unknown)?
            .name
            .clone();
        let parts = &self.site.parts;
        if !self.may_go() {
            return Err(NotSent::Residency(peer.to_string()));
        }
        let (transport, clock) = (parts.transport.as_ref(), parts.clock.as_ref());
        let order = self.order.clone();
        let received = receive_within(self.deadline(), transport, &peer, order, &self.layout, clock).await;
        if let Err(broken) = &received
            && blames_link(&broken.error)
        {
            parts.fleet.link_outcome(self.due.site, InstanceOutcome::Failed);
        }
        Ok(received?)
    }

    /// Whether the prompt may go to the other site and its KV may stay there.
    fn may_go(&self) -> bool {
        let parts = &self.site.parts;
        let mut permission = Permission {
            fleet: &self.fleet,
            policies: &self.policies,
            subject: self.subject,
            row: Vec::new(),
            origin: parts.index,
            asker: Asker::new(parts.clock.as_ref(), &self.labels, self.order.request.as_str()),
        };
        permission.may_come(parts.index, self.due.site)
    }

    fn deadline(&self) -> Duration {
        let link = self.fleet.link(self.site.parts.index, self.due.site);
        let takes = link.map_or(Duration::ZERO, |link| {
            link.rtt + self.due.bytes.time_at(link.free())
        });
        takes.saturating_mul(PATIENCE).max(SHORTEST_DEADLINE)
    }
}

/// What the operator sees of it.
#[derive(Debug, Serialize)]
pub(crate) struct PrewarmsBody {
    made: u64,
    failed: u64,
    forbidden: u64,
    held_back: u64,
    bytes: u64,
    under_way: usize,
    used: u64,
    unused: u64,
    moved: u64,
    foreseen: u64,
}

impl From<&Ahead> for PrewarmsBody {
    fn from(ahead: &Ahead) -> Self {
        let (sent, under_way, taken) = ahead.counts();
        Self {
            made: sent.made,
            failed: sent.failed,
            forbidden: sent.forbidden,
            held_back: sent.held_back,
            bytes: sent.bytes,
            under_way,
            used: taken.used,
            unused: taken.unused,
            moved: taken.moved,
            foreseen: taken.foreseen,
        }
    }
}

/// The numbers of `/metrics`; none where the site sends and takes nothing ahead.
pub(crate) fn samples(site: &Site) -> Vec<Sample> {
    let Some(ahead) = &site.ahead else {
        return Vec::new();
    };
    let (sent, under_way, taken) = ahead.counts();
    let counted = |name, help, by: &'static str, of: &[(&str, u64)]| {
        let sample = |(word, count): &(&str, u64)| Sample {
            name,
            help,
            labels: vec![(by, (*word).to_owned())],
            value: Reading::Counter(*count),
        };
        of.iter().map(sample).collect::<Vec<_>>()
    };
    let plain = |name, help, value| Sample {
        name,
        help,
        labels: Vec::new(),
        value,
    };
    let outcome = "Prefixes that this site sent ahead, by what came of them";
    let sent_by = [
        ("made", sent.made),
        ("failed", sent.failed),
        ("forbidden", sent.forbidden),
        ("held-back", sent.held_back),
    ];
    let waited = "Prefixes that came ahead to this site, by whether a request then asked for them";
    let waited_by = [("used", taken.used), ("unused", taken.unused)];
    let mut samples = counted("prewarms", outcome, "outcome", &sent_by);
    samples.extend(counted("prewarms_arrived", waited, "use", &waited_by));
    samples.extend([
        plain(
            "prewarm_bytes",
            "What crossed for prefixes sent ahead",
            Reading::Counter(sent.bytes),
        ),
        plain(
            "prewarms_under_way",
            "Prefixes that are being sent ahead",
            Reading::Gauge(under_way as u64),
        ),
        plain(
            "requests_moved",
            "Requests whose conversation, user or path was at another site before",
            Reading::Counter(taken.moved),
        ),
        plain(
            "requests_foreseen",
            "Of the requests that moved here, those whose prefix had come ahead",
            Reading::Counter(taken.foreseen),
        ),
    ]);
    let shares = [
        (
            "prewarm_precision_permille",
            "Of the prefixes that came ahead, the share that was asked for",
            taken.precision(),
        ),
        (
            "prewarm_recall_permille",
            "Of the requests that moved here, the share whose prefix had come ahead",
            taken.recall(),
        ),
    ];
    let known = |(name, help, share): (_, _, Option<portolan_base::Permille>)| {
        share.map(|share| plain(name, help, Reading::Gauge(share.0.into())))
    };
    samples.extend(shares.into_iter().filter_map(known));
    samples
}
