//! Whether an answer is the expected one, and how it differs.

use super::cases::Expect;
use super::error::LabError;
use super::names::Tables;
use super::rows::{Cell, Columns, NamedRow};
use super::situation::Situation;
use super::told::{cost_rows, order, scores};
use portolan_policy::{Answer, CostColumn, NEVER, RouteColumn, RoutingDecision};
use serde::Serialize;

/// One way in which an answer is not the expected one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The key of `expect`.
    pub key: String,
    /// What was expected.
    pub expected: String,
    /// What came.
    pub got: String,
}

/// Compares; an empty list means that all is as expected. An expectation that cannot hold for any answer, such as
/// one that names no route, is an error.
pub fn judge(expect: &Expect, answer: &Answer, situation: &Situation) -> Result<Vec<Difference>, LabError> {
    let mut judge = Judge {
        answer,
        situation,
        tables: Tables::closed(situation.names.clone()),
        found: Vec::new(),
    };
    judge.order(expect)?;
    judge.never(expect)?;
    judge.scores(expect)?;
    judge.refusal(expect);
    judge.placements(expect)?;
    judge.costs(expect)?;
    judge.directives(expect);
    Ok(judge.found)
}

struct Judge<'a> {
    answer: &'a Answer,
    situation: &'a Situation,
    tables: Tables,
    found: Vec<Difference>,
}

impl Judge<'_> {
    fn differ(&mut self, key: impl Into<String>, expected: impl Into<String>, got: impl Into<String>) {
        self.found.push(Difference {
            key: key.into(),
            expected: expected.into(),
            got: got.into(),
        });
    }

    /// Whether a route, by position, has the written columns.
    fn matches(&mut self, row: &NamedRow<RouteColumn>, key: &str) -> Result<Vec<usize>, LabError> {
        let wanted = row.resolve(&mut self.tables).map_err(|e| e.within(key))?;
        let rows = self.situation.route_matrix().rows().enumerate();
        let fits = |row: &[u32]| {
            wanted
                .iter()
                .all(|(column, value)| row.get(*column) == Some(value))
        };
        let found: Vec<_> = rows.filter(|(_, row)| fits(row)).map(|(i, _)| i).collect();
        if found.is_empty() {
            return Err(LabError::value(key, format!("no route has {}", row.written())));
        }
        Ok(found)
    }

    fn order(&mut self, expect: &Expect) -> Result<(), LabError> {
        let order = order(self.answer, self.situation);
        if let Some(first) = &expect.first {
            let fits = self.matches(first, "expect.first")?;
            if !order.first().is_some_and(|route| fits.contains(route)) {
                self.differ("first", first.written(), self.said());
            }
        }
        let Some(wanted) = &expect.order else {
            return Ok(());
        };
        let mut same = order.len() == wanted.len();
        for (place, row) in wanted.iter().enumerate() {
            let fits = self.matches(row, &format!("expect.order[{place}]"))?;
            same &= order.get(place).is_some_and(|route| fits.contains(route));
        }
        if !same {
            let written: Vec<_> = wanted.iter().map(NamedRow::written).collect();
            self.differ("order", written.join(", "), self.said());
        }
        Ok(())
    }

    fn never(&mut self, expect: &Expect) -> Result<(), LabError> {
        let scores = scores(self.answer);
        for (i, row) in expect.never.iter().flatten().enumerate() {
            for route in self.matches(row, &format!("expect.never[{i}]"))? {
                let score = scores.as_ref().and_then(|scores| scores.get(route)).copied();
                if score != Some(NEVER) {
                    let got = format!("{}: {}", self.situation.route_name(route), value(score));
                    self.differ("never", row.written(), got);
                }
            }
        }
        Ok(())
    }

    fn scores(&mut self, expect: &Expect) -> Result<(), LabError> {
        let Some(wanted) = &expect.scores else {
            return Ok(());
        };
        let number = |cell: &Cell| match cell {
            Cell::Number(value) => Ok(*value),
            Cell::Name(name) if name == "never" => Ok(NEVER),
            Cell::Name(name) => Err(LabError::value(
                "expect.scores",
                format!("{name:?} is no number, nor `never`"),
            )),
        };
        let wanted = wanted.iter().map(number).collect::<Result<Vec<_>, _>>()?;
        let got = scores(self.answer);
        if got.as_ref() != Some(&wanted) {
            let got = got.map_or_else(|| self.said(), |scores| list(&scores));
            self.differ("scores", list(&wanted), got);
        }
        Ok(())
    }

    fn refusal(&mut self, expect: &Expect) {
        if let Some(part) = &expect.refuse
            && !matches!(self.answer, Answer::Routing(RoutingDecision::Refuse(why)) if why.contains(part))
        {
            self.differ("refuse", format!("a refusal that says {part:?}"), self.said());
        }
        if let Some(ms) = expect.defer
            && *self.answer != Answer::Routing(RoutingDecision::Defer(ms))
        {
            self.differ("defer", format!("{ms} ms"), self.said());
        }
    }

    fn placements(&mut self, expect: &Expect) -> Result<(), LabError> {
        for (site, wanted) in expect.placements.iter().flatten() {
            let key = format!("placements.{site}");
            let index = self.tables.site(site);
            let index =
                index.map_err(|problem| LabError::value(format!("expect.{key}"), problem.to_string()))?;
            let got = match self.answer {
                Answer::Residency(placements) => placements.get(index as usize),
                _ => None,
            };
            if got != Some(wanted) {
                let got = got.map_or_else(|| self.said(), word);
                self.differ(key, word(wanted), got);
            }
        }
        Ok(())
    }

    fn costs(&mut self, expect: &Expect) -> Result<(), LabError> {
        let Some(wanted) = &expect.costs else {
            return Ok(());
        };
        let Answer::Cost(cells) = self.answer else {
            self.differ("costs", format!("{} rows", wanted.len()), self.said());
            return Ok(());
        };
        let rows: Vec<_> = cost_rows(cells).collect();
        if rows.len() != wanted.len() {
            self.differ(
                "costs",
                format!("{} rows", wanted.len()),
                format!("{} rows", rows.len()),
            );
        }
        let columns = <CostColumn as Columns>::all();
        for (i, (row, wanted)) in rows.iter().zip(wanted).enumerate() {
            let wanted = wanted
                .resolve(&mut self.tables)
                .map_err(|e| e.within("expect.costs"))?;
            for (column, number) in wanted {
                let got = row.0.get(column).copied();
                if got != Some(number) {
                    self.differ(
                        format!("costs[{i}].{}", columns[column]),
                        value(Some(number)),
                        value(got),
                    );
                }
            }
        }
        Ok(())
    }

    fn directives(&mut self, expect: &Expect) {
        let Some(wanted) = &expect.directives else { return };
        let got: &[_] = match self.answer {
            Answer::Invalidation(directives) => directives,
            _ => &[],
        };
        let same = got.len() == wanted.len() && wanted.iter().all(|directive| got.contains(directive));
        if !same {
            self.differ("directives", format!("{wanted:?}"), self.said());
        }
    }

    /// The answer in a line.
    fn said(&self) -> String {
        match self.answer {
            Answer::Routing(RoutingDecision::Defer(ms)) => format!("deferred by {ms} ms"),
            Answer::Routing(RoutingDecision::Refuse(why)) => format!("refused: {why}"),
            Answer::Residency(placements) => format!("{placements:?}"),
            Answer::Invalidation(directives) => format!("{directives:?}"),
            Answer::Routing(RoutingDecision::Scores(_)) | Answer::Cost(_) => self.said_of_routes(),
        }
    }

    fn said_of_routes(&self) -> String {
        let scores = scores(self.answer).unwrap_or_default();
        let route = |i: &usize| {
            let score = value(scores.get(*i).copied());
            format!("{} ({score})", self.situation.route_name(*i))
        };
        let routes: Vec<_> = order(self.answer, self.situation).iter().map(route).collect();
        if routes.is_empty() {
            return "no route at all".to_owned();
        }
        routes.join(", ")
    }
}

fn word(placement: &portolan_policy::Placement) -> String {
    format!("{placement:?}").to_lowercase()
}

fn value(score: Option<u32>) -> String {
    match score {
        None => "nothing".to_owned(),
        Some(NEVER) => "never".to_owned(),
        Some(score) => score.to_string(),
    }
}

fn list(scores: &[u32]) -> String {
    let words: Vec<_> = scores.iter().map(|score| value(Some(*score))).collect();
    format!("[{}]", words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(expect: serde_json::Value, answer: &Answer) -> Result<Vec<Difference>, LabError> {
        let situation = json!({
            "sites": ["paris", "virginia"],
            "routes": [{"prefill_site": "paris"}, {"prefill_site": "virginia"}]
        });
        let situation = Situation::of(&serde_json::from_value(situation).unwrap(), None).unwrap();
        judge(&serde_json::from_value(expect).unwrap(), answer, &situation)
    }

    #[test]
    fn scores_are_judged_by_order_by_value_and_by_never() {
        let answer = Answer::Routing(RoutingDecision::Scores(vec![NEVER, 5]));
        for good in [
            json!({"first": {"prefill_site": "virginia"}}),
            json!({"order": [{"prefill_site": "virginia"}]}),
            json!({"never": [{"prefill_site": "paris"}], "scores": ["never", 5]}),
        ] {
            assert_eq!(found(good, &answer).unwrap(), []);
        }
        let bad = json!({"first": {"prefill_site": "paris"}, "never": [{"prefill_site": "virginia"}]});
        let bad = found(bad, &answer).unwrap();
        assert_eq!(bad[0].got, "virginia/0 → paris/0 (5)");
        assert_eq!(
            (bad[1].key.as_str(), bad[1].got.as_str()),
            ("never", "virginia/0 → paris/0: 5")
        );
        let both = json!({"order": [{"prefill_site": "virginia"}, {"prefill_site": "paris"}]});
        assert_eq!(
            found(both, &answer).unwrap().len(),
            1,
            "a route that is ruled out is in no order"
        );
    }

    #[test]
    fn an_expectation_that_names_nothing_is_an_error() {
        let answer = Answer::Routing(RoutingDecision::Scores(vec![1, 2]));
        let error = found(json!({"first": {"prefill_site": "tokyo"}}), &answer).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("expect.first.prefill_site: no site is called"),
            "{error}"
        );
        let error = found(json!({"never": [{"queue_us": 7}]}), &answer).unwrap_err();
        assert_eq!(error.to_string(), "expect.never[0]: no route has {queue_us: 7}");
    }

    #[test]
    fn other_answers() {
        use portolan_policy::{Directive, Placement};
        let refusal = Answer::Routing(RoutingDecision::Refuse("too long by far".into()));
        assert_eq!(found(json!({"refuse": "too long"}), &refusal).unwrap(), []);
        assert_eq!(
            found(json!({"refuse": "short"}), &refusal).unwrap()[0].got,
            "refused: too long by far"
        );
        assert_eq!(found(json!({"defer": 5}), &refusal).unwrap().len(), 1);
        let placed = Answer::Residency(vec![Placement::Resident, Placement::Denied]);
        assert_eq!(
            found(json!({"placements": {"virginia": "denied"}}), &placed).unwrap(),
            []
        );
        assert_eq!(
            found(json!({"placements": {"paris": "denied"}}), &placed).unwrap()[0].got,
            "resident"
        );
        let costs = Answer::Cost(vec![1, 0, 0, 0, 0, 0, NEVER, 0, 0, 0, 0, 0]);
        assert_eq!(
            found(json!({"costs": [{"total_us": 1}, {"total_us": "never"}]}), &costs).unwrap(),
            []
        );
        assert_eq!(
            found(json!({"costs": [{"total_us": 2}, {}]}), &costs).unwrap()[0].key,
            "costs[0].total_us"
        );
        let dead = Answer::Invalidation(vec![Directive::DropGroup(1), Directive::FreeMib(2)]);
        assert_eq!(
            found(json!({"directives": [{"free-mib": 2}, {"drop-group": 1}]}), &dead).unwrap(),
            []
        );
        assert_eq!(found(json!({"directives": []}), &dead).unwrap().len(), 1);
    }
}
