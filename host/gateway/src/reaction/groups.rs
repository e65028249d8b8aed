//! What is cached, in the groups that a policy sees: a scope's blocks of one model and version.

use super::Place;
use portolan_base::{BlockId, Dependency, ModelName, Moment, Scope};
use portolan_kv::tier::Card;
use portolan_policy::{GroupRow, NameTables};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Dependencies of an event that the `depends-bits` column can speak of.
const BITS: usize = 32;

/// What a group's blocks have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    scope: Scope,
    pub(super) model: ModelName,
    pub(super) version: u64,
}

#[derive(Debug, Default)]
struct Members {
    blocks: Vec<Member>,
    bytes: u64,
    hits: u64,
    rebuild_us: u64,
    depends: u32,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    id: BlockId,
    parent: Option<BlockId>,
    bytes: u64,
    used_at: Moment,
    idle_ms: u64,
}

/// The groups of a site. Numbered from 0 among those that a policy is shown.
pub(super) struct Groups<'a> {
    names: &'a NameTables,
    site: u32,
    changed: &'a [Dependency],
    /// The one pool or tier whose blocks they are; none: all of the site's.
    place: Option<Place>,
    groups: BTreeMap<Group, Members>,
}

impl<'a> Groups<'a> {
    /// None yet; `changed` are the dependencies that the event names.
    pub(super) fn new(names: &'a NameTables, site: u32, changed: &'a [Dependency]) -> Self {
        Self {
            names,
            site,
            changed,
            place: None,
            groups: BTreeMap::new(),
        }
    }

    /// The same, of one pool or tier.
    pub(super) fn in_place(self, place: Place) -> Self {
        Self {
            place: Some(place),
            ..self
        }
    }

    pub(super) fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// One more block; copies in several places count each.
    pub(super) fn add(&mut self, card: &Card, now: Moment) {
        let group = Group {
            scope: card.about.scope.clone(),
            model: card.about.model.clone(),
            version: card.about.model_version,
        };
        let outdated = |by: &Dependency| {
            let mut on = card.about.dependencies.iter();
            on.any(|d| d.contradicts(by))
        };
        let numbered = self.changed.iter().take(BITS).enumerate();
        let depends = numbered
            .filter(|(_, by)| outdated(by))
            .fold(0, |bits, (n, _)| bits | 1 << n);
        let members = self.groups.entry(group).or_default();
        members.bytes += card.size.0;
        members.hits += u64::from(card.reuses);
        members.rebuild_us += u64::try_from(card.rebuild.as_micros()).unwrap_or(u64::MAX);
        members.depends |= depends;
        members.blocks.push(Member {
            id: card.id,
            parent: card.parent,
            bytes: card.size.0,
            used_at: card.used_at,
            idle_ms: u64::try_from(now.since(card.used_at).as_millis()).unwrap_or(u64::MAX),
        });
    }

    /// The rows that a policy sees.
    pub(super) fn cells(&self, of: Option<&Scope>) -> Vec<u32> {
        let mut cells = Vec::new();
        for ((group, members), number) in self.shown(of).zip(0..) {
            let model = self
                .names
                .models
                .iter()
                .position(|name| name == group.model.as_str());
            let idle = members.blocks.iter().map(|block| block.idle_ms).min();
            let row = GroupRow {
                group: number,
                model: model.map_or(u32::MAX, |index| index as u32),
                version_lo: group.version as u32,
                version_hi: (group.version >> 32) as u32,
                site: self.site,
                blocks: clamped(members.blocks.len() as u64),
                mib: clamped(members.bytes >> 20),
                idle_ms: clamped(idle.unwrap_or_default()),
                hits: clamped(members.hits),
                rebuild_us: clamped(members.rebuild_us),
                depends_bits: members.depends,
            };
            cells.extend(row.to_cells());
        }
        cells
    }

    /// The blocks of the groups that are wanted.
    pub(super) fn blocks(&self, of: Option<&Scope>, wanted: impl Fn(&Group) -> bool) -> Vec<BlockId> {
        let groups = self.shown(of).filter(|(group, _)| wanted(group));
        groups.flat_map(|(_, members)| ids(members)).collect()
    }

    /// The blocks of the group of a number.
    pub(super) fn of_number(&self, of: Option<&Scope>, number: u32) -> Vec<BlockId> {
        let group = self.shown(of).nth(number as usize);
        group.into_iter().flat_map(|(_, members)| ids(members)).collect()
    }

    /// Blocks not used for so many milliseconds.
    pub(super) fn idle(&self, of: Option<&Scope>, ms: u64) -> Vec<BlockId> {
        let blocks = self.shown(of).flat_map(|(_, members)| &members.blocks);
        blocks
            .filter(|block| block.idle_ms > ms)
            .map(|block| block.id)
            .collect()
    }

    /// The blocks used longest ago, of at least so many bytes together. Of a prompt's blocks, which were used at the same
    /// time, the last goes first: what was computed on top of a block goes with it.
    pub(super) fn oldest(&self, of: Option<&Scope>, bytes: u64) -> Vec<BlockId> {
        let mut blocks: Vec<&Member> = self.shown(of).flat_map(|(_, members)| &members.blocks).collect();
        let depths = depths(&blocks);
        let depth = |block: &Member| depths.get(&block.id).copied().unwrap_or_default();
        blocks.sort_by_cached_key(|block| (block.used_at, Reverse(depth(block)), block.id));
        let mut freed = 0;
        let enough = |block: &&&Member| {
            let wanted = freed < bytes;
            freed += block.bytes;
            wanted
        };
        blocks.iter().take_while(enough).map(|block| block.id).collect()
    }

    /// How many bytes these blocks of a scope count, copies in several places each.
    pub(super) fn bytes(&self, of: Option<&Scope>, ids: &HashSet<BlockId>) -> u64 {
        let blocks = self.shown(of).flat_map(|(_, members)| &members.blocks);
        let named = blocks.filter(|block| ids.contains(&block.id));
        named.map(|block| block.bytes).sum()
    }

    pub(super) fn names(&self) -> &'a NameTables {
        self.names
    }

    fn shown<'g>(&'g self, of: Option<&'g Scope>) -> impl Iterator<Item = (&'g Group, &'g Members)> {
        let is_shown = move |group: &Group| of.is_none_or(|of| group.scope == *of);
        self.groups.iter().filter(move |(group, _)| is_shown(group))
    }
}

/// How many of these blocks lie beneath each.
fn depths(blocks: &[&Member]) -> HashMap<BlockId, u32> {
    let parents: HashMap<BlockId, Option<BlockId>> =
        blocks.iter().map(|block| (block.id, block.parent)).collect();
    let mut depths = HashMap::new();
    for block in blocks {
        let mut way = Vec::new();
        let mut at = Some(block.id);
        // A cycle cannot be made by hashing; one that was made otherwise ends here.
        while let Some(id) = at.filter(|id| parents.contains_key(id) && !depths.contains_key(id))
            && way.len() < parents.len()
        {
            way.push(id);
            at = parents.get(&id).copied().flatten();
        }
        let first = at.and_then(|id| depths.get(&id)).map_or(0, |below| below + 1);
        depths.extend(way.into_iter().rev().zip(first..));
    }
    depths
}

fn ids(members: &Members) -> impl Iterator<Item = BlockId> {
    members.blocks.iter().map(|block| block.id)
}

fn clamped(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
