//! What commands print, and how they fail.
#![expect(clippy::print_stderr, reason = "this is where the command line speaks")]

use serde::Serialize;
use std::fmt::Display;
use std::io::{ErrorKind, Write};

/// A command that did not do what was asked: one sentence, already for people.
#[derive(Debug)]
pub struct Failure {
    message: Option<String>,
    json: bool,
}

impl Failure {
    /// Says what was wrong and what to do.
    pub fn new(message: impl Display) -> Self {
        Self {
            message: Some(message.to_string()),
            json: false,
        }
    }

    /// The command has said what was wrong already.
    pub(super) fn silent() -> Self {
        Self {
            message: None,
            json: false,
        }
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
            Some(message) if self.json => {
                line(serde_json::json!({ "error": { "message": message } }));
            }
            Some(message) => eprintln!("portolan: {message}"),
        }
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
