//! Which of a site's instances prefill and which decode, where they can do either.
//!
//! The plan says how many should prefill. One instance at a time turns to its new role, and only when that serves more by
//! [`WORTH_IT`]; it has turned when the work it had is done.

use portolan_base::{Duty, Role};
use portolan_decide::InstanceView;
use portolan_planner::Division;

/// A division must serve this many times what the present one does before an instance turns: measured lengths
/// move a plan's throughput by 1 or 2 % from minute to minute, and while an instance drains it serves nothing new.
const WORTH_IT: f64 = 1.05;

/// An instance that can do either, as its site sees it.
#[derive(Clone, Copy, Debug)]
pub struct Convertible {
    /// What it does.
    pub duty: Duty,
    /// Prompt tokens, or at least requests, that wait for prefill or are in it.
    pub prefilling: u32,
    /// Answers that are being generated.
    pub decoding: u32,
}

impl Convertible {
    /// An instance with this duty, as loaded as it looks.
    pub fn new(duty: Duty, view: &InstanceView) -> Self {
        Self {
            duty,
            prefilling: view.prefill_queued_requests.max(view.prefill_queued_tokens),
            decoding: view.decode_running,
        }
    }

    /// The duty once what is running was looked at.
    pub const fn settled(&self) -> Duty {
        self.duty.after(self.prefilling, self.decoding)
    }
}

/// The instance that should turn, and to what; none while one is turning, or when nothing is gained. `capacity` is what the
/// present division serves.
pub fn next_turn(instances: &[Convertible], division: &Division, capacity: f64) -> Option<(usize, Role)> {
    if instances.iter().any(|instance| instance.duty.is_turning()) {
        return None;
    }
    let doing = |role| instances.iter().filter(|i| i.duty.role() == role).count();
    let (prefill, wanted) = (doing(Role::Prefill), division.prefill as usize);
    // Those that do both are divided first, whatever it gains: a long prompt holds up the answers beside it.
    let (from, to) = if doing(Role::Both) > 0 {
        (
            Role::Both,
            if prefill < wanted {
                Role::Prefill
            } else {
                Role::Decode
            },
        )
    } else if division.capacity < capacity * WORTH_IT || prefill == wanted {
        return None;
    } else if prefill < wanted {
        (Role::Decode, Role::Prefill)
    } else {
        (Role::Prefill, Role::Decode)
    };
    let candidates = instances
        .iter()
        .enumerate()
        .filter(|(_, i)| i.duty.role() == from);
    let (index, _) = candidates.min_by_key(|(_, i)| (i.decoding, i.prefilling))?;
    Some((index, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doing(role: Role, decoding: u32) -> Convertible {
        Convertible {
            duty: Duty::of(role),
            prefilling: 0,
            decoding,
        }
    }

    fn division(prefill: u32, capacity: f64) -> Division {
        Division { prefill, capacity }
    }

    #[test]
    fn the_instance_with_least_to_do_turns_and_no_other_meanwhile() {
        let mut fleet = [
            doing(Role::Decode, 7),
            doing(Role::Decode, 2),
            doing(Role::Prefill, 0),
        ];
        assert_eq!(
            next_turn(&fleet, &division(2, 3.0), 2.0),
            Some((1, Role::Prefill))
        );
        fleet[1].duty = fleet[1].duty.turned(Role::Prefill);
        assert_eq!(next_turn(&fleet, &division(2, 3.0), 2.0), None, "one is turning");
        assert_eq!(fleet[1].settled(), fleet[1].duty, "two answers run on it");
        fleet[1].decoding = 0;
        assert_eq!(fleet[1].settled(), Duty::of(Role::Prefill));
        fleet[1].prefilling = 9;
        assert_eq!(fleet[1].settled(), Duty::of(Role::Prefill));
    }

    #[test]
    fn a_small_gain_turns_nobody_and_a_large_one_goes_both_ways() {
        let fleet = [
            doing(Role::Decode, 0),
            doing(Role::Prefill, 0),
            doing(Role::Prefill, 1),
        ];
        assert_eq!(next_turn(&fleet, &division(1, 2.09), 2.0), None);
        assert_eq!(
            next_turn(&fleet, &division(1, 2.11), 2.0),
            Some((1, Role::Decode))
        );
        assert_eq!(next_turn(&fleet, &division(2, 9.0), 2.0), None, "as wanted");
    }

    #[test]
    fn those_that_do_both_are_divided_first() {
        let fleet = [doing(Role::Both, 0), doing(Role::Both, 4), doing(Role::Decode, 0)];
        assert_eq!(
            next_turn(&fleet, &division(1, 1.0), 2.0),
            Some((0, Role::Prefill))
        );
        let fleet = [doing(Role::Both, 0), doing(Role::Prefill, 0)];
        assert_eq!(next_turn(&fleet, &division(1, 1.0), 2.0), Some((0, Role::Decode)));
        assert_eq!(next_turn(&[], &division(1, 1.0), 0.5), None);
    }
}
