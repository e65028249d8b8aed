//! What became of each request.

use portolan_base::{Bytes, Moment};
use portolan_decide::Route;
use std::time::Duration;

/// What became of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fate {
    /// How it was served, or why it was not.
    pub outcome: Result<Served, String>,
    /// Policy calls that gave no usable answer, and what answered in their place.
    pub faults: Vec<String>,
}

impl Default for Fate {
    fn default() -> Self {
        Self {
            outcome: Err("it never came in".to_owned()),
            faults: Vec::new(),
        }
    }
}

/// How a request was served. The four parts of the time to first token add up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// The route that was taken.
    pub route: Route,
    /// From arrival until its prompt was being computed: the way there, and the queue.
    pub queue: Duration,
    /// Computing its prompt.
    pub prefill: Duration,
    /// From then until its KV was where the answer is generated.
    pub transfer: Duration,
    /// From then to the first token: waiting for a decode slot, and one step.
    pub decode: Duration,
    /// Prompt tokens that did not have to be computed.
    pub cached_tokens: u32,
    /// KV that was sent between sites.
    pub cross_site_bytes: Bytes,
    /// The price of the route as it was decided, in millionths of the operator's unit.
    pub price_micros: u32,
}

impl Served {
    /// Time to first token.
    pub fn ttft(&self) -> Duration {
        self.queue + self.prefill + self.transfer + self.decode
    }

    pub(crate) fn on(route: Route, price_micros: u32) -> Self {
        Self {
            route,
            queue: Duration::ZERO,
            prefill: Duration::ZERO,
            transfer: Duration::ZERO,
            decode: Duration::ZERO,
            cached_tokens: 0,
            cross_site_bytes: Bytes(0),
            price_micros,
        }
    }

    /// The moment up to which its time is accounted for.
    pub(crate) fn accounted(&self, arrival: Moment) -> Moment {
        arrival + self.ttft()
    }
}
