//! `policy fix`: a foreign component without its WASI imports.
//!
//! Standard libraries import WASI whether or not a policy ever calls it. Each function that the component lowers from a
//! `wasi:` interface is replaced, where it is lowered, by a core function of a small module: it answers "nothing there"
//! where that is a true answer for a policy (no environment, no directories, no terminal), and traps under its own name
//! otherwise. The rest of the component stays as it is, and no second memory is added, so that a compact component
//! stays one. Components inside it that are given WASI are fixed in the same way, and given it no longer.

mod rewrite;
mod stubs;
mod survey;
#[cfg(test)]
mod tests;

use survey::Survey;
use wasmparser::{BinaryReaderError, Validator, WasmFeatures};

/// A component whose WASI imports are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// The component.
    pub component: Vec<u8>,
    /// What was stubbed, as `interface#function`.
    pub stubs: Vec<Stubbed>,
}

/// One function that the component had from WASI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stubbed {
    /// As `interface#function`.
    pub name: String,
    /// What a call does.
    pub does: Deed,
}

/// What a stub does when it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Traps; the trap names the function.
    Traps,
    /// Answers that there is nothing: an empty list, or none.
    AnswersNothing,
}

/// Why a component cannot be fixed.
#[derive(Debug, thiserror::Error)]
pub enum FixError {
    /// Not a component at all.
    #[error("the file is no component; `portolan policy check` says what it is")]
    NotComponent,
    /// Not a valid one.
    #[error("the component is not valid at byte {}: {}", .0.offset(), .0.message())]
    Invalid(#[from] BinaryReaderError),
    /// It imports nothing of WASI.
    #[error("the component imports nothing of WASI; there is nothing to fix")]
    NothingToFix,
    /// It imports what is neither of the contract nor of WASI.
    #[error(
        "the component also imports {}, which neither the contract nor WASI has and which cannot be stubbed; build it \
         without",
        .0.join(", ")
    )]
    UnknownImports(Vec<String>),
    /// It uses a WASI interface otherwise than by calling its functions.
    #[error(
        "the component hands {0} on instead of calling it; fix the components it was composed of, then compose them \
         anew"
    )]
    HandedOn(String),
    /// A part that the rewriting does not know.
    #[error("the component cannot be rewritten: {0}")]
    Unsupported(String),
}

/// Stubs the WASI imports of a component.
pub fn fix(component: &[u8]) -> Result<Fixed, FixError> {
    if !wasmparser::Parser::is_component(component) {
        return Err(FixError::NotComponent);
    }
    let types = Validator::new_with_features(WasmFeatures::all()).validate_all(component)?;
    let survey = Survey::of(component, types.as_ref())?;
    if !survey.unknown.is_empty() {
        return Err(FixError::UnknownImports(survey.unknown));
    }
    if survey.instances.is_empty() {
        return Err(FixError::NothingToFix);
    }
    let fixed = rewrite::without_wasi(component, &survey)?;
    Validator::new_with_features(WasmFeatures::all())
        .validate_all(&fixed.component)
        .map_err(|e| FixError::Unsupported(format!("what came of it is not valid: {}", e.message())))?;
    Ok(fixed)
}

/// A component inside another, which may import whatever the outer one gives it; none when it has nothing of WASI.
fn fix_nested(component: &[u8]) -> Result<Option<Fixed>, FixError> {
    if !survey::imports_wasi(component)? {
        return Ok(None);
    }
    let types = Validator::new_with_features(WasmFeatures::all()).validate_all(component)?;
    let survey = Survey::of(component, types.as_ref())?;
    rewrite::without_wasi(component, &survey).map(Some)
}
