//! KNOWS the sites: what a decision is made from.

use crate::Sample;
use portolan_base::{BlockHash, InstanceName, ModelName, PatternKind, Provenance, TenantName, Tokens};
use portolan_decide::{FleetView, InstanceIndex, Likely, Route, SiteIndex};
use portolan_policy::NameTables;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How work on an instance or over a link ended, for its breaker. Being full and the client's own errors are neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceOutcome {
    /// It did what was asked.
    Served,
    /// It failed, or took longer than it may.
    Failed,
}

/// Whether an instance is given work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// It is.
    Open,
    /// It finishes what it has and is given nothing more: on its way out, or to be worked on.
    Draining,
}

/// A site as another one knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// The site that is asked.
    Here,
    /// It has not been heard of.
    Unheard,
    /// It serves.
    Up,
    /// It finishes what it has and takes nothing more.
    Draining,
    /// It ended in order.
    Left,
    /// It said nothing for longer than its lease.
    Silent,
}

impl MemberState {
    /// Its name in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::Unheard => "unheard",
            Self::Up => "up",
            Self::Draining => "draining",
            Self::Left => "left",
            Self::Silent => "silent",
        }
    }
}

/// What one site knows of another's being there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Whether it is.
    pub state: MemberState,
    /// Since when: greater at each of its starts; 0 where it was never heard of.
    pub incarnation: u64,
    /// How long ago it was heard of.
    pub age: Option<Duration>,
}

/// An instance that a site does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this site has no instance {0}")]
pub struct NoSuchInstance(pub InstanceName);

/// Work on its way to an instance of another site, which that instance's load reports do not show yet: without it a
/// burst of requests would all choose the instance that looked idle half a second ago.
#[derive(Debug, Default)]
pub struct OnTheWay {
    requests: AtomicU32,
    tokens: AtomicU32,
}

impl OnTheWay {
    /// One more request with so many tokens to compute, until the claim is dropped.
    pub fn claim(self: &Arc<Self>, tokens: Tokens) -> Claim {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.tokens.fetch_add(tokens.0, Ordering::Relaxed);
        Claim {
            of: Arc::clone(self),
            tokens,
        }
    }

    /// Requests, and the tokens they have to compute.
    pub fn read(&self) -> (u32, Tokens) {
        (
            self.requests.load(Ordering::Relaxed),
            Tokens(self.tokens.load(Ordering::Relaxed)),
        )
    }
}

/// A request on its way to an instance.
#[derive(Debug)]
pub struct Claim {
    of: Arc<OnTheWay>,
    tokens: Tokens,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.of.requests.fetch_sub(1, Ordering::Relaxed);
        self.of.tokens.fetch_sub(self.tokens.0, Ordering::Relaxed);
    }
}

/// A request that was served here, as far as the forecast of the next one needs it.
#[derive(Clone, Copy, Debug)]
pub struct Visit<'a> {
    /// Whose it was.
    pub tenant: &'a TenantName,
    /// What it has in common with others, by name.
    pub patterns: &'a [(PatternKind, &'a str)],
    /// Names of the prompt's pool blocks.
    pub blocks: &'a [BlockHash],
    /// Other sites that may see its data, and so hear of it.
    pub may_know: &'a [SiteIndex],
}

/// What is thought of the requests before and after one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// The site that the request's pattern was at before; none: nowhere.
    pub before: Option<SiteIndex>,
    /// Another site that is likely to be asked next.
    pub next: Option<Likely>,
}

/// What is known about every site, seen from one of them. All calls answer from memory.
pub trait Fleet: Send + Sync {
    /// Sites, instances and links at this moment. Indices are stable for the life of the process.
    fn view(&self) -> Arc<FleetView>;

    /// The tables behind the indices; `tenant` is empty.
    fn names(&self) -> Arc<NameTables>;

    /// Tokens of the prompt that each instance holds KV for, by instance index: advice, a false hit costs latency.
    fn held(&self, model: &ModelName, chain: &[BlockHash]) -> Vec<u32>;

    /// Says that these instances were sent a prompt with these blocks and will hold them. Believed for a few seconds, or
    /// until they say so themselves: requests with the same prefix that come meanwhile find it. `about` says whose they
    /// are.
    fn predict(&self, instances: &[InstanceIndex], chain: &[BlockHash], about: &Provenance);

    /// Says that a request is on its way to an instance, with so many tokens to compute there.
    fn claim(&self, instance: InstanceIndex, tokens: Tokens) -> Claim;

    /// Says that a request takes this route: where a breaker is half open, it is the trial.
    fn begins(&self, route: Route);

    /// Reports how work on an instance ended.
    fn outcome(&self, instance: InstanceIndex, outcome: InstanceOutcome);

    /// Reports how the link from a site to this one did.
    fn link_outcome(&self, from: SiteIndex, outcome: InstanceOutcome);

    /// Opens an instance of this site for work, or closes it. Other sites hear of it with its next load report.
    ///
    /// # Errors
    /// When this site has no such instance.
    fn set_service(&self, instance: &InstanceName, service: Service) -> Result<(), NoSuchInstance>;

    /// Says that a request was decided: the prompt tokens that it leaves to compute wherever it is computed. Once a request:
    /// the offload threshold is found from these.
    fn decided(&self, _uncached: Tokens) {}

    /// Says that a request was served: the prompt tokens that had to be computed for it, and those of its answer.
    fn settled(&self, _uncached: Tokens, _produced: u32) {}

    /// Says that a request was served here, and learns what is thought to come next. Nothing, where nobody watches.
    fn visited(&self, _visit: &Visit<'_>) -> Forecast {
        Forecast::default()
    }

    /// Which sites are there, by site index.
    fn members(&self) -> Vec<Member> {
        Vec::new()
    }

    /// How old the load of each instance is, by instance index: none where it was never heard, zero for this site's own,
    /// whose load is read as it is.
    fn load_ages(&self) -> Vec<Option<Duration>> {
        Vec::new()
    }

    /// Numbers of its own for the metrics page.
    fn samples(&self) -> Vec<Sample> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_counts_until_it_is_dropped() {
        let on_the_way = Arc::<OnTheWay>::default();
        let first = on_the_way.claim(Tokens(5));
        let second = on_the_way.claim(Tokens(7));
        assert_eq!(on_the_way.read(), (2, Tokens(12)));
        drop(first);
        assert_eq!(on_the_way.read(), (1, Tokens(7)));
        drop(second);
        assert_eq!(on_the_way.read(), (0, Tokens(0)));
    }
}
