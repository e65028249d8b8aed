//! Takes over what other processes of the fleet bind, as long as the host runs.

mod unmade;

use portolan_fleet::nats::NatsPolicies;
use portolan_gateway::policies::{AdoptError, PolicyDesk};
use portolan_ports::{SharedError, SharedSlot};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use unmade::{Patience, Unmade};

/// How often the fleet is told again what it could not be told.
const LATER: Duration = Duration::from_secs(5);

/// How often components that no slot names are looked for.
const SWEEP: Duration = Duration::from_secs(600);

/// Follows the fleet's policies.
pub(super) async fn follow(policies: NatsPolicies, desk: Arc<PolicyDesk>) {
    let mut slots = policies.follow();
    let mut later = interval(LATER);
    later.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sweeps = interval(SWEEP);
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut unmade = Unmade::default();
    loop {
        let again = unmade.next().unwrap_or_else(|| Instant::now() + SWEEP);
        tokio::select! {
            state = slots.next() => take(&desk, state, &mut unmade).await,
            // One at a time: what others change meanwhile is not held up by what cannot be made.
            () = sleep_until(again) => {
                if let Some(state) = unmade.due(Instant::now()).into_iter().next() {
                    take(&desk, state, &mut unmade).await;
                }
            }
            _ = sweeps.tick() => match policies.sweep().await {
                Ok(0) => {}
                Ok(removed) => tracing::info!(removed, "components that no slot names were removed from the fleet's servers"),
                Err(error) => tracing::debug!(error, "components that no slot names were not looked for"),
            },
            _ = later.tick() => {
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
        Adopted::Not(patience) => unmade.note(state, patience, Instant::now()),
    }
}

/// Whether a state was taken over, and else how soon that is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adopted {
    Done,
    Not(Patience),
}

/// Takes one state over; what cannot be used here is left as it is.
async fn adopt(desk: &Arc<PolicyDesk>, state: SharedSlot) -> Adopted {
    let (scope, question, actor) = (state.scope.clone(), state.question, state.actor.clone());
    let desk = Arc::clone(desk);
    match tokio::task::spawn_blocking(move || desk.adopt(state)).await {
        Ok(Ok(false)) => Adopted::Done,
        Ok(Ok(true)) => {
            tracing::info!(%scope, %question, actor, "a change that the fleet was told of is in force here");
            Adopted::Done
        }
        Ok(Err(error)) => {
            let patience = patience(&error);
            match patience {
                Patience::Soon => {
                    tracing::warn!(%scope, %question, %error, "a change of another process waits for its component");
                }
                Patience::Late => {
                    tracing::error!(%scope, %question, %error, "a change of another process cannot be made here; it is tried again later");
                }
            }
            Adopted::Not(patience)
        }
        Err(error) => {
            tracing::error!(%scope, %question, %error, "taking a change over broke; it is tried again later");
            Adopted::Not(Patience::Late)
        }
    }
}

/// A server that is out of reach is back in seconds; a component that nobody has, or that cannot be used, is not.
fn patience(why: &AdoptError) -> Patience {
    match why {
        AdoptError::Shared(SharedError::OutOfReach(_)) => Patience::Soon,
        AdoptError::Shared(_) | AdoptError::OtherBytes(_) | AdoptError::Desk(_) => Patience::Late,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_that_nobody_keeps_is_not_waited_for_as_one_that_is_out_of_reach() {
        let missing = AdoptError::Shared(SharedError::Missing("c0".to_owned()));
        assert_eq!(patience(&missing), Patience::Late);
        let cut = AdoptError::Shared(SharedError::OutOfReach("cut".to_owned()));
        assert_eq!(patience(&cut), Patience::Soon);
    }
}
