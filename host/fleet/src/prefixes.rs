//! Who holds which prefix: exactly for the site's own instances, by summaries for the others'.
//!
//! | part | what it does |
//! |---|---|
//! | own index | takes the engines' own events; they end here |
//! | [`Teller`] | tells each receiving site what an own instance holds, under that site's key |
//! | readers | believe what other sites tell, while it may be believed |

mod owners;
mod teller;
#[cfg(test)]
mod tests;

pub use owners::Owner;
pub use teller::HEARTBEAT;

use crate::topology::Topology;
use parking_lot::{Mutex, RwLock};
use portolan_base::{BlockHash, Bytes, Moment, Provenance, SiteName};
use portolan_decide::SiteIndex;
use portolan_kv::summary::{Heard, KeyedChain, SummaryError, SummaryKey, SummaryMessage, SummaryReader};
use portolan_kv::{Holder, Lookup, Place, SharedIndex};
use portolan_ports::{BusMessage, KvEvent, PrefixSummary, SnapshotRequest};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use teller::Teller;

/// Memory the site's own index may use. 256 MiB is about eight million blocks, 130 million tokens of distinct prefix.
const INDEX_BUDGET: Bytes = Bytes(256 << 20);

/// How long a prediction is believed. A prompt of 32,000 tokens is computed in some five seconds, and its first blocks are
/// told of long before; what never came, since the request was cancelled or failed, misleads no longer than that.
pub const PREDICTED_FOR: Duration = Duration::from_secs(5);

/// Which other sites may be told whose blocks this one holds.
pub trait Disclosure: Send + Sync {
    /// Whether `receiver` may learn that this site holds blocks of `owner`.
    fn may_tell(&self, receiver: &SiteName, owner: &Owner) -> bool;

    /// Another number when the answers may have changed: what was told is then told anew.
    fn edition(&self) -> u64 {
        0
    }
}

impl<F: Fn(&SiteName, &Owner) -> bool + Send + Sync> Disclosure for F {
    fn may_tell(&self, receiver: &SiteName, owner: &Owner) -> bool {
        self(receiver, owner)
    }
}

/// How a site tells others what it holds.
#[derive(Clone)]
pub struct Telling {
    /// Known to the fleet's sites only: names on the bus are keyed with what is derived from it.
    pub secret: [u8; 32],
    /// Greater at each start of the site, and never drawn twice.
    pub incarnation: u64,
    /// Who may be told what.
    pub disclosure: Arc<dyn Disclosure>,
}

impl Telling {
    /// Tells every site that a link leads to of every block whose owner is known.
    pub fn everything(secret: [u8; 32], incarnation: u64) -> Self {
        Self {
            secret,
            incarnation,
            disclosure: Arc::new(|_: &SiteName, _: &Owner| true),
        }
    }
}

/// What became of another site's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is part of what is known, or came late and is not.
    Taken,
    /// Something before it was missed: this has to be asked.
    Ask(SnapshotRequest),
    /// The other site has another secret.
    OtherSecret,
    /// It is not of this format.
    Unreadable(SummaryError),
}

/// What one site knows of prefixes. Instances are numbered as the topology numbers them.
pub struct Prefixes {
    here: SiteName,
    incarnation: u64,
    key: SummaryKey,
    disclosure: Arc<dyn Disclosure>,
    /// The edition of the answers that the other sites were told under.
    edition: AtomicU64,
    index: SharedIndex,
    tellers: BTreeMap<u32, Mutex<Teller>>,
    readers: BTreeMap<u32, RwLock<SummaryReader>>,
    /// Ranks that an own instance was heard of with.
    ranks: Mutex<BTreeSet<Place>>,
}

impl Prefixes {
    /// Nothing known, nothing told. `instances` are all of the topology's, by number.
    pub fn new(topology: &Topology, here: SiteIndex, telling: &Telling) -> Self {
        let name = topology
            .sites()
            .get(here.0 as usize)
            .map(|site| site.name.clone());
        let name = name.expect("a chart is made for a site of its topology");
        let key = SummaryKey::derive(&telling.secret, name.as_str());
        let numbered = || (0u32..).zip(topology.instances());
        let receivers = receivers(topology, &name);
        let tellers = numbered()
            .filter(|(_, (site, _))| *site == here)
            .map(|(number, (_, spec))| {
                let teller = Teller::new((&name, &spec.name), &receivers, telling);
                (number, Mutex::new(teller))
            });
        let readers = numbered()
            .filter(|(_, (site, _))| *site != here)
            .map(|(number, _)| (number, RwLock::new(SummaryReader::new(key))));
        Self {
            key,
            index: SharedIndex::new(INDEX_BUDGET),
            tellers: tellers.collect(),
            readers: readers.collect(),
            ranks: Mutex::default(),
            edition: AtomicU64::new(telling.disclosure.edition()),
            disclosure: Arc::clone(&telling.disclosure),
            here: name,
            incarnation: telling.incarnation,
        }
    }

    /// Greater at each start of the site.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Takes what the cache of one of the site's own instances did.
    pub fn own_event(&self, instance: u32, event: &KvEvent) {
        let place = |rank| Place { instance, rank };
        match event {
            KvEvent::Stored {
                part,
                parent,
                blocks,
                about,
            } => {
                self.ranks.lock().insert(place(part.rank));
                self.index.stored(Holder::part(instance, *part), *parent, blocks);
                if let Some(teller) = self.tellers.get(&instance) {
                    teller.lock().stored(about.as_deref(), *parent, blocks);
                }
                self.note(instance, blocks);
            }
            KvEvent::Removed { part, blocks } => {
                self.index.removed(Holder::part(instance, *part), blocks);
                self.note(instance, blocks);
            }
            KvEvent::Cleared { rank } => {
                self.index.clear(place(*rank));
                self.retell(instance);
            }
        }
    }

    /// Takes an instance, of whichever site, to hold these blocks for a while: a prompt was sent there. `about` says
    /// whose they are, for engines that cannot tell, and for what an engine held before this site was started.
    pub fn predict(&self, instance: u32, chain: &[BlockHash], about: &Provenance, now: Moment) {
        self.index
            .predict(Place::of(instance), chain, now + PREDICTED_FOR);
        let (Some(first), Some(teller)) = (chain.first(), self.tellers.get(&instance)) else {
            return;
        };
        if !teller.lock().expect(*first, about) {
            return;
        }
        let (held, _) = self.index.by_holding(instance, chain);
        if !held.is_empty() {
            let mut teller = teller.lock();
            teller.stored(Some(about), None, &held);
            teller.note(&held, &[]);
        }
    }

    /// Events of one of the site's own instances were lost: what it holds is unknown until it is said again.
    pub fn lost_events(&self, instance: u32) {
        let ranks = self.ranks.lock().clone();
        for place in ranks.into_iter().filter(|place| place.instance == instance) {
            self.index.clear(place);
        }
        self.retell(instance);
    }

    /// What there is to tell the other sites at this moment. Called several times a [`HEARTBEAT`].
    pub fn to_tell(&self, now: Moment) -> Vec<BusMessage> {
        self.index.expire(now);
        let edition = self.disclosure.edition();
        if self.edition.swap(edition, Ordering::Relaxed) != edition {
            self.tellers.values().for_each(|teller| teller.lock().restart());
        }
        self.readers
            .values()
            .for_each(|reader| reader.write().expire(now));
        let messages = self.tellers.iter().flat_map(|(number, teller)| {
            let mut teller = teller.lock();
            teller.messages(now, || self.index.held_by(*number))
        });
        messages.map(BusMessage::Prefixes).collect()
    }

    /// Takes what another site told of its instance number `instance`.
    pub fn heard(&self, instance: u32, told: &PrefixSummary, now: Moment) -> Told {
        let Some(reader) = self.readers.get(&instance).filter(|_| told.to == self.here) else {
            return Told::Taken;
        };
        let message = match SummaryMessage::decode(&told.summary) {
            Ok(message) => message,
            Err(error) => return Told::Unreadable(error),
        };
        let (incarnation, sequence) = (message.incarnation, message.sequence);
        match reader.write().hear(message, now) {
            Heard::Applied | Heard::Ignored => Told::Taken,
            Heard::OtherKey => Told::OtherSecret,
            Heard::WantsSnapshot => Told::Ask(SnapshotRequest {
                by: self.here.clone(),
                of: told.from.clone(),
                instance: told.instance.clone(),
                incarnation,
                sequence,
            }),
        }
    }

    /// Another site missed something that this one told of its instance number `instance`.
    pub fn asked(&self, instance: u32, request: &SnapshotRequest) {
        if let Some(teller) = self.tellers.get(&instance) {
            teller.lock().asked(request);
        }
    }

    /// Blocks of `chain` that each instance holds from its beginning, by number: those that hold some.
    pub fn held(&self, chain: &[BlockHash], now: Moment) -> BTreeMap<u32, u32> {
        let mut held: BTreeMap<u32, u32> = BTreeMap::new();
        let mut lookup = Lookup::default();
        self.index.look_up(chain, &mut lookup);
        let mut chain = KeyedChain::new(self.key, chain);
        let own = lookup
            .matches()
            .iter()
            .map(|found| (found.place.instance, found.blocks));
        let others = self.readers.iter().map(|(number, reader)| {
            let blocks = reader.read().prefix_of(&mut chain, now);
            (*number, u32::try_from(blocks).unwrap_or(u32::MAX))
        });
        for (number, blocks) in own.chain(others).filter(|(_, blocks)| *blocks > 0) {
            let most = held.entry(number).or_insert(0);
            *most = blocks.max(*most);
        }
        held
    }

    /// Notes for the other sites which of these blocks an instance holds, after something happened to them.
    fn note(&self, instance: u32, blocks: &[BlockHash]) {
        if let Some(teller) = self.tellers.get(&instance) {
            let (held, gone) = self.index.by_holding(instance, blocks);
            teller.lock().note(&held, &gone);
        }
    }

    fn retell(&self, instance: u32) {
        if let Some(teller) = self.tellers.get(&instance) {
            teller.lock().restart();
        }
    }
}

/// The sites that can order KV from `here`: those that a link leads to. The others have no use for what it holds.
fn receivers(topology: &Topology, here: &SiteName) -> Vec<SiteName> {
    let links = topology.links().iter();
    let to: BTreeSet<&SiteName> = links
        .filter(|link| link.from == *here && link.to != *here)
        .map(|link| &link.to)
        .collect();
    to.into_iter().cloned().collect()
}
