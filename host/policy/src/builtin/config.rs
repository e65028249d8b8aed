//! A binding's text as a policy's configuration.

mod json;

use serde::de::DeserializeOwned;

/// A configuration that a policy cannot work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not the JSON object that the policy expects; the message names line and column.
    #[error("the configuration cannot be read: {0}")]
    Unreadable(String),
    /// A value cannot be used.
    #[error("{field}: {problem}")]
    Invalid {
        /// The key at fault.
        field: &'static str,
        /// What is wrong and what would be right.
        problem: String,
    },
}

impl ConfigError {
    /// An error about one key.
    pub fn invalid(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid {
            field,
            problem: problem.into(),
        }
    }
}

/// Reads a binding's JSON text; an empty one means the defaults. Numbers are whole and not negative.
pub fn parse<T: DeserializeOwned + Default>(text: &str) -> Result<T, ConfigError> {
    if text.trim().is_empty() {
        return Ok(T::default());
    }
    json::read(text)
}

/// The configuration of a policy that has nothing to set: an empty text or an empty object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_text_means_the_defaults_and_an_unknown_key_is_named() {
        assert_eq!(parse::<Nothing>(" \n"), Ok(Nothing {}));
        assert_eq!(parse::<Nothing>("{}"), Ok(Nothing {}));
        let error = parse::<Nothing>("{\"speed\": 1}").unwrap_err().to_string();
        assert!(error.contains("speed") && error.contains("line 1"), "{error}");
    }
}
