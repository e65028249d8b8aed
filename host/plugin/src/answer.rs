//! Turns what a component answered into an [`Answer`], or says why it cannot be used.

use crate::bindings::exports::portolan::policy::{invalidation_policy, residency_policy, routing_policy};
use crate::limits::{DEFER_MAX_MS, DEPENDENCY_TEXT_MAX_BYTES, DIRECTIVES_MAX, REASON_MAX_BYTES};
use crate::log::tame;
use portolan_policy::{Answer, CostColumn, Dependency, Directive, Placement, PolicyFault, RoutingDecision};

pub(crate) type Checked = Result<Answer, PolicyFault>;

/// One placement a site.
pub(crate) fn residency(placements: &[residency_policy::Placement], sites: usize) -> Checked {
    expect(placements.len(), sites, "placements", "one for each site")?;
    let placements = placements.iter().map(|p| match p {
        residency_policy::Placement::Denied => Placement::Denied,
        residency_policy::Placement::Transient => Placement::Transient,
        residency_policy::Placement::Resident => Placement::Resident,
    });
    Ok(Answer::Residency(placements.collect()))
}

/// A whole cost matrix.
pub(crate) fn cost(cells: Vec<u32>, routes: usize) -> Checked {
    expect(
        cells.len(),
        routes * CostColumn::COUNT,
        "cost values",
        "a row of six for each route",
    )?;
    Ok(Answer::Cost(cells))
}

/// One score a route, a bounded deferral or a bounded refusal.
pub(crate) fn routing(decision: routing_policy::Decision, routes: usize) -> Checked {
    Ok(Answer::Routing(match decision {
        routing_policy::Decision::Scores(scores) => {
            expect(scores.len(), routes, "scores", "one for each route")?;
            RoutingDecision::Scores(scores)
        }
        routing_policy::Decision::Defer(ms) => RoutingDecision::Defer(ms.min(DEFER_MAX_MS)),
        routing_policy::Decision::Refuse(reason) => RoutingDecision::Refuse(tame(&reason, REASON_MAX_BYTES)),
    }))
}

/// A bounded number of directives.
pub(crate) fn invalidation(directives: Vec<invalidation_policy::Directive>) -> Checked {
    if directives.len() > DIRECTIVES_MAX {
        return bad(format!(
            "{} directives, at most {DIRECTIVES_MAX} are taken",
            directives.len()
        ));
    }
    directives
        .into_iter()
        .map(directive)
        .collect::<Result<_, _>>()
        .map(Answer::Invalidation)
}

fn directive(directive: invalidation_policy::Directive) -> Result<Directive, PolicyFault> {
    use invalidation_policy::Directive as Wit;
    Ok(match directive {
        Wit::BelowVersion(floor) => Directive::BelowVersion {
            model: floor.model,
            version: floor.version,
        },
        Wit::DependsOn(named) => Directive::DependsOn(dependency(named)?),
        Wit::DropGroup(group) => Directive::DropGroup(group),
        Wit::IdleLongerThan(ms) => Directive::IdleLongerThan(ms),
        Wit::FreeMib(mib) => Directive::FreeMib(mib),
    })
}

fn dependency(named: invalidation_policy::DependencyResult) -> Result<Dependency, PolicyFault> {
    let longest = named.kind.len().max(named.name.len()).max(named.version.len());
    if longest > DEPENDENCY_TEXT_MAX_BYTES {
        return bad(format!(
            "a dependency's text of {longest} bytes, at most {DEPENDENCY_TEXT_MAX_BYTES} are taken"
        ));
    }
    Ok(Dependency {
        kind: named.kind,
        name: named.name,
        version: named.version,
    })
}

fn expect(found: usize, wanted: usize, what: &str, rule: &str) -> Result<(), PolicyFault> {
    if found == wanted {
        return Ok(());
    }
    bad(format!("{found} {what} instead of {wanted} ({rule})"))
}

fn bad<T>(why: String) -> Result<T, PolicyFault> {
    Err(PolicyFault::BadAnswer(why))
}
