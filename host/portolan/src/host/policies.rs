//! Takes over what other processes of the fleet bind, as long as the host runs.

mod unmade;

use portolan_fleet::nats::NatsPolicies;
use portolan_gateway::policies::{AdoptError, PolicyDesk};
use portolan_ports::SharedSlot;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use unmade::Unmade;

/// How often the fleet is told again what it could not be told, and changes are looked at that could not be made here.
const LATER: Duration = Duration::from_secs(5);

/// First and longest wait for a component that is out of reach.
const AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Follows the fleet's policies.
pub(super) async fn follow(policies: NatsPolicies, desk: Arc<PolicyDesk>) {
    let mut slots = policies.follow();
    let mut later = interval(LATER);
    later.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut unmade = Unmade::default();
    loop {
        tokio::select! {
            state = slots.next() => take(&desk, state, &mut unmade).await,
            _ = later.tick() => {
                for state in unmade.due(Instant::now()) {
                    take(&desk, state, &mut unmade).await;
                }
                let desk = Arc::clone(&desk);
                if let Err(error) = tokio::task::spawn_blocking(move || desk.share_untold()).await {
                    tracing::error!(%error, "the fleet was not told of a change");
                }
            }
        }
    }
}

/// Takes one state over; what cannot be made here is tried again later.
async fn take(desk: &Arc<PolicyDesk>, state: SharedSlot, unmade: &mut Unmade) {
    match adopt(desk, state.clone()).await {
        Adopted::Done => unmade.made(&state),
        Adopted::Not => unmade.note(state, Instant::now()),
    }
}

/// Whether a state was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adopted {
    Done,
    Not,
}

/// Takes one state over. Waits for what is out of reach; what cannot be used here is left as it is.
async fn adopt(desk: &Arc<PolicyDesk>, state: SharedSlot) -> Adopted {
    let (scope, question, actor) = (state.scope.clone(), state.question, state.actor.clone());
    let (mut wait, longest) = AGAIN;
    loop {
        let (desk, state) = (Arc::clone(desk), state.clone());
        match tokio::task::spawn_blocking(move || desk.adopt(state)).await {
            Ok(Ok(false)) => return Adopted::Done,
            Ok(Ok(true)) => {
                tracing::info!(%scope, %question, actor, "a change of another process is in force here");
                return Adopted::Done;
            }
            Ok(Err(AdoptError::Shared(error))) => {
                tracing::warn!(%scope, %question, %error, "a change of another process waits for its component");
                sleep(wait).await;
                wait = longest.min(wait * 2);
            }
            Ok(Err(error)) => {
                tracing::error!(%scope, %question, %error, "a change of another process cannot be made here; it is tried again later");
                return Adopted::Not;
            }
            Err(error) => {
                tracing::error!(%scope, %question, %error, "taking a change over broke; it is tried again later");
                return Adopted::Not;
            }
        }
    }
}
