//! Made-up requests of the production shape: 26 columns a route, four sites under two jurisdictions, queues, links
//! and prompts of mixed sizes. The same seed makes the same requests on every machine.

use super::situation::{Situation, of_request, priced};
use portolan_policy::{Event, GroupRow, NameTables, RequestRow, RouteMatrix, RouteRow, SiteEntry};
use std::collections::BTreeMap;

/// Sites of the made-up fleet.
const SITES: u32 = 4;

/// KV of one token in KiB: a model of some 8 billion parameters with grouped heads.
const KV_KIB_PER_TOKEN: u32 = 128;

/// Draws numbers: SplitMix64, which is seeded by any number and the same everywhere.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 to below `end`.
    fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end.max(1))) as u32
    }
}

/// The made-up fleet's name tables.
pub fn names() -> NameTables {
    let site = |i: u32| SiteEntry {
        name: format!("site-{i}"),
        region: format!("region-{}", i / 2),
        jurisdiction: i / 2 + 1,
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    NameTables {
        tenant: String::new(),
        sites: (0..SITES).map(site).collect(),
        jurisdictions: words(&["any", "eu", "us"]),
        models: words(&["model"]),
        user_classes: words(&["standard", "premium"]),
    }
}

/// `count` requests with `routes` candidate routes each.
pub fn requests(seed: u64, count: usize, routes: usize) -> Vec<Situation> {
    let mut dice = Dice(seed);
    let names = names();
    (0..count)
        .map(|i| request(i, routes, &names, &mut dice))
        .collect()
}

fn request(number: usize, routes: usize, names: &NameTables, dice: &mut Dice) -> Situation {
    // Prompts from 64 to 32,768 tokens, each doubling equally likely.
    let scale = 1 << (6 + dice.below(9));
    let row = RequestRow {
        tenant: dice.below(8),
        session_lo: dice.next() as u32,
        session_hi: dice.next() as u32,
        origin_site: dice.below(SITES),
        jurisdiction: dice.below(3),
        user_class: dice.below(2),
        prompt_tokens: scale + dice.below(scale),
        max_output_tokens: 512,
        expected_output_tokens: 1 + dice.below(300),
        ttft_slo_ms: dice.below(2) * 1000,
        seed_lo: dice.next() as u32,
        seed_hi: dice.next() as u32,
        now_ms_lo: dice.next() as u32,
        now_ms_hi: 410,
        offload_threshold_tokens: 16_384,
        ..RequestRow::default()
    };
    let mut matrix = RouteMatrix::default();
    for i in 0..routes {
        matrix.push(&route(&row, i, dice));
    }
    let request = row.to_cells().to_vec();
    let routes = matrix.as_matrix().cells().to_vec();
    Situation {
        costs: priced(&request, &routes),
        names: names.clone(),
        request,
        routes,
        labels: BTreeMap::new(),
        request_id: format!("req-{number}"),
        subject: of_request(&row),
        event: Event::Tick(60_000),
        groups: (0..16).flat_map(|i| group(i, dice).to_cells()).collect(),
    }
}

fn route(request: &RequestRow, position: usize, dice: &mut Dice) -> RouteRow {
    let prefill_site = position as u32 % SITES;
    let remote = u32::from(prefill_site != request.origin_site);
    let cached = request.prompt_tokens / 16 * dice.below(16);
    let uncached = request.prompt_tokens - cached;
    let queued = dice.below(20_000);
    RouteRow {
        prefill_site,
        prefill_instance: position as u32,
        decode_site: request.origin_site,
        decode_instance: dice.below(8),
        cached_tokens: cached,
        fetchable_tokens: uncached / 2 * dice.below(2),
        transfer_kib: remote * request.prompt_tokens * KV_KIB_PER_TOKEN,
        prefill_us: uncached * 60,
        transfer_us: remote * request.prompt_tokens * 90,
        decode_us: 20_000 + dice.below(20_000),
        queue_us: queued * 60,
        prefill_queued_requests: queued / 1000,
        prefill_queued_tokens: queued,
        decode_running: dice.below(64),
        decode_slots: 64,
        prefill_busy_permille: dice.below(1001),
        decode_busy_permille: dice.below(1001),
        kv_used_permille: dice.below(1001),
        link_rtt_us: remote * (2_000 + dice.below(80_000)),
        link_free_kbps: remote * dice.below(100_000_000),
        link_busy_permille: remote * dice.below(1001),
        link_loss_permille: remote * dice.below(3),
        price_micros: uncached / 10 * (1 + dice.below(3)),
        ..RouteRow::default()
    }
}

fn group(number: u32, dice: &mut Dice) -> GroupRow {
    GroupRow {
        group: number,
        version_lo: 1 + dice.below(2),
        site: dice.below(SITES),
        blocks: 1 + dice.below(1000),
        mib: 1 + dice.below(100),
        idle_ms: dice.below(4_000_000),
        hits: dice.below(50),
        rebuild_us: dice.below(1_000_000),
        ..GroupRow::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_policy::{NEVER, RouteColumn};

    #[test]
    fn the_same_seed_makes_the_same_requests_of_the_production_shape() {
        let (a, b, other) = (requests(1, 8, 16), requests(1, 8, 16), requests(2, 8, 16));
        let cells = |made: &[Situation]| made.iter().map(|s| s.routes.clone()).collect::<Vec<_>>();
        assert_eq!(cells(&a), cells(&b));
        assert_ne!(cells(&a), cells(&other));
        assert_eq!(a[0].routes.len(), 16 * RouteColumn::COUNT);
        let totals = a.iter().flat_map(|s| s.costs.chunks(6).map(|row| row[0]));
        assert!(totals.into_iter().all(|total| total > 0 && total < NEVER));
        assert!(requests(1, 1, 0)[0].routes.is_empty());
    }
}
