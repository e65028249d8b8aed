//! Which cached blocks of a site die when something changes, or as time passes: the `invalidation` question, asked of
//! the platform's policy about all blocks and of a tenant's about its own.
//!
//! Where nobody has bound a policy, and where one fails, the built-in version rule decides. With policies bound, an event
//! goes through the cards of what is cached, once; without, through the index of dependencies alone.

mod decisions;
mod groups;
mod pressure;
#[cfg(test)]
mod tests;

pub(crate) use decisions::{Decisions, Place, ReactionRecord};
pub use pressure::PressureRules;

use crate::http::each_card;
use crate::rollout;
use crate::site::Site;
use groups::Groups;
use parking_lot::Mutex;
use portolan_base::{Dependency, Scope};
use portolan_decide::ask::Asker;
use portolan_kv::Selector;
use portolan_policy::{
    Answer, Directive, Event, GroupColumn, Matrix, ModelChange, NameTables, Policy, Question, QuestionKind,
    Scope as Whose,
};
use portolan_ports::{Deciding, Invalidated};
use pressure::Pressed;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock, Weak};

/// The version rule's name in records.
const FALLBACK: &str = "the built-in version rule";

/// Asks a site's policies what dies. Until the site exists the version rule decides.
#[derive(Default)]
pub struct PolicyReaction {
    site: OnceLock<Weak<Site>>,
    pressed: Mutex<Pressed>,
}

impl PolicyReaction {
    /// One that asks who makes room as these rules say.
    pub fn new(rules: PressureRules) -> Self {
        Self {
            site: OnceLock::new(),
            pressed: Mutex::new(Pressed::new(rules)),
        }
    }

    /// Asks the policies of this site from here on. Set once.
    pub fn attach(&self, site: &Arc<Site>) {
        drop(self.site.set(Arc::downgrade(site)));
    }

    fn site(&self) -> Option<Arc<Site>> {
        self.site.get()?.upgrade()
    }
}

impl Deciding for PolicyReaction {
    fn react(&self, to: &Invalidated, rule: Vec<Selector>) -> Vec<Selector> {
        match self.site() {
            Some(site) => decide(&site, &event(&site, to), concerned(to), rule),
            None => rule,
        }
    }

    fn tick(&self) -> Vec<Selector> {
        let Some(site) = self.site() else {
            return Vec::new();
        };
        let now = site.parts.clock.now().millis();
        decide(&site, &Event::Tick(now), None, Vec::new())
    }

    fn pressure(&self) -> Vec<Selector> {
        match self.site() {
            Some(site) => pressure::relieve(&site, &mut self.pressed.lock()),
            None => Vec::new(),
        }
    }
}

/// The policies that are bound to the question.
struct Bound {
    platform: Option<Arc<dyn Policy>>,
    tenants: BTreeMap<Scope, Arc<dyn Policy>>,
}

impl Bound {
    fn of(site: &Site) -> Self {
        let table = site.parts.desk.table();
        let mut bound = Self {
            platform: None,
            tenants: BTreeMap::new(),
        };
        for (whose, question, policy) in table.iter() {
            match whose {
                _ if question != QuestionKind::Invalidation => {}
                Whose::Platform => bound.platform = Some(Arc::clone(policy)),
                Whose::Tenant(tenant) => {
                    bound
                        .tenants
                        .insert(Scope::Tenant(tenant.clone()), Arc::clone(policy));
                }
            }
        }
        bound
    }
}

/// Whose blocks alone an event is about; none: everyone's.
fn concerned(to: &Invalidated) -> Option<&Scope> {
    match to {
        Invalidated::Model { .. } => None,
        Invalidated::Dependency { of, .. } | Invalidated::Prefix { of, .. } => of.as_ref(),
        Invalidated::Tenant { scope } => Some(scope),
    }
}

/// The event in the words of the contract.
fn event(site: &Site, to: &Invalidated) -> Event {
    match to {
        Invalidated::Model { model } => {
            let names = site.parts.fleet.names();
            let index = model_index(&names, model.as_str()).unwrap_or(u32::MAX);
            let configured = site
                .parts
                .models
                .get(model)
                .map(|model| &model.description.layout);
            let version = configured.map_or(0, |layout| site.model_version(layout));
            Event::ModelUpdated(ModelChange {
                model: index,
                old_version: version.saturating_sub(1),
                new_version: version,
            })
        }
        Invalidated::Dependency { by, .. } => Event::DependenciesChanged(vec![by.clone()]),
        Invalidated::Prefix { block, .. } => {
            let (first, _) = block.0.split_at(8);
            Event::PrefixRevoked(first.iter().fold(0, |hash, byte| hash << 8 | u64::from(*byte)))
        }
        Invalidated::Tenant { .. } => Event::TenantRemoved,
    }
}

fn model_index(names: &NameTables, model: &str) -> Option<u32> {
    let position = names.models.iter().position(|name| name == model)?;
    u32::try_from(position).ok()
}

/// What dies: what the platform's policy says of all blocks, what each tenant's says of its own, and what `rule` says of
/// those that no policy answered for.
fn decide(site: &Arc<Site>, event: &Event, about: Option<&Scope>, rule: Vec<Selector>) -> Vec<Selector> {
    let mut bound = Bound::of(site);
    bound
        .tenants
        .retain(|scope, _| about.is_none_or(|about| about == scope));
    if bound.platform.is_none() && bound.tenants.is_empty() {
        return rule;
    }
    let names = site.parts.fleet.names();
    let changed: &[Dependency] = match event {
        Event::DependenciesChanged(changed) => changed,
        _ => &[],
    };
    let mut groups = Groups::new(&names, site.parts.index.0, changed);
    let now = site.parts.clock.now();
    each_card(site, &mut |card| {
        if about.is_none_or(|about| card.about.scope == *about) {
            groups.add(&card, now);
        }
    });
    let mut dies = Vec::new();
    let mut answered: Vec<Scope> = Vec::new();
    let platform = bound.platform.as_ref();
    let platform = platform.and_then(|policy| ask(site, policy.as_ref(), event, &groups, None));
    for (scope, policy) in &bound.tenants {
        if let Some(of_tenant) = ask(site, policy.as_ref(), event, &groups, Some(scope)) {
            dies.extend(of_tenant);
            answered.push(scope.clone());
        }
    }
    match platform {
        Some(of_all) => {
            // It was asked about all blocks, and what it lets live may still die by the tenant's own word.
            dies.extend(of_all);
            let failed = bound.tenants.keys().filter(|scope| !answered.contains(scope));
            for scope in failed {
                dies.extend(rule.iter().map(|rule| within(rule, scope)));
            }
        }
        None if answered.is_empty() => dies.extend(rule),
        None => dies.extend(rule.into_iter().map(|rule| Selector::Except {
            what: Box::new(rule),
            but: answered.as_slice().into(),
        })),
    }
    dies
}

/// Asks one policy about the blocks of a scope, or all, and writes down what it said; none when it failed.
fn ask(
    site: &Arc<Site>,
    policy: &dyn Policy,
    event: &Event,
    groups: &Groups<'_>,
    of: Option<&Scope>,
) -> Option<Vec<Selector>> {
    let cells = groups.cells(of);
    let labels = BTreeMap::new();
    let mut asker = Asker::new(site.parts.clock.as_ref(), &labels, "");
    let question = Question::Invalidation {
        event,
        groups: Matrix::new(GroupColumn::COUNT as u32, &cells),
    };
    let answer = asker.ask(policy, question, FALLBACK);
    for fallback in &asker.fallbacks {
        tracing::warn!(site = %site.parts.name, from = %fallback.from, to = %fallback.to, reason = %fallback.reason,
            "an invalidation policy failed");
    }
    let dies = match answer {
        Some(Answer::Invalidation(directives)) => Some(selectors(&directives, groups, of)),
        _ => None,
    };
    let tenant = match of {
        Some(Scope::Tenant(tenant)) => Some(tenant),
        _ => None,
    };
    rollout::count_calls(site, tenant, &asker.calls);
    let named = dies.iter().flatten().filter_map(|selector| match selector {
        Selector::Blocks(ids) => Some((ids.len() as u64, groups.bytes(of, ids))),
        _ => None,
    });
    let named = named.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    for call in asker.calls {
        let decision = ReactionRecord::new(site, (event, groups.place()), call, named);
        site.decisions.note(of, decision);
    }
    dies
}

/// The blocks that a policy's directives are about, of a scope alone where it is a tenant's.
fn selectors(directives: &[Directive], groups: &Groups<'_>, of: Option<&Scope>) -> Vec<Selector> {
    let mut ids = HashSet::new();
    let mut found = Vec::new();
    for directive in directives {
        match directive {
            Directive::DependsOn(by) => found.push(Selector::Outdated {
                by: by.clone(),
                of: of.cloned(),
            }),
            Directive::BelowVersion { model, version } => {
                let model = groups.names().models.get(*model as usize);
                ids.extend(groups.blocks(of, |group| {
                    Some(group.model.as_str()) == model.map(String::as_str) && group.version < *version
                }));
            }
            Directive::DropGroup(number) => ids.extend(groups.of_number(of, *number)),
            Directive::IdleLongerThan(ms) => ids.extend(groups.idle(of, *ms)),
            Directive::FreeMib(mib) => ids.extend(groups.oldest(of, u64::from(*mib) << 20)),
        }
    }
    if !ids.is_empty() {
        found.push(Selector::Blocks(Arc::new(ids)));
    }
    found
}

/// A rule, of a scope's blocks alone.
fn within(rule: &Selector, scope: &Scope) -> Selector {
    match rule {
        Selector::Outdated { by, of: None } => Selector::Outdated {
            by: by.clone(),
            of: Some(scope.clone()),
        },
        rule => rule.clone(),
    }
}
