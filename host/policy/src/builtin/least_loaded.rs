//! Routing `least-loaded`: a baseline that sees load and nothing else.

use super::arithmetic::finite;
use super::config::{self, ConfigError, Nothing};
use super::contract::{Candidates, Routing};
use crate::answer::RoutingDecision;
use crate::column::{RequestView, RouteView};
use crate::names::NameTables;

/// Score = 1000 for each request waiting for prefill, plus how busy prefill is and how full decode is, in
/// thousandths: one waiting request weighs as much as a wholly busy instance.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastLoaded;

impl Routing for LeastLoaded {
    fn configure(text: &str, _names: &NameTables) -> Result<Self, ConfigError> {
        config::parse::<Nothing>(text)?;
        Ok(Self)
    }

    fn decide(&self, request: RequestView<'_>, candidates: Candidates<'_>) -> RoutingDecision {
        candidates.scores(request, |candidate| load(candidate.route))
    }
}

fn load(route: RouteView<'_>) -> u32 {
    let waiting = u64::from(route.prefill_queued_requests()) * 1000;
    finite(waiting + u64::from(route.prefill_busy_permille()) + decode_permille(route))
}

/// Sequences over slots in thousandths, more than 1000 when some wait; the instance's own word where it names no
/// slots.
fn decode_permille(route: RouteView<'_>) -> u64 {
    let running = u64::from(route.decode_running()) * 1000;
    running
        .checked_div(u64::from(route.decode_slots()))
        .unwrap_or(u64::from(route.decode_busy_permille()))
}
