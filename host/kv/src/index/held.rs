//! What an instance holds by its own word: what is told to other sites. Predictions do not count.

use super::PrefixIndex;
use super::holder::GroupBits;
use super::sets::SetId;
use portolan_base::BlockHash;
use std::collections::HashMap;
use std::ops::Range;

impl PrefixIndex {
    /// Whether a block's attention KV is whole in one of the instance's ranks.
    pub fn holds(&self, instance: u32, block: BlockHash) -> bool {
        self.find(block)
            .is_some_and(|slot| self.is_holder(instance, self.slab.set(slot)))
    }

    /// Adds the blocks in some of the memory's pages that an instance holds to `held`; false beyond the last page.
    pub(super) fn held_in_pages(
        &self,
        pages: Range<usize>,
        instance: u32,
        held: &mut Vec<BlockHash>,
    ) -> bool {
        let mut verdicts: HashMap<SetId, bool> = HashMap::new();
        let more = pages.end < self.slab.pages();
        for (slot, set) in pages.flat_map(|page| self.slab.slots(page)) {
            let is_held = *verdicts
                .entry(set)
                .or_insert_with(|| self.is_holder(instance, set));
            held.extend(self.slab.hash(slot).filter(|_| is_held));
        }
        more
    }

    fn is_holder(&self, instance: u32, set: SetId) -> bool {
        let mut holders = self.sets.holders(set);
        while let Some(number) = holders.first().map(|holder| holder.place()) {
            let (groups, entries) = GroupBits::of_first(holders);
            holders = &holders[entries..];
            let place = self.places.live(number);
            if place.is_some_and(|place| place.instance == instance)
                && self.places.needs(number).attends(groups.said())
            {
                return true;
            }
        }
        false
    }
}
