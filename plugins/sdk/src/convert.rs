//! Between the generated types and the SDK's, for the macros.

use crate::bindings::invalidation::exports::portolan::policy::invalidation_policy as invalidation;
use crate::bindings::residency::exports::portolan::policy::residency_policy as residency;
use crate::bindings::routing::exports::portolan::policy::routing_policy as routing;
use crate::{
    Candidates, Dependency, Directive, Event, Groups, ModelChange, Placement, Pressure, Purpose, Routes,
    RoutingDecision, Subject,
};
use portolan_policy::Matrix;

pub fn routes(stride: u32, cells: &[u32]) -> Routes<'_> {
    Routes(Matrix::new(stride, cells))
}

pub fn groups(stride: u32, cells: &[u32]) -> Groups<'_> {
    Groups(Matrix::new(stride, cells))
}

pub fn candidates<'a>(routes: (u32, &'a [u32]), costs: (u32, &'a [u32])) -> Candidates<'a> {
    Candidates::new(Matrix::new(routes.0, routes.1), Matrix::new(costs.0, costs.1))
}

pub fn subject(subject: residency::Subject) -> Subject {
    let purpose = match subject.purpose {
        residency::Purpose::Serve => Purpose::Serve,
        residency::Purpose::Fetch => Purpose::Fetch,
        residency::Purpose::Replicate => Purpose::Replicate,
        residency::Purpose::Prewarm => Purpose::Prewarm,
        residency::Purpose::Spill => Purpose::Spill,
    };
    Subject {
        purpose,
        data_jurisdiction: subject.data_jurisdiction,
        data_class: subject.data_class,
        from_site: subject.from_site,
    }
}

pub fn placement(placement: Placement) -> residency::Placement {
    match placement {
        Placement::Denied => residency::Placement::Denied,
        Placement::Transient => residency::Placement::Transient,
        Placement::Resident => residency::Placement::Resident,
    }
}

pub fn decision(decision: RoutingDecision) -> routing::Decision {
    match decision {
        RoutingDecision::Scores(scores) => routing::Decision::Scores(scores),
        RoutingDecision::Defer(ms) => routing::Decision::Defer(ms),
        RoutingDecision::Refuse(reason) => routing::Decision::Refuse(reason),
    }
}

pub fn event(event: invalidation::Event) -> Event {
    match event {
        invalidation::Event::ModelUpdated(change) => Event::ModelUpdated(ModelChange {
            model: change.model,
            old_version: change.old_version,
            new_version: change.new_version,
        }),
        invalidation::Event::DependenciesChanged(changed) => {
            let dependency = |d: invalidation::Dependency| Dependency {
                kind: d.kind,
                name: d.name,
                version: d.version,
            };
            Event::DependenciesChanged(changed.into_iter().map(dependency).collect())
        }
        invalidation::Event::CapacityPressure(pressure) => Event::CapacityPressure(Pressure {
            site: pressure.site,
            used_mib: pressure.used_mib,
            limit_mib: pressure.limit_mib,
        }),
        invalidation::Event::PrefixRevoked(prefix) => Event::PrefixRevoked(prefix),
        invalidation::Event::TenantRemoved => Event::TenantRemoved,
        invalidation::Event::Tick(now_ms) => Event::Tick(now_ms),
    }
}

pub fn directive(directive: Directive) -> invalidation::Directive {
    match directive {
        Directive::BelowVersion { model, version } => {
            invalidation::Directive::BelowVersion(invalidation::VersionFloor { model, version })
        }
        Directive::DependsOn(d) => invalidation::Directive::DependsOn(invalidation::Dependency {
            kind: d.kind,
            name: d.name,
            version: d.version,
        }),
        Directive::DropGroup(group) => invalidation::Directive::DropGroup(group),
        Directive::IdleLongerThan(ms) => invalidation::Directive::IdleLongerThan(ms),
        Directive::FreeMib(mib) => invalidation::Directive::FreeMib(mib),
    }
}
