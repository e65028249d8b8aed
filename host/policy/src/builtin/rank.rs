//! From "this tier, this score" to one number a route, with the client's prefill mode and every "never" kept.

use super::contract::{Candidate, Candidates};
use crate::answer::RoutingDecision;
use crate::column::{NEVER, RequestView};

/// How a policy sorts routes before it compares their scores. Every route of a tier comes before any of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Taken while there is one.
    Preferred,
    /// Taken when no preferred route is left.
    Second,
    /// Taken when nothing else is left.
    Last,
}

const TIERS: usize = 3;
/// Two for what the client asked (remote before local), times the policy's own.
const PLACES: usize = 2 * TIERS;

/// What a policy thinks of one route: lower scores come first inside a tier; [`NEVER`] rules the route out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// The tier.
    pub tier: Tier,
    /// The score inside it, best in µs, so that the host's notion of a near-tie fits.
    pub score: u32,
}

impl Rank {
    /// A rank in the first tier.
    pub fn preferred(score: u32) -> Self {
        Self {
            tier: Tier::Preferred,
            score,
        }
    }

    /// A rank in `tier`.
    pub fn new(tier: Tier, score: u32) -> Self {
        Self { tier, score }
    }
}

/// What the client asked about where prefill runs. A route is local when prefill and decode share a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefillMode {
    /// The policy decides.
    Auto,
    /// Remote routes are ruled out.
    LocalOnly,
    /// Local routes come after every remote one.
    RemotePreferred,
    /// Local routes are ruled out.
    RemoteRequired,
}

impl PrefillMode {
    /// The mode a request asks for; a value this version does not know means [`PrefillMode::Auto`].
    pub fn of(request: RequestView<'_>) -> Self {
        match request.prefill_mode() {
            1 => Self::LocalOnly,
            2 => Self::RemotePreferred,
            3 => Self::RemoteRequired,
            _ => Self::Auto,
        }
    }

    /// Whether a route may be taken at all.
    pub fn allows(self, candidate: &Candidate<'_>) -> bool {
        match self {
            Self::Auto | Self::RemotePreferred => true,
            Self::LocalOnly => candidate.route.is_local(),
            Self::RemoteRequired => !candidate.route.is_local(),
        }
    }

    fn place(self, candidate: &Candidate<'_>, tier: Tier) -> usize {
        let after_remote = self == Self::RemotePreferred && candidate.route.is_local();
        usize::from(after_remote) * TIERS + tier as usize
    }
}

impl Candidates<'_> {
    /// Whether a route is open: neither the client's prefill mode nor the cost policy rules it out.
    pub fn is_open(request: RequestView<'_>, candidate: &Candidate<'_>) -> bool {
        PrefillMode::of(request).allows(candidate) && !candidate.is_ruled_out()
    }

    /// One score a route, lowest first. Routes that are not open are never taken, and under "remote preferred" local
    /// ones come after every remote one, whatever `score` says.
    pub fn scores(
        &self,
        request: RequestView<'_>,
        mut score: impl FnMut(&Candidate<'_>) -> u32,
    ) -> RoutingDecision {
        self.ranks(request, |candidate| Rank::preferred(score(candidate)))
    }

    /// Like [`Candidates::scores`], with routes sorted into tiers first.
    pub fn ranks(
        &self,
        request: RequestView<'_>,
        mut rank: impl FnMut(&Candidate<'_>) -> Rank,
    ) -> RoutingDecision {
        let mode = PrefillMode::of(request);
        let placed: Vec<_> = self
            .iter()
            .map(|candidate| {
                if !Self::is_open(request, &candidate) {
                    return None;
                }
                let Rank { tier, score } = rank(&candidate);
                (score != NEVER).then(|| (mode.place(&candidate, tier), score))
            })
            .collect();
        RoutingDecision::Scores(spread(&placed))
    }
}

/// Between the worst route of a place and the best of the next, in µs, beside a factor of two: wide enough that the
/// host does not take the two for a near-tie.
const GAP: u32 = 1000;

/// Lays places out one above the other. With one place in use scores pass unchanged; with `k` in use they are capped
/// at 2^(32-k) (18 minutes for two places, in µs), above which routes of one place tie.
fn spread(placed: &[Option<(usize, u32)>]) -> Vec<u32> {
    let mut highest = [None::<u32>; PLACES];
    for &(place, score) in placed.iter().flatten() {
        highest[place] = highest[place].max(Some(score));
    }
    let used = highest.iter().flatten().count();
    let cap = if used <= 1 { NEVER - 1 } else { NEVER >> used };

    let mut offsets = [0u32; PLACES];
    let mut next = 0u32;
    for (offset, top) in offsets.iter_mut().zip(highest) {
        if let Some(top) = top {
            *offset = next;
            next = (next + top.min(cap)).saturating_mul(2).saturating_add(GAP);
        }
    }
    placed
        .iter()
        .map(|entry| entry.map_or(NEVER, |(place, score)| offsets[place] + score.min(cap)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_place_passes_scores_unchanged() {
        assert_eq!(
            spread(&[Some((3, 7)), None, Some((3, NEVER - 1))]),
            [7, NEVER, NEVER - 1]
        );
    }

    proptest! {
        #![proptest_config(crate::builtin::tests::seeded(500))]

        #[test]
        fn places_never_mix_and_order_inside_them_stays(
            placed in prop::collection::vec(prop::option::of((0..PLACES, 0..NEVER)), 0..20)
        ) {
            let scores = spread(&placed);
            prop_assert_eq!(scores.len(), placed.len());
            for (a, sa) in placed.iter().zip(&scores) {
                prop_assert_eq!(a.is_none(), *sa == NEVER);
                for (b, sb) in placed.iter().zip(&scores) {
                    if let (Some(a), Some(b)) = (a, b) {
                        let kept = if a.0 < b.0 { sa < sb } else { a > b || sa <= sb };
                        prop_assert!(kept, "{a:?} scored {sa}, {b:?} scored {sb}");
                    }
                }
            }
        }
    }
}
