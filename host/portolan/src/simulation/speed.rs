//! How fast the simulator is on this machine: requests a second on one core.

use super::cast::Player;
use crate::lab::LabError;
use crate::lab::component::Workshop;
use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Bytes, InstanceName, Permille, Role, SiteName, Tokens};
use portolan_decide::SiteIndex;
use portolan_planner::PrefillProfile;
use portolan_policy::{NameTables, SiteEntry};
use portolan_sim::{
    FirstToken, Origin, Queueing, Scenario, SimInstance, SimLink, SimSite, Synthetic, ThresholdSource,
    VirtualClock, simulate_on,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sites of the made-up fleet.
const SITES: u32 = 4;

/// One prompt in `BUSY_S` seconds keeps an instance three quarters busy.
const BUSY_S: f64 = 0.85;

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// What decided.
    pub policy: String,
    /// `native` or `component`.
    pub code: &'static str,
    /// Instances of the fleet.
    pub instances: u32,
    /// Requests played.
    pub requests: usize,
    /// Requests a second of this machine's time, on one core.
    pub requests_per_s: f64,
}

/// Measures fleets of 20 and 1,000 instances with the built-in `ttft` and `offload`, and where `plugins` has the
/// components with those. `requests` are played on the small fleet, a fifth on the large one.
pub fn measure(requests: usize, plugins: Option<&Path>, workshop: &Workshop) -> Result<Vec<Speed>, LabError> {
    let mut measured = Vec::new();
    for (instances, requests) in [(20, requests), (1000, requests / 5)] {
        for policy in ["ttft", "offload"] {
            let native = Player::find(policy, workshop)?;
            measured.push(run(&native, "native", instances, requests, workshop)?);
            if let Some(folder) = plugins {
                let file = folder.join(format!("{policy}.wasm"));
                let component = Player::find(&file.display().to_string(), workshop)?;
                measured.push(run(&component, "component", instances, requests, workshop)?);
            }
        }
    }
    Ok(measured)
}

fn run(
    player: &Player,
    code: &'static str,
    instances: u32,
    requests: usize,
    workshop: &Workshop,
) -> Result<Speed, LabError> {
    let clock = Arc::new(VirtualClock::default());
    let names = names();
    let scenario = Scenario {
        policies: player.load(workshop, &names, &clock)?,
        ..fleet(instances)
    };
    let traffic = Synthetic {
        output_tokens: 200,
        ..Synthetic::plain(requests, f64::from(instances) / BUSY_S, (8.0, 1.0), (64, 65_536))
    };
    let traffic = traffic.draw(1);
    let begun = Instant::now();
    simulate_on(&scenario, &traffic, &clock)?;
    Ok(Speed {
        policy: player.name().to_owned(),
        code,
        instances,
        requests,
        requests_per_s: requests as f64 / begun.elapsed().as_secs_f64(),
    })
}

fn names() -> NameTables {
    let site = |i| SiteEntry {
        name: format!("site-{i}"),
        region: format!("region-{i}"),
        jurisdiction: 0,
    };
    NameTables {
        sites: (0..SITES).map(site).collect(),
        ..NameTables::default()
    }
}

/// `count` instances over four sites that all take requests, each joined to each.
fn fleet(count: u32) -> Scenario {
    let instance = |i: u32| SimInstance {
        name: InstanceName::new(&format!("i-{i}")).expect("a valid name"),
        site: SiteIndex(i % SITES),
        role: Role::Both,
        prefill: PrefillProfile {
            fixed_s: 0.05,
            per_token_s: 1.2e-4,
            per_token_squared_s: 1e-10,
        },
        decode_step: Duration::from_millis(20),
        decode_slots: 64,
        cache: Tokens(0),
        price_micros_per_kilotoken: 100,
    };
    let link = SimLink {
        capacity: BitsPerSecond(400_000_000_000),
        rtt: Duration::from_millis(40),
        price_micros_per_gib: 10_000,
    };
    let site = |i| SimSite {
        name: SiteName::new(&format!("site-{i}")).expect("a valid name"),
        jurisdiction: 0,
    };
    let pairs = (0..SITES).flat_map(|from| (0..SITES).map(move |to| (SiteIndex(from), SiteIndex(to))));
    let origin = |i| Origin {
        site: SiteIndex(i),
        jurisdiction: 0,
    };
    Scenario {
        sites: (0..SITES).map(site).collect(),
        instances: (0..count).map(instance).collect(),
        links: pairs
            .filter(|(from, to)| from != to)
            .map(|ends| (ends, link))
            .collect::<BTreeMap<_, _>>(),
        origins: (0..SITES).map(origin).collect(),
        block_tokens: Tokens(512),
        kv: KvSize {
            fixed: Bytes(0),
            per_token: Bytes(17_280),
        },
        overlap: Permille(930),
        threshold: ThresholdSource::Adaptive,
        congestion_mark: Permille(700),
        policies: Default::default(),
        seed: 1,
        queueing: Queueing::PerInstance,
        first_token: FirstToken::Decode,
        changes: Vec::new(),
        slow_loop: None,
        ttft_slo: None,
        warm_up: Duration::ZERO,
    }
}

/// The measurements, a line each.
pub fn describe(measured: &[Speed]) -> Vec<String> {
    let mut table = super::table::Table::new(&["policy", "code", "instances", "requests", "requests/s"]);
    for speed in measured {
        table.row([
            speed.policy.clone(),
            speed.code.to_owned(),
            speed.instances.to_string(),
            speed.requests.to_string(),
            format!("{:.0}", speed.requests_per_s),
        ]);
    }
    table.lines()
}
