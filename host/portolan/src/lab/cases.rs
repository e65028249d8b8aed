//! A table of cases: what a policy is asked, and what it is expected to answer.

use super::error::LabError;
use super::forms::{ConfigText, list, some_list};
use super::names::NamesText;
use super::rows::{Cell, NamedRow};
use super::situation::SituationText;
use portolan_policy::{CostColumn, Directive, Placement, QuestionKind, RouteColumn};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The whole table: a list of cases, or `cases` with what they share.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaseTable {
    /// The binding's text, for cases that have none of their own.
    pub config: ConfigText,
    /// Name tables, for cases that have none of their own.
    pub names: Option<NamesText>,
    /// The cases.
    #[serde(deserialize_with = "list")]
    pub cases: Vec<SituationText>,
}

/// What is expected of an answer; whatever is left out may be anything.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// Columns of the route that is taken first.
    pub first: Option<NamedRow<RouteColumn>>,
    /// Columns of the routes in the order in which they are taken.
    #[serde(deserialize_with = "some_list")]
    pub order: Option<Vec<NamedRow<RouteColumn>>>,
    /// Columns of routes that must never be taken.
    #[serde(deserialize_with = "some_list")]
    pub never: Option<Vec<NamedRow<RouteColumn>>>,
    /// Every score, in the order of the routes.
    #[serde(deserialize_with = "some_list")]
    pub scores: Option<Vec<Cell>>,
    /// A part of the reason for a refusal.
    pub refuse: Option<String>,
    /// For how long the request is held, in ms.
    pub defer: Option<u32>,
    /// What sites may do with the data.
    pub placements: Option<BTreeMap<String, Placement>>,
    /// Columns of each cost row, in the order of the routes.
    #[serde(deserialize_with = "some_list")]
    pub costs: Option<Vec<NamedRow<CostColumn>>>,
    /// What dies, in any order.
    #[serde(deserialize_with = "some_list")]
    pub directives: Option<Vec<Directive>>,
}

impl CaseTable {
    /// The table's place beside its policy: `NAME.cases.yaml`.
    pub fn beside(component: &Path) -> PathBuf {
        component.with_extension("cases.yaml")
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let text = std::fs::read_to_string(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => LabError::NoCases {
                path: path.to_owned(),
            },
            _ => LabError::Read {
                path: path.to_owned(),
                source,
            },
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

impl Expect {
    /// The keys that an answer to a question of this kind can never meet.
    pub fn out_of_place(&self, kind: QuestionKind) -> Option<&'static str> {
        use QuestionKind::{Cost, Invalidation, Residency, Routing};
        let keys: [(bool, &'static str, &[QuestionKind]); 9] = [
            (self.first.is_some(), "first", &[Cost, Routing]),
            (self.order.is_some(), "order", &[Cost, Routing]),
            (self.never.is_some(), "never", &[Cost, Routing]),
            (self.scores.is_some(), "scores", &[Cost, Routing]),
            (self.refuse.is_some(), "refuse", &[Routing]),
            (self.defer.is_some(), "defer", &[Routing]),
            (self.placements.is_some(), "placements", &[Residency]),
            (self.costs.is_some(), "costs", &[Cost]),
            (self.directives.is_some(), "directives", &[Invalidation]),
        ];
        let mut wrong = keys
            .iter()
            .filter(|(is_there, _, kinds)| *is_there && !kinds.contains(&kind));
        wrong.next().map(|(_, key, _)| *key)
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

    /// What a newcomer writes, and what is said to it.
    #[test]
    fn a_mistake_is_answered_in_the_words_of_the_form() {
        for (written, says) in [
            (
                "first: paris",
                "the columns of a route by name, as in {prefill_site: 7}",
            ),
            (
                "order: {prefill_site: paris}",
                "a list: begin each entry with `- `",
            ),
            ("order: [paris, virginia]", "the columns of a route by name"),
            ("scores: 5", "a list"),
            ("first: {prefill_us: 0.3}", "a whole number from 0"),
            ("first: {prefill_us: -3}", "negative"),
            ("directives: [drop-group]", "drop-group"),
        ] {
            let error = CaseTable::parse(&format!("- name: x\n  expect:\n    {written}\n")).unwrap_err();
            assert!(
                error.contains(says) && error.contains("line 3"),
                "{written}: {error}"
            );
        }
        for (written, says) in [
            ("case: []", "expected one of config, names, cases"),
            ("cases:\n  name: x", "a list"),
            ("- name: x\n  routes:\n    prefill_site: paris", "a list"),
            (
                "- name: x\n  event: tick",
                "an event is written {\"tick\": 60000}",
            ),
            ("- name: x\n\texpect: {}", "tab"),
            ("# only a comment", "there is no case"),
        ] {
            let error = CaseTable::parse(written).unwrap_err();
            assert!(error.contains(says), "{written}: {error}");
        }
    }

    #[test]
    fn a_configuration_may_be_written_as_the_object_it_is() {
        let text = "config: {local: 3, on: true}\ncases:\n- expect: {defer: 1}\n- config: ''\n  expect: {defer: 1}\n";
        let table = CaseTable::parse(text).unwrap();
        assert_eq!(table.config.0, "{\"local\":3,\"on\":true}");
        assert_eq!(
            (&table.cases[0].config, &table.cases[1].config),
            (&None, &Some(ConfigText::default()))
        );
    }

    #[test]
    fn an_expectation_belongs_to_its_question() {
        let expect = |text: &str| serde_saphyr::from_str::<Expect>(text).unwrap();
        let placements = expect("placements: {paris: denied}");
        assert_eq!(placements.out_of_place(QuestionKind::Routing), Some("placements"));
        assert_eq!(placements.out_of_place(QuestionKind::Residency), None);
        assert_eq!(
            expect("first: {prefill_site: 1}").out_of_place(QuestionKind::Cost),
            None
        );
        assert_eq!(expect("defer: 1").out_of_place(QuestionKind::Cost), Some("defer"));
    }
}
