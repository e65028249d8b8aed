//! Edits of the file that were not reloaded: they are not lost when a change writes the file.

use super::{Config, LiveConfig, lines};
use portolan_ports::{ConfigRefusal, Edits};
use std::path::PathBuf;

impl LiveConfig {
    /// Refuses to overwrite edits, or sets them aside where that was asked for. `text` is what the file is to hold.
    pub(super) fn mind_edits(&self, now: &Config, text: &str, edits: Edits) -> Result<(), ConfigRefusal> {
        let Some(there) = self.edited(now, text) else {
            return Ok(());
        };
        if edits == Edits::Overwrite {
            return self.set_edits_aside(now, text);
        }
        let file = self.file.clone().unwrap_or_default();
        let said = match Config::of_file(&file, there) {
            Ok(edited) => lines(&now.changes_to(&self.pinned.over(edited))),
            Err(error) => vec![format!("it cannot be used as it stands ({error})")],
        };
        Err(ConfigRefusal::Edited(match said.is_empty() {
            true => vec!["comments or order only".to_owned()],
            false => said,
        }))
    }

    /// The file is about to be written: what an operator is writing there is kept beside it.
    ///
    /// # Errors
    /// When it cannot be kept; then the file is not to be written.
    pub(super) fn set_edits_aside(&self, now: &Config, text: &str) -> Result<(), ConfigRefusal> {
        let (Some(file), Some(there)) = (&self.file, self.edited(now, text)) else {
            return Ok(());
        };
        let mut beside = file.clone().into_os_string();
        beside.push(".edited");
        let beside = PathBuf::from(beside);
        super::versions::write_whole(&beside, there.as_bytes(), 0o600).map_err(|error| {
            let beside = beside.display();
            ConfigRefusal::Broken(format!(
                "the file was edited, and what it says cannot be kept as {beside}: {error}"
            ))
        })?;
        tracing::warn!(beside = %beside.display(), "the file was edited and another change is written into it; the edited text lies beside it");
        Ok(())
    }

    /// What the file holds where that is neither in force nor what it is to hold.
    fn edited(&self, now: &Config, text: &str) -> Option<String> {
        let in_force = now.source.as_ref().map_or("", |source| &source.text);
        let there = std::fs::read_to_string(self.file.as_ref()?).ok()?;
        (there != in_force && there != text).then_some(there)
    }
}
