//! A table of cases: what a policy is asked, and what it is expected to answer.

use super::error::LabError;
use super::names::NamesText;
use super::rows::{Cell, NamedRow};
use super::situation::SituationText;
use portolan_policy::{CostColumn, Directive, Placement, RouteColumn};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The whole table: a list of cases, or `cases` with what they share.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaseTable {
    /// The binding's text, for cases that have none of their own.
    pub config: String,
    /// Name tables, for cases that have none of their own.
    pub names: Option<NamesText>,
    /// The cases.
    pub cases: Vec<SituationText>,
}

/// What is expected of an answer; whatever is left out may be anything.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// Columns of the route that is taken first.
    pub first: Option<NamedRow<RouteColumn>>,
    /// Columns of the routes in the order in which they are taken.
    pub order: Option<Vec<NamedRow<RouteColumn>>>,
    /// Columns of routes that must never be taken.
    pub never: Option<Vec<NamedRow<RouteColumn>>>,
    /// Every score, in the order of the routes.
    pub scores: Option<Vec<Cell>>,
    /// A part of the reason for a refusal.
    pub refuse: Option<String>,
    /// For how long the request is held, in ms.
    pub defer: Option<u32>,
    /// What sites may do with the data.
    pub placements: Option<BTreeMap<String, Placement>>,
    /// Columns of each cost row, in the order of the routes.
    pub costs: Option<Vec<NamedRow<CostColumn>>>,
    /// What dies, in any order.
    pub directives: Option<Vec<Directive>>,
}

impl CaseTable {
    /// The table's place beside its policy: `NAME.cases.yaml`.
    pub fn beside(component: &Path) -> PathBuf {
        component.with_extension("cases.yaml")
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let text = std::fs::read_to_string(path).map_err(|source| LabError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|detail| LabError::Parse {
            path: path.to_owned(),
            detail,
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let first = text.lines().map(str::trim_end).find(|line| {
            let line = line.trim_start();
            !(line.is_empty() || line.starts_with('#') || line == "---")
        });
        let table = if first.is_some_and(|line| line.trim_start().starts_with('-')) {
            let cases: Vec<SituationText> = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
            Self {
                cases,
                ..Self::default()
            }
        } else {
            serde_saphyr::from_str(text).map_err(|e| e.to_string())?
        };
        if table.cases.is_empty() {
            return Err("there is no case; begin one with `- name: …`".to_owned());
        }
        for (i, case) in table.cases.iter().enumerate() {
            if case
                .expect
                .as_ref()
                .is_none_or(|expect| *expect == Expect::default())
            {
                let name = case_name(case, i);
                return Err(format!(
                    "{name}: `expect` says nothing, so that any answer would do"
                ));
            }
        }
        Ok(table)
    }
}

/// What a case is called: its name, or its number.
pub fn case_name(case: &SituationText, position: usize) -> String {
    case.name
        .clone()
        .unwrap_or_else(|| format!("case {}", position + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "
# two cases
- name: short prompts stay
  request: {prompt_tokens: 100}
  routes:
    - {prefill_site: paris, decode_site: paris}
    - prefill_site: virginia
      decode_site: paris
      transfer_us: never
  expect: {first: {prefill_site: paris}, never: [{prefill_site: virginia}]}
- event: {tick: 7}
  expect:
    directives: [{idle-longer-than: 5}]
";

    #[test]
    fn a_list_of_cases() {
        let table = CaseTable::parse(LIST).unwrap();
        assert_eq!(table.cases.len(), 2);
        assert_eq!(case_name(&table.cases[0], 0), "short prompts stay");
        assert_eq!(case_name(&table.cases[1], 1), "case 2");
        assert_eq!(table.cases[1].event, Some(portolan_policy::Event::Tick(7)));
        let shared = format!(
            "config: '{{}}'\nnames: {{sites: [paris, virginia]}}\ncases:{}",
            LIST.replace('\n', "\n  ")
        );
        assert_eq!(CaseTable::parse(&shared).unwrap().cases, table.cases);
    }

    #[test]
    fn unknown_keys_are_refused_with_the_list_and_the_line() {
        for (key, says) in [
            ("frist: 1", "first"),
            ("first: {prefil_site: paris}", "prefill_site"),
            ("placements: {paris: sometimes}", "transient"),
        ] {
            let text = format!("- name: x\n  expect:\n    {key}\n");
            let error = CaseTable::parse(&text).unwrap_err();
            assert!(error.contains(says) && error.contains("line 3"), "{error}");
        }
        let error = CaseTable::parse("- name: x\n").unwrap_err();
        assert!(error.starts_with("x: `expect` says nothing"), "{error}");
        assert!(CaseTable::parse("").unwrap_err().contains("no case"));
    }
}
