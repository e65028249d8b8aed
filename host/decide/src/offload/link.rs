//! What is remembered of one link: whether it is short of bandwidth, and which share of the offload it gets.

use super::OffloadControlConfig;
use crate::fleet::LinkView;
use portolan_base::{BitsPerSecond, Moment};
use std::time::Duration;

/// The whole share, in thousandths.
const WHOLE: u32 = 1000;

/// The least share: some requests keep measuring the link.
const LEAST: u32 = 50;

/// What a sample without loss adds. From the least share to the whole in 48 s: longer than the window in which
/// utilisation is averaged, so that the share does not outrun what it is steered by.
const STEP: u32 = 10;

/// What a cut leaves, in thousandths of the share: CUBIC's factor.
const CUT: u32 = 700;

/// Between two cuts: losses within this belong to one event.
const BETWEEN_CUTS: Duration = Duration::from_secs(2);

/// Weight of a sample in the usual loss: of the last two minutes. What a link keeps losing though less is sent is not
/// congestion, and sending still less would not end it.
const USUAL_WEIGHT: f64 = 1.0 / 240.0;

/// State of one link.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkState {
    /// Which share of the requests that would be offloaded over it is, in thousandths.
    pub(super) share: u32,
    /// Whether bandwidth is scarce.
    pub(super) scarce: bool,
    /// The shortest round trip seen: what it takes with nothing in the way.
    shortest: Duration,
    cut_at: Option<Moment>,
    /// Moving mean of the loss, in thousandths: what the link loses whatever is sent.
    usual_loss: f64,
    /// What it delivered when last something waited for it.
    pub(super) delivered: Option<BitsPerSecond>,
}

impl Default for LinkState {
    fn default() -> Self {
        Self {
            share: WHOLE,
            scarce: false,
            shortest: Duration::MAX,
            cut_at: None,
            usual_loss: 0.0,
            delivered: None,
        }
    }
}

impl LinkState {
    pub(super) fn observe(&mut self, now: Moment, link: &LinkView, config: &OffloadControlConfig) {
        if link.busy >= config.congested {
            self.scarce = true;
        } else if link.busy < config.relieved {
            self.scarce = false;
        }
        if link.measured.backlog.0 > 0 && link.measured.delivery.0 > 0 {
            self.delivered = Some(link.measured.delivery);
        }
        self.shortest = self.shortest.min(link.rtt);
        let loss = f64::from(link.loss.max(link.measured.retransmits).0);
        let is_lossy = loss >= f64::from(config.lossy.0) + 2.0 * self.usual_loss;
        self.usual_loss += (loss - self.usual_loss) * USUAL_WEIGHT;
        if is_lossy || self.is_queueing(link.rtt) {
            if self.cut_at.is_none_or(|at| now.since(at) >= BETWEEN_CUTS) {
                self.cut_at = Some(now);
                self.share = (self.share * CUT / WHOLE).max(LEAST);
            }
        } else {
            self.share = (self.share + STEP).min(WHOLE);
        }
    }

    /// Whether packets wait on the way: twice the shortest round trip, and 10 ms more, so that a jitter of a local
    /// network is none.
    fn is_queueing(&self, rtt: Duration) -> bool {
        rtt > self
            .shortest
            .saturating_mul(2)
            .saturating_add(Duration::from_millis(10))
    }

    /// What a second of sending costs others, in seconds: nothing while bandwidth is ample, from there on in
    /// proportion to how far the link is past the lower mark.
    pub(super) fn price(&self, link: &LinkView, config: &OffloadControlConfig) -> f64 {
        if !self.scarce {
            return 0.0;
        }
        let from = config.relieved.0.min(WHOLE - 1);
        let past = link.busy.0.saturating_sub(from);
        config.full_link_price * f64::from(past) / f64::from(WHOLE - from)
    }
}
