//! COMPUTES: real transformers, on the CPU and on GPUs.
//!
//! The native engine turns prompts into KV and KV into tokens, for dense attention models (Qwen3, Llama), for hybrids
//! of gated delta net and attention (Qwen3.5, Qwen3-Next) and for short convolutions with attention (LFM2). Only this
//! crate uses the tensor library.
//!
//! On the CPU results are exact by construction. Every value is one sum in one order, however many rows are computed together, so
//! whatever was cached, and wherever, and whatever else runs, KV taken from a cache or from another instance equals KV
//! computed here bit for bit.

mod device;
pub mod foreign;
mod generate;
mod instance;
mod kernel;
pub mod kv_events;
mod load;
pub mod modelled;

mod network;
mod quality;
mod sampling;
mod shape;
mod splice;
mod text;
mod wire;

pub use device::{ComputeDevice, DeviceError, DeviceNameError};
pub use generate::{Generated, generate};
pub use instance::{CacheConfig, InstanceConfig, NativeInstance, Surroundings};
pub use load::{LoadError, LoadedModel, ModelFiles, gguf_settings, load_model};
pub use quality::{KvMode, KvModeError, QualityReport, QualityRow, quality};
pub use shape::{CacheShape, LayerShape, SequenceSize};

/// Tokens in a pool block, and the unit of prefill. Wide enough that the matrix products of a piece run at the
/// machine's full rate, narrow enough that a decode step never waits long for a piece of prefill; a multiple of the
/// prefix index's 16.
pub const BLOCK_TOKENS: u32 = 64;
