//! Which instances of a large fleet make candidate routes: the best few of each site, each of them once before any of
//! them twice.

use crate::fleet::InstanceIndex;

/// Most routes kept of one (prefill site, decode site) pair, so that a large pool cannot crowd out every other.
pub(super) const MAX_ROUTES_PER_PAIR: usize = 8;

/// The cheapest instances met so far, cheapest first, equals by index.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Best {
    kept: [(u64, u32); MAX_ROUTES_PER_PAIR],
    len: usize,
}

impl Best {
    /// Offers an instance. Instances come in the order of their index.
    pub(super) fn offer(&mut self, cost: u64, index: InstanceIndex) {
        let end = self.len.min(MAX_ROUTES_PER_PAIR - 1);
        if self.len == MAX_ROUTES_PER_PAIR && self.kept[end].0 <= cost {
            return;
        }
        let place = self.kept[..end].iter().position(|(other, _)| *other > cost);
        let place = match place {
            Some(place) => place,
            None if self.len > end && self.kept[end].0 <= cost => return,
            None => end,
        };
        self.kept.copy_within(place..end, place + 1);
        self.kept[place] = (cost, index.0);
        self.len = (self.len + 1).min(MAX_ROUTES_PER_PAIR);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The instance at a place.
    pub(super) fn at(&self, place: usize) -> InstanceIndex {
        InstanceIndex(self.kept[place].1)
    }
}

/// Pairs of a prefilling and a decoding instance, at most [`MAX_ROUTES_PER_PAIR`]: each of the prefilling ones with a
/// decoding one of its own rank, then with the next, and so on. A policy that cares for one prefilling instance, since
/// that holds the prefix, finds it, and no pair of instances whose failure would take all routes along stands alone.
pub(super) fn pairs(
    prefill: &Best,
    decode: &Best,
) -> impl Iterator<Item = (InstanceIndex, InstanceIndex)> + use<> {
    let (prefill, decode) = (*prefill, *decode);
    let all = (0..decode.len()).flat_map(move |round| {
        (0..prefill.len()).map(move |rank| (prefill.at(rank), decode.at((rank + round) % decode.len())))
    });
    all.take(MAX_ROUTES_PER_PAIR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn best(costs: &[u64]) -> Best {
        let mut best = Best::default();
        (0..)
            .zip(costs)
            .for_each(|(i, cost)| best.offer(*cost, InstanceIndex(i)));
        best
    }

    proptest! {
        #[test]
        fn the_cheapest_are_kept_in_order(costs in prop::collection::vec(0u64..20, 0..40)) {
            let mut sorted: Vec<_> = costs.iter().copied().zip(0u32..).collect();
            sorted.sort_unstable();
            sorted.truncate(MAX_ROUTES_PER_PAIR);
            let best = best(&costs);
            let kept: Vec<_> = (0..best.len()).map(|i| best.at(i).0).collect();
            prop_assert_eq!(kept, sorted.into_iter().map(|(_, i)| i).collect::<Vec<_>>());
        }

        #[test]
        fn pairs_are_different_and_every_good_instance_is_in_one(p in 0usize..12, d in 0usize..12) {
            let (prefill, decode) = (best(&vec![1; p]), best(&vec![1; d]));
            let made: Vec<_> = pairs(&prefill, &decode).collect();
            prop_assert_eq!(made.len(), (prefill.len() * decode.len()).min(MAX_ROUTES_PER_PAIR));
            let different: std::collections::HashSet<_> = made.iter().collect();
            prop_assert_eq!(different.len(), made.len());
            if d > 0 {
                let prefills: std::collections::HashSet<_> = made.iter().map(|pair| pair.0).collect();
                prop_assert_eq!(prefills.len(), prefill.len());
            }
        }
    }
}
