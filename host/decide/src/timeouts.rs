//! How long a stage may take before the next route is tried.

use crate::fleet::InstanceView;
use portolan_policy::RouteRow;
use std::time::Duration;

/// Floors and the factor of a rule that grows with the work: a stage may take its estimate times the factor, and never
/// less than the floor.
///
/// The floors alone would kill half of the long prompts that a remote pool serves well; the factor alone would give up
/// on a short prompt for a hiccup of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Prefill at the request's own site.
    pub local_prefill: Duration,
    /// Prefill at another site, with the way of its KV.
    pub remote_prefill: Duration,
    /// A token of an answer whose KV was computed at this site.
    pub local_decode: Duration,
    /// A token of an answer whose KV came from another site.
    pub remote_decode: Duration,
    /// How often its estimate a stage may take. Five: measured speeds are means, and a batch of four shares an instance
    /// without anything being wrong.
    pub factor: u32,
    /// Where nothing was measured, and where nothing is left to try instead.
    pub longest: Duration,
    /// After how many times its estimate a prefill at another site is begun at this one too; none: never.
    pub hedge: Option<u32>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            local_prefill: Duration::from_millis(500),
            remote_prefill: Duration::from_millis(2_000),
            local_decode: Duration::from_millis(1_000),
            remote_decode: Duration::from_millis(3_000),
            factor: 5,
            longest: Duration::from_secs(30),
            // Work done twice is paid for twice.
            hedge: None,
        }
    }
}

impl Timeouts {
    /// How long the route of `row` may take until the prompt's KV is where decode needs it.
    pub fn prefill(&self, row: &RouteRow) -> Duration {
        let floor = match is_remote(row) {
            true => self.remote_prefill,
            false => self.local_prefill,
        };
        // A speed that nobody measured makes an estimate of nothing.
        let unmeasured = row.prefill_us == 0;
        self.scaled(floor, estimate(row), unmeasured)
    }

    /// When the prefill of `row`, at another site, is begun here too; none: not at all. The floor is the same part of its
    /// limit's as the factor is of the limit's.
    pub fn hedge(&self, row: &RouteRow) -> Option<Duration> {
        let times = self.hedge.filter(|_| is_remote(row) && row.prefill_us > 0)?;
        let floor = self.remote_prefill.saturating_mul(times) / self.factor.max(1);
        Some(estimate(row).saturating_mul(times).max(floor))
    }

    /// How long the first token, or the next one, may take on `instance` as it is loaded at the moment. A sequence may
    /// wait for a slot, and a step for the prompts that the instance computes between two.
    pub fn token(&self, row: &RouteRow, instance: &InstanceView) -> Duration {
        let floor = match is_remote(row) {
            true => self.remote_decode,
            false => self.local_decode,
        };
        let step = u64::from(instance.decode_step_us) * (u64::from(instance.decode_running) + 1);
        let prompts = instance
            .prefill_ns_per_token
            .saturating_mul(u64::from(instance.prefill_queued_tokens))
            / 1000;
        let full = instance.decode_slots > 0 && instance.decode_running >= instance.decode_slots;
        let unknown = instance.decode_step_us == 0 || full;
        self.scaled(
            floor,
            Duration::from_micros(step.saturating_add(prompts)),
            unknown,
        )
    }

    fn scaled(&self, floor: Duration, estimate: Duration, unknown: bool) -> Duration {
        if unknown {
            return self.longest.max(floor);
        }
        estimate.saturating_mul(self.factor).max(floor)
    }
}

/// How long it is thought to take until a route's KV is where decode needs it.
fn estimate(row: &RouteRow) -> Duration {
    let wait = [row.queue_us, row.prefill_us, row.transfer_us, row.link_rtt_us];
    Duration::from_micros(wait.into_iter().map(u64::from).sum())
}

fn is_remote(row: &RouteRow) -> bool {
    row.prefill_site != row.decode_site
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standing::Standing;
    use crate::{InstanceView, SiteIndex};
    use portolan_base::{InstanceName, Permille, Role};

    const LONGEST: Duration = Duration::from_secs(30);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn row(remote: bool, prefill_ms: u32) -> RouteRow {
        RouteRow {
            prefill_site: u32::from(remote),
            prefill_us: prefill_ms * 1000,
            transfer_us: if remote { 100_000 } else { 0 },
            link_rtt_us: if remote { 75_000 } else { 0 },
            ..RouteRow::default()
        }
    }

    #[test]
    fn a_slow_prefill_elsewhere_is_begun_here_when_that_is_asked_for() {
        assert_eq!(Timeouts::default().hedge(&row(true, 3_000)), None);
        let rule = Timeouts {
            hedge: Some(2),
            ..Timeouts::default()
        };
        assert_eq!(rule.hedge(&row(true, 3_000)), Some(ms(2 * 3_175)));
        assert_eq!(
            rule.hedge(&row(true, 20)),
            Some(ms(800)),
            "two fifths of the floor"
        );
        assert_eq!(rule.hedge(&row(false, 3_000)), None);
        assert_eq!(rule.hedge(&row(true, 0)), None, "nothing was measured");
    }

    #[test]
    fn short_work_has_the_floor_and_long_work_its_estimate_times_the_factor() {
        let rule = Timeouts::default();
        assert_eq!(rule.prefill(&row(false, 20)), ms(500));
        assert_eq!(rule.prefill(&row(false, 3_000)), ms(15_000));
        assert_eq!(rule.prefill(&row(true, 20)), ms(2_000));
        assert_eq!(rule.prefill(&row(true, 3_000)), ms((3_000 + 100 + 75) * 5));
    }

    #[test]
    fn what_was_never_measured_is_given_time() {
        let rule = Timeouts::default();
        assert_eq!(rule.prefill(&row(false, 0)), LONGEST);
        assert_eq!(rule.token(&row(false, 1), &instance(0, 0, 0)), LONGEST);
    }

    fn instance(step_us: u32, running: u32, queued_tokens: u32) -> InstanceView {
        InstanceView {
            name: InstanceName::new("i").unwrap(),
            site: SiteIndex(0),
            model: 0,
            role: Role::Both,
            serving: Default::default(),
            standing: Standing::Ready,
            prefill_queued_requests: 0,
            prefill_queued_tokens: queued_tokens,
            decode_running: running,
            decode_slots: 8,
            kv_used: Permille(0),
            prefill_busy: Permille(0),
            decode_busy: Permille(0),
            prefill_ns_per_token: 1_000_000,
            prefill_curve: Default::default(),
            decode_step_us: step_us,
            price_micros_per_kilotoken: 0,
        }
    }

    #[test]
    fn a_token_waits_for_the_batch_for_prompts_between_and_for_a_slot() {
        let rule = Timeouts::default();
        let (local, remote) = (row(false, 1), row(true, 1));
        assert_eq!(rule.token(&local, &instance(25_000, 0, 0)), ms(1_000));
        assert_eq!(rule.token(&remote, &instance(25_000, 0, 0)), ms(3_000));
        assert_eq!(rule.token(&local, &instance(100_000, 3, 0)), ms(2_000));
        assert_eq!(rule.token(&local, &instance(25_000, 0, 2_000)), ms(10_125));
        assert_eq!(
            rule.token(&local, &instance(25_000, 8, 0)),
            LONGEST,
            "no slot is free"
        );
    }
}
