//! Which site is asked next: of each pattern of requests it is remembered which sites were asked in turn, and what followed
//! upon what is the forecast. A mean over the last hundred requests of the pattern, which moves with them.

use crate::fleet::SiteIndex;
use portolan_base::{BlockHash, Moment, PatternId, PatternKind, Permille};
use std::collections::{HashMap, VecDeque};

/// Requests of a pattern that count.
pub const WINDOW: usize = 100;

/// Patterns that are known at once: some 20 MB with everything that is remembered of them.
const KNOWN: usize = 8192;

/// Blocks of a pattern's last prompt that are remembered: 16,000 tokens in blocks of 64.
const PROMPT_BLOCKS: usize = 256;

/// A pattern that a request is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// What its requests have in common.
    pub kind: PatternKind,
    /// Its name.
    pub id: PatternId,
}

/// The site that is likely to be asked next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Likely {
    /// Which.
    pub site: SiteIndex,
    /// The share of the pattern's steps from here that led there.
    pub share: Permille,
    /// What pattern says so.
    pub kind: PatternKind,
    /// Blocks of the prompt that the next one is likely to begin with.
    pub blocks: usize,
}

/// What is known of patterns.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    known: HashMap<PatternId, Steps>,
}

#[derive(Clone, Debug)]
struct Steps {
    /// The sites that were asked, the last one at the end.
    sites: VecDeque<SiteIndex>,
    /// Names of the blocks of the last prompt that was seen here.
    prompt: Vec<BlockHash>,
    last: Moment,
}

/// Steps from a site that a forecast needs. A conversation that moved twice from here to the same place is no chance; of
/// users and paths, whose requests are of many conversations, it takes more.
const fn steps_needed(kind: PatternKind) -> usize {
    match kind {
        PatternKind::Conversation => 2,
        PatternKind::User => 4,
        PatternKind::Path => 8,
    }
}

impl Patterns {
    /// A site was asked by a request of this pattern.
    pub fn visited(&mut self, now: Moment, pattern: PatternId, site: SiteIndex) {
        let steps = self.steps(now, pattern);
        steps.sites.push_back(site);
        if steps.sites.len() > WINDOW {
            steps.sites.pop_front();
        }
    }

    /// The site that was asked before: by the most specific of the patterns that is known.
    pub fn before(&self, patterns: &[Pattern]) -> Option<SiteIndex> {
        let known = |pattern: &Pattern| self.known.get(&pattern.id)?.sites.back().copied();
        in_order(patterns).iter().find_map(known)
    }

    /// Where the next request after one at `from` is likely to go, if that is another site: as the most specific pattern
    /// says that has seen enough. `blocks` are those of the prompt at hand, which is remembered.
    pub fn next(
        &mut self,
        now: Moment,
        patterns: &[Pattern],
        from: SiteIndex,
        blocks: &[BlockHash],
    ) -> Option<Likely> {
        let mut likely = None;
        for pattern in in_order(patterns) {
            let steps = self.steps(now, pattern.id);
            let shared = steps.shared(pattern.kind, blocks);
            if likely.is_none() {
                likely = steps
                    .from(from, steps_needed(pattern.kind))
                    .map(|(site, share)| Likely {
                        site,
                        share,
                        kind: pattern.kind,
                        blocks: shared,
                    });
            }
        }
        likely.filter(|likely| likely.site != from && likely.blocks > 0)
    }

    fn steps(&mut self, now: Moment, pattern: PatternId) -> &mut Steps {
        if self.known.len() >= KNOWN && !self.known.contains_key(&pattern) {
            self.forget_oldest();
        }
        let steps = self.known.entry(pattern).or_insert_with(|| Steps {
            sites: VecDeque::new(),
            prompt: Vec::new(),
            last: now,
        });
        steps.last = now;
        steps
    }

    /// Forgets an eighth at once, so that a flood of new patterns does not sort them all for each.
    fn forget_oldest(&mut self) {
        let mut last: Vec<(Moment, PatternId)> =
            self.known.iter().map(|(id, steps)| (steps.last, *id)).collect();
        let (oldest, _, _) = last.select_nth_unstable(KNOWN / 8);
        for (_, id) in oldest {
            self.known.remove(id);
        }
    }
}

impl Steps {
    /// Where most steps from a site led, and their share; none when too few are known.
    fn from(&self, site: SiteIndex, needed: usize) -> Option<(SiteIndex, Permille)> {
        let mut led: HashMap<SiteIndex, usize> = HashMap::new();
        for (_, to) in self
            .sites
            .iter()
            .zip(self.sites.iter().skip(1))
            .filter(|(from, _)| **from == site)
        {
            *led.entry(*to).or_default() += 1;
        }
        let all: usize = led.values().sum();
        let most = led
            .into_iter()
            .max_by_key(|(to, times)| (*times, std::cmp::Reverse(to.0)));
        let (to, times) = most.filter(|_| all >= needed)?;
        let share = u32::try_from(times * 1000 / all).unwrap_or(1000);
        Some((to, Permille(share)))
    }

    /// What the next prompt is likely to begin with: in a conversation all of this one, otherwise what it shares with the
    /// one before.
    fn shared(&mut self, kind: PatternKind, blocks: &[BlockHash]) -> usize {
        if kind == PatternKind::Conversation {
            return blocks.len();
        }
        let shared = self.prompt.iter().zip(blocks).take_while(|(a, b)| a == b).count();
        self.prompt.clear();
        self.prompt.extend(blocks.iter().take(PROMPT_BLOCKS));
        shared
    }
}

/// The most specific first.
fn in_order(patterns: &[Pattern]) -> Vec<Pattern> {
    let mut ordered = patterns.to_vec();
    ordered.sort_by_key(|pattern| pattern.kind);
    ordered
}

#[cfg(test)]
mod tests;
