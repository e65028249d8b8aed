//! `portolan policy log`: what a tenant's policies wrote.

use super::super::ServerArgs;
use super::super::output::tame;
use super::super::request::short;
use super::super::times::when;
use crate::client::segment;
use clap::Args;
use portolan_policy::QuestionKind;
use portolan_ports::{LogOccasion, PolicyLogLine};
use serde_json::Value;

/// Options of `policy log`.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Whose; `_platform` for the platform's.
    #[arg(long)]
    tenant: String,
    /// Only the policies of this question.
    #[arg(long)]
    question: Option<QuestionKind>,
    /// At most so many lines, the latest.
    #[arg(long, default_value_t = 50)]
    limit: usize,
    /// The running host.
    #[command(flatten)]
    pub(super) server: ServerArgs,
}

impl LogArgs {
    pub(super) fn path(&self) -> String {
        let (tenant, limit) = (segment(&self.tenant), self.limit);
        let question = self.question.map(|question| format!("&question={question}"));
        let question = question.unwrap_or_default();
        format!("/v1/portolan/tenants/{tenant}/policy-log?limit={limit}{question}")
    }
}

/// The lines, oldest first as in any log.
pub(super) fn said(body: &Value) -> Vec<String> {
    let lines: Vec<PolicyLogLine> = serde_json::from_value(body["data"].clone()).unwrap_or_default();
    if lines.is_empty() {
        return vec!["no lines; a host keeps the latest 200 of a tenant, until it is restarted".to_owned()];
    }
    lines.iter().rev().flat_map(said_of_line).collect()
}

fn said_of_line(line: &PolicyLogLine) -> Vec<String> {
    let mut out = Vec::new();
    if line.dropped > 0 {
        out.push(format!("… {} lines were dropped", line.dropped));
    }
    let about = match (line.during, &*line.request_id) {
        (LogOccasion::Check, _) => "check".to_owned(),
        (LogOccasion::Serving, "") => "configure".to_owned(),
        (LogOccasion::Serving, request) => tame(request),
    };
    out.push(format!(
        "{}  {:<5}  {:<10} {} {}  {about}  {}",
        when(&Value::from(line.at.0)),
        line.level.as_str(),
        line.question.as_str(),
        tame(&line.policy),
        short(&line.version),
        tame(&line.text)
    ));
    out
}

/// What a component wrote while it was tried here. Instances are made ahead and each is configured, so what was written
/// for no request is said once.
pub(super) fn said_here(lines: &[PolicyLogLine]) -> Vec<Value> {
    let mut said: Vec<Value> = Vec::new();
    for line in lines.iter().filter(|line| line.during == LogOccasion::Serving) {
        let line = serde_json::json!({ "level": line.level, "text": line.text, "configuring": line.request_id.is_empty() });
        if line["configuring"] == true && said.contains(&line) {
            continue;
        }
        said.push(line);
    }
    said
}

/// A line of [`said_here`] for people.
pub(super) fn described(line: &Value) -> String {
    let text = |key: &str| tame(line[key].as_str().unwrap_or("?"));
    format!("  log {:<5} {}", text("level"), text("text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::Moment;
    use portolan_ports::LogLevel;

    fn line(text: &str, request: &str, during: LogOccasion) -> PolicyLogLine {
        PolicyLogLine {
            at: Moment(0),
            level: LogLevel::Warn,
            question: QuestionKind::Routing,
            policy: "mine".into(),
            version: "ab".repeat(32),
            request_id: request.into(),
            during,
            dropped: 0,
            text: text.into(),
        }
    }

    #[test]
    fn lines_come_oldest_first_with_what_they_are_about() {
        let newest = PolicyLogLine {
            dropped: 3,
            ..line("late", "req-1", LogOccasion::Serving)
        };
        let lines = [
            newest,
            line("early", "", LogOccasion::Serving),
            line("tried", "probe", LogOccasion::Check),
        ];
        let said = said(&serde_json::json!({ "data": lines }));
        assert!(
            said[0].ends_with("warn   routing    mine abababababab  check  tried"),
            "{said:?}"
        );
        assert!(said[1].ends_with("configure  early"), "{said:?}");
        assert_eq!(said[2], "… 3 lines were dropped");
        assert!(said[3].ends_with("req-1  late"), "{said:?}");
    }

    #[test]
    fn what_instances_made_ahead_wrote_is_said_once_and_a_check_is_not_told() {
        let lines = [
            line("tried", "probe", LogOccasion::Check),
            line("ready", "", LogOccasion::Serving),
            line("ready", "", LogOccasion::Serving),
            line("asked", "r", LogOccasion::Serving),
            line("asked", "r", LogOccasion::Serving),
        ];
        let said = said_here(&lines);
        let texts: Vec<_> = said.iter().map(|line| line["text"].as_str().unwrap()).collect();
        assert_eq!(texts, ["ready", "asked", "asked"]);
        assert_eq!(described(&said[0]), "  log warn  ready");
    }
}
