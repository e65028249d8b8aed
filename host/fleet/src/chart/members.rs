//! Which sites are there, as one of them hears it: joins, restarts, leaves, falls silent.

use super::{Chart, Known};
use parking_lot::Mutex;
use portolan_base::{Moment, SiteName};
use portolan_ports::{Member, MemberState, SitePresence, SiteState};
use std::time::Duration;

impl Chart {
    /// Takes another site's heartbeat.
    pub fn heard_presence(&self, presence: &SitePresence) {
        let Some(index) = self.topology.site_index(&presence.site) else {
            return;
        };
        let Some(member) = self.members.get(index.0 as usize).filter(|_| index != self.here) else {
            return;
        };
        let instances = || self.instances.iter().filter(|known| known.site == index);
        let change = member.heard(presence, self.clock.now());
        if let Some(lease) = member.lease() {
            instances().for_each(|known| known.set_lease(lease));
        }
        match change {
            Change::None => {}
            Change::Started | Change::Left => {
                tracing::info!(
                    site = %presence.site, incarnation = presence.incarnation, state = ?presence.state,
                    "a site was started anew, or left"
                );
                instances().for_each(Known::forget);
            }
            Change::Straggler => tracing::warn!(
                site = %presence.site, incarnation = presence.incarnation,
                "a heartbeat of an earlier start of the site: is the site running twice?"
            ),
        }
    }

    /// Whether another site is there by its heartbeats.
    pub fn hears_of(&self, site: &SiteName) -> bool {
        let index = self.topology.site_index(site);
        let member = index.and_then(|index| self.members.get(index.0 as usize));
        member.is_some_and(|member| {
            let state = member.look(self.clock.now()).state;
            matches!(state, MemberState::Up | MemberState::Draining)
        })
    }

    /// Which sites are there, by index.
    pub(super) fn attendance(&self) -> Vec<Member> {
        let now = self.clock.now();
        let here = |index: usize| index == self.here.0 as usize;
        let member = |(index, attendance): (usize, &Attendance)| match here(index) {
            true => Member {
                state: MemberState::Here,
                incarnation: self.prefixes.incarnation(),
                age: Some(Duration::ZERO),
            },
            false => attendance.look(now),
        };
        self.members.iter().enumerate().map(member).collect()
    }
}

/// What a heartbeat changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Nothing that matters to routes.
    None,
    /// The site was started anew: what was known of it before is void.
    Started,
    /// It ended in order: its instances are gone at once.
    Left,
    /// A heartbeat of an incarnation that another one replaced: two processes run one site, or it is late.
    Straggler,
}

/// One other site.
#[derive(Debug, Default)]
pub(super) struct Attendance(Mutex<Option<Heard>>);

#[derive(Clone, Copy, Debug)]
struct Heard {
    incarnation: u64,
    sequence: u64,
    state: SiteState,
    lease: Duration,
    at: Moment,
}

impl Heard {
    fn lapsed(&self, now: Moment) -> bool {
        self.state == SiteState::Left || now.since(self.at) >= self.lease
    }
}

impl Attendance {
    /// Takes a heartbeat. Ages count from here, by this site's own clock: clocks of two sites need not agree.
    fn heard(&self, presence: &SitePresence, now: Moment) -> Change {
        let mut known = self.0.lock();
        let change = match *known {
            None => Change::None,
            Some(old) if presence.incarnation == old.incarnation => {
                // Late or twice: it says nothing about the present.
                if presence.sequence <= old.sequence {
                    return Change::None;
                }
                Change::None
            }
            // A clock that was set back between two starts gives the later one the smaller number: it counts once the other
            // is silent.
            Some(old) if presence.incarnation < old.incarnation && !old.lapsed(now) => {
                return Change::Straggler;
            }
            Some(_) => Change::Started,
        };
        *known = Some(Heard {
            incarnation: presence.incarnation,
            sequence: presence.sequence,
            state: presence.state,
            lease: Duration::from_millis(presence.lease_ms),
            at: now,
        });
        match presence.state {
            SiteState::Left => Change::Left,
            SiteState::Up | SiteState::Draining => change,
        }
    }

    /// The lease it gave itself.
    fn lease(&self) -> Option<Duration> {
        self.0.lock().map(|heard| heard.lease)
    }

    /// Whether it is there.
    pub(super) fn look(&self, now: Moment) -> Member {
        let Some(heard) = *self.0.lock() else {
            return Member {
                state: MemberState::Unheard,
                incarnation: 0,
                age: None,
            };
        };
        let state = match heard.state {
            SiteState::Left => MemberState::Left,
            _ if heard.lapsed(now) => MemberState::Silent,
            SiteState::Up => MemberState::Up,
            SiteState::Draining => MemberState::Draining,
        };
        Member {
            state,
            incarnation: heard.incarnation,
            age: Some(now.since(heard.at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::SiteName;

    fn presence(incarnation: u64, sequence: u64, state: SiteState) -> SitePresence {
        SitePresence {
            site: SiteName::new("there").unwrap(),
            incarnation,
            sequence,
            state,
            lease_ms: 5000,
        }
    }

    fn at(ms: u64) -> Moment {
        Moment(ms * 1000)
    }

    #[test]
    fn a_site_joins_falls_silent_and_comes_back() {
        let site = Attendance::default();
        assert_eq!(site.look(at(0)).state, MemberState::Unheard);
        assert_eq!(site.heard(&presence(7, 0, SiteState::Up), at(10)), Change::None);
        let member = site.look(at(5009));
        assert_eq!(
            (member.state, member.incarnation, member.age),
            (MemberState::Up, 7, Some(Duration::from_millis(4999)))
        );
        assert_eq!(site.look(at(5010)).state, MemberState::Silent);
        assert_eq!(site.heard(&presence(7, 1, SiteState::Up), at(6000)), Change::None);
        assert_eq!(site.look(at(6001)).state, MemberState::Up);
    }

    #[test]
    fn what_comes_twice_or_late_renews_nothing() {
        let site = Attendance::default();
        site.heard(&presence(7, 3, SiteState::Up), at(0));
        for sequence in [3, 2, 0] {
            assert_eq!(
                site.heard(&presence(7, sequence, SiteState::Draining), at(4000)),
                Change::None
            );
        }
        assert_eq!(
            site.look(at(4001)).state,
            MemberState::Up,
            "the state is the newest's"
        );
        assert_eq!(
            site.look(at(5000)).state,
            MemberState::Silent,
            "and so is the lease"
        );
    }

    #[test]
    fn a_restart_voids_and_its_forerunner_is_a_straggler() {
        let site = Attendance::default();
        site.heard(&presence(7, 900, SiteState::Up), at(0));
        assert_eq!(
            site.heard(&presence(8, 0, SiteState::Up), at(100)),
            Change::Started
        );
        assert_eq!(
            site.heard(&presence(7, 901, SiteState::Up), at(200)),
            Change::Straggler
        );
        assert_eq!(site.look(at(300)).incarnation, 8);
    }

    #[test]
    fn a_restart_with_a_clock_set_back_counts_once_the_other_is_silent() {
        let site = Attendance::default();
        site.heard(&presence(9, 5, SiteState::Up), at(0));
        assert_eq!(
            site.heard(&presence(4, 0, SiteState::Up), at(4999)),
            Change::Straggler
        );
        assert_eq!(
            site.heard(&presence(4, 1, SiteState::Up), at(5000)),
            Change::Started
        );
        assert_eq!(site.look(at(5001)).incarnation, 4);
    }

    #[test]
    fn leaving_ends_the_lease_and_a_drain_is_told() {
        let site = Attendance::default();
        site.heard(&presence(7, 0, SiteState::Draining), at(0));
        assert_eq!(site.look(at(1)).state, MemberState::Draining);
        assert_eq!(site.heard(&presence(7, 1, SiteState::Left), at(2)), Change::Left);
        assert_eq!(site.look(at(3)).state, MemberState::Left);
        assert_eq!(site.heard(&presence(6, 0, SiteState::Up), at(4)), Change::Started);
    }
}
