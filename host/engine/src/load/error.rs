//! Why a model could not be loaded.

use std::path::PathBuf;

/// What is wrong with a model's files, and where.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The path is neither a folder nor a GGUF file.
    #[error("{} is neither a folder nor a .gguf file that exists; give a Hugging Face model folder or a GGUF file", .0.display())]
    NotAModel(PathBuf),
    /// A file could not be read.
    #[error("{} could not be read", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file is not what its name promises.
    #[error("{} is damaged or of another format: {reason}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        reason: String,
    },
    /// A setting is missing or has a value out of range.
    #[error("{}: `{key}` {problem}", .path.display())]
    Setting {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What is the matter with it, and what would be right.
        problem: String,
    },
    /// The weights lack a tensor.
    #[error("{}: there is no tensor `{name}`; the file is incomplete or its architecture is another", .path.display())]
    NoTensor {
        /// Where it was looked for.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("{}: tensor `{name}` is {found:?}, the configuration makes it {expected:?}", .path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape expected.
        expected: Vec<usize>,
    },
    /// A tensor could not be converted.
    #[error("{}: tensor `{name}` could not be converted to 32-bit floats", .path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Why.
        #[source]
        source: Box<candle_core::Error>,
    },
    /// The tokenizer cannot be used.
    #[error("{}: the tokenizer cannot be used: {reason}", .path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The chat template does not compile.
    #[error("{}: the chat template does not compile: {reason}", .path.display())]
    Template {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}
