//! fetch: the prefix KV that need not be computed. What another site holds comes to the prefill instance when that is
//! cheaper than computing it; what the decode instance holds is not sent again.

use super::journey::{Journey, Leg, Prefiller};
use crate::bring::{Attempt, Bringing, fallbacks, fetch_record};
use crate::copy::Copying;
use crate::lookup;
use crate::permission::Permission;
use portolan_base::{SiteName, Tokens};
use portolan_decide::ask::Asker;
use portolan_decide::record::FetchRecord;
use portolan_decide::{FetchInput, FetchPlan, KvSize};
use portolan_policy::{Purpose, Subject};
use portolan_ports::{Engine, FetchReport, HeldPrefix, KvOrder, OrderPurpose, Retention};
use std::sync::Arc;

/// Most sites that a prefill site abroad is allowed to fetch from. It asks the best it knows of; each costs the request
/// a question of residency.
const SOURCES: usize = 2;

/// What the stage leaves for the next ones.
#[derive(Default)]
pub(super) struct Brought {
    /// What the decode instance holds.
    pub(super) held: HeldPrefix,
    /// Sites that a prefill site abroad may fetch from.
    pub(super) sources: Arc<[SiteName]>,
}

impl Journey {
    /// Brings to the prefill instance what another site holds, where that pays, or says from where a prefill site abroad
    /// may do so; then takes the attention KV that the decode instance holds for the beginning of the prompt. `holders`
    /// says how many of its tokens each instance is thought to hold.
    pub(super) async fn fetch(&mut self, leg: &Leg, holders: &[u32]) -> Brought {
        let begun = self.enter("fetch");
        // What a route before this one brought is not what this one decodes from.
        self.record.kv.quantised = None;
        let mut brought = Brought::default();
        // What is fetched goes through the instance's cache, and a site that is not resident keeps nothing.
        if leg.keep_there == Retention::Keep && self.may_reuse() {
            match &leg.prefiller {
                Prefiller::Here(engine) => self.bring(leg, engine, holders).await,
                Prefiller::At(_) => brought.sources = self.sources(leg, holders),
            }
        }
        if self.may_reuse() {
            let (decoder, on) = (leg.decoder.as_ref(), &self.about.dependencies);
            brought.held = lookup::held(decoder, &self.key, &self.prefill_tokens(), on);
        }
        self.note_stage("fetch", begun);
        brought
    }

    /// Fetches if it pays, and writes down how that went. Whatever goes wrong is computed.
    async fn bring(&mut self, leg: &Leg, engine: &Arc<dyn Engine>, holders: &[u32]) {
        let (Some(seen), Ok(order)) = (&self.placements, self.order(leg, self.prefill_tokens(), 0)) else {
            return;
        };
        let order = KvOrder {
            purpose: OrderPurpose::Fetch,
            ..order
        };
        let bringing = Bringing {
            copying: Copying {
                site: &self.site,
                engine,
                key: match engine.whole() {
                    Some(_) => self.salted_key(),
                    None => self.key,
                },
                about: &self.about,
                order: &order,
            },
            fleet: &self.fleet,
            at: leg.route.prefill,
            holders: holders.to_vec(),
        };
        let mut permission = self.permission();
        let attempts = bringing
            .only_from(|site| seen.allows(site))
            .bring(&mut permission)
            .await;
        let Asker { calls, fallbacks, .. } = permission.asker;
        self.record.policies.extend(calls);
        self.record.fallbacks.extend(fallbacks);
        self.note_fetches(leg, attempts.iter().map(Attempt::report).collect());
    }

    /// The sites that the prefill site abroad may fetch from: those that seem worth it from here, and that the request's
    /// residency policies allow. It decides by what it knows itself.
    fn sources(&mut self, leg: &Leg, holders: &[u32]) -> Arc<[SiteName]> {
        let layout = Arc::clone(&leg.decoder.describe().layout);
        let at = leg.route.prefill;
        let Some(there) = self.fleet.instance(at).map(|instance| instance.site) else {
            return Arc::default();
        };
        let input = FetchInput {
            fleet: &self.fleet,
            kv: KvSize::from(layout.as_ref()),
            block: Tokens(layout.block_tokens),
            held: holders,
            at,
            has: Tokens(holders.get(at.0 as usize).copied().unwrap_or(0)),
            wanted: Tokens(self.record.prompt_tokens.saturating_sub(1)),
        };
        let (mut asked, mut allowed, mut denied) = (Vec::new(), Vec::new(), Vec::new());
        let mut permission = self.permission();
        while let Some(plan) = FetchPlan::best(&input, |site| {
            asked.len() < SOURCES && !asked.contains(&site) && self.seen_allows(site)
        }) {
            asked.push(plan.site);
            match permission.may_come(plan.site, there) {
                true => allowed.extend(self.fleet.site(plan.site).map(|site| site.name.clone())),
                false => denied.push(Attempt::denied(&self.fleet, plan, input.has, there).report()),
            }
        }
        let Asker { calls, fallbacks, .. } = permission.asker;
        self.record.policies.extend(calls);
        self.record.fallbacks.extend(fallbacks);
        self.note_fetches(leg, denied);
        allowed.into()
    }

    fn seen_allows(&self, site: portolan_decide::SiteIndex) -> bool {
        self.placements.as_ref().is_some_and(|seen| seen.allows(site))
    }

    /// The request's residency policies, asked about fetching.
    fn permission(&self) -> Permission<'_> {
        let row = self.record.request;
        Permission {
            fleet: &self.fleet,
            policies: &self.policies,
            subject: Subject {
                purpose: Purpose::Fetch,
                data_jurisdiction: row.jurisdiction,
                data_class: row.user_class,
                from_site: None,
            },
            row: row.to_cells().to_vec(),
            origin: self.site.parts.index,
            asker: Asker::new(
                self.site.parts.clock.as_ref(),
                &self.request.labels,
                self.request.id.as_str(),
            ),
        }
    }

    /// Writes down what was fetched for the leg's prefill instance, by whichever site.
    pub(super) fn note_fetches(&mut self, leg: &Leg, reports: Vec<FetchReport>) {
        let to = (
            leg.names.prefill_site.as_str(),
            leg.names.prefill_instance.as_str(),
        );
        let fetches: Vec<FetchRecord> = reports
            .into_iter()
            .map(|report| fetch_record(report, to))
            .collect();
        for fallback in fallbacks(&fetches) {
            tracing::warn!(
                request = %self.request.id, from = %fallback.from, to = %fallback.to, reason = %fallback.reason,
                "not fetched"
            );
            self.record.fallbacks.push(fallback);
        }
        self.record.kv.bytes_moved += fetches.iter().map(|fetch| fetch.bytes).sum::<u64>();
        self.record.fetches.extend(fetches);
    }
}
