//! The latest log lines of each scope, for whoever wrote its policies.

use parking_lot::Mutex;
use portolan_policy::Scope;
use portolan_ports::PolicyLogLine;
use std::collections::{HashMap, VecDeque};

/// Lines of one scope that are kept: two seconds of a version that writes all it may, days of one that tells of faults.
const LINES_OF_A_SCOPE: usize = 200;

/// Scopes whose lines are kept, those that wrote last: 30 MB where each of them wrote the longest lines.
const SCOPES: usize = 256;

/// Keeps them.
#[derive(Debug, Default)]
pub(crate) struct LogBook(Mutex<HashMap<Scope, VecDeque<PolicyLogLine>>>);

impl LogBook {
    /// Keeps a line; an older one goes where there are too many.
    pub(crate) fn write(&self, scope: &Scope, line: PolicyLogLine) {
        let mut scopes = self.0.lock();
        if let Some(lines) = scopes.get_mut(scope) {
            if lines.len() == LINES_OF_A_SCOPE {
                lines.pop_front();
            }
            lines.push_back(line);
            return;
        }
        if scopes.len() == SCOPES {
            let last_written =
                |(_, lines): &(&Scope, &VecDeque<PolicyLogLine>)| lines.back().map(|line| line.at);
            let quietest = scopes
                .iter()
                .min_by_key(last_written)
                .map(|(scope, _)| scope.clone());
            quietest.map(|scope| scopes.remove(&scope));
        }
        scopes.insert(scope.clone(), VecDeque::from([line]));
    }

    /// The lines of a scope, oldest first.
    pub(crate) fn lines(&self, scope: &Scope) -> Vec<PolicyLogLine> {
        let scopes = self.0.lock();
        scopes.get(scope).into_iter().flatten().cloned().collect()
    }

    /// All lines, which are forgotten.
    pub(crate) fn take_all(&self) -> Vec<PolicyLogLine> {
        let mut scopes = self.0.lock();
        scopes.drain().flat_map(|(_, lines)| lines).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::{Moment, TenantName};
    use portolan_policy::QuestionKind;
    use portolan_ports::{LogLevel, LogOccasion};

    fn line(at: u64) -> PolicyLogLine {
        PolicyLogLine {
            at: Moment(at),
            level: LogLevel::Info,
            question: QuestionKind::Cost,
            policy: "mine".into(),
            version: "v".into(),
            request_id: String::new(),
            during: LogOccasion::Serving,
            dropped: 0,
            text: at.to_string(),
        }
    }

    fn tenant(n: usize) -> Scope {
        Scope::Tenant(TenantName::new(&format!("t{n}")).unwrap())
    }

    #[test]
    fn a_scope_sees_its_latest_lines_and_nobody_elses() {
        let book = LogBook::default();
        let most = LINES_OF_A_SCOPE as u64;
        for at in 0..=most {
            book.write(&tenant(1), line(at));
        }
        book.write(&tenant(2), line(7_000));
        let lines = book.lines(&tenant(1));
        assert_eq!(lines, (1..=most).map(line).collect::<Vec<_>>());
        assert_eq!(book.lines(&tenant(2)), [line(7_000)]);
        assert_eq!(book.lines(&Scope::Platform), []);
    }

    #[test]
    fn of_too_many_scopes_the_one_that_wrote_longest_ago_goes() {
        let book = LogBook::default();
        for n in 0..SCOPES {
            book.write(&tenant(n), line(n as u64));
        }
        book.write(&tenant(0), line(9_000));
        book.write(&tenant(SCOPES), line(9_001));
        assert_eq!(book.lines(&tenant(0)).len(), 2);
        assert_eq!(book.lines(&tenant(1)), [], "the quietest");
        assert_eq!(book.lines(&tenant(2)), [line(2)]);
        assert_eq!(book.take_all().len(), SCOPES + 1);
        assert_eq!(book.take_all(), []);
    }
}
