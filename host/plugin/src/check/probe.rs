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
    tables: Tables,
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
                    data_jurisdiction: self.tables.jurisdiction,
                    data_class: 0,
                    from_site,
                };
                Question::Residency {
                    subject,
                    request: &self.request,
                    sites: self.tables.sites,
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

/// Every probe of a question, with indices that lie within the name tables.
pub(crate) fn probes(kind: QuestionKind, names: &NameTables) -> Vec<Probe> {
    let tables = Tables::of(names);
    match kind {
        QuestionKind::Residency => residency(tables),
        QuestionKind::Cost | QuestionKind::Routing => matrices(kind, RouteColumn::COUNT, tables),
        QuestionKind::Invalidation => {
            let mut probes = matrices(kind, GroupColumn::COUNT, tables);
            probes.extend(events(tables));
            probes
        }
    }
}

/// What a probe has to know of the name tables it goes with.
#[derive(Clone, Copy)]
struct Tables {
    sites: usize,
    /// The index of data that is bound to a jurisdiction, where there is one.
    jurisdiction: u32,
    /// Indices below this lie in every table.
    indices: usize,
}

impl Tables {
    fn of(names: &NameTables) -> Self {
        let lengths = [
            names.sites.len(),
            names.jurisdictions.len(),
            names.models.len(),
            names.user_classes.len(),
        ];
        Self {
            sites: names.sites.len(),
            jurisdiction: u32::from(names.jurisdictions.len() > 1),
            indices: lengths.into_iter().fold(2, usize::min).max(1),
        }
    }
}

fn residency(tables: Tables) -> Vec<Probe> {
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
            row(Fill::Plausible, RequestColumn::COUNT, 0, tables)
        };
        Probe {
            name: format!("{purpose:?}").to_lowercase(),
            purpose,
            request,
            ..blank(QuestionKind::Residency, tables)
        }
    };
    purposes.into_iter().map(probe).collect()
}

fn matrices(kind: QuestionKind, columns: usize, tables: Tables) -> Vec<Probe> {
    let matrix = |fill, rows, columns| matrix(kind, (fill, rows, columns), tables);
    let mut probes: Vec<_> = ROWS
        .into_iter()
        .map(|rows| matrix(Fill::Plausible, rows, columns))
        .collect();
    probes.push(matrix(Fill::Largest, 64, columns));
    probes.push(matrix(Fill::Zero, 2, columns));
    probes.push(matrix(Fill::Plausible, 8, columns + COLUMNS_AHEAD));
    probes
}

fn matrix(kind: QuestionKind, (fill, rows, columns): (Fill, usize, usize), tables: Tables) -> Probe {
    let fill_rows = |stride: usize| Rows {
        stride,
        cells: (0..rows).flat_map(|r| row(fill, stride, r, tables)).collect(),
    };
    Probe {
        name: format!(
            "{rows} rows of {columns} columns, {}",
            format!("{fill:?}").to_lowercase()
        ),
        request: row(fill, RequestColumn::COUNT, 0, tables),
        rows: fill_rows(columns),
        costs: fill_rows(CostColumn::COUNT),
        ..blank(kind, tables)
    }
}

fn events(tables: Tables) -> Vec<Probe> {
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
        ..matrix(
            QuestionKind::Invalidation,
            (Fill::Plausible, 4, GroupColumn::COUNT),
            tables,
        )
    };
    events.into_iter().map(probe).collect()
}

fn blank(kind: QuestionKind, tables: Tables) -> Probe {
    Probe {
        name: String::new(),
        kind,
        tables,
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
fn row(fill: Fill, columns: usize, row: usize, tables: Tables) -> Vec<u32> {
    let plausible = |column: usize| match column {
        0..=3 => ((row + column) % tables.indices) as u32,
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
            let probes = probes(kind, &names());
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
        assert!(probes(QuestionKind::Cost, &names()).iter().any(newer));
    }

    #[test]
    fn indices_lie_within_the_smallest_tables() {
        let only = |name: &str| vec![name.to_owned()];
        let names = NameTables {
            sites: names().sites[..1].to_vec(),
            jurisdictions: only("any"),
            models: only("model-0"),
            user_classes: only("standard"),
            ..names()
        };
        for probe in probes(QuestionKind::Routing, &names) {
            if probe.name.contains("plausible") {
                assert_eq!(probe.request[..4], [0; 4], "{}", probe.name);
            }
        }
        let call = probes(QuestionKind::Residency, &names);
        let Question::Residency { subject, sites, .. } = call[0].call().question else {
            panic!("no residency question");
        };
        assert_eq!((sites, subject.data_jurisdiction), (1, 0));
    }
}
