//! What the reference implementation says about the tiny models.

use serde::Deserialize;
use std::path::PathBuf;

/// The answers of one model.
#[derive(Debug, Deserialize)]
pub struct Oracle {
    /// Prompts with the tokens that follow greedily.
    pub prompts: Vec<Case>,
}

/// One prompt.
#[derive(Debug, Deserialize)]
pub struct Case {
    /// Its tokens.
    pub prompt_ids: Vec<u32>,
    /// The tokens that follow.
    pub greedy_ids: Vec<u32>,
}

impl Oracle {
    /// Reads the oracle of a model.
    pub fn of(model: &str) -> Self {
        let file = oracle_folder(model).join("oracle.json");
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        serde_json::from_str(&text).expect("the oracle is JSON of the known shape")
    }
}

/// Where a tiny model lies.
pub fn oracle_folder(model: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("conformance/oracle")
        .join(model)
}
