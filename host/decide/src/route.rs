//! The candidate routes and the host's estimates of each.

mod best;
mod fetching;
mod whole;

use crate::fleet::{FleetView, InstanceIndex, InstanceView, LinkView, Serving, SiteIndex};
use crate::request::{Manner, PrefillMode, RequestFacts};
use crate::standing::Standing;
use best::{Best, pairs};
pub use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Bytes, Permille};
use portolan_policy::{RouteMatrix, RouteRow};
use std::time::Duration;

/// Most routes a decision looks at. 64 rows of 26 columns cross to a policy in under a microsecond.
pub const MAX_ROUTES: usize = 64;

/// One way to serve a request: prefill here, decode there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Computes the prompt.
    pub prefill: InstanceIndex,
    /// Generates the answer.
    pub decode: InstanceIndex,
}

/// Candidate routes with the rows a policy sees, in the same order.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// The routes.
    pub routes: Vec<Route>,
    /// Their rows.
    pub rows: Vec<RouteRow>,
}

impl Candidates {
    /// The rows as a matrix.
    pub fn matrix(&self) -> RouteMatrix {
        let mut matrix = RouteMatrix::default();
        self.rows.iter().for_each(|row| matrix.push(row));
        matrix
    }

    /// The candidates at these positions, in this order.
    #[must_use]
    pub fn select(&self, positions: &[usize]) -> Self {
        Self {
            routes: positions.iter().map(|&i| self.routes[i]).collect(),
            rows: positions.iter().map(|&i| self.rows[i]).collect(),
        }
    }

    /// Enumerates the routes of a request.
    ///
    /// Decode runs where the request came in; prefill on any ready instance of the model that a live link joins to
    /// it. `held` says how many prompt tokens each instance of the fleet has KV for, by instance index; missing
    /// entries are 0. At most [`MAX_ROUTES`] are returned, cheapest first by the host's own estimate: of each pair of
    /// sites the best few instances, each of them once before any of them twice. Takes time in proportion to the
    /// number of instances.
    pub fn enumerate(request: &RequestFacts, fleet: &FleetView, kv: KvSize, held: &[u32]) -> Self {
        let survey = |coming_back| Survey {
            request,
            fleet,
            kv,
            held,
            coming_back,
            most_held: fetchable(fleet, held, Serving::Pieces),
            most_stored: fetchable(fleet, held, Serving::Stored),
            most_slotted: fetchable(fleet, held, Serving::Slotted),
        };
        let some = survey(ComingBack::TakeTheirShare).routes();
        // One that is coming back is better than none.
        if some.routes.is_empty()
            && fleet
                .instances
                .iter()
                .any(|i| matches!(i.standing, Standing::Returning(_)))
        {
            return survey(ComingBack::TakeAll).routes();
        }
        some
    }
}

/// The most that any instance holds whose KV can be copied to one that takes part as `to`.
fn fetchable(fleet: &FleetView, held: &[u32], to: Serving) -> u32 {
    let holders = fleet.instances.iter().zip(held);
    let fitting = holders.filter(|(instance, _)| instance.serving.copies_to(to));
    fitting.map(|(_, held)| *held).max().unwrap_or(0)
}

struct Survey<'a> {
    request: &'a RequestFacts,
    fleet: &'a FleetView,
    kv: KvSize,
    held: &'a [u32],
    coming_back: ComingBack,
    /// The most that any instance of pieces holds.
    most_held: u32,
    /// The same of those whose KV lies with the host.
    most_stored: u32,
    /// The same of those whose KV are saved slots.
    most_slotted: u32,
}

/// How much is given to instances that were out until a short while ago.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ComingBack {
    TakeTheirShare,
    TakeAll,
}

impl Survey<'_> {
    fn routes(&self) -> Candidates {
        let survey = self;
        let mut found: Vec<(u64, Route, RouteRow)> = Vec::new();
        let (prefillers, decoders) = survey.pools();
        for (site, prefillers) in (0..).map(SiteIndex).zip(&prefillers) {
            if prefillers.len() == 0 || !survey.joined(site) {
                continue;
            }
            let decoders = survey.best_decoders(site, &decoders);
            for (prefill, decode) in pairs(prefillers, &decoders) {
                found.extend(survey.estimated(Route { prefill, decode }));
            }
        }
        found.extend(
            survey
                .whole_routes()
                .into_iter()
                .filter_map(|route| survey.estimated(route)),
        );
        found.sort_by_key(|(cost, route, _)| (*cost, route.prefill, route.decode));
        found.truncate(MAX_ROUTES);
        Candidates {
            routes: found.iter().map(|(_, route, _)| *route).collect(),
            rows: found.iter().map(|(_, _, row)| *row).collect(),
        }
    }

    /// A route with its row and the host's own estimate of it.
    fn estimated(&self, route: Route) -> Option<(u64, Route, RouteRow)> {
        let (prefiller, decoder) = (
            self.fleet.instance(route.prefill)?,
            self.fleet.instance(route.decode)?,
        );
        let row = self.row(route, prefiller, decoder);
        Some((rough_us(&row), route, row))
    }

    fn takes(&self, index: InstanceIndex, instance: &InstanceView) -> bool {
        match self.coming_back {
            ComingBack::TakeTheirShare => instance.standing.takes(self.request.seed, index.0),
            ComingBack::TakeAll => instance.standing.is_ready(),
        }
    }

    /// The cheapest prefilling instances of each site, and every instance that can decode.
    fn pools(&self) -> (Vec<Best>, Vec<InstanceIndex>) {
        let mut prefillers = vec![Best::default(); self.fleet.sites.len()];
        let mut decoders = Vec::new();
        let prompt = self.request.prompt_tokens.saturating_sub(1);
        if self.request.manner == Manner::Whole {
            return (prefillers, decoders);
        }
        for (index, instance) in self.fleet.indexed() {
            let fits = instance.model == self.request.model && instance.serving.is_pieces();
            if !fits || !self.takes(index, instance) {
                continue;
            }
            if instance.role.decodes() && instance.site == self.request.origin {
                decoders.push(index);
            }
            if instance.role.prefills()
                && let Some(pool) = prefillers.get_mut(instance.site.0 as usize)
            {
                let uncached = prompt - self.held(index);
                pool.offer(
                    instance.queue_us().saturating_add(instance.prefill_us(uncached)),
                    index,
                );
            }
        }
        (prefillers, decoders)
    }

    /// Whether prefill may run at a site: the client wants it there or does not care, and its KV can come here.
    fn joined(&self, site: SiteIndex) -> bool {
        let local = site == self.request.origin;
        let wanted = match self.request.prefill_mode {
            PrefillMode::LocalOnly => local,
            PrefillMode::RemoteRequired => !local,
            PrefillMode::Auto | PrefillMode::RemotePreferred => true,
        };
        wanted && (local || self.link(site).is_some_and(|link| link.up))
    }

    /// The cheapest of `decoders` for prompts that are computed at `site`: by load, and by what would have to be sent.
    fn best_decoders(&self, site: SiteIndex, decoders: &[InstanceIndex]) -> Best {
        let link = self.link(site).filter(|_| site != self.request.origin);
        let mut best = Best::default();
        for &index in decoders {
            let Some(decoder) = self.fleet.instance(index) else {
                continue;
            };
            let sent = link.map_or(0, |link| micros(self.kv_to_send(index).time_at(link.free())));
            best.offer(u64::from(decode_us(decoder)) + u64::from(sent), index);
        }
        best
    }

    /// The link from a site to the one the request came in at.
    fn link(&self, from: SiteIndex) -> Option<&LinkView> {
        self.fleet.links.get(&(from, self.request.origin))
    }

    fn kv_to_send(&self, decode: InstanceIndex) -> Bytes {
        let prompt = self.request.prompt_tokens.saturating_sub(1);
        let tokens = u64::from(prompt.saturating_sub(self.held(decode)));
        Bytes(tokens * self.kv.per_token.0 + self.kv.fixed.0)
    }

    fn held(&self, instance: InstanceIndex) -> u32 {
        // The last prompt token is always computed by decode, so at most the others can be cached.
        let most = self.request.prompt_tokens.saturating_sub(1);
        self.held.get(instance.0 as usize).copied().unwrap_or(0).min(most)
    }

    fn row(&self, route: Route, prefiller: &InstanceView, decoder: &InstanceView) -> RouteRow {
        let prompt = self.request.prompt_tokens.saturating_sub(1);
        let cached = self.held(route.prefill);
        let most_held = match prefiller.serving {
            Serving::Pieces => self.most_held,
            Serving::Stored => self.most_stored,
            Serving::Slotted => self.most_slotted,
            Serving::Whole | Serving::Handing(_) => 0,
        };
        let fetchable = most_held.min(prompt).saturating_sub(cached);
        let link = self
            .link(prefiller.site)
            .filter(|_| prefiller.site != decoder.site);
        let transfer = link.map_or(Bytes(0), |_| self.kv_to_send(route.decode));
        let free = link.map_or(BitsPerSecond(0), LinkView::free);
        let uncached = prompt - cached;
        RouteRow {
            prefill_site: prefiller.site.0,
            prefill_instance: route.prefill.0,
            decode_site: decoder.site.0,
            decode_instance: route.decode.0,
            cached_tokens: cached,
            fetchable_tokens: fetchable,
            transfer_kib: clip(transfer.kib_ceil()),
            prefill_us: clip(prefiller.prefill_us(uncached)),
            transfer_us: link.map_or(0, |_| micros(transfer.time_at(free))),
            decode_us: decode_us(decoder),
            queue_us: clip(prefiller.queue_us()),
            prefill_queued_requests: prefiller.prefill_queued_requests,
            prefill_queued_tokens: prefiller.prefill_queued_tokens,
            decode_running: decoder.decode_running,
            decode_slots: decoder.decode_slots,
            prefill_busy_permille: prefiller.prefill_busy.0,
            decode_busy_permille: decoder.decode_busy.0,
            kv_used_permille: decoder.kv_used.0,
            link_rtt_us: link.map_or(0, |l| micros(l.rtt)),
            link_free_kbps: clip(free.0 / 1000),
            link_busy_permille: link.map_or(0, |l| l.busy.0),
            link_loss_permille: link.map_or(Permille(0), |l| l.loss).0,
            price_micros: self.price(uncached, prefiller, decoder, link.map(|l| (l, transfer))),
            // Whether anything may be fetched, residency has to say first.
            fetch_tokens: 0,
            fetch_kib: 0,
            fetch_us: 0,
        }
    }

    fn price(
        &self,
        uncached: u32,
        prefiller: &InstanceView,
        decoder: &InstanceView,
        moved: Option<(&LinkView, Bytes)>,
    ) -> u32 {
        let link = moved.map_or(0, |(link, bytes)| moving_price(link, bytes));
        let answer = computing_price(decoder, self.request.expected_output_tokens);
        clip(
            computing_price(prefiller, uncached)
                .saturating_add(answer)
                .saturating_add(link),
        )
    }
}

/// In millionths of the operator's unit.
fn computing_price(instance: &InstanceView, tokens: u32) -> u64 {
    u64::from(instance.price_micros_per_kilotoken) * u64::from(tokens) / 1000
}

/// In millionths of the operator's unit.
fn moving_price(link: &LinkView, bytes: Bytes) -> u64 {
    let price = u128::from(link.price_micros_per_gib) * u128::from(bytes.0) / (1 << 30);
    u64::try_from(price).unwrap_or(u64::MAX)
}

fn rough_us(row: &RouteRow) -> u64 {
    [
        row.queue_us,
        row.prefill_us,
        row.transfer_us,
        row.decode_us,
        row.link_rtt_us,
    ]
    .into_iter()
    .map(u64::from)
    .sum()
}

/// One step in the batch that the request would join.
fn decode_us(decoder: &InstanceView) -> u32 {
    decoder
        .decode_step_us
        .saturating_mul(decoder.decode_running.saturating_add(1))
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX - 1)
}

/// A column's largest value is one below [`portolan_policy::NEVER`]: an estimate is never "never".
fn clip(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX).min(u32::MAX - 1)
}
