//! The slow loop of one site: remembers the requests it served, and plans for them anew every [`PERIOD`] and whenever the
//! fleet changes.

use parking_lot::Mutex;
use portolan_base::Moment;
use portolan_base::kv::KvSize;
use portolan_decide::{FleetView, InstanceView, LinkView, SiteIndex};
use portolan_planner::{
    Division, LivePools, LocalInstances, Outlook, PrefillProfile, Seen, SeenRequest, best_division,
    look_ahead,
};
use portolan_ports::{Reading, Sample};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// How often a plan is made anew. A minute of requests moves the measured lengths by little, and a plan takes well under
/// a millisecond.
pub const PERIOD: Duration = Duration::from_secs(60);

/// How often it is looked whether the fleet changed: ten load reports, so that one missed report is no change.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// What a site's slow loop knows.
#[derive(Debug, Default)]
pub struct Slow {
    seen: Mutex<Seen>,
    plan: Mutex<Option<Planned>>,
}

/// The last plan.
#[derive(Clone, Copy, Debug)]
struct Planned {
    outlook: Option<Outlook>,
    at: Moment,
    /// Of the fleet that it was made for.
    fleet: u64,
}

impl Slow {
    /// A request was served.
    pub fn note(&self, request: SeenRequest) {
        self.seen.lock().note(request);
    }

    /// Plans if a period is over or the fleet is another one. Returns whether it did.
    pub fn plan_if_due(&self, fleet: &FleetView, here: SiteIndex, kv: KvSize, now: Moment) -> bool {
        let shape = shape(fleet);
        let is_due = |last: &Planned| now.since(last.at) >= PERIOD || last.fleet != shape;
        if !self.plan.lock().as_ref().is_none_or(is_due) {
            return false;
        }
        let outlook = outlook(fleet, here, kv, &self.seen.lock(), now);
        if let Some(outlook) = outlook {
            tracing::debug!(?outlook, "planned");
        }
        *self.plan.lock() = Some(Planned {
            outlook,
            at: now,
            fleet: shape,
        });
        true
    }

    /// The best division of this site's instances that do both in `fleet`; none while too little is known.
    pub fn division(&self, fleet: &FleetView, here: SiteIndex, kv: KvSize) -> Option<Division> {
        let seen = self.seen.lock();
        let ways = ways(fleet, here, kv);
        ways.filter_map(|pools| best_division(&pools, &seen))
            .max_by(|a, b| a.capacity.total_cmp(&b.capacity))
    }

    /// The plan in force; none while too little is known.
    pub fn outlook(&self) -> Option<Outlook> {
        self.plan.lock().as_ref().and_then(|planned| planned.outlook)
    }

    /// Numbers for the metrics page.
    pub fn samples(&self) -> Vec<Sample> {
        let Some(outlook) = self.outlook() else {
            return Vec::new();
        };
        let gauge = |name, help, labels: &[(&'static str, &str)], value: f64| Sample {
            name,
            help,
            labels: labels
                .iter()
                .map(|(key, value)| (*key, (*value).to_owned()))
                .collect(),
            value: Reading::Gauge(value as u64),
        };
        let wanted = |pool, count| {
            let help = "Instances that the arrivals of the last five minutes ask for, at 80 % load";
            gauge("wanted_instances", help, &[("pool", pool)], f64::from(count))
        };
        vec![
            gauge(
                "planned_threshold_tokens",
                "Uncached length above which offloading serves most requests",
                &[],
                f64::from(outlook.threshold.0),
            ),
            gauge(
                "planned_load_permille",
                "Arrivals of the last five minutes as thousandths of what the plan can serve",
                &[],
                outlook.load() * 1000.0,
            ),
            wanted("remote_prefill", outlook.wanted.remote_prefill),
            wanted("prefill", outlook.wanted.prefill),
            wanted("decode", outlook.wanted.decode),
        ]
    }
}

/// What of a fleet makes another plan: who can work, in which role, over which links.
fn shape(fleet: &FleetView) -> u64 {
    let mut hasher = DefaultHasher::new();
    for instance in &fleet.instances {
        (instance.standing.is_ready(), instance.role).hash(&mut hasher);
    }
    for (ends, link) in &fleet.links {
        (ends, link.up, link.capacity.0).hash(&mut hasher);
    }
    hasher.finish()
}

/// The best plan over the sites that can prefill for this one.
fn outlook(fleet: &FleetView, here: SiteIndex, kv: KvSize, seen: &Seen, now: Moment) -> Option<Outlook> {
    ways(fleet, here, kv)
        .filter_map(|pools| look_ahead(&pools, seen, now))
        .max_by(|a, b| a.capacity.total_cmp(&b.capacity))
}

/// This site with each site that can prefill for it.
fn ways(fleet: &FleetView, here: SiteIndex, kv: KvSize) -> impl Iterator<Item = LivePools> {
    let arriving = fleet
        .links
        .iter()
        .filter(move |((_, to), link)| *to == here && link.up);
    arriving.filter_map(move |((from, _), link)| pools(fleet, here, *from, link, kv))
}

/// This site and the pool of another, as they were measured; none while a speed is unknown.
fn pools(
    fleet: &FleetView,
    here: SiteIndex,
    from: SiteIndex,
    link: &LinkView,
    kv: KvSize,
) -> Option<LivePools> {
    let model = fleet.instances.iter().find(|i| i.site == here)?.model;
    let at = |site: SiteIndex| {
        let ready = move |i: &&InstanceView| i.site == site && i.model == model && i.standing.is_ready();
        fleet.instances.iter().filter(ready)
    };
    let count = |prefills: bool, decodes: bool| {
        let in_role = |i: &&InstanceView| (i.role.prefills(), i.role.decodes()) == (prefills, decodes);
        u32::try_from(at(here).filter(in_role).count()).unwrap_or(u32::MAX)
    };
    let prefillers = at(from).filter(|i| i.role.prefills());
    let decoders = || at(here).filter(|i| i.role.decodes() && i.decode_step_us > 0);
    Some(LivePools {
        remote: speed(at(from))?,
        remote_instances: u32::try_from(prefillers.count()).unwrap_or(u32::MAX),
        local: speed(at(here))?,
        roles: LocalInstances {
            prefill: count(true, false),
            decode: count(false, true),
            both: count(true, true),
        },
        decode_slots: mean(decoders().map(|i| f64::from(i.decode_slots)))?.round() as u32,
        decode_step_s: mean(decoders().map(|i| f64::from(i.decode_step_us)))? / 1e6,
        kv,
        egress: link.capacity,
    })
}

/// The mean speed of the instances that prefill.
fn speed<'a>(instances: impl Iterator<Item = &'a InstanceView>) -> Option<PrefillProfile> {
    let profiles: Vec<PrefillProfile> = instances
        .filter(|i| i.role.prefills() && i.prefill_ns_per_token > 0)
        .map(profile)
        .collect();
    let mean = |part: fn(&PrefillProfile) -> f64| mean(profiles.iter().map(part));
    Some(PrefillProfile {
        fixed_s: mean(|p| p.fixed_s)?,
        per_token_s: mean(|p| p.per_token_s)?,
        per_token_squared_s: mean(|p| p.per_token_squared_s)?,
    })
}

/// As it was measured: the curve, or a straight line where prompts were too alike for one.
fn profile(instance: &InstanceView) -> PrefillProfile {
    if instance.prefill_curve.is_measured() {
        return instance.prefill_curve.into();
    }
    PrefillProfile {
        fixed_s: 0.0,
        per_token_s: instance.prefill_ns_per_token as f64 / 1e9,
        per_token_squared_s: 0.0,
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

#[cfg(test)]
mod tests;
