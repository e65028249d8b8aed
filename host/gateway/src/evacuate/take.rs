//! Hands one prefix over: to the site that may keep it and lacks least of it, and to the next one when that fails.

use super::progress::{End, Outcome};
use super::{Run, Served};
use crate::copy::blames_link;
use crate::receive::{Arrival, receive_within};
use crate::site::Site;
use crate::stage::ask_policies;
use portolan_base::kv::{KvLayout, KvSize};
use portolan_base::{BlockHash, Bytes, SiteName, Tokens};
use portolan_decide::ask::Asker;
use portolan_decide::{FleetView, Hot, InstanceIndex, InstanceView, Placements, SiteIndex};
use portolan_policy::{Placement, Purpose, Subject};
use portolan_ports::{InstanceOutcome, KvOrder, OrderPurpose, Retention};
use std::sync::Arc;
use std::time::Duration;

/// Sites that are asked to take one prefix, at most.
const TAKERS: usize = 3;

/// How soon a link that was past its congestion mark is looked at again.
const AGAIN: Duration = Duration::from_millis(250);

/// An instance that could take over.
struct Taker {
    index: InstanceIndex,
    site: SiteIndex,
    name: portolan_base::InstanceName,
    peer: SiteName,
    /// Tokens of the prefix that it is thought to hold.
    holds: u32,
}

/// A prefix as it lies here.
struct Prefix<'a> {
    site: &'a Site,
    served: &'a Served,
    layout: &'a Arc<KvLayout>,
    tokens: Arc<[u32]>,
    /// Of it, tokens that each instance is thought to hold, by index.
    held: Vec<u32>,
}

/// Moves a prefix; says what came of it.
pub(super) async fn hand_over(site: &Site, run: &Run, hot: &Hot<Served>) -> Outcome {
    let Some(prefix) = Prefix::of(site, hot) else {
        return Outcome::without_bytes(End::Gone);
    };
    let may_keep = prefix.may_keep(&site.parts.fleet.view());
    if !(0u32..)
        .map(SiteIndex)
        .zip(&may_keep)
        .any(|(at, may)| *may && at != site.parts.index)
    {
        return Outcome::not_moved("the residency answer lets it stay at no other site");
    }
    let mut failed: Vec<SiteIndex> = Vec::new();
    let (mut why, mut tokens, mut bytes) = (None, 0, 0);
    while failed.len() < TAKERS {
        let now = site.parts.clock.now();
        if now >= run.bounds.until {
            why.get_or_insert_with(|| "the time was over".to_owned());
            break;
        }
        let view = site.parts.fleet.view();
        let taker = match prefix.taker(&view, &may_keep, &failed) {
            Ok(taker) => taker,
            Err(Nobody::Busy) => {
                why.get_or_insert_with(|| {
                    "the links to who could take it were past their congestion mark".to_owned()
                });
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            Err(Nobody::There) => {
                let none =
                    "no other site that may keep it has an instance ready for it, over a link that is up";
                why.get_or_insert_with(|| none.to_owned());
                break;
            }
        };
        let lacking = prefix.lacking(&taker);
        if lacking == 0 {
            return Outcome::without_bytes(End::ThereAlready);
        }
        let size = prefix.size(lacking);
        if !run.progress.lock().reserve(size, run.bounds.most) {
            why = Some(format!(
                "its {} MiB are more than was left of the bound",
                (size.0 >> 20).max(1)
            ));
            break;
        }
        let outcome = prefix.order(&taker, run.bounds.until.since(now)).await;
        run.progress.lock().release(size);
        match outcome {
            Ok(taken) => {
                (tokens, bytes) = (tokens + taken.tokens, bytes + taken.bytes);
                if taken.whole {
                    let end = match taken.tokens {
                        0 => End::ThereAlready,
                        _ => End::Moved,
                    };
                    return Outcome { end, tokens, bytes };
                }
                why = taken.why;
            }
            Err(error) => why = Some(format!("{}: {error}", taker.peer)),
        }
        failed.push(taker.site);
    }
    let why = why.unwrap_or_else(|| format!("{TAKERS} sites did not take it"));
    Outcome {
        end: End::NotMoved(why),
        tokens,
        bytes,
    }
}

/// Why nobody takes it.
enum Nobody {
    /// Nobody could.
    There,
    /// Who could is behind a link that is past its congestion mark.
    Busy,
}

/// What another site took.
struct Taken {
    whole: bool,
    tokens: u64,
    bytes: u64,
    why: Option<String>,
}

impl<'a> Prefix<'a> {
    /// None: nothing of it is held here any more, or its model is not served.
    fn of(site: &'a Site, hot: &'a Hot<Served>) -> Option<Self> {
        let served = &hot.what;
        let order = &served.order;
        let layout = &site.parts.models.get(&order.model)?.description.layout;
        let block = layout.block_tokens.max(1);
        let most = order.tokens.get(..hot.blocks * block as usize)?;
        let version = site.model_version(layout);
        let key = site.cache_key(&order.tenant, (layout, version), most);
        let held = site.parts.fleet.held(&order.model, &BlockHash::chain(&key, most));
        let view = site.parts.fleet.view();
        let here = view
            .indexed()
            .filter(|(_, instance)| instance.site == site.parts.index && instance.serving.is_pieces())
            .map(|(index, _)| held.get(index.0 as usize).copied().unwrap_or(0));
        let here = here.max().unwrap_or(0) / block * block;
        let tokens: Arc<[u32]> = most.get(..here as usize)?.into();
        (here > 0).then_some(Self {
            site,
            served,
            layout,
            tokens,
            held,
        })
    }

    /// At which sites its KV may stay, by index: as the request's own answer said, and as the policies in force say of a
    /// copy.
    fn may_keep(&self, view: &FleetView) -> Vec<bool> {
        let (parts, order) = (&self.site.parts, &self.served.order);
        let policies = parts.desk.table().for_tenant(&order.tenant, order.draw);
        let mut asker = Asker::new(parts.clock.as_ref(), &self.served.labels, order.request.as_str());
        let subject = Subject {
            purpose: Purpose::Replicate,
            from_site: Some(parts.index.0),
            ..self.served.subject
        };
        let place = (view, parts.index);
        let answer = ask_policies(&policies, || {
            Placements::ask(&policies, subject, &[], place, &mut asker)
        });
        let may_leave = answer.allows(parts.index);
        let sites = (0u32..).map(SiteIndex).zip(&view.sites);
        sites
            .map(|(at, _)| {
                may_leave && answer.of(at) == Placement::Resident && self.served.placements.allows(at)
            })
            .collect()
    }

    /// The instance elsewhere that lacks least of it, and of those the one with most room.
    fn taker(&self, view: &FleetView, may_keep: &[bool], failed: &[SiteIndex]) -> Result<Taker, Nobody> {
        let here = self.site.parts.index;
        let names = self.site.parts.fleet.names();
        let model = names
            .models
            .iter()
            .position(|name| *name == self.served.order.model.as_str());
        let could = |instance: &InstanceView| {
            let may = may_keep.get(instance.site.0 as usize).copied().unwrap_or(false);
            let fits = Some(instance.model as usize) == model
                && instance.serving.is_pieces()
                && instance.role.prefills()
                && instance.standing.is_ready();
            // The order goes over the one, the KV over the other.
            let ways = [(instance.site, here), (here, instance.site)];
            let up = ways
                .iter()
                .all(|(from, to)| view.link(*from, *to).is_some_and(|link| link.up));
            may && fits && up && instance.site != here && !failed.contains(&instance.site)
        };
        let is_free = |instance: &InstanceView| {
            let link = view.link(here, instance.site);
            link.is_some_and(|link| link.busy < view.congestion_mark || view.congestion_mark.0 == 0)
        };
        let (free, busy): (Vec<_>, Vec<_>) = view
            .indexed()
            .filter(|(_, instance)| could(instance))
            .partition(|(_, instance)| is_free(instance));
        let holds = |index: InstanceIndex| self.held.get(index.0 as usize).copied().unwrap_or(0);
        let best = free
            .into_iter()
            .max_by_key(|(index, instance)| (holds(*index), std::cmp::Reverse((instance.kv_used, *index))));
        let Some((index, instance)) = best else {
            return Err(if busy.is_empty() {
                Nobody::There
            } else {
                Nobody::Busy
            });
        };
        let peer = view.site(instance.site).ok_or(Nobody::There)?;
        Ok(Taker {
            index,
            site: instance.site,
            name: instance.name.clone(),
            peer: peer.name.clone(),
            holds: holds(index),
        })
    }

    /// Tokens that a taker is thought to lack.
    fn lacking(&self, taker: &Taker) -> u32 {
        let block = self.layout.block_tokens.max(1);
        (self.tokens.len() as u32).saturating_sub(taker.holds / block * block)
    }

    fn size(&self, tokens: u32) -> Bytes {
        let kv = KvSize::from(self.layout.as_ref());
        kv.at(Tokens(tokens))
    }

    /// Has the taker take it, within a time.
    async fn order(&self, taker: &Taker, within: Duration) -> Result<Taken, portolan_ports::TransferError> {
        let parts = &self.site.parts;
        let length = self.tokens.len() as u32;
        let order = KvOrder {
            instance: taker.name.clone(),
            tokens: Arc::clone(&self.tokens),
            // Nothing comes back.
            held: length,
            retention: Retention::Keep,
            fetch_from: Arc::default(),
            as_of: parts.validity.place(),
            purpose: OrderPurpose::HandOver,
            ..KvOrder::clone(&self.served.order)
        };
        let (transport, clock) = (parts.transport.as_ref(), parts.clock.as_ref());
        let arrived = receive_within(within, transport, &taker.peer, order, self.layout, clock).await;
        match arrived {
            Ok(Arrival { report, .. }) => {
                let fetches = &report.prefill.fetches;
                let failed = fetches.iter().find_map(|fetch| fetch.failed.clone());
                let here = report.prefill.cached;
                Ok(Taken {
                    whole: here >= length,
                    tokens: fetches.iter().map(|fetch| u64::from(fetch.tokens)).sum(),
                    bytes: fetches.iter().map(|fetch| fetch.bytes).sum(),
                    why: (here < length).then(|| {
                        let why = failed.unwrap_or_else(|| "it has no room for more".to_owned());
                        format!("{} has {here} of {length} tokens: {why}", taker.peer)
                    }),
                })
            }
            Err(broken) => {
                if blames_link(&broken.error) {
                    parts.fleet.link_outcome(taker.site, InstanceOutcome::Failed);
                }
                tracing::warn!(site = %parts.name, to = %taker.peer, instance = taker.index.0, error = %broken.error,
                    "a prefix was not taken over");
                Err(broken.error)
            }
        }
    }
}
