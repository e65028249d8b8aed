//! Estimates that count on a fetch, where the host would do one.

use super::{Candidates, Route, clip, computing_price, micros, moving_price};
use crate::fetch::{FetchInput, FetchPlan};
use crate::plan::DecideInput;
use crate::residency::Placements;
use portolan_base::Tokens;
use portolan_policy::{Placement, RouteRow};

impl Candidates {
    /// Lets the estimates take the cheaper of computing and fetching, as the host will: from sites that may see the data,
    /// to an instance whose site may keep it. Nothing changes where the host fetches nothing.
    pub(crate) fn count_on_fetches(&mut self, input: &DecideInput<'_>, placements: &Placements) {
        let Some(block) = input.fetch_block else { return };
        for (route, row) in self.routes.iter().zip(&mut self.rows) {
            count_on_fetch(input, block, placements, (*route, row));
        }
    }
}

fn count_on_fetch(
    input: &DecideInput<'_>,
    block: Tokens,
    placements: &Placements,
    (route, row): (Route, &mut RouteRow),
) -> Option<()> {
    let prefiller = input.fleet.instance(route.prefill)?;
    if placements.of(prefiller.site) != Placement::Resident {
        return None;
    }
    let wanted = input.request.prompt_tokens.saturating_sub(1);
    let fetch = FetchInput {
        fleet: input.fleet,
        kv: input.kv,
        block,
        held: input.held,
        at: route.prefill,
        has: Tokens(row.cached_tokens),
        wanted: Tokens(wanted),
    };
    let plan = FetchPlan::best(&fetch, |site| placements.allows(site))?;
    let link = input.fleet.link(plan.site, prefiller.site)?;
    let uncached = wanted - row.cached_tokens;
    let fetched = plan.tokens.0.saturating_sub(row.cached_tokens);
    let rest = uncached.saturating_sub(fetched);
    row.fetch_tokens = fetched;
    row.fetch_kib = clip(plan.bytes.kib_ceil());
    row.fetch_us = micros(plan.takes);
    row.prefill_us = clip(u64::from(row.fetch_us).saturating_add(prefiller.prefill_us(rest)));
    let price = u64::from(row.price_micros).saturating_sub(computing_price(prefiller, uncached));
    let price = price.saturating_add(computing_price(prefiller, rest));
    row.price_micros = clip(price.saturating_add(moving_price(link, plan.bytes)));
    Some(())
}
