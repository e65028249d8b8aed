//! Which prefixes a site is asked for, hottest first: what is worth moving when the site is emptied.
//!
//! Of the latest prompts it is remembered which blocks they have. A beginning that several of them share is hot by the number
//! of requests behind it; a whole prompt by when it was asked for last, since a conversation goes on where it ended. Tenants
//! take turns, so that none fills the time that there is.

use portolan_base::{BlockHash, Moment, TenantName};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// Prompts remembered of all tenants together: more are not moved within minutes.
const PROMPTS: usize = 256;

/// Blocks of all remembered prompts together: 32 prompts of 128,000 tokens in blocks of 64, whose tokens take 16 MiB.
const BLOCKS: usize = 64 << 10;

/// The latest prompts, each with what is needed to move it.
#[derive(Clone, Debug)]
pub struct HotPrompts<T> {
    /// The oldest first.
    prompts: VecDeque<Prompt<T>>,
    blocks: usize,
}

#[derive(Clone, Debug)]
struct Prompt<T> {
    tenant: TenantName,
    /// The name of each pool block, from the prompt's beginning. A name stands for everything up to its block.
    blocks: Vec<BlockHash>,
    asks: u32,
    last: Moment,
    what: T,
}

/// A prefix that is worth moving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hot<T> {
    /// Blocks from the prompt's beginning.
    pub blocks: usize,
    /// Requests that asked for it.
    pub asks: u32,
    /// What was remembered of one of their prompts.
    pub what: T,
}

impl<T> Default for HotPrompts<T> {
    fn default() -> Self {
        Self {
            prompts: VecDeque::new(),
            blocks: 0,
        }
    }
}

impl<T: Clone> HotPrompts<T> {
    /// A request asked for a prompt of these blocks. One that goes on where a remembered one ends takes its place.
    pub fn note(&mut self, now: Moment, tenant: &TenantName, blocks: Vec<BlockHash>, what: T) {
        if blocks.is_empty() || blocks.len() > BLOCKS {
            return;
        }
        let ends: HashSet<&BlockHash> = blocks.iter().collect();
        let goes_on = |prompt: &Prompt<T>| {
            let last = prompt.blocks.last();
            prompt.tenant == *tenant && last.is_some_and(|last| ends.contains(last))
        };
        let before = self.prompts.iter().position(goes_on);
        let asks = before.and_then(|at| self.drop_at(at)).unwrap_or(0);
        self.blocks += blocks.len();
        self.prompts.push_back(Prompt {
            tenant: tenant.clone(),
            blocks,
            asks: asks + 1,
            last: now,
            what,
        });
        while self.prompts.len() > PROMPTS || self.blocks > BLOCKS {
            let Some(at) = self.oldest_of_most() else { return };
            self.drop_at(at);
        }
    }

    /// Forgets prompts.
    pub fn forget(&mut self, which: impl Fn(&TenantName, &T) -> bool) {
        self.prompts.retain(|prompt| !which(&prompt.tenant, &prompt.what));
        self.blocks = self.prompts.iter().map(|prompt| prompt.blocks.len()).sum();
    }

    /// What is worth moving, in the order in which it is: of each tenant first the beginnings that several requests share,
    /// the most asked for first, then whole prompts, the latest first; tenants in turn.
    pub fn hottest(&self) -> Vec<Hot<T>> {
        let mut asks: HashMap<BlockHash, u32> = HashMap::new();
        for prompt in &self.prompts {
            for block in &prompt.blocks {
                *asks.entry(*block).or_default() += prompt.asks;
            }
        }
        let mut tenants: BTreeMap<&TenantName, VecDeque<Hot<T>>> = BTreeMap::new();
        let mut taken: HashSet<BlockHash> = HashSet::new();
        for (prompt, blocks, asked) in self.shared(&asks) {
            if prompt
                .blocks
                .get(blocks.wrapping_sub(1))
                .is_some_and(|last| taken.insert(*last))
            {
                tenants.entry(&prompt.tenant).or_default().push_back(Hot {
                    blocks,
                    asks: asked,
                    what: prompt.what.clone(),
                });
            }
        }
        for prompt in self.prompts.iter().rev() {
            let is_news = prompt.blocks.last().is_some_and(|last| taken.insert(*last));
            if is_news {
                tenants.entry(&prompt.tenant).or_default().push_back(Hot {
                    blocks: prompt.blocks.len(),
                    asks: prompt.asks,
                    what: prompt.what.clone(),
                });
            }
        }
        let mut hottest = Vec::new();
        while tenants.values().any(|left| !left.is_empty()) {
            hottest.extend(tenants.values_mut().filter_map(VecDeque::pop_front));
        }
        hottest
    }

    /// Of each prompt the beginning that another request shares, the most asked for first.
    fn shared(&self, asks: &HashMap<BlockHash, u32>) -> Vec<(&Prompt<T>, usize, u32)> {
        let of = |block: &BlockHash| asks.get(block).copied().unwrap_or(0);
        let mut shared: Vec<_> = self
            .prompts
            .iter()
            .filter_map(|prompt| {
                let common = |block: &&BlockHash| of(block) > prompt.asks;
                let blocks = prompt.blocks.iter().take_while(common).count();
                let last = prompt.blocks.get(blocks.checked_sub(1)?)?;
                Some((prompt, blocks, of(last)))
            })
            .collect();
        shared.sort_by_key(|(prompt, _, asked)| std::cmp::Reverse((*asked, prompt.last)));
        shared
    }

    /// The oldest prompt of the tenant that has the most blocks here.
    fn oldest_of_most(&self) -> Option<usize> {
        let mut held: BTreeMap<&TenantName, usize> = BTreeMap::new();
        for prompt in &self.prompts {
            *held.entry(&prompt.tenant).or_default() += prompt.blocks.len();
        }
        let (most, _) = held.into_iter().max_by_key(|(_, blocks)| *blocks)?;
        self.prompts.iter().position(|prompt| prompt.tenant == *most)
    }

    fn drop_at(&mut self, at: usize) -> Option<u32> {
        let dropped = self.prompts.remove(at)?;
        self.blocks -= dropped.blocks.len();
        Some(dropped.asks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantName {
        TenantName::new(name).unwrap()
    }

    fn blocks(of: &[u64]) -> Vec<BlockHash> {
        of.iter().copied().map(BlockHash).collect()
    }

    fn noted(prompts: &[(&str, &[u64], char)]) -> HotPrompts<char> {
        let mut hot = HotPrompts::default();
        for (at, (of, names, what)) in (0u64..).zip(prompts) {
            hot.note(Moment(at), &tenant(of), blocks(names), *what);
        }
        hot
    }

    fn told(hot: &HotPrompts<char>) -> Vec<(usize, u32, char)> {
        let hottest = hot.hottest().into_iter();
        hottest.map(|hot| (hot.blocks, hot.asks, hot.what)).collect()
    }

    #[test]
    fn what_many_share_goes_first_then_what_was_asked_last() {
        let hot = noted(&[
            ("a", &[1, 2, 10], 'x'),
            ("a", &[1, 2, 11], 'y'),
            ("a", &[1, 12], 'z'),
            ("a", &[50, 51], 'w'),
        ]);
        assert_eq!(
            told(&hot),
            [
                (1, 3, 'z'),
                (2, 2, 'y'),
                (2, 1, 'w'),
                (2, 1, 'z'),
                (3, 1, 'y'),
                (3, 1, 'x')
            ]
        );
    }

    #[test]
    fn a_conversation_is_its_latest_prompt_and_counts_all_its_requests() {
        let hot = noted(&[
            ("a", &[1], 'x'),
            ("b", &[1], 'o'),
            ("a", &[1, 2, 3], 'y'),
            ("a", &[1, 2, 3], 'z'),
        ]);
        let own: Vec<_> = told(&hot).into_iter().filter(|(.., what)| *what != 'o').collect();
        assert!(own.contains(&(3, 3, 'z')), "{own:?}");
        assert!(own.iter().all(|(.., what)| *what == 'z'), "{own:?}");
    }

    #[test]
    fn tenants_take_turns() {
        let hot = noted(&[
            ("a", &[1], 'p'),
            ("a", &[2], 'q'),
            ("a", &[3], 'r'),
            ("b", &[9], 's'),
        ]);
        let order: Vec<char> = told(&hot).into_iter().map(|(.., what)| what).collect();
        assert_eq!(order, ['r', 's', 'q', 'p']);
    }

    #[test]
    fn whoever_has_most_makes_room() {
        let mut hot = HotPrompts::default();
        hot.note(Moment(0), &tenant("b"), blocks(&[u64::MAX]), 0);
        for n in 0..2 * PROMPTS as u64 {
            hot.note(Moment(n), &tenant("a"), blocks(&[n]), n);
        }
        let left = hot.hottest();
        assert_eq!(left.len(), PROMPTS);
        assert_eq!((left[0].what, left[1].what), (511, 0), "b's is there still");
        hot.note(Moment(999), &tenant("c"), vec![BlockHash(7); BLOCKS + 1], 1);
        assert_eq!(hot.prompts.len(), PROMPTS, "what is too long is left out");
        hot.forget(|of, _| *of == tenant("a"));
        assert_eq!((hot.hottest().len(), hot.blocks), (1, 1));
    }
}
