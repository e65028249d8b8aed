//! Who can hold a block: an instance's rank, in one of its cache groups, in one of its tiers.

use portolan_base::{CachePart, Group, GroupKind, Tier};
use std::collections::HashMap;

/// Cache groups of one place that the index tells apart; more than any hybrid model has.
pub const MAX_GROUPS: u8 = 14;

/// Places the index can know at once: 26 bits of a [`HolderId`].
const MAX_PLACES: usize = 1 << 26;

/// One cache: an instance, and the rank within it (data-parallel ranks keep separate caches).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The fleet's index of the instance.
    pub instance: u32,
    /// Its data-parallel rank; 0 where there is one.
    pub rank: u16,
}

impl Place {
    /// An instance with one rank.
    pub fn of(instance: u32) -> Self {
        Self { instance, rank: 0 }
    }
}

/// A holder of blocks. Counts are kept for each of these apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder {
    /// Whose cache.
    pub place: Place,
    /// Which of its groups.
    pub group: Group,
    /// In which tier.
    pub tier: Tier,
}

impl Holder {
    /// The engine memory of an instance with one rank and full attention alone.
    pub fn instance(instance: u32) -> Self {
        Self::part(instance, CachePart::DEVICE)
    }

    /// A part of an instance's cache.
    pub fn part(instance: u32, part: CachePart) -> Self {
        Self {
            place: Place {
                instance,
                rank: part.rank,
            },
            group: part.group,
            tier: part.tier,
        }
    }
}

/// What a prediction says of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Predicted {
    /// Its attention KV will be there.
    Attention,
    /// Everything will be: the prompt ends here, so that states are kept too.
    Whole,
}

/// A holder in 32 bits: the place's number, then four bits of group, then two of tier. Sorted, the holders of one
/// place are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct HolderId(u32);

/// The tier bits of a prediction, which says nothing of tiers.
const PREDICTED: u32 = 3;

impl HolderId {
    fn new(place: u32, group: u8, tier: u32) -> Self {
        Self(place << 6 | u32::from(group) << 2 | tier)
    }

    pub(super) fn predicted(place: u32, what: Predicted) -> Self {
        Self::new(place, u8::from(what == Predicted::Whole), PREDICTED)
    }

    pub(super) fn place(self) -> u32 {
        self.0 >> 6
    }

    /// The groups it stands for, as bits.
    pub(super) fn groups(self) -> GroupBits {
        let group = self.0 >> 2 & 15;
        match (self.0 & 3 == PREDICTED, group) {
            (true, 0) => GroupBits::PREDICTED_ATTENTION,
            (true, _) => GroupBits::PREDICTED_ATTENTION | GroupBits::PREDICTED_STATES,
            (false, group) => GroupBits(1 << group),
        }
    }
}

/// A set of groups: one bit each, and two more for what is only predicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupBits(u16);

impl GroupBits {
    const PREDICTED_ATTENTION: Self = Self(1 << MAX_GROUPS);
    const PREDICTED_STATES: Self = Self(1 << (MAX_GROUPS + 1));

    /// The groups in which the place of the first of `holders` has the block, and the number of its entries.
    pub(super) fn of_first(holders: &[HolderId]) -> (Self, usize) {
        let place = holders.first().map(|holder| holder.place());
        let own = holders.iter().take_while(|holder| Some(holder.place()) == place);
        own.fold((Self::default(), 0), |(bits, n), holder| {
            (bits | holder.groups(), n + 1)
        })
    }

    /// Without what is only predicted.
    pub(super) fn said(self) -> Self {
        Self(self.0 & (Self::PREDICTED_ATTENTION.0 - 1))
    }

    fn has(self, all: Self) -> bool {
        self.0 & all.0 == all.0
    }
}

impl std::ops::BitOr for GroupBits {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The places known, by number.
#[derive(Debug, Default)]
pub(super) struct Places {
    numbers: HashMap<Place, u32>,
    known: Vec<Known>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Known {
    place: Place,
    needs: Needs,
    retired: bool,
}

/// The groups of a place's model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needs {
    attention: GroupBits,
    states: GroupBits,
}

impl Needs {
    /// Whether the attention KV of a block is all there.
    pub(super) fn attends(self, groups: GroupBits) -> bool {
        groups.has(GroupBits::PREDICTED_ATTENTION)
            || self.attention != GroupBits::default() && groups.has(self.attention)
    }

    /// Whether every recurrent state that the model needs is kept at a block.
    pub(super) fn has_states(self, groups: GroupBits) -> bool {
        groups.has(GroupBits::PREDICTED_STATES) || groups.has(self.states)
    }

    /// Whether the model has recurrent state at all.
    pub(super) fn is_hybrid(self) -> bool {
        self.states != GroupBits::default()
    }
}

impl Places {
    /// The number of a place, given one if it has none.
    pub(super) fn enter(&mut self, place: Place) -> Option<u32> {
        if let Some(number) = self.numbers.get(&place) {
            return Some(*number);
        }
        let known = Known {
            place,
            needs: Needs::default(),
            retired: false,
        };
        let number = if let Some(free) = self.free.pop() {
            self.known[free as usize] = known;
            free
        } else {
            let number = u32::try_from(self.known.len()).ok()?;
            if self.known.len() >= MAX_PLACES {
                return None;
            }
            self.known.push(known);
            number
        };
        self.numbers.insert(place, number);
        Some(number)
    }

    /// The id of a holder that may be new; none for a group beyond [`MAX_GROUPS`].
    pub(super) fn holder(&mut self, holder: Holder) -> Option<HolderId> {
        let number = holder.group.number;
        if number >= MAX_GROUPS {
            return None;
        }
        let place = self.enter(holder.place)?;
        let needs = &mut self.known[place as usize].needs;
        let bit = GroupBits(1 << number);
        match holder.group.kind {
            GroupKind::Attention => needs.attention = needs.attention | bit,
            GroupKind::State => needs.states = needs.states | bit,
        }
        Some(HolderId::new(place, number, holder.tier as u32))
    }

    /// The id of a holder already known.
    pub(super) fn known_holder(&self, holder: Holder) -> Option<HolderId> {
        let place = self.numbers.get(&holder.place)?;
        let fits = holder.group.number < MAX_GROUPS;
        fits.then(|| HolderId::new(*place, holder.group.number, holder.tier as u32))
    }

    pub(super) fn number(&self, place: Place) -> Option<u32> {
        self.numbers.get(&place).copied()
    }

    /// The place with a number, unless it was retired.
    pub(super) fn live(&self, number: u32) -> Option<Place> {
        self.known
            .get(number as usize)
            .filter(|known| !known.retired)
            .map(|known| known.place)
    }

    /// What a block must have to be of use at a place.
    pub(super) fn needs(&self, number: u32) -> Needs {
        let known = self.known.get(number as usize);
        known.map_or(Needs::default(), |known| known.needs)
    }

    /// The number means nothing from here on; what carries it is swept later. False when it was not known.
    pub(super) fn retire(&mut self, place: Place) -> Option<u32> {
        let number = self.numbers.remove(&place)?;
        self.known[number as usize].retired = true;
        Some(number)
    }

    /// A retired number that nothing carries can be given again.
    pub(super) fn recycle(&mut self, number: u32) {
        self.free.push(number);
    }

    pub(super) fn bytes(&self) -> usize {
        self.known.capacity() * size_of::<Known>()
            + self.free.capacity() * 4
            + self.numbers.capacity() * (size_of::<(Place, u32)>() + 1)
    }
}
