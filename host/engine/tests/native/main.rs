//! The native engine as its callers see it, held to the reference implementation's numbers.

mod gguf;
mod jobs;
mod loading;
mod oracle;
mod reuse;
mod smollm;
mod support;
