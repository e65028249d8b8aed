//! Where blocks lie: consecutive blocks of a prompt side by side, in segments.
//!
//! A lookup reads along a segment instead of asking the hash table for each block. Segments come in sizes of a power
//! of two, all segments of a page in one size, so that a block's number alone says where its segment begins.

use super::sets::SetId;
use portolan_base::BlockHash;
use std::sync::atomic::{AtomicU32, Ordering};

/// The largest segment, as a power of two: 256 blocks are 4,096 tokens, one segment for most prompts.
pub(super) const LARGEST: u8 = 8;

/// Blocks in a page, as a power of two. A page is 12 KiB and some: small beside any budget.
const PAGE_BITS: u32 = 10;
const PAGE: usize = 1 << PAGE_BITS;

/// The number of a block's slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slot(pub(super) u32);

impl Slot {
    pub(super) fn page(self) -> usize {
        (self.0 >> PAGE_BITS) as usize
    }

    fn within(self) -> usize {
        self.0 as usize & (PAGE - 1)
    }
}

/// No slot at all.
const NOWHERE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Segment {
    /// Slots in use, from the first on. One whose set is empty is a gap: its hash is remembered, and not findable.
    len: u16,
    /// Of those, the ones that are no gaps; 0 says the segment is free.
    live: u16,
    /// When it was last of use.
    used: AtomicU32,
    /// The set of its first block, and how many from there on are known to have the same: they need no looking at.
    set: SetId,
    alike: u16,
    /// Where the prompt that was continued last goes on. A hint: who follows it compares hashes.
    next: u32,
    /// Blocks of the prompt before this segment, where that is known.
    depth: u32,
}

#[derive(Debug)]
struct Page {
    size: u8,
    taken: u16,
    hashes: Box<[BlockHash]>,
    sets: Box<[SetId]>,
    segments: Box<[Segment]>,
    /// The first segment that may be free: none before it is.
    free_from: u16,
}

impl Page {
    fn new(size: u8) -> Self {
        let free = || Segment {
            len: 0,
            live: 0,
            used: AtomicU32::new(0),
            set: SetId::EMPTY,
            alike: 0,
            next: NOWHERE,
            depth: 0,
        };
        Self {
            size,
            taken: 0,
            hashes: vec![BlockHash(0); PAGE].into(),
            sets: vec![SetId::EMPTY; PAGE].into(),
            segments: (0..PAGE >> size).map(|_| free()).collect(),
            free_from: 0,
        }
    }

    fn is_full(&self) -> bool {
        usize::from(self.taken) == self.segments.len()
    }
}

/// The rest of a segment, read from one of its blocks on.
pub(super) struct Run<'a> {
    pub(super) hashes: &'a [BlockHash],
    /// The set of the first `alike` of them.
    pub(super) set: SetId,
    pub(super) alike: usize,
    sets: &'a [SetId],
    pub(super) next: Option<Slot>,
    used: &'a AtomicU32,
}

impl Run<'_> {
    /// The sets of blocks `alike..to`.
    pub(super) fn differing(&self, to: usize) -> &[SetId] {
        self.sets.get(self.alike..to).unwrap_or(&[])
    }

    /// Notes that the segment is of use. Written only when it changes something, since readers share the line.
    pub(super) fn touch(&self, now: u32) {
        if self.used.load(Ordering::Relaxed) != now {
            self.used.store(now, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Slab {
    pages: Vec<Option<Page>>,
    vacant: Vec<u32>,
    /// Pages with a free segment, by size.
    open: [Vec<u32>; LARGEST as usize + 1],
    bytes: usize,
}

impl Slab {
    /// What a page of a size takes.
    pub(super) fn page_bytes(size: u8) -> usize {
        PAGE * (size_of::<BlockHash>() + size_of::<SetId>())
            + (PAGE >> size) * size_of::<Segment>()
            + size_of::<Option<Page>>()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }

    pub(super) fn hash(&self, slot: Slot) -> Option<BlockHash> {
        let page = self.pages.get(slot.page())?.as_ref()?;
        page.hashes.get(slot.within()).copied()
    }

    pub(super) fn set(&self, slot: Slot) -> SetId {
        let page = self.pages.get(slot.page()).and_then(Option::as_ref);
        page.map_or(SetId::EMPTY, |page| page.sets[slot.within()])
    }

    /// The blocks from `slot` to the end of its segment.
    pub(super) fn run(&self, slot: Slot) -> Option<Run<'_>> {
        let (page, segment, from) = self.locate(slot)?;
        let first = from & !((1 << page.size) - 1);
        let to = first + usize::from(segment.len);
        Some(Run {
            hashes: page.hashes.get(from..to)?,
            set: segment.set,
            alike: usize::from(segment.alike).saturating_sub(from - first),
            sets: page.sets.get(from..to)?,
            next: (segment.next != NOWHERE).then_some(Slot(segment.next)),
            used: &segment.used,
        })
    }

    /// Notes that a block's segment is of use.
    pub(super) fn touch(&self, slot: Slot, now: u32) {
        if let Some(run) = self.run(slot) {
            run.touch(now);
        }
    }

    /// The slot after `slot` in its segment, when it has that hash.
    pub(super) fn after(&self, slot: Slot, hash: BlockHash) -> Option<Slot> {
        let run = self.run(slot)?;
        (run.hashes.get(1) == Some(&hash)).then_some(Slot(slot.0 + 1))
    }

    /// A slot for `hash` after `slot` in the same segment, when that is its last block and there is room. The slot has
    /// no holders yet.
    pub(super) fn append(&mut self, slot: Slot, hash: BlockHash) -> Option<Slot> {
        let (page, at, offset) = self.locate_mut(slot)?;
        let segment = &mut page.segments[at];
        if offset + 1 != usize::from(segment.len) || offset + 1 == 1 << page.size {
            return None;
        }
        segment.len += 1;
        page.hashes[slot.within() + 1] = hash;
        Some(Slot(slot.0 + 1))
    }

    /// Whether a segment of this size is free.
    pub(super) fn has_free(&self, size: u8) -> bool {
        !self.open[usize::from(size)].is_empty()
    }

    /// A page of free segments.
    pub(super) fn add_page(&mut self, size: u8) {
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.pages.push(None);
            (self.pages.len() - 1) as u32
        });
        self.pages[number as usize] = Some(Page::new(size));
        self.open[usize::from(size)].push(number);
        self.bytes += Self::page_bytes(size);
    }

    /// Begins a segment with `hash`, which follows `before`; none when no segment of the size is free.
    pub(super) fn begin(&mut self, size: u8, hash: BlockHash, before: Option<Slot>) -> Option<Slot> {
        let depth = before
            .and_then(|slot| self.depth(slot))
            .map_or(0, |depth| depth + 1);
        let open = &mut self.open[usize::from(size)];
        let number = *open.last()?;
        let page = self.pages[number as usize].as_mut()?;
        let first = usize::from(page.free_from);
        let free = page.segments[first..]
            .iter()
            .position(|segment| segment.live == 0 && segment.len == 0)?;
        let at = first + free;
        page.segments[at] = Segment {
            len: 1,
            live: 0,
            used: AtomicU32::new(0),
            set: SetId::EMPTY,
            alike: 0,
            next: NOWHERE,
            depth,
        };
        page.free_from = (at + 1) as u16;
        page.taken += 1;
        if page.is_full() {
            open.pop();
        }
        page.hashes[at << size] = hash;
        let slot = Slot(number << PAGE_BITS | (at << size) as u32);
        if let Some(before) = before
            && let Some((page, at, _)) = self.locate_mut(before)
        {
            page.segments[at].next = slot.0;
        }
        Some(slot)
    }

    /// Changes the set of a slot, and returns what it was.
    pub(super) fn change(&mut self, slot: Slot, set: SetId) -> SetId {
        let Some((page, at, offset)) = self.locate_mut(slot) else {
            return SetId::EMPTY;
        };
        let was = std::mem::replace(&mut page.sets[slot.within()], set);
        let segment = &mut page.segments[at];
        match (was == SetId::EMPTY, set == SetId::EMPTY) {
            (true, false) => segment.live += 1,
            (false, true) => segment.live -= 1,
            _ => {}
        }
        if offset == 0 {
            segment.set = set;
            segment.alike = 1;
        } else if set != segment.set {
            segment.alike = segment.alike.min(offset as u16);
        } else if offset == usize::from(segment.alike) {
            segment.alike += 1;
        }
        was
    }

    /// Gives back what a segment does not need after a block of it lost its last holder: gaps at its end, or all.
    pub(super) fn trim(&mut self, slot: Slot) {
        let Some((page, at, _)) = self.locate_mut(slot) else {
            return;
        };
        let first = at << page.size;
        let segment = &mut page.segments[at];
        while segment.len > 0 && page.sets[first + usize::from(segment.len) - 1] == SetId::EMPTY {
            segment.len -= 1;
        }
        if segment.len > 0 {
            return;
        }
        let was_full = page.is_full();
        page.taken -= 1;
        page.free_from = page.free_from.min(at as u16);
        let (number, size, is_empty) = (slot.page() as u32, page.size, page.taken == 0);
        let open = &mut self.open[usize::from(size)];
        if is_empty {
            open.retain(|open| *open != number);
            self.pages[number as usize] = None;
            self.vacant.push(number);
            self.bytes -= Self::page_bytes(size);
        } else if was_full {
            open.push(number);
        }
    }

    /// The segments of a page that hold something: first slot, when last of use, depth.
    pub(super) fn segments(&self, page: usize) -> impl Iterator<Item = (Slot, u32, u32)> + '_ {
        let found = self.pages.get(page).and_then(Option::as_ref);
        let size = found.map_or(0, |page| page.size);
        let segments = found.map_or(&[][..], |page| &page.segments);
        segments
            .iter()
            .enumerate()
            .filter(|(_, segment)| segment.live > 0)
            .map(move |(at, segment)| {
                let slot = Slot((page << PAGE_BITS) as u32 | (at << size) as u32);
                (slot, segment.used.load(Ordering::Relaxed), segment.depth)
            })
    }

    /// One segment of a page, picked by `draw`; none where that place of the page is free.
    pub(super) fn pick(&self, page: usize, draw: usize) -> Option<(Slot, u32, u32)> {
        let found = self.pages.get(page)?.as_ref()?;
        let at = draw % found.segments.len();
        let segment = &found.segments[at];
        let slot = Slot((page << PAGE_BITS) as u32 | (at << found.size) as u32);
        (segment.live > 0).then(|| (slot, segment.used.load(Ordering::Relaxed), segment.depth))
    }

    /// The slots of a page that have holders, and their sets.
    pub(super) fn slots(&self, page: usize) -> impl Iterator<Item = (Slot, SetId)> + '_ {
        let sets = self
            .pages
            .get(page)
            .and_then(Option::as_ref)
            .map_or(&[][..], |page| &page.sets);
        let live = sets.iter().enumerate().filter(|(_, set)| **set != SetId::EMPTY);
        live.map(move |(at, set)| (Slot((page << PAGE_BITS) as u32 | at as u32), *set))
    }

    /// Whether a block is the last of its segment: what comes after it continues a prompt and is no branch.
    pub(super) fn is_last(&self, slot: Slot) -> bool {
        self.run(slot).is_some_and(|run| run.hashes.len() == 1)
    }

    pub(super) fn size_of(&self, slot: Slot) -> Option<u8> {
        self.locate(slot).map(|(page, ..)| page.size)
    }

    /// Blocks of the prompt before this one, as far as that is known.
    fn depth(&self, slot: Slot) -> Option<u32> {
        let (page, segment, within) = self.locate(slot)?;
        Some(segment.depth + (within & ((1 << page.size) - 1)) as u32)
    }

    fn locate(&self, slot: Slot) -> Option<(&Page, &Segment, usize)> {
        let page = self.pages.get(slot.page())?.as_ref()?;
        Some((page, &page.segments[slot.within() >> page.size], slot.within()))
    }

    /// The page, the number of the segment in it, and the offset in the segment.
    fn locate_mut(&mut self, slot: Slot) -> Option<(&mut Page, usize, usize)> {
        let page = self.pages.get_mut(slot.page())?.as_mut()?;
        let at = slot.within() >> page.size;
        let offset = slot.within() & ((1 << page.size) - 1);
        Some((page, at, offset))
    }
}
