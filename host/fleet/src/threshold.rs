//! The offload threshold of the moment: from what length on another site delivers the first token sooner.

use portolan_base::kv::KvSize;
use portolan_base::{Permille, Tokens};
use portolan_decide::{FleetView, InstanceView, SiteIndex};
use portolan_planner::{OffloadCase, PrefillProfile, offload_threshold};
use std::time::Duration;

/// The longest prompt looked at: beyond every context in use.
const LONGEST: Tokens = Tokens(1 << 20);

/// Share of a transfer that hides behind prefill: what layer-wise streaming was measured to hide at 100 Gbit/s.
const OVERLAP: Permille = Permille(930);

/// No length is worth sending: no prompt is longer than this.
pub const NO_LENGTH: Tokens = Tokens(u32::MAX);

/// The uncached length from which on some other site beats this one, by measured speeds, queues and free bandwidth;
/// [`NO_LENGTH`] when none does.
pub fn break_even(fleet: &FleetView, here: SiteIndex, kv: KvSize) -> Tokens {
    let Some((local, local_wait)) = best(fleet, here) else {
        return Tokens(0);
    };
    let others = fleet
        .links
        .iter()
        .filter(|((_, to), link)| *to == here && link.up);
    let thresholds = others.filter_map(|((from, _), link)| {
        let (remote, remote_wait) = best(fleet, *from)?;
        let case = OffloadCase {
            local,
            local_wait,
            remote,
            remote_wait,
            link: link.free(),
            rtt: link.rtt,
            kv,
            overlap: OVERLAP,
        };
        offload_threshold(&case, LONGEST)
    });
    // Zero would read as "no threshold planned".
    thresholds
        .min()
        .map_or(NO_LENGTH, |tokens| Tokens(tokens.0.max(1)))
}

/// The instance of a site that would begin soonest: its speed and what waits before it.
fn best(fleet: &FleetView, site: SiteIndex) -> Option<(PrefillProfile, Duration)> {
    let able = |i: &&InstanceView| {
        i.site == site && i.standing.is_ready() && i.role.prefills() && i.prefill_ns_per_token > 0
    };
    let wait = |i: &InstanceView| u64::from(i.prefill_queued_tokens).saturating_mul(i.prefill_ns_per_token);
    let instance = fleet
        .instances
        .iter()
        .filter(able)
        .min_by_key(|i| (wait(i), i.prefill_ns_per_token))?;
    let per_token_s = instance.prefill_ns_per_token as f64 / 1e9;
    let profile = PrefillProfile {
        fixed_s: 0.0,
        per_token_s,
        per_token_squared_s: 0.0,
    };
    Some((profile, Duration::from_nanos(wait(instance))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::{BitsPerSecond, Bytes, InstanceName, Role, SiteName};
    use portolan_decide::{LinkView, SiteView, Standing};
    use std::collections::BTreeMap;

    const HERE: SiteIndex = SiteIndex(0);
    const THERE: SiteIndex = SiteIndex(1);
    const KV: KvSize = KvSize {
        fixed: Bytes(0),
        per_token: Bytes(1000),
    };

    fn instance(site: SiteIndex, ns_per_token: u64, queued: u32) -> InstanceView {
        InstanceView {
            name: InstanceName::new("i").unwrap(),
            site,
            model: 0,
            role: Role::Both,
            standing: Standing::Ready,
            prefill_queued_requests: 0,
            prefill_queued_tokens: queued,
            decode_running: 0,
            decode_slots: 1,
            kv_used: Permille(0),
            prefill_busy: Permille(0),
            decode_busy: Permille(0),
            prefill_ns_per_token: ns_per_token,
            decode_step_us: 1,
            price_micros_per_kilotoken: 0,
        }
    }

    fn fleet(local: InstanceView, remote: InstanceView) -> FleetView {
        let site = |name| SiteView {
            name: SiteName::new(name).unwrap(),
            jurisdiction: 0,
        };
        let link = LinkView {
            up: true,
            rtt: Duration::from_millis(75),
            capacity: BitsPerSecond(1_000_000_000_000),
            busy: Permille(0),
            loss: Permille(0),
            price_micros_per_gib: 0,
            measured: Default::default(),
        };
        FleetView {
            sites: vec![site("here"), site("there")],
            instances: vec![local, remote],
            links: BTreeMap::from([((THERE, HERE), link)]),
            ..Default::default()
        }
    }

    #[test]
    fn a_round_trip_pays_from_the_length_whose_prefill_takes_as_long() {
        // 0.36 ms a token here and next to nothing there: 75 ms are 208 tokens.
        let even = break_even(
            &fleet(instance(HERE, 360_000, 0), instance(THERE, 1, 0)),
            HERE,
            KV,
        );
        assert!((207..=210).contains(&even.0), "{even:?}");
    }

    #[test]
    fn queues_move_the_threshold_and_a_slower_site_never_pays() {
        let even = |local, remote| break_even(&fleet(local, remote), HERE, KV);
        let idle = even(instance(HERE, 360_000, 0), instance(THERE, 36_000, 0));
        let busy_there = even(instance(HERE, 360_000, 0), instance(THERE, 36_000, 10_000));
        assert!(busy_there > idle, "{busy_there:?} {idle:?}");
        assert_eq!(
            even(instance(HERE, 360_000, 10_000), instance(THERE, 360_000, 0)),
            Tokens(1)
        );
        assert_eq!(even(instance(HERE, 1000, 0), instance(THERE, 2000, 0)), NO_LENGTH);
    }
}
