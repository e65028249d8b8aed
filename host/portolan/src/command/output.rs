//! What commands print, and how they fail.
#![expect(clippy::print_stderr, reason = "this is where the command line speaks")]

use portolan_ports::Finding;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Display;
use std::io::{ErrorKind, Write};

/// A command that did not do what was asked: one sentence, already for people.
#[derive(Debug)]
pub struct Failure {
    message: Option<String>,
    findings: Vec<Finding>,
    json: bool,
}

impl Failure {
    /// Says what was wrong and what to do.
    pub fn new(message: impl Display) -> Self {
        Self {
            message: Some(message.to_string()),
            findings: Vec::new(),
            json: false,
        }
    }

    /// The command has said what was wrong already.
    pub(super) fn silent() -> Self {
        Self {
            message: None,
            findings: Vec::new(),
            json: false,
        }
    }

    /// What a component was refused for: beside the error in JSON, as the host has it.
    #[must_use]
    pub(super) fn with_findings(mut self, findings: Vec<Finding>) -> Self {
        self.findings = findings;
        self
    }

    /// Prints as JSON when that was asked for.
    #[must_use]
    pub fn as_json(mut self, json: bool) -> Self {
        self.json = json;
        self
    }

    pub(super) fn print(&self) {
        match &self.message {
            None => {}
            Some(message) if self.json => line(self.in_json(message)),
            Some(message) => eprintln!("portolan: {message}"),
        }
    }

    /// The failure as a program reads it.
    pub(super) fn in_json(&self, message: &str) -> Value {
        let mut said = serde_json::json!({ "error": { "message": message } });
        if !self.findings.is_empty() {
            said["findings"] = serde_json::json!(self.findings);
        }
        said
    }
}

/// Text of others, for a terminal: what would move its cursor, clear it or begin a line is shown escaped.
pub(super) fn tame(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().collect::<String>(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// A text of an answer, for a terminal: much of it is what tenants wrote.
pub(super) fn text(of: &Value, key: &str) -> String {
    tame(of[key].as_str().unwrap_or("–"))
}

/// Prints a line. When nobody reads on (`| head`), the command has said enough and ends.
pub(super) fn line(text: impl Display) {
    let written = writeln!(std::io::stdout(), "{text}");
    if written.is_err_and(|e| e.kind() == ErrorKind::BrokenPipe) {
        std::process::exit(0);
    }
}

/// Prints JSON.
pub(super) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text =
        serde_json::to_string(value).map_err(|e| Failure::new(format!("the result is not JSON: {e}")))?;
    line(text);
    Ok(())
}
