//! What a demo says: scenes, and claims that it checks.

use crate::command::output::line;
use std::io::IsTerminal;

/// Tells, and counts what was so.
pub(in crate::command) struct Narrator {
    color: bool,
    scene: u32,
    kept: u32,
    unkept: u32,
}

impl Narrator {
    pub(in crate::command) fn new() -> Self {
        Self {
            color: std::io::stdout().is_terminal(),
            scene: 0,
            kept: 0,
            unkept: 0,
        }
    }

    /// Ends the tour; how many things were not as told.
    pub(in crate::command) fn close(self) -> u32 {
        line("");
        line(match self.unkept {
            0 => self.green(&format!(
                "All {} things the tour told were checked and are true.",
                self.kept
            )),
            n => self.red(&format!("{n} of {} things were not as told.", self.kept + n)),
        });
        self.unkept
    }

    pub(in crate::command) fn scene(&mut self, title: &str) {
        self.scene += 1;
        line("");
        line(self.bold(&format!("{}. {title}", self.scene)));
    }

    pub(in crate::command) fn tell(&self, text: &str) {
        line(format!("   {text}"));
    }

    /// Says that something is so, and checks it.
    pub(in crate::command) fn check(&mut self, what: &str, holds: bool) {
        if holds {
            self.kept += 1;
            line(format!("   {} {what}", self.green("✓")));
        } else {
            self.unkept += 1;
            line(format!("   {} {what}", self.red("✗ NOT SO:")));
        }
    }

    fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    pub(in crate::command) fn dim(&self, text: &str) -> String {
        self.paint("2", text)
    }

    fn green(&self, text: &str) -> String {
        self.paint("32", text)
    }

    fn red(&self, text: &str) -> String {
        self.paint("31;1", text)
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.color {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}
