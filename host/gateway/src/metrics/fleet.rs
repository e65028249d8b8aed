//! Gauges of the fleet as this site sees it, read when the page is rendered.

use portolan_base::BitsPerSecond;
use portolan_decide::{FleetView, InstanceView};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Instance {
    site: String,
    instance: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Link {
    from: String,
    to: String,
}

type Whole<L> = Family<L, Gauge>;
type Fraction<L> = Family<L, Gauge<f64, AtomicU64>>;

/// What can be seen of instances and links.
#[derive(Debug)]
pub(super) struct FleetGauges {
    ready: Whole<Instance>,
    queued_requests: Whole<Instance>,
    queued_tokens: Whole<Instance>,
    decoding: Whole<Instance>,
    kv_used: Fraction<Instance>,
    up: Whole<Link>,
    rtt: Fraction<Link>,
    busy: Fraction<Link>,
    resent: Fraction<Link>,
    throughput: Fraction<Link>,
    delivery: Fraction<Link>,
    retransmits: Fraction<Link>,
    quarantined: Whole<Link>,
}

impl FleetGauges {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let gauges = Self {
            ready: Family::default(),
            queued_requests: Family::default(),
            queued_tokens: Family::default(),
            decoding: Family::default(),
            kv_used: Family::default(),
            up: Family::default(),
            rtt: Family::default(),
            busy: Family::default(),
            resent: Family::default(),
            throughput: Family::default(),
            delivery: Family::default(),
            retransmits: Family::default(),
            quarantined: Family::default(),
        };
        let mut whole = |name, help, gauge: &Whole<Instance>| registry.register(name, help, gauge.clone());
        whole(
            "instance_ready",
            "1 when the instance may be given work: it reports, is warm, is not draining, and its breaker is closed",
            &gauges.ready,
        );
        whole(
            "prefill_queued_requests",
            "Requests waiting for prefill",
            &gauges.queued_requests,
        );
        whole(
            "prefill_queued_tokens",
            "Prompt tokens waiting for prefill",
            &gauges.queued_tokens,
        );
        whole("decode_running", "Sequences decoding", &gauges.decoding);
        registry.register_with_unit(
            "kv_used",
            "Share of an instance's KV pool in use",
            Unit::Ratios,
            gauges.kv_used.clone(),
        );
        registry.register("link_up", "1 when KV can come over the link", gauges.up.clone());
        registry.register_with_unit("link_rtt", "Round-trip time", Unit::Seconds, gauges.rtt.clone());
        registry.register_with_unit(
            "link_utilisation",
            "Share of the link's capacity in use, mean over 30 s",
            Unit::Ratios,
            gauges.busy.clone(),
        );
        registry.register_with_unit(
            "link_resent",
            "Share of chunks that were sent again",
            Unit::Ratios,
            gauges.resent.clone(),
        );
        gauges.register_measured(registry);
        gauges
    }

    fn register_measured(&self, registry: &mut Registry) {
        let bytes_a_second = || Unit::Other("bytes_per_second".to_owned());
        registry.register_with_unit(
            "link_throughput",
            "What the link carried in the last sample of 500 ms",
            bytes_a_second(),
            self.throughput.clone(),
        );
        registry.register_with_unit(
            "link_delivery",
            "What the link delivered at best within the last ten seconds of sending",
            bytes_a_second(),
            self.delivery.clone(),
        );
        registry.register_with_unit(
            "link_retransmitted",
            "Share of TCP segments that were sent again, over 30 s",
            Unit::Ratios,
            self.retransmits.clone(),
        );
        registry.register(
            "link_quarantined_sets",
            "KV sets that came damaged twice and went into quarantine, since the start",
            self.quarantined.clone(),
        );
    }

    pub(super) fn read(&self, fleet: &FleetView) {
        for instance in &fleet.instances {
            self.read_instance(fleet, instance);
        }
        let site = |index| fleet.site(index).map_or_else(String::new, |s| s.name.to_string());
        for ((from, to), link) in &fleet.links {
            let labels = Link {
                from: site(*from),
                to: site(*to),
            };
            self.up.get_or_create(&labels).set(i64::from(link.up));
            self.rtt.get_or_create(&labels).set(link.rtt.as_secs_f64());
            self.busy
                .get_or_create(&labels)
                .set(f64::from(link.busy.0) / 1000.0);
            self.resent
                .get_or_create(&labels)
                .set(f64::from(link.loss.0) / 1000.0);
            let bytes = |rate: BitsPerSecond| rate.0 as f64 / 8.0;
            let measured = &link.measured;
            self.throughput
                .get_or_create(&labels)
                .set(bytes(measured.throughput));
            self.delivery.get_or_create(&labels).set(bytes(measured.delivery));
            self.retransmits
                .get_or_create(&labels)
                .set(f64::from(measured.retransmits.0) / 1000.0);
            let sets = i64::try_from(measured.quarantined).unwrap_or(i64::MAX);
            self.quarantined.get_or_create(&labels).set(sets);
        }
    }

    fn read_instance(&self, fleet: &FleetView, instance: &InstanceView) {
        let labels = Instance {
            site: fleet
                .site(instance.site)
                .map_or_else(String::new, |s| s.name.to_string()),
            instance: instance.name.to_string(),
        };
        self.ready
            .get_or_create(&labels)
            .set(i64::from(instance.standing.is_ready()));
        self.queued_requests
            .get_or_create(&labels)
            .set(i64::from(instance.prefill_queued_requests));
        self.queued_tokens
            .get_or_create(&labels)
            .set(i64::from(instance.prefill_queued_tokens));
        self.decoding
            .get_or_create(&labels)
            .set(i64::from(instance.decode_running));
        self.kv_used
            .get_or_create(&labels)
            .set(f64::from(instance.kv_used.0) / 1000.0);
    }
}
