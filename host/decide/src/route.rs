//! The candidate routes and the host's estimates of each.

use crate::fleet::{FleetView, InstanceIndex, InstanceView, LinkView};
use crate::request::{PrefillMode, RequestFacts};
use crate::standing::Standing;
pub use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Bytes, Permille, Tokens};
use portolan_policy::{RouteMatrix, RouteRow};
use std::time::Duration;

/// Most routes a decision looks at. 64 rows of 23 columns cross to a policy in under a microsecond.
pub const MAX_ROUTES: usize = 64;

/// Most routes kept of one (prefill site, decode site) pair, so that a large pool cannot crowd out every other.
const MAX_ROUTES_PER_PAIR: usize = 8;

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
    /// entries are 0. At most [`MAX_ROUTES`] are returned, the best few of each pair of sites by the host's own
    /// estimate.
    pub fn enumerate(request: &RequestFacts, fleet: &FleetView, kv: KvSize, held: &[u32]) -> Self {
        let survey = |coming_back| Survey {
            request,
            fleet,
            kv,
            held,
            coming_back,
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

struct Survey<'a> {
    request: &'a RequestFacts,
    fleet: &'a FleetView,
    kv: KvSize,
    held: &'a [u32],
    coming_back: ComingBack,
}

/// How much is given to instances that were out until a short while ago.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ComingBack {
    TakeTheirShare,
    TakeAll,
}

impl Survey<'_> {
    fn routes(&self) -> Candidates {
        let (survey, fleet) = (self, self.fleet);
        let mut found: Vec<(u64, Route, RouteRow)> = Vec::new();
        for (decode, decoder) in fleet.indexed().filter(|(n, i)| survey.can_decode(*n, i)) {
            for (prefill, prefiller) in fleet
                .indexed()
                .filter(|(n, i)| survey.can_prefill(*n, i, decoder))
            {
                let route = Route { prefill, decode };
                let row = survey.row(route, prefiller, decoder);
                found.push((rough_us(&row), route, row));
            }
        }
        found.sort_by_key(|(cost, route, _)| (*cost, route.prefill, route.decode));
        let mut kept = Candidates::default();
        for (_, route, row) in found {
            let same_pair =
                |r: &&RouteRow| r.prefill_site == row.prefill_site && r.decode_site == row.decode_site;
            if kept.rows.iter().filter(same_pair).count() < MAX_ROUTES_PER_PAIR
                && kept.routes.len() < MAX_ROUTES
            {
                kept.routes.push(route);
                kept.rows.push(row);
            }
        }
        kept
    }

    fn takes(&self, index: InstanceIndex, instance: &InstanceView) -> bool {
        match self.coming_back {
            ComingBack::TakeTheirShare => instance.standing.takes(self.request.seed, index.0),
            ComingBack::TakeAll => instance.standing.is_ready(),
        }
    }

    fn can_decode(&self, index: InstanceIndex, instance: &InstanceView) -> bool {
        instance.role.decodes()
            && self.takes(index, instance)
            && instance.model == self.request.model
            && instance.site == self.request.origin
    }

    fn can_prefill(&self, index: InstanceIndex, instance: &InstanceView, decoder: &InstanceView) -> bool {
        let local = instance.site == decoder.site;
        let wanted = match self.request.prefill_mode {
            PrefillMode::LocalOnly => local,
            PrefillMode::RemoteRequired => !local,
            PrefillMode::Auto | PrefillMode::RemotePreferred => true,
        };
        let reachable = local || self.link(instance, decoder).is_some_and(|link| link.up);
        wanted
            && reachable
            && self.takes(index, instance)
            && instance.role.prefills()
            && instance.model == self.request.model
    }

    fn link(&self, from: &InstanceView, to: &InstanceView) -> Option<&LinkView> {
        self.fleet.links.get(&(from.site, to.site))
    }

    fn held(&self, instance: InstanceIndex) -> u32 {
        // The last prompt token is always computed by decode, so at most the others can be cached.
        let most = self.request.prompt_tokens.saturating_sub(1);
        self.held.get(instance.0 as usize).copied().unwrap_or(0).min(most)
    }

    fn row(&self, route: Route, prefiller: &InstanceView, decoder: &InstanceView) -> RouteRow {
        let prompt = self.request.prompt_tokens.saturating_sub(1);
        let cached = self.held(route.prefill);
        let fetchable = self
            .held
            .iter()
            .copied()
            .max()
            .unwrap_or(0)
            .min(prompt)
            .saturating_sub(cached);
        let link = self
            .link(prefiller, decoder)
            .filter(|_| prefiller.site != decoder.site);
        let transfer = match link {
            Some(_) => Bytes(
                u64::from(prompt.saturating_sub(self.held(route.decode))) * self.kv.per_token.0
                    + self.kv.fixed.0,
            ),
            None => Bytes(0),
        };
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
            prefill_us: compute_us(prefiller, Tokens(uncached)),
            transfer_us: link.map_or(0, |_| micros(transfer.time_at(free))),
            decode_us: decoder
                .decode_step_us
                .saturating_mul(decoder.decode_running.saturating_add(1)),
            queue_us: compute_us(prefiller, Tokens(prefiller.prefill_queued_tokens)),
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
        }
    }

    fn price(
        &self,
        uncached: u32,
        prefiller: &InstanceView,
        decoder: &InstanceView,
        moved: Option<(&LinkView, Bytes)>,
    ) -> u32 {
        let compute = |i: &InstanceView, tokens: u32| {
            u64::from(i.price_micros_per_kilotoken) * u64::from(tokens) / 1000
        };
        let link = moved.map_or(0, |(link, bytes)| {
            u128::from(link.price_micros_per_gib) * u128::from(bytes.0) / (1 << 30)
        });
        let link = u64::try_from(link).unwrap_or(u64::MAX);
        let answer = compute(decoder, self.request.expected_output_tokens);
        clip(
            compute(prefiller, uncached)
                .saturating_add(answer)
                .saturating_add(link),
        )
    }
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

fn compute_us(instance: &InstanceView, tokens: Tokens) -> u32 {
    clip(u64::from(tokens.0).saturating_mul(instance.prefill_ns_per_token) / 1000)
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX - 1)
}

/// A column's largest value is one below [`portolan_policy::NEVER`]: an estimate is never "never".
fn clip(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX).min(u32::MAX - 1)
}
