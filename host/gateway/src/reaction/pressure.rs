//! Room runs out: a policy is asked what goes, before the pool's own order of eviction decides.
//!
//! The platform's policy is asked about a pool or tier as a whole, a tenant's about its own blocks there. Each is asked when
//! what it is asked about passes the high mark, again once that fell beneath the low mark and rose again, and once a minute
//! while it stays up; never twice within the pause. Who says nothing, or fails, leaves it to the pool.

use super::groups::Groups;
use super::{Bound, Place, ask};
use crate::http::{each_place, tier_word};
use crate::site::Site;
use portolan_base::{Bytes, Moment, Permille, Scope};
use portolan_kv::Selector;
use portolan_kv::tier::{Card, TierUse};
use portolan_policy::{Event, Policy, Pressure};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How soon whoever left it full is asked again: as often as of age.
const AGAIN: Duration = Duration::from_secs(60);

/// When a policy is asked what goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressureRules {
    /// From this fullness on.
    pub high: Permille,
    /// Beneath this one it counts as relieved.
    pub low: Permille,
    /// At the soonest so long after it was asked.
    pub pause: Duration,
}

impl Default for PressureRules {
    /// Asked with a twentieth left, which a busy pool takes in within seconds; relieved with some more than the tenth free
    /// that `idle` makes. Ten seconds bound what going through a pool of a million blocks takes to a few percent of a core.
    fn default() -> Self {
        Self {
            high: Permille(950),
            low: Permille(920),
            pause: Duration::from_secs(10),
        }
    }
}

/// How full something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fullness {
    used: Bytes,
    limit: Bytes,
}

impl Fullness {
    /// Of a pool or tier.
    fn of(usage: &TierUse) -> Self {
        Self {
            used: usage.used,
            limit: usage.budget,
        }
    }

    /// Of a tenant's part: what it may use is its share, or what the others leave free, if that is more.
    fn of_tenant(usage: &TierUse, scope: &Scope) -> Option<Self> {
        let part = usage.tenants.iter().find(|part| part.scope == *scope)?;
        let others = usage.used - part.used;
        Some(Self {
            used: part.used,
            limit: part.share.max(usage.budget - others),
        })
    }

    fn permille(self) -> u64 {
        u64::try_from(u128::from(self.used.0) * 1000 / u128::from(self.limit.0.max(1))).unwrap_or(u64::MAX)
    }

    fn event(self, site: u32) -> Event {
        let mib = |bytes: Bytes| u32::try_from(bytes.0 >> 20).unwrap_or(u32::MAX);
        Event::CapacityPressure(Pressure {
            site,
            used_mib: mib(self.used),
            limit_mib: mib(self.limit),
        })
    }
}

/// What a policy is asked about: a place, and in it a scope's blocks or all.
type Mark = (Place, Option<Scope>);

#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Moment,
    /// Whether it fell beneath the low mark since.
    relieved: bool,
}

/// Who was asked about what, and when.
#[derive(Debug, Default)]
pub(super) struct Pressed {
    rules: PressureRules,
    asked: BTreeMap<Mark, Asked>,
}

impl Pressed {
    pub(super) fn new(rules: PressureRules) -> Self {
        Self {
            rules,
            asked: BTreeMap::new(),
        }
    }

    /// Whether a policy is to be asked, which then counts as asked.
    fn is_due(&mut self, mark: &Mark, full: Fullness, now: Moment) -> bool {
        let permille = full.permille();
        let asked = self.asked.get_mut(mark);
        if permille < u64::from(self.rules.low.0) {
            asked.into_iter().for_each(|asked| asked.relieved = true);
            return false;
        }
        let rests = asked.is_some_and(|asked| {
            let pause = if asked.relieved { Duration::ZERO } else { AGAIN };
            now.since(asked.at) < pause.max(self.rules.pause)
        });
        if rests || permille < u64::from(self.rules.high.0) {
            return false;
        }
        let begun = Asked {
            at: now,
            relieved: false,
        };
        self.asked.insert(mark.clone(), begun);
        true
    }

    /// Drops what nobody can be asked about any more.
    fn keep(&mut self, alive: impl Fn(&Mark) -> bool) {
        self.asked.retain(|mark, _| alive(mark));
    }
}

/// What policies let go where room runs out. Costs a look at the places' counters where nobody is to be asked, and nothing
/// where no policy is bound.
pub(super) fn relieve(site: &Arc<Site>, pressed: &mut Pressed) -> Vec<Selector> {
    let bound = Bound::of(site);
    if bound.platform.is_none() && bound.tenants.is_empty() {
        return Vec::new();
    }
    let mut places = Vec::new();
    let mut goes = Vec::new();
    each_place(site, |at| {
        let place = Place {
            tier: tier_word(at.tier),
            instance: at.instance.map(str::to_owned),
        };
        let usage = at.usage();
        let due = due(&bound, pressed, (&place, &usage), site.parts.clock.now());
        places.push(place.clone());
        if !due.is_empty() {
            let mut cards = Vec::new();
            at.each(&mut |card| cards.push(card));
            goes.extend(ask_each(site, due, (place, &cards), at.now));
        }
    });
    pressed.keep(|(place, scope)| {
        let is_bound = match scope {
            None => bound.platform.is_some(),
            Some(scope) => bound.tenants.contains_key(scope),
        };
        is_bound && places.contains(place)
    });
    goes
}

/// A question that is due.
struct Due<'b> {
    policy: &'b dyn Policy,
    of: Option<&'b Scope>,
    full: Fullness,
}

fn due<'b>(
    bound: &'b Bound,
    pressed: &mut Pressed,
    (place, usage): (&Place, &TierUse),
    now: Moment,
) -> Vec<Due<'b>> {
    let all = bound
        .platform
        .iter()
        .map(|policy| (policy, None, Some(Fullness::of(usage))));
    let own = bound
        .tenants
        .iter()
        .map(|(scope, policy)| (policy, Some(scope), Fullness::of_tenant(usage, scope)));
    let due = all.chain(own).filter_map(|(policy, of, full)| {
        let (full, mark) = (full?, (place.clone(), of.cloned()));
        pressed.is_due(&mark, full, now).then_some(Due {
            policy: policy.as_ref(),
            of,
            full,
        })
    });
    due.collect()
}

fn ask_each(
    site: &Arc<Site>,
    due: Vec<Due<'_>>,
    (place, cards): (Place, &[Card]),
    now: Moment,
) -> Vec<Selector> {
    let (names, index) = (site.parts.fleet.names(), site.parts.index.0);
    let mut groups = Groups::new(&names, index, &[]).in_place(place);
    // What a request holds would free nothing.
    let free = cards.iter().filter(|card| !card.leased);
    free.for_each(|card| groups.add(card, now));
    let asked = due.into_iter().filter_map(|due| {
        let event = due.full.event(index);
        ask(site, due.policy, &event, &groups, due.of)
    });
    asked.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::TenantName;
    use portolan_kv::{Counts, TenantUse};

    fn tenant(name: &str) -> Scope {
        Scope::Tenant(TenantName::new(name).unwrap())
    }

    fn mark() -> Mark {
        let place = Place {
            tier: "engine",
            instance: Some("p1".to_owned()),
        };
        (place, None)
    }

    fn full(used: u64) -> Fullness {
        Fullness {
            used: Bytes(used),
            limit: Bytes(1000),
        }
    }

    fn second(s: u64) -> Moment {
        Moment(1_000_000_000 + s * 1_000_000)
    }

    #[test]
    fn a_policy_is_asked_on_the_way_up_and_not_again_until_it_went_down() {
        let mut pressed = Pressed::default();
        let mut due = |used, s| pressed.is_due(&mark(), full(used), second(s));
        assert!(!due(949, 0));
        assert!(due(950, 1));
        assert!(!due(999, 2), "it was asked");
        assert!(
            !due(920, 30) && !due(980, 31),
            "it never went beneath the low mark"
        );
        assert!(!due(919, 32));
        assert!(!due(949, 33));
        assert!(due(950, 34), "down, and up again");
    }

    #[test]
    fn nobody_is_asked_twice_within_the_pause_and_who_leaves_it_full_is_asked_each_minute() {
        let mut pressed = Pressed::default();
        let mut due = |used, s| pressed.is_due(&mark(), full(used), second(s));
        assert!(due(1000, 0));
        assert!(!due(100, 1) && !due(1000, 2) && !due(1000, 9), "within the pause");
        assert!(due(1000, 10));
        assert!(!due(1000, 69));
        assert!(due(1000, 70));
    }

    #[test]
    fn what_is_not_there_any_more_is_forgotten() {
        let mut pressed = Pressed::default();
        assert!(pressed.is_due(&mark(), full(1000), second(0)));
        pressed.keep(|_| false);
        assert!(pressed.asked.is_empty());
    }

    #[test]
    fn a_tenants_limit_is_its_share_or_what_others_leave() {
        let part = |name, share, used| TenantUse {
            scope: tenant(name),
            share: Bytes(share),
            used: Bytes(used),
            blocks: 1,
            counts: Counts::default(),
        };
        let usage = |a, b| TierUse {
            used: Bytes(a + b),
            budget: Bytes(1000),
            blocks: 2,
            tenants: vec![part("a", 300, a), part("b", 700, b)],
            damaged: 0,
            refused: 0,
        };
        let limit = |usage: &TierUse, of| Fullness::of_tenant(usage, &tenant(of)).map(|full| full.limit.0);
        assert_eq!(limit(&usage(500, 100), "a"), Some(900), "b leaves so much free");
        assert_eq!(limit(&usage(100, 900), "a"), Some(300), "its share is promised");
        assert_eq!(limit(&usage(100, 900), "c"), None, "it has nothing here");
    }
}
