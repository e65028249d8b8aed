//! Brings what an instance of this site lacks of a prompt from whoever holds it, when that is cheaper than computing it:
//! the best holder first, the next best when that one fails.

use crate::copy::{Copied, Copying, Holder, Uncopied, blames_link};
use crate::lookup;
use crate::permission::Permission;
use portolan_base::{InstanceName, Moment, SiteName, Tokens};
use portolan_decide::record::{Fallback, FetchRecord};
use portolan_decide::{FetchInput, FetchPlan, FleetView, InstanceIndex, KvSize, SiteIndex};
use portolan_ports::{FetchReport, HeldPrefix, InstanceOutcome};
use std::time::Duration;

/// Most holders asked for one prompt. The first deadline bounds the time of all; three bound the policy calls.
const HOLDERS_ASKED: usize = 3;

/// What is brought, and what is known of who holds it.
pub(crate) struct Bringing<'a> {
    pub(crate) copying: Copying<'a>,
    pub(crate) fleet: &'a FleetView,
    /// The instance that is to compute the prompt; at this site.
    pub(crate) at: InstanceIndex,
    /// Tokens of the prompt that each instance is thought to hold, by index.
    pub(crate) holders: Vec<u32>,
}

/// One holder that was asked, or was to be.
pub(crate) struct Attempt {
    plan: FetchPlan,
    /// Names of the holder's site and of the holder.
    names: (String, String),
    had: Tokens,
    took: Duration,
    pub(crate) outcome: Result<Copied, Uncopied>,
}

impl Bringing<'_> {
    /// Whoever holds it at a site that `allowed` is false of is not asked.
    pub(crate) fn only_from(mut self, allowed: impl Fn(SiteIndex) -> bool) -> Self {
        self.pass_over(|site, _| !allowed(site));
        self
    }

    /// Brings it, as far as it pays; says who was asked and what came of it. Whatever does not come is computed.
    pub(crate) async fn bring(mut self, permission: &mut Permission<'_>) -> Vec<Attempt> {
        let mut attempts: Vec<Attempt> = Vec::new();
        let mut until: Option<Moment> = None;
        while attempts.len() < HOLDERS_ASKED {
            let Some((plan, has)) = self.plan() else { break };
            let begun = self.now();
            let deadline = *until.get_or_insert(begun + plan.deadline());
            let left = deadline.since(begun).min(plan.deadline());
            if plan.takes >= left {
                break;
            }
            let names = portolan_decide::plan::instance_names(self.fleet, plan.from);
            let outcome = self.ask(permission, &plan, &names, &has, left).await;
            let done = matches!(&outcome, Ok(copied) if copied.cut_short.is_none());
            self.learn(&plan, &outcome);
            attempts.push(Attempt {
                plan,
                names,
                had: Tokens(has.tokens),
                took: self.now().since(begun),
                outcome,
            });
            if done {
                break;
            }
        }
        attempts
    }

    /// The fetch that pays most, and what the instance has.
    fn plan(&self) -> Option<(FetchPlan, HeldPrefix)> {
        let order = self.copying.order;
        let layout = &self.copying.engine.describe().layout;
        let input = FetchInput {
            fleet: self.fleet,
            kv: KvSize::from(layout.as_ref()),
            block: Tokens(layout.block_tokens),
            held: &self.holders,
            at: self.at,
            has: Tokens(self.holders.get(self.at.0 as usize).copied().unwrap_or(0)),
            wanted: Tokens(u32::try_from(order.tokens.len()).unwrap_or(u32::MAX)),
        };
        // Only a fetch that may pay is worth naming all blocks of the prompt for.
        FetchPlan::best(&input, |_| true)?;
        let (engine, on) = (self.copying.engine.as_ref(), &self.copying.about.dependencies);
        let has = lookup::kept(engine, &self.copying.key, &order.tokens, on);
        let input = FetchInput {
            has: Tokens(has.tokens),
            ..input
        };
        FetchPlan::best(&input, |_| true).map(|plan| (plan, has))
    }

    async fn ask(
        &self,
        permission: &mut Permission<'_>,
        plan: &FetchPlan,
        (site, instance): &(String, String),
        has: &HeldPrefix,
        deadline: Duration,
    ) -> Result<Copied, Uncopied> {
        let here = &self.copying.site.parts;
        if !permission.may_come(plan.site, here.index) {
            return Err(Uncopied::Residency {
                from: site.clone(),
                to: here.name.to_string(),
            });
        }
        let gone = |_| Uncopied::Gone(instance.clone());
        let holder = Holder {
            site: SiteName::new(site).map_err(gone)?,
            instance: InstanceName::new(instance).map_err(gone)?,
        };
        self.copying.copy(&holder, plan.tokens, has, deadline).await
    }

    /// Who failed is not asked again for this prompt: the site where its link or the residency answer stood in the way,
    /// else the one instance.
    fn learn(&mut self, plan: &FetchPlan, outcome: &Result<Copied, Uncopied>) {
        let broke = match outcome {
            Ok(copied) => copied.cut_short.as_ref(),
            Err(Uncopied::Transfer { error, .. }) => Some(error),
            Err(_) => None,
        };
        let of_link = broke.is_some_and(blames_link);
        let fleet = &self.copying.site.parts.fleet;
        if of_link {
            fleet.link_outcome(plan.site, InstanceOutcome::Failed);
        } else if matches!(outcome, Ok(copied) if copied.cut_short.is_none()) {
            fleet.link_outcome(plan.site, InstanceOutcome::Served);
        }
        let whole_site = of_link || matches!(outcome, Err(Uncopied::Residency { .. }));
        self.pass_over(|site, holder| holder == plan.from || whole_site && site == plan.site);
    }

    fn pass_over(&mut self, whom: impl Fn(SiteIndex, InstanceIndex) -> bool) {
        let at = self.at;
        for ((index, instance), held) in self.fleet.indexed().zip(&mut self.holders) {
            if index != at && whom(instance.site, index) {
                *held = 0;
            }
        }
    }

    fn now(&self) -> Moment {
        self.copying.site.parts.clock.now()
    }
}

impl Attempt {
    /// What was not to be asked for: the residency answer does not let it come to site `to`.
    pub(crate) fn denied(fleet: &FleetView, plan: FetchPlan, had: Tokens, to: SiteIndex) -> Self {
        let names = portolan_decide::plan::instance_names(fleet, plan.from);
        let to = fleet
            .site(to)
            .map_or_else(|| "-".to_owned(), |site| site.name.to_string());
        let from = names.0.clone();
        Self {
            plan,
            names,
            had,
            took: Duration::ZERO,
            outcome: Err(Uncopied::Residency { from, to }),
        }
    }

    /// Why not all of it came; none: it did.
    pub(crate) fn failed(&self) -> Option<String> {
        match &self.outcome {
            Ok(copied) => copied.cut_short.as_ref().map(ToString::to_string),
            Err(uncopied) => Some(uncopied.to_string()),
        }
    }

    /// What there is to tell of it, in the path record of the request's own site.
    pub(crate) fn report(&self) -> FetchReport {
        let (tokens, bytes) = match &self.outcome {
            Ok(copied) => (copied.tokens.0, copied.bytes),
            Err(uncopied) => (0, uncopied.bytes()),
        };
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        FetchReport {
            site: self.names.0.clone(),
            instance: self.names.1.clone(),
            wanted: (self.plan.tokens - self.had).0,
            tokens,
            bytes: bytes.0,
            took_us: micros(self.took),
            estimated_us: micros(self.plan.takes),
            computing_us: micros(self.plan.computing),
            failed: self.failed().map(short),
        }
    }
}

/// Whatever the holder said, it has to fit into the last word on a transfer, three times over.
pub(crate) fn short(text: String) -> String {
    const LONGEST: usize = 256;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

/// What the path record says of a fetch for the instance `to`, named by site and instance.
pub(crate) fn fetch_record(report: FetchReport, to: (&str, &str)) -> FetchRecord {
    let millis = |micros: u64| micros as f64 / 1000.0;
    FetchRecord {
        site: report.site,
        instance: report.instance,
        to_site: to.0.to_owned(),
        to_instance: to.1.to_owned(),
        wanted_tokens: report.wanted,
        tokens: report.tokens,
        bytes: report.bytes,
        took_ms: millis(report.took_us),
        estimated_ms: millis(report.estimated_us),
        computing_ms: millis(report.computing_us),
        failed: report.failed,
    }
}

/// The fallbacks of a prompt's fetches, in the order in which they were tried.
pub(crate) fn fallbacks(fetches: &[FetchRecord]) -> Vec<Fallback> {
    let next = fetches.iter().skip(1).map(Some).chain([None]);
    let fallback = |(fetch, next): (&FetchRecord, Option<&FetchRecord>)| {
        let to = match (fetch.tokens, next) {
            (0, Some(next)) => format!("asking {}/{}", next.site, next.instance),
            (0, None) => "computing them".to_owned(),
            (came, Some(next)) => format!("keeping {came}, asking {}/{}", next.site, next.instance),
            (came, None) => format!("keeping {came}, computing the rest"),
        };
        Some(Fallback {
            stage: "fetch".to_owned(),
            from: format!(
                "{} tokens from {}/{}",
                fetch.wanted_tokens, fetch.site, fetch.instance
            ),
            to,
            reason: fetch.failed.clone()?,
        })
    };
    fetches.iter().zip(next).filter_map(fallback).collect()
}
