//! One site's place in the control stream, and its lease.

use super::LeaseRules;
use portolan_base::{Moment, Scope, Sequence, SiteName, TenantName};
use portolan_ports::{Beat, Begun, ControlEntry, ControlEvent, Invalidated, Invalidation, StreamId};
use std::collections::{BTreeMap, VecDeque};

/// Orders of each tenant, and of those about everyone's, that are remembered for what is under way. A request is between two
/// stages for seconds; one that was so through more orders than these is taken to be outdated. However many one tenant gives,
/// another's requests are judged by their own.
const ORDERS_MAX: usize = 1024;

/// Beats that may be under way. More are asked only while the stream is out of reach.
const BEATS_MAX: usize = 64;

/// What an entry asks of the site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Nothing: it is not news, or another site's beat.
    Nothing,
    /// The site's own beat came back: what is cached may be used up to this moment.
    Renewed(Moment),
    /// To be applied, before the next entry is taken; then [`SiteValidity::applied`] is to be called.
    Apply(Invalidation),
    /// As [`Apply`](Self::Apply), and nobody knows what about: everything cached goes.
    ForgetAll,
}

/// The latest orders with their positions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Recent {
    orders: VecDeque<(Sequence, Option<Invalidated>)>,
    /// The last that is not remembered any more.
    dropped: Sequence,
}

impl Recent {
    fn note(&mut self, sequence: Sequence, order: Option<Invalidated>) {
        self.orders.push_back((sequence, order));
        if self.orders.len() > ORDERS_MAX
            && let Some((dropped, _)) = self.orders.pop_front()
        {
            self.dropped = dropped;
        }
    }

    /// Whether one since `since` is, or may be, such as `covers` says.
    fn any_since(&self, since: Sequence, covers: impl Fn(&Invalidated) -> bool) -> bool {
        let newest_first = self.orders.iter().rev();
        let mut later = newest_first.take_while(|(sequence, _)| *sequence > since);
        since < self.dropped || later.any(|(_, order)| order.as_ref().is_none_or(&covers))
    }
}

/// The tenant of whose KV alone an order is; none: anyone's may be meant.
fn whose(order: Option<&Invalidated>) -> Option<TenantName> {
    let scope = match order? {
        Invalidated::Model { .. } => None,
        Invalidated::Dependency { of, .. } | Invalidated::Prefix { of, .. } => of.as_ref(),
        Invalidated::Tenant { scope } => Some(scope),
    };
    tenant_of(scope?)
}

fn tenant_of(scope: &Scope) -> Option<TenantName> {
    match scope {
        Scope::Tenant(name) => Some(name.clone()),
        Scope::Public => None,
    }
}

/// One site's place in the control stream, and its lease. See [the module](super).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SiteValidity {
    site: SiteName,
    /// Which process of the site.
    incarnation: u64,
    rules: LeaseRules,
    stream: Option<StreamId>,
    applied: Sequence,
    /// An entry that was taken and is not applied yet.
    applying: Option<Sequence>,
    /// Beats under way with the moment they were asked at.
    asked: VecDeque<(u64, Moment)>,
    beats: u64,
    valid_until: Option<Moment>,
    /// The latest orders, by the tenant of whose KV alone they are.
    orders: BTreeMap<Option<TenantName>, Recent>,
    /// The position from which on orders were met.
    met_from: Sequence,
    /// How often following began anew.
    generation: u64,
}

impl SiteValidity {
    /// A site that has just started, and has applied the stream so far. Its lease begins with its first beat.
    pub fn new(
        (site, incarnation): (SiteName, u64),
        rules: LeaseRules,
        (stream, applied): (Option<StreamId>, Sequence),
    ) -> Self {
        Self {
            site,
            incarnation,
            rules,
            stream,
            applied,
            applying: None,
            asked: VecDeque::new(),
            beats: 0,
            valid_until: None,
            orders: BTreeMap::new(),
            met_from: applied,
            generation: 0,
        }
    }

    /// Asks how far the stream is: the beat that is to be appended. Time counts from here, not from the answer.
    pub fn ask(&mut self, now: Moment) -> Beat {
        self.beats += 1;
        self.asked.push_back((self.beats, now));
        if self.asked.len() > BEATS_MAX {
            self.asked.pop_front();
        }
        Beat {
            site: self.site.clone(),
            incarnation: self.incarnation,
            number: self.beats,
        }
    }

    /// Takes the next entry of the stream. Entries come in order; one that came before is nothing new.
    pub fn take(&mut self, entry: &ControlEntry) -> Taken {
        if entry.sequence <= self.applied || self.applying.is_some() {
            return Taken::Nothing;
        }
        match &entry.event {
            ControlEvent::Beat(beat) => {
                self.applied = entry.sequence;
                if beat.site == self.site && beat.incarnation == self.incarnation {
                    self.renewed(beat.number)
                } else {
                    Taken::Nothing
                }
            }
            ControlEvent::Invalidation(order) => {
                self.begin_applying(entry.sequence, Some(order.what.clone()));
                Taken::Apply(order.clone())
            }
            ControlEvent::Unknown => {
                self.begin_applying(entry.sequence, None);
                Taken::ForgetAll
            }
        }
    }

    /// The entry that was taken last is applied: nothing that it is about can be found, here or after a restart.
    pub fn applied(&mut self) {
        if let Some(sequence) = self.applying.take() {
            self.applied = sequence;
        }
    }

    /// The stream cannot be followed from here: everything cached was forgotten, and following begins anew on `stream`.
    pub fn begins_anew(&mut self, stream: Option<StreamId>) {
        self.stream = stream;
        self.applied = Sequence::NONE;
        self.met_from = Sequence::NONE;
        self.applying = None;
        self.asked.clear();
        self.valid_until = None;
        self.orders.clear();
        // Whatever is under way began at positions of another stream.
        self.generation += 1;
    }

    /// Whether what is cached, or fetched, may be used.
    pub fn is_valid(&self, now: Moment) -> bool {
        self.applying.is_none() && self.valid_until.is_some_and(|until| now < until)
    }

    /// Whether an entry was taken and is not applied yet.
    pub fn is_applying(&self) -> bool {
        self.applying.is_some()
    }

    /// Up to when, not including that moment.
    pub fn valid_until(&self) -> Option<Moment> {
        self.valid_until
    }

    /// Everything up to here is applied.
    pub fn applied_to(&self) -> Sequence {
        self.applied
    }

    /// The stream that is followed, once it is known.
    pub fn stream(&self) -> Option<&StreamId> {
        self.stream.as_ref()
    }

    /// Says which stream is followed.
    pub fn follows(&mut self, stream: StreamId) {
        self.stream = Some(stream);
    }

    /// Which process this is.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Where the site is: what begins at this moment begins there.
    pub fn begin(&self) -> Begun {
        Begun {
            generation: self.generation,
            applied: self.applied,
        }
    }

    /// Whether no order since `begun` is about what was begun then, which is `owner`'s. `covers` says whether an order is.
    pub fn still(&self, begun: Begun, owner: &Scope, covers: impl Fn(&Invalidated) -> bool) -> bool {
        let own = tenant_of(owner).and_then(|tenant| self.orders.get(&Some(tenant)));
        let mut recent = self.orders.get(&None).into_iter().chain(own);
        begun.generation == self.generation
            && begun.applied >= self.met_from
            && !recent.any(|recent| recent.any_since(begun.applied, &covers))
    }

    /// A question was answered.
    pub(super) fn renewed(&mut self, number: u64) -> Taken {
        let position = self.asked.iter().position(|(asked, _)| *asked == number);
        let Some((_, asked)) = position.and_then(|position| self.asked.drain(..=position).next_back()) else {
            return Taken::Nothing;
        };
        let until = asked + self.rules.lease;
        let until = self.valid_until.map_or(until, |before| before.max(until));
        self.valid_until = Some(until);
        Taken::Renewed(until)
    }

    fn begin_applying(&mut self, sequence: Sequence, order: Option<Invalidated>) {
        self.applying = Some(sequence);
        let recent = self.orders.entry(whose(order.as_ref())).or_default();
        recent.note(sequence, order);
    }
}
