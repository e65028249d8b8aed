//! What followed upon what is the forecast, by the most specific pattern that has seen enough.

use super::*;

const NOW: Moment = Moment(0);
const A: SiteIndex = SiteIndex(0);
const B: SiteIndex = SiteIndex(1);
const C: SiteIndex = SiteIndex(2);

fn pattern(kind: PatternKind, id: u64) -> Pattern {
    Pattern {
        kind,
        id: PatternId(id),
    }
}

fn after(sites: &[SiteIndex], patterns: &[Pattern]) -> Patterns {
    let mut all = Patterns::default();
    for site in sites {
        patterns.iter().for_each(|p| all.visited(NOW, p.id, *site));
    }
    all
}

fn blocks(of: u64, count: u64) -> Vec<BlockHash> {
    (1..=count).map(|i| BlockHash(of * 1000 + i)).collect()
}

fn next(patterns: &mut Patterns, of: &[Pattern], from: SiteIndex) -> Option<(SiteIndex, u32)> {
    let likely = patterns.next(NOW, of, from, &blocks(1, 9));
    likely.map(|likely| (likely.site, likely.share.0))
}

#[test]
fn a_conversation_that_goes_back_and_forth_is_foreseen_from_its_second_step() {
    let talk = [pattern(PatternKind::Conversation, 1)];
    assert_eq!(
        next(&mut after(&[A, B, A], &talk), &talk, A),
        None,
        "one step from A"
    );
    let mut patterns = after(&[A, B, A, B, A], &talk);
    assert_eq!(next(&mut patterns, &talk, A), Some((B, 1000)));
    assert_eq!(next(&mut patterns, &talk, C), None, "nothing went on from there");
    assert_eq!(patterns.before(&talk), Some(A));
}

#[test]
fn where_most_steps_led_is_likely_and_staying_is_no_forecast() {
    let talk = [pattern(PatternKind::Conversation, 1)];
    let mut patterns = after(&[A, B, A, C, A, B, A, B, A], &talk);
    assert_eq!(next(&mut patterns, &talk, A), Some((B, 750)));
    let mut stays = after(&[A, A, A, A, B, A], &talk);
    assert_eq!(next(&mut stays, &talk, A), None);
}

#[test]
fn only_the_last_hundred_requests_count() {
    let talk = [pattern(PatternKind::Conversation, 1)];
    let mut sites: Vec<SiteIndex> = [A, C].repeat(60);
    assert_eq!(next(&mut after(&sites, &talk), &talk, A), Some((C, 1000)));
    sites.extend([A, B].repeat(WINDOW / 2));
    assert_eq!(next(&mut after(&sites, &talk), &talk, A), Some((B, 1000)));
}

#[test]
fn a_new_conversation_is_judged_by_its_user_and_sends_what_prompts_share() {
    let user = pattern(PatternKind::User, 2);
    let mut patterns = after(&[A, B].repeat(5), &[user]);
    let of = |talk| [user, pattern(PatternKind::Conversation, talk)];
    let shared = |own: u64| [blocks(7, 4), blocks(own, 5)].concat();
    assert_eq!(
        patterns.next(NOW, &of(10), A, &shared(1)),
        None,
        "what the first prompt shares with others is not known"
    );
    let likely = patterns.next(NOW, &of(11), A, &shared(2)).unwrap();
    assert_eq!(
        (likely.site, likely.kind, likely.blocks),
        (B, PatternKind::User, 4)
    );
    let mut known = after(&[A, C, A, C, A], &[pattern(PatternKind::Conversation, 12)]);
    known.known.extend(patterns.known);
    let likely = known.next(NOW, &of(12), A, &shared(3)).unwrap();
    assert_eq!(
        (likely.site, likely.blocks),
        (C, 9),
        "its own conversation knows better"
    );
}

#[test]
fn the_oldest_are_forgotten_when_there_are_too_many() {
    let mut patterns = Patterns::default();
    for number in 0..3 * KNOWN as u64 {
        patterns.visited(Moment(number), PatternId(number), A);
        assert!(patterns.known.len() <= KNOWN);
    }
    assert!(patterns.known.len() > KNOWN * 3 / 4);
    assert!(patterns.known.contains_key(&PatternId(3 * KNOWN as u64 - 1)));
    assert!(!patterns.known.contains_key(&PatternId(0)));
}
