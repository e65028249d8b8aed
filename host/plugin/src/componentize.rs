//! Makes a component of a core module that was built with wit-bindgen.

use wit_component::ComponentEncoder;

/// A core module could not be made a component.
#[derive(Debug, thiserror::Error)]
pub enum ComponentizeError {
    /// The bytes are a component already.
    #[error("the file is a component already; use it as it is")]
    AlreadyComponent,
    /// The module was built without the contract's metadata, or does not fit it.
    #[error("the core module cannot be made a component: {0}")]
    Encode(String),
    /// The module carries no metadata of any contract.
    #[error(
        "the core module carries no component metadata; build it with wit-bindgen (or the Portolan SDK) for the \
         target wasm32-unknown-unknown"
    )]
    NoMetadata,
}

/// Wraps a core module with embedded wit-bindgen metadata into a component. Adds no WASI: a module that imports any
/// other host function than the contract's is refused with the import's name.
pub fn componentize(core_module: &[u8]) -> Result<Vec<u8>, ComponentizeError> {
    if wasmparser::Parser::is_component(core_module) {
        return Err(ComponentizeError::AlreadyComponent);
    }
    let (stripped, _) = wit_component::metadata::decode(core_module).map_err(failed)?;
    if stripped.is_none() {
        return Err(ComponentizeError::NoMetadata);
    }
    let mut encoder = ComponentEncoder::default();
    encoder.validate(true).module(core_module).map_err(failed)?;
    encoder.encode().map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> ComponentizeError {
    ComponentizeError::Encode(format!("{error:#}"))
}
