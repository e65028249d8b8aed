//! Questions on their way into a component, and copies of them that can cross to another thread.

use crate::bindings::exports::portolan::policy::{invalidation_policy as wit, lifecycle, residency_policy};
use portolan_policy::{Call, Event, Matrix, NameTables, Purpose, Question, Subject};
use std::collections::BTreeMap;

/// What `configure` is given, made once for each version.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) config: String,
    pub(crate) names: std::sync::Arc<NameTables>,
}

impl Setup {
    /// Runs `configure` with the tables as WIT has them.
    pub(crate) fn with_tables<R>(&self, use_tables: impl FnOnce(&str, lifecycle::NameTables<'_>) -> R) -> R {
        let names = &*self.names;
        let sites: Vec<_> = names
            .sites
            .iter()
            .map(|s| lifecycle::Site {
                name: &s.name,
                region: &s.region,
                jurisdiction: s.jurisdiction,
            })
            .collect();
        let jurisdictions = borrow(&names.jurisdictions);
        let models = borrow(&names.models);
        let user_classes = borrow(&names.user_classes);
        let tables = lifecycle::NameTables {
            tenant: &names.tenant,
            sites: &sites,
            jurisdictions: &jurisdictions,
            models: &models,
            user_classes: &user_classes,
        };
        use_tables(&self.config, tables)
    }
}

fn borrow(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

pub(crate) fn subject(subject: &Subject) -> residency_policy::Subject {
    residency_policy::Subject {
        purpose: match subject.purpose {
            Purpose::Serve => residency_policy::Purpose::Serve,
            Purpose::Fetch => residency_policy::Purpose::Fetch,
            Purpose::Replicate => residency_policy::Purpose::Replicate,
            Purpose::Prewarm => residency_policy::Purpose::Prewarm,
            Purpose::Spill => residency_policy::Purpose::Spill,
        },
        data_jurisdiction: subject.data_jurisdiction,
        data_class: subject.data_class,
        from_site: subject.from_site,
    }
}

/// Runs `use_event` with the event as WIT has it.
pub(crate) fn with_event<R>(event: &Event, use_event: impl FnOnce(wit::Event<'_>) -> R) -> R {
    let mut dependencies = Vec::new();
    if let Event::DependenciesChanged(changed) = event {
        dependencies.extend(changed.iter().map(|d| wit::DependencyParam {
            kind: &d.kind,
            name: &d.name,
            version: &d.version,
        }));
    }
    use_event(match event {
        Event::ModelUpdated(change) => wit::Event::ModelUpdated(wit::ModelChange {
            model: change.model,
            old_version: change.old_version,
            new_version: change.new_version,
        }),
        Event::DependenciesChanged(_) => wit::Event::DependenciesChanged(&dependencies),
        Event::CapacityPressure(p) => wit::Event::CapacityPressure(wit::Pressure {
            site: p.site,
            used_mib: p.used_mib,
            limit_mib: p.limit_mib,
        }),
        Event::PrefixRevoked(hash) => wit::Event::PrefixRevoked(*hash),
        Event::TenantRemoved => wit::Event::TenantRemoved,
        Event::Tick(ms) => wit::Event::Tick(*ms),
    })
}

/// Values that would cross into the component.
pub(crate) fn cells(question: &Question<'_>) -> usize {
    match question {
        Question::Residency { request, .. } => request.len(),
        Question::Cost { request, routes } => request.len() + routes.cells().len(),
        Question::Routing {
            request,
            routes,
            costs,
        } => request.len() + routes.cells().len() + costs.cells().len(),
        Question::Invalidation { groups, .. } => groups.cells().len(),
    }
}

/// A [`Call`] that owns its inputs, for the slow lane.
#[derive(Debug)]
pub(crate) struct OwnedCall {
    question: OwnedQuestion,
    labels: BTreeMap<String, String>,
    request_id: String,
}

#[derive(Debug)]
struct OwnedMatrix {
    stride: u32,
    cells: Vec<u32>,
}

#[derive(Debug)]
enum OwnedQuestion {
    Residency {
        subject: Subject,
        request: Vec<u32>,
        sites: usize,
    },
    Cost {
        request: Vec<u32>,
        routes: OwnedMatrix,
    },
    Routing {
        request: Vec<u32>,
        routes: OwnedMatrix,
        costs: OwnedMatrix,
    },
    Invalidation {
        event: Event,
        groups: OwnedMatrix,
    },
}

impl OwnedMatrix {
    fn copy(matrix: &Matrix<'_>) -> Self {
        Self {
            stride: matrix.stride(),
            cells: matrix.cells().to_vec(),
        }
    }

    fn view(&self) -> Matrix<'_> {
        Matrix::new(self.stride, &self.cells)
    }
}

impl OwnedCall {
    pub(crate) fn copy(call: &Call<'_>) -> Self {
        let question = match call.question {
            Question::Residency {
                subject,
                request,
                sites,
            } => OwnedQuestion::Residency {
                subject,
                request: request.to_vec(),
                sites,
            },
            Question::Cost { request, routes } => OwnedQuestion::Cost {
                request: request.to_vec(),
                routes: OwnedMatrix::copy(&routes),
            },
            Question::Routing {
                request,
                routes,
                costs,
            } => OwnedQuestion::Routing {
                request: request.to_vec(),
                routes: OwnedMatrix::copy(&routes),
                costs: OwnedMatrix::copy(&costs),
            },
            Question::Invalidation { event, groups } => OwnedQuestion::Invalidation {
                event: event.clone(),
                groups: OwnedMatrix::copy(&groups),
            },
        };
        Self {
            question,
            labels: call.labels.clone(),
            request_id: call.request_id.to_owned(),
        }
    }

    pub(crate) fn view(&self) -> Call<'_> {
        let question = match &self.question {
            OwnedQuestion::Residency {
                subject,
                request,
                sites,
            } => Question::Residency {
                subject: *subject,
                request,
                sites: *sites,
            },
            OwnedQuestion::Cost { request, routes } => Question::Cost {
                request,
                routes: routes.view(),
            },
            OwnedQuestion::Routing {
                request,
                routes,
                costs,
            } => Question::Routing {
                request,
                routes: routes.view(),
                costs: costs.view(),
            },
            OwnedQuestion::Invalidation { event, groups } => Question::Invalidation {
                event,
                groups: groups.view(),
            },
        };
        Call {
            question,
            labels: &self.labels,
            request_id: &self.request_id,
        }
    }
}
