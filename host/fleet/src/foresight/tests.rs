//! Two sites that tell each other of a conversation foresee its next step; what crosses names nothing.

use super::*;
use crate::SiteSpec;
use portolan_base::{BlockHash, PatternKind, TenantName};

const NOW: Moment = Moment(0);
const SITES: [&str; 3] = ["paris", "virginia", "tokyo"];

fn site(number: u32) -> Foresight {
    let spec = |name: &str| SiteSpec {
        name: SiteName::new(name).unwrap(),
        region: String::new(),
        jurisdiction: name.to_owned(),
        instances: Vec::new(),
    };
    let topology = Topology::new(SITES.map(spec).to_vec(), Vec::new(), Vec::new()).unwrap();
    Foresight::new(&topology, SiteIndex(number), &[9; 32])
}

fn ask(at: &Foresight, session: &str, may_know: &[u32]) -> Forecast {
    let may_know: Vec<SiteIndex> = may_know.iter().copied().map(SiteIndex).collect();
    let visit = Visit {
        tenant: &TenantName::new("acme").unwrap(),
        patterns: &[(PatternKind::Conversation, session)],
        blocks: &[BlockHash(1), BlockHash(2)],
        may_know: &may_know,
    };
    at.visited(NOW, &visit)
}

/// Carries what `from` has to tell to `to`; says how many messages were for it.
fn tell(from: &Foresight, to: &Foresight) -> usize {
    let told: Vec<Visits> = from.to_tell().into_iter().filter(|v| v.to == to.name).collect();
    told.iter()
        .for_each(|visits| to.heard(NOW, from.site, &visits.patterns));
    told.len()
}

#[test]
fn a_conversation_between_two_sites_is_foreseen_by_both() {
    let (paris, virginia) = (site(0), site(1));
    for turn in 0..3 {
        let forecast = ask(&paris, "s", &[1]);
        assert_eq!(forecast.next.is_some(), turn >= 2, "turn {turn}");
        assert_eq!(forecast.before, (turn > 0).then_some(SiteIndex(1)));
        assert_eq!(tell(&paris, &virginia), 1);
        ask(&virginia, "s", &[0]);
        assert_eq!(tell(&virginia, &paris), 1);
    }
    let next = ask(&paris, "s", &[1]).next.unwrap();
    assert_eq!((next.site, next.share.0, next.blocks), (SiteIndex(1), 1000, 2));
}

#[test]
fn who_may_not_see_the_data_hears_nothing_of_its_requests() {
    let (paris, tokyo) = (site(0), site(2));
    ask(&paris, "s", &[1]);
    assert_eq!(tell(&paris, &tokyo), 0);
    ask(&paris, "s", &[]);
    assert!(paris.to_tell().is_empty());
}

#[test]
fn receivers_are_told_under_names_that_they_cannot_compare() {
    let paris = site(0);
    ask(&paris, "s", &[1, 2]);
    let told = paris.to_tell();
    assert_eq!(told.len(), 2);
    assert_ne!(told[0].patterns, told[1].patterns);
}

#[test]
fn what_waits_to_be_told_is_bounded() {
    let paris = site(0);
    for n in 0..2 * WAITING {
        ask(&paris, &n.to_string(), &[1]);
    }
    assert_eq!(paris.to_tell()[0].patterns.len(), WAITING);
}
