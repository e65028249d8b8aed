//! Questions made up to see how a component behaves: few and many routes, extreme values, more columns than it knows.

use portolan_policy::{
    Call, CostColumn, Dependency, Event, GroupColumn, Matrix, ModelChange, NameTables, Pressure, Purpose,
    Question, QuestionKind, RequestColumn, RouteColumn, SiteEntry, Subject,
};
use std::collections::BTreeMap;

/// Rows in the probes: none, one, and as many as a request ever has.
const ROWS: [usize; 3] = [0, 1, 64];
/// Columns more than this host's own contract has, as a newer host would send.
const COLUMNS_AHEAD: usize = 3;
const SITES: usize = 3;

/// The name tables that probes go with.
pub(crate) fn names() -> NameTables {
    let site = |i: usize| SiteEntry {
        name: format!("site-{i}"),
        region: "probe".into(),
        jurisdiction: i.min(1) as u32,
    };
    NameTables {
        tenant: "probe".into(),
        sites: (0..SITES).map(site).collect(),
        jurisdictions: vec!["any".into(), "eu".into()],
        models: vec!["model-0".into(), "model-1".into()],
        user_classes: vec!["standard".into(), "minor".into()],
    }
}

/// How the numbers in a probe are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    /// Small indices, then plausible measures.
    Plausible,
    /// Every value the largest there is.
    Largest,
    Zero,
}

/// One made-up question.
pub(crate) struct Probe {
    pub(crate) name: String,
    kind: QuestionKind,
    request: Vec<u32>,
    rows: Rows,
    costs: Rows,
    event: Event,
    purpose: Purpose,
    labels: BTreeMap<String, String>,
}

struct Rows {
    stride: usize,
    cells: Vec<u32>,
}

impl Rows {
    fn view(&self) -> Matrix<'_> {
        Matrix::new(self.stride as u32, &self.cells)
    }
}

impl Probe {
    /// The probe as a call.
    pub(crate) fn call(&self) -> Call<'_> {
        let question = match self.kind {
            QuestionKind::Residency => {
                let from_site = (self.purpose != Purpose::Serve).then_some(0);
                let subject = Subject {
                    purpose: self.purpose,
                    data_jurisdiction: 1,
                    data_class: 0,
                    from_site,
                };
                Question::Residency {
                    subject,
                    request: &self.request,
                    sites: SITES,
                }
            }
            QuestionKind::Cost => Question::Cost {
                request: &self.request,
                routes: self.rows.view(),
            },
            QuestionKind::Routing => Question::Routing {
                request: &self.request,
                routes: self.rows.view(),
                costs: self.costs.view(),
            },
            QuestionKind::Invalidation => Question::Invalidation {
                event: &self.event,
                groups: self.rows.view(),
            },
        };
        Call {
            question,
            labels: &self.labels,
            request_id: "probe",
        }
    }
}

/// Every probe of a question.
pub(crate) fn probes(kind: QuestionKind) -> Vec<Probe> {
    match kind {
        QuestionKind::Residency => residency(),
        QuestionKind::Cost | QuestionKind::Routing => matrices(kind, RouteColumn::COUNT),
        QuestionKind::Invalidation => {
            let mut probes = matrices(kind, GroupColumn::COUNT);
            probes.extend(events());
            probes
        }
    }
}

fn residency() -> Vec<Probe> {
    let purposes = [
        Purpose::Serve,
        Purpose::Fetch,
        Purpose::Replicate,
        Purpose::Prewarm,
        Purpose::Spill,
    ];
    let probe = |purpose: Purpose| {
        let stored = purpose != Purpose::Serve;
        let request = if stored {
            Vec::new()
        } else {
            row(Fill::Plausible, RequestColumn::COUNT, 0)
        };
        Probe {
            name: format!("{purpose:?}").to_lowercase(),
            purpose,
            request,
            ..blank(QuestionKind::Residency)
        }
    };
    purposes.into_iter().map(probe).collect()
}

fn matrices(kind: QuestionKind, columns: usize) -> Vec<Probe> {
    let mut probes: Vec<_> = ROWS
        .into_iter()
        .map(|rows| matrix(kind, Fill::Plausible, rows, columns))
        .collect();
    probes.push(matrix(kind, Fill::Largest, 64, columns));
    probes.push(matrix(kind, Fill::Zero, 2, columns));
    probes.push(matrix(kind, Fill::Plausible, 8, columns + COLUMNS_AHEAD));
    probes
}

fn matrix(kind: QuestionKind, fill: Fill, rows: usize, columns: usize) -> Probe {
    let fill_rows = |stride: usize| Rows {
        stride,
        cells: (0..rows).flat_map(|r| row(fill, stride, r)).collect(),
    };
    Probe {
        name: format!(
            "{rows} rows of {columns} columns, {}",
            format!("{fill:?}").to_lowercase()
        ),
        request: row(fill, RequestColumn::COUNT, 0),
        rows: fill_rows(columns),
        costs: fill_rows(CostColumn::COUNT),
        ..blank(kind)
    }
}

fn events() -> Vec<Probe> {
    let change = Dependency {
        kind: "document".into(),
        name: "handbook".into(),
        version: "2".into(),
    };
    let events = [
        (
            "model-updated",
            Event::ModelUpdated(ModelChange {
                model: 0,
                old_version: 1,
                new_version: u64::MAX,
            }),
        ),
        ("dependencies-changed", Event::DependenciesChanged(vec![change])),
        (
            "capacity-pressure",
            Event::CapacityPressure(Pressure {
                site: 0,
                used_mib: 90,
                limit_mib: 100,
            }),
        ),
        ("prefix-revoked", Event::PrefixRevoked(u64::MAX)),
        ("tenant-removed", Event::TenantRemoved),
    ];
    let probe = |(name, event): (&str, Event)| Probe {
        name: name.into(),
        event,
        ..matrix(QuestionKind::Invalidation, Fill::Plausible, 4, GroupColumn::COUNT)
    };
    events.into_iter().map(probe).collect()
}

fn blank(kind: QuestionKind) -> Probe {
    Probe {
        name: String::new(),
        kind,
        request: Vec::new(),
        rows: Rows {
            stride: GroupColumn::COUNT,
            cells: Vec::new(),
        },
        costs: Rows {
            stride: CostColumn::COUNT,
            cells: Vec::new(),
        },
        event: Event::Tick(1_700_000_000_000),
        purpose: Purpose::Serve,
        labels: BTreeMap::from([("team".into(), "probe".into())]),
    }
}

/// A row: the first four columns are indices in every matrix of the contract, or at least small.
fn row(fill: Fill, columns: usize, row: usize) -> Vec<u32> {
    let plausible = |column: usize| match column {
        0..=3 => ((row + column) % 2) as u32,
        _ => ((row * 37 + column * 101) % 5_000) as u32,
    };
    let value = |column| match fill {
        Fill::Plausible => plausible(column),
        Fill::Largest => u32::MAX,
        Fill::Zero => 0,
    };
    (0..columns).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_cover_no_one_and_many_rows_and_a_newer_contract() {
        for kind in QuestionKind::ALL {
            let probes = probes(kind);
            assert!(probes.iter().all(|p| p.call().question.kind() == kind));
            if kind == QuestionKind::Residency {
                continue;
            }
            for rows in [0, 1, 64] {
                assert!(
                    probes.iter().any(|p| p.call().question.rows() == rows),
                    "{kind}: {rows} rows"
                );
            }
        }
        let newer = |p: &Probe| p.rows.stride > RouteColumn::COUNT;
        assert!(probes(QuestionKind::Cost).iter().any(newer));
    }
}
