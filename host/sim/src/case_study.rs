//! The case study of Prefill-as-a-Service (arXiv 2604.15039) as something to simulate.
//!
//! Four prefill instances of 8 × H200 at one site, eight instances of 8 × H20 at another, 100 Gbit/s between them;
//! prompts of log-normal length (μ 9.90, σ 1.00, 128 to 131,072 tokens), answers of 1,024 tokens at 40 a second.
//! Prefill times are quadratics fitted to the paper's throughputs and times to first token; KV sizes are the paper's
//! to the printed digit. One queue a pool; the first token comes with the KV.

use crate::clock::VirtualClock;
use crate::scenario::{
    FirstToken, Origin, Queueing, Scenario, ScenarioError, SimInstance, SimLink, SimSite, SlowLoop,
    ThresholdSource,
};
use crate::traffic::{SimRequest, Synthetic};
use crate::world::simulate_on;
use portolan_base::kv::KvSize;
use portolan_base::{BitsPerSecond, Bytes, InstanceName, Permille, Role, SiteName, Tokens};
use portolan_decide::{RequestPolicies, SiteIndex};
use portolan_planner::{
    Averaging, DecodeProfile, Fleet, LengthsError, MeasuredLengths, PrefillProfile, Split,
    balanced_threshold, evaluate,
};
use portolan_policy::{NameTables, SiteEntry};
use std::collections::BTreeMap;
use std::time::Duration;

/// Where requests come in and answers are made.
pub const HOME: SiteIndex = SiteIndex(0);

/// The site that only prefills.
pub const FAR: SiteIndex = SiteIndex(1);

/// The paper's threshold.
pub const STATIC_THRESHOLD: Tokens = Tokens(19_400);

/// Prefill on 8 × H200.
pub const H200: PrefillProfile = PrefillProfile {
    fixed_s: 0.3983,
    per_token_s: 4.206e-5,
    per_token_squared_s: 9.86e-11,
};

/// Prefill on 8 × H20.
pub const H20: PrefillProfile = PrefillProfile {
    fixed_s: 0.4567,
    per_token_s: 1.3075e-4,
    per_token_squared_s: 2.857e-10,
};

/// KV of a prompt.
pub const KV: KvSize = KvSize {
    fixed: Bytes(182_368_338),
    per_token: Bytes(17_280),
};

const DECODE_STEP: Duration = Duration::from_millis(25);
const DECODE_SLOTS: u32 = 20;
const OUTPUT_TOKENS: u32 = 1024;
const LINK: BitsPerSecond = BitsPerSecond(100_000_000_000);

/// How the machines are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// Prefill as a service: long prompts go to the four H200 instances, the others to some of the eight H20 ones.
    Service {
        /// H20 instances that prefill; the others of the eight decode.
        prefill: u32,
    },
    /// No H200: twelve H20 instances, nine of which prefill.
    Homogeneous,
    /// The H200 instances prefill everything, the H20 ones decode.
    Naive,
}

/// The planner's best division: three H20 instances prefill, five decode.
pub const SERVICE: Arrangement = Arrangement::Service { prefill: 3 };

impl Arrangement {
    /// Instances that prefill far away, prefill at home, and decode.
    const fn instances(self) -> (u32, u32, u32) {
        match self {
            Self::Service { prefill } => (4, prefill, 8u32.saturating_sub(prefill)),
            Self::Homogeneous => (0, 9, 3),
            Self::Naive => (4, 0, 8),
        }
    }
}

/// What policies are told of the two sites.
pub fn names() -> NameTables {
    let site = |name: &str| SiteEntry {
        name: name.to_owned(),
        region: name.to_owned(),
        jurisdiction: 0,
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    NameTables {
        tenant: String::new(),
        sites: vec![site("home"), site("far")],
        jurisdictions: words(&["any"]),
        models: words(&["model"]),
        user_classes: words(&["standard"]),
    }
}

/// The fleet with what decides on it.
pub fn scenario(arrangement: Arrangement, policies: RequestPolicies, threshold: ThresholdSource) -> Scenario {
    let (far, prefill, decode) = arrangement.instances();
    let mut instances = like("h200", far, (FAR, Role::Prefill, H200));
    instances.extend(like("prefill", prefill, (HOME, Role::Prefill, H20)));
    instances.extend(like("decode", decode, (HOME, Role::Decode, H20)));
    let link = SimLink {
        capacity: LINK,
        rtt: Duration::ZERO,
        price_micros_per_gib: 10_000,
    };
    let site = |name| SimSite {
        name: SiteName::new(name).expect("a valid name"),
        jurisdiction: 0,
    };
    Scenario {
        sites: vec![site("home"), site("far")],
        instances,
        links: BTreeMap::from([((FAR, HOME), link)]),
        origins: vec![Origin {
            site: HOME,
            jurisdiction: 0,
        }],
        block_tokens: Tokens(512),
        kv: KV,
        overlap: Permille(0),
        threshold,
        congestion_mark: Permille(700),
        policies,
        seed: 1,
        queueing: Queueing::PerPool,
        first_token: FirstToken::Prefill,
        changes: Vec::new(),
        slow_loop: None,
        ttft_slo: None,
        warm_up: Duration::ZERO,
    }
}

/// The slow loop of `--roles adaptive`: every two minutes, and an instance that drained is back after ten seconds.
pub const SLOW_LOOP: SlowLoop = SlowLoop {
    period: Duration::from_secs(120),
    conversion: Duration::from_secs(10),
};

fn like(
    prefix: &str,
    count: u32,
    (site, role, prefill): (SiteIndex, Role, PrefillProfile),
) -> Vec<SimInstance> {
    let named = |i| InstanceName::new(&format!("{prefix}-{i}")).expect("a valid name");
    let instance = |i| SimInstance {
        name: named(i),
        site,
        role,
        prefill,
        decode_step: DECODE_STEP,
        decode_slots: DECODE_SLOTS,
        cache: Tokens(0),
        price_micros_per_kilotoken: 100,
    };
    (1..=count).map(instance).collect()
}

/// Poisson arrivals of the paper's prompts, `rate` a second.
pub fn traffic(rate: f64, requests: usize, seed: u64) -> Vec<SimRequest> {
    let synthetic = Synthetic {
        output_tokens: OUTPUT_TOKENS,
        ..Synthetic::plain(requests, rate, (9.9, 1.0), (128, 131_072))
    };
    synthetic.draw(seed)
}

/// Faster than anything here serves.
const MORE_THAN_ENOUGH: f64 = 4.8;

/// What prefill gets through with more than enough on offer, in requests a second, and which share that is of the most
/// that any assignment of these very requests to the two pools could.
pub fn capacity(
    scenario: &Scenario,
    arrangement: Arrangement,
    (requests, seed): (usize, u64),
    clock: &VirtualClock,
) -> Result<(f64, f64), ScenarioError> {
    let offered = traffic(MORE_THAN_ENOUGH, requests, seed);
    let measured = Scenario {
        changes: Vec::new(),
        slow_loop: None,
        warm_up: Duration::ZERO,
        ..scenario.clone()
    };
    let reached = simulate_on(&measured, &offered, clock)?.prefilled_rps;
    let bound = most(arrangement, &offered).unwrap_or(f64::INFINITY);
    Ok((reached, reached / bound))
}

/// The most that any assignment of these requests to the two pools lets through, in requests a second.
fn most(arrangement: Arrangement, offered: &[SimRequest]) -> Result<f64, LengthsError> {
    let lengths = MeasuredLengths::new(offered.iter().map(|request| request.prompt_tokens).collect())?;
    let (far, prefill, decode) = arrangement.instances();
    let fleet = Fleet {
        remote: H200,
        remote_instances: far,
        local: H20,
        decode: DecodeProfile {
            batch: DECODE_SLOTS,
            step_s: DECODE_STEP.as_secs_f64(),
            output_tokens: f64::from(OUTPUT_TOKENS),
        },
        kv: KV,
        egress: LINK,
        averaging: Averaging::MeanOfTimes,
    };
    let split = Split { prefill, decode };
    let threshold = match prefill {
        // Nobody prefills here: all of it goes there.
        0 => Tokens(0),
        _ => balanced_threshold(&fleet, &lengths, split),
    };
    Ok(evaluate(&fleet, &lengths, threshold, split).lambda_max)
}
