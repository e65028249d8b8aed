//! Candidate routes over engines that answer whole requests. An instance that does both answers alone; where a site has
//! apart what computes prompts and what generates, instances that hand KV to each other are paired.

use super::best::{Best, pairs};
use super::{Route, Survey, decode_us};
use crate::fleet::{InstanceIndex, InstanceView, Serving};
use crate::request::{Manner, PrefillMode};
use std::collections::BTreeMap;

/// The two sides of a group of instances that hand KV to each other.
#[derive(Default)]
struct Group {
    prefillers: Best,
    decoders: Vec<(u64, InstanceIndex)>,
}

impl Survey<'_> {
    /// Whole requests are answered where they came in.
    pub(super) fn whole_routes(&self) -> Vec<Route> {
        let request = self.request;
        let here = request.prefill_mode != PrefillMode::RemoteRequired;
        if request.manner == Manner::Pieces || !here {
            return Vec::new();
        }
        let mut routes = Vec::new();
        let mut groups: BTreeMap<u16, Group> = BTreeMap::new();
        for (index, instance) in self.fleet.indexed() {
            if instance.model != request.model
                || instance.site != request.origin
                || !self.takes(index, instance)
            {
                continue;
            }
            let alone = Route {
                prefill: index,
                decode: index,
            };
            match (
                instance.serving,
                instance.role.prefills(),
                instance.role.decodes(),
            ) {
                (Serving::Pieces, ..) => {}
                (Serving::Whole | Serving::Stored | Serving::Slotted, _, true) => routes.push(alone),
                (Serving::Handing(_), true, true) => routes.push(alone),
                (Serving::Handing(group), true, false) => {
                    groups
                        .entry(group)
                        .or_default()
                        .prefillers
                        .offer(self.prompt_us(index, instance), index);
                }
                (Serving::Handing(group), false, true) => {
                    let load = u64::from(decode_us(instance));
                    groups.entry(group).or_default().decoders.push((load, index));
                }
                (Serving::Whole | Serving::Stored | Serving::Slotted | Serving::Handing(_), ..) => {}
            }
        }
        for group in groups.into_values() {
            // Without anyone to compute prompts, whoever generates computes them too.
            if group.prefillers.len() == 0 {
                routes.extend(group.decoders.iter().map(|(_, index)| Route {
                    prefill: *index,
                    decode: *index,
                }));
                continue;
            }
            let mut decoders = Best::default();
            group
                .decoders
                .iter()
                .for_each(|(load, index)| decoders.offer(*load, *index));
            routes.extend(
                pairs(&group.prefillers, &decoders).map(|(prefill, decode)| Route { prefill, decode }),
            );
        }
        routes
    }

    /// Until the instance would have the prompt computed.
    fn prompt_us(&self, index: InstanceIndex, instance: &InstanceView) -> u64 {
        let prompt = self.request.prompt_tokens.saturating_sub(1);
        let uncached = prompt - self.held(index);
        instance.queue_us().saturating_add(instance.prefill_us(uncached))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Candidates, KvSize};
    use super::*;
    use crate::{FleetView, RequestFacts, SiteIndex, SiteView, Standing};
    use portolan_base::{InstanceName, Permille, RequestId, Role, SiteName};

    fn instance(name: &str, role: Role, serving: Serving) -> InstanceView {
        InstanceView {
            name: InstanceName::new(name).unwrap(),
            site: SiteIndex(0),
            model: 0,
            role,
            serving,
            standing: Standing::Ready,
            prefill_queued_requests: 0,
            prefill_queued_tokens: 0,
            decode_running: 0,
            decode_slots: 8,
            kv_used: Permille(0),
            prefill_busy: Permille(0),
            decode_busy: Permille(0),
            prefill_ns_per_token: 1000,
            prefill_curve: Default::default(),
            decode_step_us: 100,
            price_micros_per_kilotoken: 0,
        }
    }

    fn routes(instances: Vec<InstanceView>, manner: Manner) -> Vec<(String, String)> {
        let fleet = FleetView {
            sites: vec![SiteView {
                name: SiteName::new("here").unwrap(),
                jurisdiction: 0,
            }],
            instances,
            ..FleetView::default()
        };
        let request = RequestFacts {
            id: RequestId::from_client("r").unwrap(),
            tenant: 0,
            model: 0,
            session: 0,
            origin: SiteIndex(0),
            jurisdiction: 0,
            user_class: 0,
            kind: Default::default(),
            prompt_tokens: 100,
            max_output_tokens: 8,
            expected_output_tokens: 8,
            prefill_mode: PrefillMode::Auto,
            manner,
            priority: 0,
            ttft_slo_ms: 0,
            seed: 0,
            now: Default::default(),
            labels: Default::default(),
        };
        let found = Candidates::enumerate(&request, &fleet, KvSize::default(), &[]);
        let name = |index| fleet.instance(index).unwrap().name.as_str().to_owned();
        let mut names: Vec<_> = found
            .routes
            .iter()
            .map(|r| (name(r.prefill), name(r.decode)))
            .collect();
        names.sort();
        names
    }

    fn pair(a: &str, b: &str) -> (String, String) {
        (a.to_owned(), b.to_owned())
    }

    fn mixed() -> Vec<InstanceView> {
        vec![
            instance("n1", Role::Both, Serving::Pieces),
            instance("n2", Role::Both, Serving::Pieces),
            instance("v1", Role::Both, Serving::Whole),
            instance("h1", Role::Both, Serving::Handing(1)),
            instance("s1", Role::Both, Serving::Stored),
        ]
    }

    #[test]
    fn kv_of_the_host_never_meets_an_engine_that_keeps_its_own() {
        let either = routes(mixed(), Manner::Either);
        let native = [
            pair("n1", "n1"),
            pair("n1", "n2"),
            pair("n2", "n1"),
            pair("n2", "n2"),
        ];
        let whole = [pair("h1", "h1"), pair("s1", "s1"), pair("v1", "v1")];
        assert_eq!(either, [&whole[..1], &native[..], &whole[1..]].concat());
        assert_eq!(routes(mixed(), Manner::Pieces), native);
        assert_eq!(routes(mixed(), Manner::Whole), whole);
    }

    #[test]
    fn prefill_and_decode_are_paired_within_their_group_only() {
        let parted = |with_prefill: bool| {
            let mut all = vec![
                instance("d1", Role::Decode, Serving::Handing(1)),
                instance("d2", Role::Decode, Serving::Handing(2)),
                instance("p2", Role::Prefill, Serving::Handing(2)),
                instance("lone", Role::Prefill, Serving::Whole),
            ];
            if with_prefill {
                all.push(instance("p1", Role::Prefill, Serving::Handing(1)));
            }
            routes(all, Manner::Whole)
        };
        assert_eq!(parted(true), [pair("p1", "d1"), pair("p2", "d2")]);
        assert_eq!(
            parted(false),
            [pair("d1", "d1"), pair("p2", "d2")],
            "decode instances go on alone"
        );
    }
}
