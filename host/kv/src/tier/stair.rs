//! The tiers of one site, and the pools above them.

use super::log::Orders;
use super::worth::{Lying, Reading, worth_reading};
use super::{BlockTier, Epoch, Forgotten, Left};
use crate::block::PoolBlock;
use crate::pool::{Reuse, Selector};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use portolan_base::{BlockId, Bytes, Moment, Provenance, Scope};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A pool above the tiers: an instance's own.
pub trait Top: Send + Sync {
    /// Forgets blocks and those computed on top of them or of `others`, and tells its listeners; returns what went.
    fn invalidate(&self, what: &Selector, others: &[BlockId]) -> Vec<Left>;

    /// What [`invalidate`](Self::invalidate) would forget, with what each counts against the budget.
    fn would_forget(&self, what: &Selector, others: &[BlockId]) -> Vec<(BlockId, Bytes)>;

    /// Whether it holds a block, and with it all of the prompt before it.
    fn holds(&self, id: &BlockId) -> bool;

    /// Tells its listeners that these blocks lie in no tier any more, but for those it holds itself.
    fn left(&self, blocks: &[Left]);
}

/// The tiers of one site.
///
/// Blocks move between pools and tiers while orders to forget come. Whoever moves blocks that *are* in a pool or tier
/// does so while holding [`Tiers::open`]; an order waits for them, then goes through all pools and tiers at once. What
/// is in nobody's pool meanwhile (being computed, being read) is held against the orders since it began, when it
/// arrives. So no block outlives an order that is about it.
///
/// Nothing is given out after the moment up to which the site knows all orders ([`Tiers::trust_until`]): what lies here
/// may be what an order was about that has not come yet. Blocks may arrive all the same; the order, when it comes, finds
/// them.
///
/// Locks are taken in one order: this one, an instance's pool, then tiers from the top down.
#[derive(Default)]
pub struct Tiers {
    /// [`Moment`] up to which what lies here may be used, plus one so that the default is for ever: zero.
    trusted: AtomicU64,
    tiers: Vec<Arc<dyn BlockTier>>,
    tops: Mutex<Vec<Weak<dyn Top>>>,
    orders: RwLock<Orders>,
}

impl std::fmt::Debug for Tiers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.tiers.iter().map(|tier| tier.tier()))
            .finish()
    }
}

/// What lies below a pool of a prompt, from the first block that the pool lacks on.
#[derive(Debug, Default)]
pub struct Below {
    run: Vec<Found>,
}

/// One block that lies below.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    id: BlockId,
    place: usize,
    tier: usize,
    lying: Lying,
    reading: Reading,
}

impl Found {
    /// Which of the prompt's blocks it is, from 0.
    pub fn place(&self) -> usize {
        self.place
    }
}

impl Below {
    /// Keeps of it what is cheaper to read than to compute, at `compute` a block.
    #[must_use]
    pub fn worthwhile(mut self, compute: Duration, reuse: Reuse) -> Self {
        let run: Vec<_> = self
            .run
            .iter()
            .map(|found| (found.lying, found.reading))
            .collect();
        self.run.truncate(worth_reading(&run, compute, reuse));
        self
    }

    /// The blocks, in the order of the prompt.
    pub fn blocks(&self) -> &[Found] {
        &self.run
    }

    /// Whether reading it waits for something slower than memory.
    pub fn is_slow(&self) -> bool {
        self.run.iter().any(|found| found.reading != Reading::AT_ONCE)
    }
}

/// Leave to move blocks; orders wait for it.
pub struct Open<'t>(RwLockReadGuard<'t, Orders>);

impl Open<'_> {
    /// Whether a block that began its way at `epoch` may arrive. `beneath` are the blocks that it was computed on top of,
    /// from the prompt's first on: what goes by order takes with it what was computed on it, wherever that is.
    pub fn allows<K>(&self, block: &PoolBlock<K>, beneath: &[BlockId], epoch: Epoch) -> bool {
        self.0.allow(block, beneath, epoch)
    }

    /// Whether no order since `epoch` is, or may be, about KV of which only this is known.
    pub fn is_untouched(&self, about: &Provenance, epoch: Epoch) -> bool {
        self.0.spare(about, epoch)
    }
}

impl Tiers {
    /// Tiers from the fastest down.
    pub fn new(tiers: Vec<Arc<dyn BlockTier>>) -> Self {
        Self {
            tiers,
            ..Self::default()
        }
    }

    /// Takes a pool into account, for as long as it lives.
    pub fn attach(&self, top: Weak<dyn Top>) {
        let mut tops = self.tops.lock();
        tops.retain(|top| top.strong_count() > 0);
        tops.push(top);
    }

    /// The tiers, from the fastest down.
    pub fn each(&self) -> &[Arc<dyn BlockTier>] {
        &self.tiers
    }

    /// The position in the sequence of orders at which a block begins its way.
    pub fn epoch(&self) -> Epoch {
        self.orders.read().epoch()
    }

    /// What lies here may be used up to a moment, and not from it on. For ever where this was never called.
    pub fn trust_until(&self, moment: Moment) {
        self.trusted.store(moment.0.saturating_add(1), Ordering::Release);
    }

    /// Whether what lies here may be used.
    pub fn is_trusted(&self, now: Moment) -> bool {
        match self.trusted.load(Ordering::Acquire) {
            0 => true,
            until => now.0.saturating_add(1) < until,
        }
    }

    /// Lets blocks move until the answer is dropped.
    pub fn open(&self) -> Open<'_> {
        Open(self.orders.read())
    }

    /// Takes a block that a pool has no room for. Gives what no tier has any more, which the caller
    /// passes to [`Self::left`] once it holds no lock.
    pub fn demote(&self, block: Arc<PoolBlock>, _open: &Open<'_>, now: Moment) -> Vec<Left> {
        let (mut falling, mut gone) = (vec![block], Vec::new());
        for tier in &self.tiers {
            let mut further = Vec::new();
            for block in falling {
                let offered = tier.offer(Arc::clone(&block), now);
                gone.extend(offered.gone);
                further.extend(offered.displaced);
                if !offered.taken {
                    further.push(block);
                }
            }
            falling = further;
        }
        gone.extend(falling.iter().map(|block| Left::from(block.as_ref())));
        gone
    }

    /// Tells every pool that blocks lie in no tier any more.
    pub fn left(&self, blocks: &[Left]) {
        if !blocks.is_empty() {
            self.tops().iter().for_each(|top| top.left(blocks));
        }
    }

    /// What lies below, for `about` to use, of a prompt of which the first `held` blocks are held above; and counts what was
    /// asked for.
    pub fn below(&self, chain: &[BlockId], held: usize, about: &Provenance, now: Moment) -> Below {
        if !self.is_trusted(now) {
            return Below::default();
        }
        let readings: Vec<_> = self.tiers.iter().map(|tier| tier.reading()).collect();
        let mut run = Vec::new();
        let mut hits = vec![0; self.tiers.len()];
        for (position, id) in chain.iter().enumerate().skip(held) {
            let parent = position.checked_sub(1).map(|before| chain[before]);
            let mut tiers = self.tiers.iter().enumerate();
            let Some((tier, lying)) =
                tiers.find_map(|(at, tier)| Some((at, tier.holds(id, parent, &about.dependencies, now)?)))
            else {
                break;
            };
            hits[tier] += 1;
            run.push(Found {
                id: *id,
                place: position,
                tier,
                lying,
                reading: readings[tier],
            });
        }
        let mut asked = (chain.len() - held.min(chain.len())) as u64;
        for (tier, hits) in self.tiers.iter().zip(hits) {
            asked -= hits;
            tier.count(&about.scope, hits, asked);
        }
        Below { run }
    }

    /// One block that was found below.
    pub fn read(&self, found: &Found, now: Moment) -> Option<Arc<PoolBlock>> {
        if !self.is_trusted(now) {
            return None;
        }
        self.tiers.get(found.tier)?.read(&found.id, now)
    }

    /// Forgets blocks, and what was computed on top of them, for want of room: nothing is wrong with them, so what is on its
    /// way, or was begun on them, is as good as before.
    pub fn evict(&self, blocks: &HashSet<BlockId>) -> Forgotten {
        let moves_wait = self.orders.write();
        let mut pass = Pass::default();
        pass.all(self, &nothing(), blocks.iter().copied().collect());
        drop(moves_wait);
        self.left(&pass.left);
        pass.forgotten
    }

    /// Forgets blocks in all pools and tiers, and what was computed on top of them; returns how much went. None
    /// can be found when this returns, nor after a restart.
    pub fn invalidate(&self, what: &Selector) -> Forgotten {
        let mut orders = self.orders.write();
        orders.note(what.clone());
        let mut pass = Pass::default();
        pass.all(self, what, Vec::new());
        let orphans = self.orphans(what);
        if !orphans.is_empty() {
            pass.all(self, &nothing(), orphans.into_iter().collect());
        }
        drop(orders);
        self.left(&pass.left);
        pass.forgotten
    }

    /// What [`invalidate`](Self::invalidate) would forget. Waits for nothing and changes nothing.
    pub fn would_forget(&self, what: &Selector) -> Forgotten {
        let tops = self.tops();
        let places = |what: &Selector, above: &[BlockId]| -> Vec<(BlockId, Bytes)> {
            let in_tops = tops.iter().flat_map(|top| top.would_forget(what, above));
            let below = self.tiers.iter().flat_map(|tier| tier.would_forget(what, above));
            in_tops.chain(below).collect()
        };
        let mut all: HashSet<BlockId> = self.orphans(what);
        let mut new: Vec<BlockId> = places(what, &[]).into_iter().map(|(id, _)| id).collect();
        while !new.is_empty() {
            let above: Vec<BlockId> = new.into_iter().filter(|id| all.insert(*id)).collect();
            let on_top = match above.is_empty() {
                true => Vec::new(),
                false => places(&nothing(), &above),
            };
            new = on_top
                .into_iter()
                .map(|(id, _)| id)
                .filter(|id| !all.contains(id))
                .collect();
        }
        let mut forgotten = Forgotten::default();
        let copies = places(&Selector::Blocks(Arc::new(all)), &[]);
        copies.iter().for_each(|(_, size)| forgotten.add(*size));
        forgotten
    }

    /// Blocks in tiers that may have been computed on top of the one block that an order is about, for all that anybody
    /// here knows: something between the prompt's beginning and them lies nowhere any more. Until that is computed again
    /// they cannot be found, so that little is lost with those that were not. Goes through all tiers.
    fn orphans(&self, what: &Selector) -> HashSet<BlockId> {
        if !what.names_one_block() {
            return HashSet::new();
        }
        let mut cards: HashMap<BlockId, (Option<BlockId>, Scope)> = HashMap::new();
        for tier in &self.tiers {
            tier.each(&mut |card| {
                cards.insert(card.id, (card.parent, card.about.scope.clone()));
            });
        }
        let tops = self.tops();
        // Whatever a pool holds it holds from the prompt's beginning on.
        let is_above = |id: &BlockId| tops.iter().any(|top| top.holds(id));
        let mut rooted: HashMap<BlockId, bool> = HashMap::new();
        for id in cards.keys() {
            let mut way = Vec::new();
            let mut at = Some(*id);
            let is_rooted = loop {
                let Some(id) = at else { break true };
                if let Some(known) = rooted.get(&id) {
                    break *known;
                }
                match cards.get(&id) {
                    // A cycle cannot be made by hashing; one that was made otherwise has no beginning.
                    Some((parent, _)) if way.len() <= cards.len() => {
                        way.push(id);
                        at = *parent;
                    }
                    Some(_) => break false,
                    None => break is_above(&id),
                }
            };
            rooted.extend(way.into_iter().map(|id| (id, is_rooted)));
        }
        let is_orphan = |id: &BlockId| rooted.get(id) == Some(&false);
        cards
            .into_iter()
            .filter(|(id, (_, scope))| is_orphan(id) && what.may_lie_beneath(scope))
            .map(|(id, _)| id)
            .collect()
    }

    /// Forgets what nobody used for too long.
    pub fn expire(&self, now: Moment) {
        let gone: Vec<_> = self.tiers.iter().flat_map(|tier| tier.expire(now)).collect();
        self.left(&gone);
    }

    fn tops(&self) -> Vec<Arc<dyn Top>> {
        self.tops.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// Goes through pools and tiers, and counts what they forget.
#[derive(Default)]
struct Pass {
    forgotten: Forgotten,
    /// What tiers forgot.
    left: Vec<Left>,
}

impl Pass {
    /// Forgets blocks everywhere, and `above`, and what was computed on top of any: that may lie in any place, whichever one
    /// the block lay in.
    fn all(&mut self, tiers: &Tiers, what: &Selector, above: Vec<BlockId>) {
        let tops = tiers.tops();
        let mut gone = self.once(tiers, &tops, (what, above));
        while !gone.is_empty() {
            gone = self.once(tiers, &tops, (&nothing(), gone));
        }
    }

    /// Returns the names of what went.
    fn once(
        &mut self,
        tiers: &Tiers,
        tops: &[Arc<dyn Top>],
        (what, mut gone): (&Selector, Vec<BlockId>),
    ) -> Vec<BlockId> {
        let before = gone.len();
        for top in tops {
            let here = top.invalidate(what, &gone);
            self.count(&here, &mut gone);
        }
        for tier in &tiers.tiers {
            let here = tier.invalidate(what, &gone);
            self.count(&here, &mut gone);
            self.left.extend(here);
        }
        gone.split_off(before)
    }

    fn count(&mut self, here: &[Left], gone: &mut Vec<BlockId>) {
        here.iter().for_each(|block| self.forgotten.add(block.size));
        gone.extend(here.iter().map(|block| block.id));
    }
}

/// An order about no block.
fn nothing() -> Selector {
    Selector::Blocks(Arc::default())
}
