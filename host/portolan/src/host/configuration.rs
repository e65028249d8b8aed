//! Takes over what other sites change of the configuration that all have in common, as long as the host runs.

use super::live::LiveConfig;
use portolan_fleet::nats::{ConfigNews, NatsConfiguration};
use portolan_ports::{ConfigRefusal, FleetVersion, SharedConfig, SiteRuns};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// How often it is tried again to take over what could not be, and to say what could not be said.
const AGAIN: Duration = Duration::from_secs(2);

/// Follows the fleet's configuration.
pub(super) async fn follow(of_fleet: NatsConfiguration, live: Arc<LiveConfig>) {
    let mut feed = of_fleet.follow();
    let mut again = interval(AGAIN);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut newest, mut why, mut said) = (
        None::<(FleetVersion, SharedConfig)>,
        None::<ConfigRefusal>,
        None::<SiteRuns>,
    );
    loop {
        tokio::select! {
            news = feed.next() => match news {
                ConfigNews::Common(version, told) => newest = Some((version, told)),
                ConfigNews::Runs(site, runs) => {
                    live.hear(site, runs);
                    continue;
                }
            },
            _ = again.tick() => {}
        }
        let live = Arc::clone(&live);
        let (asked, before) = (newest.clone(), said.clone());
        let turn = tokio::task::spawn_blocking(move || turn(&live, asked, before));
        let Ok((refused, now_said)) = turn.await else {
            tracing::error!("taking the fleet's configuration over broke; it is tried again");
            continue;
        };
        if let Some(error) = refused.as_ref().filter(|error| Some(*error) != why.as_ref()) {
            tracing::error!(%error, "another site's change of the configuration is not taken over here; it is tried again");
        }
        (why, said) = (refused, now_said);
    }
}

/// Takes over what is newest, and says what this process runs where that is news. Gives why it was not taken, and what was
/// said last.
fn turn(
    live: &LiveConfig,
    newest: Option<(FleetVersion, SharedConfig)>,
    said: Option<SiteRuns>,
) -> (Option<ConfigRefusal>, Option<SiteRuns>) {
    let refused = newest.and_then(|(version, told)| match live.take_over(version, &told) {
        Ok(true) => {
            tracing::info!(number = version.number, actor = told.actor, from = %told.from, "the configuration of another site is in force here");
            None
        }
        Ok(false) => None,
        Err(error) => Some(error),
    });
    let runs = live.runs();
    if said.as_ref() == Some(&runs) {
        return (refused, said);
    }
    match live.report(&runs) {
        Ok(()) => (refused, Some(runs)),
        Err(error) => {
            tracing::debug!(%error, "it was not said which configuration is in force here");
            (refused, said)
        }
    }
}
