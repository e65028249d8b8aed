//! Everything one call is made from: as people write it, and as a policy gets it.

use super::cases::Expect;
use super::error::{LabError, NameError};
use super::forms::{ConfigText, event, list, some_list};
use super::names::{NamesText, SiteText, Tables};
use super::rows::{Cell, NamedRow};
use portolan_decide::PathRecord;
use portolan_policy::builtin::{Cost, Routes, Ttft};
use portolan_policy::{
    CostColumn, CostMatrix, Event, GroupColumn, Matrix, NameTables, Purpose, Question, QuestionKind,
    RequestColumn, RequestRow, RequestView, RouteColumn, RouteMatrix, RouteView, SiteEntry, Subject,
};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A view, or a case of a table: what a policy is to be asked about. Whatever is left out is zero or empty.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SituationText {
    /// What the case is called.
    pub name: Option<String>,
    /// The request row.
    pub request: NamedRow<RequestColumn>,
    /// Candidate routes.
    #[serde(deserialize_with = "list")]
    pub routes: Vec<NamedRow<RouteColumn>>,
    /// What they cost; the built-in `ttft` prices them when this is left out.
    #[serde(deserialize_with = "list")]
    pub costs: Vec<NamedRow<CostColumn>>,
    /// Labels of the request.
    pub labels: BTreeMap<String, String>,
    /// The request's id.
    pub request_id: Option<String>,
    /// Name tables.
    pub names: Option<NamesText>,
    /// The sites alone, in place of `names`.
    #[serde(deserialize_with = "some_list")]
    pub sites: Option<Vec<SiteText>>,
    /// Whose data, for residency; told from the request when left out.
    pub subject: Option<SubjectText>,
    /// What happened, for invalidation.
    #[serde(deserialize_with = "event")]
    pub event: Option<Event>,
    /// Groups of cached blocks, for invalidation.
    #[serde(deserialize_with = "list")]
    pub groups: Vec<NamedRow<GroupColumn>>,
    /// The binding's text.
    pub config: Option<ConfigText>,
    /// What a test expects.
    pub expect: Option<Expect>,
}

/// Whose data, as people write it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SubjectText {
    /// Why residency is asked; to serve when left out.
    pub purpose: Option<Purpose>,
    /// Where the data may be processed.
    pub data_jurisdiction: Option<Cell>,
    /// Whose class.
    pub data_class: Option<Cell>,
    /// Where the data is kept.
    pub from_site: Option<Cell>,
}

/// What a policy is asked about, every name resolved.
#[derive(Clone, Debug)]
pub struct Situation {
    /// The name tables.
    pub names: NameTables,
    /// The request row.
    pub request: Vec<u32>,
    /// Candidate routes, row by row.
    pub routes: Vec<u32>,
    /// What they cost, row by row.
    pub costs: Vec<u32>,
    /// Labels of the request.
    pub labels: BTreeMap<String, String>,
    /// The request's id.
    pub request_id: String,
    /// Whose data.
    pub subject: Subject,
    /// What happened.
    pub event: Event,
    /// Groups of cached blocks, row by row.
    pub groups: Vec<u32>,
}

impl Situation {
    /// Resolves the names of `text`; `defaults` are the tables where it has none.
    pub fn of(text: &SituationText, defaults: Option<&NamesText>) -> Result<Self, LabError> {
        let mut tables = Tables::of(&names_text(text, defaults))?;
        let tables = &mut tables;
        let request = text.request.to_cells(tables).map_err(|e| e.within("request"))?;
        let routes = matrix("routes", &text.routes, tables)?;
        let mut costs = matrix("costs", &text.costs, tables)?;
        if costs.is_empty() {
            costs = priced(&request, &routes);
        }
        let (wanted, got) = (text.routes.len(), costs.len() / CostColumn::COUNT);
        if wanted != got {
            return Err(LabError::value(
                "costs",
                format!("{got} rows for {wanted} routes"),
            ));
        }
        let groups = matrix("groups", &text.groups, tables)?;
        let subject = subject(text.subject.as_ref(), &request, tables).map_err(|e| e.within("subject"))?;
        Ok(Self {
            names: tables.clone().finish(),
            request,
            routes,
            costs,
            labels: text.labels.clone(),
            request_id: text
                .request_id
                .clone()
                .unwrap_or_else(|| "req-by-hand".to_owned()),
            subject,
            event: text.event.clone().unwrap_or(Event::Tick(0)),
            groups,
        })
    }

    /// The situation of a recorded request: its candidates that residency left in. Costs that were not recorded are
    /// the built-in ones.
    pub fn recorded(record: &PathRecord, names: Option<&NameTables>) -> Self {
        let request = record.request.to_cells().to_vec();
        let open = record
            .candidates
            .iter()
            .filter(|candidate| candidate.cost.is_some());
        let (mut routes, mut costs) = (RouteMatrix::default(), CostMatrix::default());
        for candidate in open {
            routes.push(&candidate.facts);
            costs.push(&candidate.cost.unwrap_or_default());
        }
        Self {
            names: names.cloned().unwrap_or_else(|| names_of(record)),
            routes: routes.as_matrix().cells().to_vec(),
            costs: costs.cells,
            labels: record.labels.clone(),
            request_id: record.request_id.as_str().to_owned(),
            subject: of_request(&record.request),
            event: Event::Tick(0),
            groups: Vec::new(),
            request,
        }
    }

    /// What a question of this kind is asked without, although an answer is about nothing else.
    pub fn lacks(&self, kind: QuestionKind) -> Option<&'static str> {
        match kind {
            QuestionKind::Residency if self.names.sites.is_empty() => {
                Some("the view names no site, so there was nothing to place; give it `sites`")
            }
            QuestionKind::Cost | QuestionKind::Routing if self.routes.is_empty() => {
                Some("the view has no route, so there was nothing to choose from; give it `routes`")
            }
            QuestionKind::Invalidation if self.groups.is_empty() => {
                Some("the view has no group of cached blocks; give it `groups` and an `event`")
            }
            _ => None,
        }
    }

    /// The question of this kind.
    pub fn question(&self, kind: QuestionKind) -> Question<'_> {
        let request = &self.request[..];
        match kind {
            QuestionKind::Residency => Question::Residency {
                subject: self.subject,
                request,
                sites: self.names.sites.len(),
            },
            QuestionKind::Cost => Question::Cost {
                request,
                routes: self.route_matrix(),
            },
            QuestionKind::Routing => Question::Routing {
                request,
                routes: self.route_matrix(),
                costs: Matrix::new(CostColumn::COUNT as u32, &self.costs),
            },
            QuestionKind::Invalidation => Question::Invalidation {
                event: &self.event,
                groups: Matrix::new(GroupColumn::COUNT as u32, &self.groups),
            },
        }
    }

    /// The routes.
    pub fn route_matrix(&self) -> Matrix<'_> {
        Matrix::new(RouteColumn::COUNT as u32, &self.routes)
    }

    /// The request's seed.
    pub fn seed(&self) -> u64 {
        RequestView(&self.request).seed()
    }

    /// A route by names: `virginia/3 → paris/0`.
    pub fn route_name(&self, route: usize) -> String {
        let view = RouteView(self.route_matrix().row(route).unwrap_or(&[]));
        let site = |index: u32| {
            let entry = self.names.sites.get(index as usize);
            entry.map_or_else(|| format!("site {index}"), |site| site.name.clone())
        };
        format!(
            "{}/{} → {}/{}",
            site(view.prefill_site()),
            view.prefill_instance(),
            site(view.decode_site()),
            view.decode_instance()
        )
    }
}

/// What residency is asked about a request.
pub fn of_request(request: &RequestRow) -> Subject {
    Subject {
        purpose: Purpose::Serve,
        data_jurisdiction: request.jurisdiction,
        data_class: request.user_class,
        from_site: None,
    }
}

/// The sites that a record names, in index order. Where they lie is not recorded.
pub fn names_of(record: &PathRecord) -> NameTables {
    let site = |(name, _): &(String, _)| SiteEntry {
        name: name.clone(),
        region: String::new(),
        jurisdiction: 0,
    };
    NameTables {
        sites: record.placements.iter().map(site).collect(),
        jurisdictions: vec!["any".to_owned()],
        models: models_of(record),
        user_classes: vec!["standard".to_owned()],
        ..NameTables::default()
    }
}

/// The one model that a record names, at its place; the others have no name.
fn models_of(record: &PathRecord) -> Vec<String> {
    /// More models than a host has: a table must not grow with a number in a file.
    const MOST: usize = 1 << 10;
    let place = (record.request.model as usize).min(MOST);
    let mut models = vec![String::new(); place + 1];
    models[place].clone_from(&record.model);
    models
}

/// What the built-in `ttft` says that `routes` cost.
pub fn priced(request: &[u32], routes: &[u32]) -> Vec<u32> {
    let routes = Routes(Matrix::new(RouteColumn::COUNT as u32, routes));
    Ttft::default().estimate_all(RequestView(request), routes).cells
}

fn names_text(text: &SituationText, defaults: Option<&NamesText>) -> NamesText {
    let mut names = text
        .names
        .clone()
        .or_else(|| defaults.cloned())
        .unwrap_or_default();
    if text.sites.is_some() {
        names.sites.clone_from(&text.sites);
    }
    names
}

fn matrix<C: super::rows::Columns>(
    key: &str,
    rows: &[NamedRow<C>],
    tables: &mut Tables,
) -> Result<Vec<u32>, LabError> {
    let mut cells = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        cells.extend(
            row.to_cells(tables)
                .map_err(|e| e.within(&format!("{key}[{i}]")))?,
        );
    }
    Ok(cells)
}

fn subject(text: Option<&SubjectText>, request: &[u32], tables: &mut Tables) -> Result<Subject, LabError> {
    let of_request = of_request(&RequestView(request).to_row());
    let Some(text) = text else { return Ok(of_request) };
    let mut index = |key, cell: &Option<Cell>, look_up: fn(&mut Tables, &str) -> Result<u32, NameError>| {
        let found = cell.as_ref().map(|cell| match cell {
            Cell::Number(index) => Ok(*index),
            Cell::Name(name) => look_up(tables, name),
        });
        found
            .transpose()
            .map_err(|problem| LabError::value(key, problem.to_string()))
    };
    let jurisdiction = index("data_jurisdiction", &text.data_jurisdiction, Tables::jurisdiction)?;
    let class = index("data_class", &text.data_class, Tables::user_class)?;
    Ok(Subject {
        purpose: text.purpose.unwrap_or(of_request.purpose),
        data_jurisdiction: jurisdiction.unwrap_or(of_request.data_jurisdiction),
        data_class: class.unwrap_or(of_request.data_class),
        from_site: index("from_site", &text.from_site, Tables::site)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn situation(text: serde_json::Value) -> Result<Situation, LabError> {
        Situation::of(&serde_json::from_value(text).unwrap(), None)
    }

    #[test]
    fn what_is_left_out_is_what_the_host_would_say() {
        let made = situation(json!({
            "request": {"prompt_tokens": 100, "jurisdiction": "eu", "user_class": 2},
            "routes": [{"prefill_site": "paris", "decode_site": "paris", "prefill_us": 700}]
        }))
        .unwrap();
        assert_eq!((made.subject.data_jurisdiction, made.subject.data_class), (1, 2));
        assert_eq!(made.costs[0], 700, "priced by ttft");
        assert_eq!(made.route_name(0), "paris/0 → paris/0");
        assert_eq!(made.question(QuestionKind::Residency).rows(), 1);
    }

    #[test]
    fn errors_say_where() {
        let error = situation(json!({"sites": ["a"], "routes": [{}, {"decode_site": "b"}]})).unwrap_err();
        assert_eq!(
            error.to_string(),
            "routes[1].decode_site: no site is called \"b\"; there are a"
        );
        let error = situation(json!({"routes": [{}], "costs": [{}, {}]})).unwrap_err();
        assert_eq!(error.to_string(), "costs: 2 rows for 1 routes");
        let error = situation(json!({"sites": ["a", "a"]})).unwrap_err();
        assert_eq!(
            error.to_string(),
            "sites[1]: another site is called \"a\" already"
        );
        let empty = situation(json!({"request": {"prompt_tokens": 1}})).unwrap();
        for kind in [
            QuestionKind::Residency,
            QuestionKind::Cost,
            QuestionKind::Routing,
            QuestionKind::Invalidation,
        ] {
            assert!(empty.lacks(kind).is_some(), "{kind}");
        }
    }
}
