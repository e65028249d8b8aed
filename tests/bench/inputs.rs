//! One request with its candidate routes: the same numbers for every subject.

use portolan_policy::{
    Call, CostMatrix, CostRow, NameTables, Purpose, Question, RequestRow, RouteMatrix, RouteRow, SiteEntry,
    Subject,
};
use std::collections::BTreeMap;

/// Sites of the made-up fleet.
pub(crate) const SITES: usize = 4;

/// What is asked.
#[derive(Debug)]
pub struct Inputs {
    request: Vec<u32>,
    routes: RouteMatrix,
    costs: CostMatrix,
    labels: BTreeMap<String, String>,
}

impl Inputs {
    /// A request with `routes` candidates, of all kinds: near and far, idle and busy, with and without a prefix hit.
    pub fn new(routes: u32) -> Self {
        let mut inputs = Self {
            request: RequestRow::default().to_cells().to_vec(),
            routes: RouteMatrix::default(),
            costs: CostMatrix::default(),
            labels: BTreeMap::new(),
        };
        for i in 0..routes {
            let prefill_us = 20_000 + (i * 7919) % 50_000;
            inputs.routes.push(&RouteRow {
                prefill_us,
                ..RouteRow::default()
            });
            inputs.costs.push(&CostRow {
                total_us: prefill_us + i,
                ..CostRow::default()
            });
        }
        inputs
    }

    fn call<'a>(&'a self, question: Question<'a>) -> Call<'a> {
        Call {
            question,
            labels: &self.labels,
            request_id: "req-bench",
        }
    }

    pub(crate) fn residency(&self) -> Call<'_> {
        self.call(Question::Residency {
            subject: Subject {
                purpose: Purpose::Serve,
                data_jurisdiction: 1,
                data_class: 0,
                from_site: None,
            },
            request: &self.request,
            sites: SITES,
        })
    }

    pub(crate) fn cost(&self) -> Call<'_> {
        self.call(Question::Cost {
            request: &self.request,
            routes: self.routes.as_matrix(),
        })
    }

    pub(crate) fn routing(&self) -> Call<'_> {
        self.call(Question::Routing {
            request: &self.request,
            routes: self.routes.as_matrix(),
            costs: self.costs.as_matrix(),
        })
    }
}

pub(crate) fn names() -> NameTables {
    let site = |i: usize| SiteEntry {
        name: format!("site-{i}"),
        region: format!("region-{}", i / 2),
        jurisdiction: 1 + (i as u32) / 2,
    };
    NameTables {
        tenant: "acme".into(),
        sites: (0..SITES).map(site).collect(),
        jurisdictions: ["any", "eu", "us"].map(String::from).to_vec(),
        models: vec!["m".into()],
        user_classes: vec!["standard".into()],
    }
}
