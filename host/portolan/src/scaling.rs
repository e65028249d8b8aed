//! Tells a webhook how many instances a site's load asks for, when that changes.

use crate::config::{ScalingConfig, WebhookUrl};
use portolan_base::SiteName;
use portolan_fleet::Chart;
use portolan_fleet::slow::LOOK_INTERVAL;
use portolan_planner::Outlook;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Longest that one call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Calls until it is given up for this time: with pauses of 1, 2 and 4 s a restart of the receiver is bridged, and the next
/// change comes a minute later.
const TRIES: u32 = 4;

/// What is told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Signal {
    /// Which site.
    pub site: SiteName,
    /// Instances of each pool that the arrivals ask for.
    pub wanted: Wanted,
    /// Requests a second that come.
    pub arrivals_rps: f64,
    /// Requests a second that the plan can serve.
    pub capacity_rps: f64,
    /// The planned threshold.
    pub threshold_tokens: u32,
}

/// Wanted instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Wanted {
    /// In the remote pool, for this site's share of its work.
    pub remote_prefill: u32,
    /// Here, to prefill.
    pub prefill: u32,
    /// Here, to decode.
    pub decode: u32,
}

/// Why a call was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Untold {
    /// Nobody answered; the address is left out, since it may hold a secret.
    #[error("no answer")]
    NoAnswer,
    /// It was refused.
    #[error("status {0}")]
    Refused(u16),
}

impl Untold {
    /// Whether the same call may be taken later.
    fn may_pass(&self) -> bool {
        match self {
            Self::NoAnswer => true,
            Self::Refused(status) => matches!(status, 408 | 429 | 500..),
        }
    }
}

impl Signal {
    fn new(site: SiteName, outlook: &Outlook) -> Self {
        Self {
            site,
            wanted: Wanted {
                remote_prefill: outlook.wanted.remote_prefill,
                prefill: outlook.wanted.prefill,
                decode: outlook.wanted.decode,
            },
            arrivals_rps: outlook.arrivals,
            capacity_rps: outlook.capacity,
            threshold_tokens: outlook.threshold.0,
        }
    }
}

/// Tells `config`'s webhook of each change, as long as it runs. Without a webhook it ends at once.
pub async fn tell(site: SiteName, chart: Arc<Chart>, config: ScalingConfig) {
    let Some(hook) = config.webhook.clone() else {
        return;
    };
    let (mut told, mut called): (Option<Wanted>, Option<Instant>) = (None, None);
    let mut ticks = interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let too_soon = called.is_some_and(|at| at.elapsed() < config.every());
        let Some(outlook) = chart.outlook().filter(|_| !too_soon) else {
            continue;
        };
        let signal = Signal::new(site.clone(), &outlook);
        let wanted = signal.wanted;
        if told == Some(wanted) {
            continue;
        }
        called = Some(Instant::now());
        let to = hook.clone();
        let call = tokio::task::spawn_blocking(move || deliver(&to, &signal, Duration::from_secs(1))).await;
        match call {
            Ok(Ok(())) => told = Some(wanted),
            Ok(Err(why)) => tracing::warn!(%site, webhook = %hook, %why, "the scaling webhook was not told"),
            Err(error) => tracing::warn!(%site, %error, "telling the scaling webhook broke"),
        }
    }
}

/// Posts a signal, again after `pause`, twice and four times that where it may pass later.
pub fn deliver(hook: &WebhookUrl, signal: &Signal, pause: Duration) -> Result<(), Untold> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(CALL_TIMEOUT))
        .http_status_as_error(false)
        .max_redirects(0)
        .build()
        .new_agent();
    let call = || match agent.post(hook.url()).send_json(signal) {
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(answer) => Err(Untold::Refused(answer.status().as_u16())),
        Err(_) => Err(Untold::NoAnswer),
    };
    let mut last = call();
    for again in 1..TRIES {
        match &last {
            Err(why) if why.may_pass() => std::thread::sleep(pause * (1 << (again - 1))),
            _ => return last,
        }
        last = call();
    }
    last
}

#[cfg(test)]
mod tests;
