//! The one wasmtime engine: its configuration, its instance pool, the clock that ends overlong calls.

use crate::limits::Limits;
use crate::ticker::Ticker;
use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;
use wasmtime::{
    Config, Enabled, Engine, ModuleVersionStrategy, OperatorCost, PoolingAllocationConfig, WasmFeatures,
};

/// Raised whenever the host changes what compiled code may rely on beyond wasmtime's own settings.
const HOST_ABI: u32 = 1;

/// Stack of a guest: an honest policy needs a few KiB, and a runaway recursion should end soon. Far less than the
/// 2 MiB of a serving thread, whose own frames come on top.
const GUEST_STACK_BYTES: usize = 256 << 10;

/// Written memory that stays mapped in an instance's place in the pool: overwritten with its first contents when the
/// instance is dropped, instead of given back and faulted in again page by page, which costs more than the call. A
/// compact guest writes 5 to 10 pages, stack included.
const RESIDENT_BYTES: usize = 128 << 10;

/// The same for tables: a page, which holds 512 entries.
const RESIDENT_TABLE_BYTES: usize = 4 << 10;

/// Frames in a trap's trace: a panic of Rust goes through eight of its own before the author's function is reached. Cheap
/// enough for a storm of traps.
const TRACE_FRAMES: NonZeroUsize = NonZeroUsize::new(16).expect("16 is not zero");

/// Everything younger than WebAssembly 2.0, tail calls excepted (the QuickJS toolchain needs them): what a policy
/// does not need is not part of its attack surface. Several memories stay on for the compiler's own adapters between
/// the parts of a composed component (QuickJS with its stubs); a module that has more than one is refused beforehand.
const UNUSED_FEATURES: [WasmFeatures; 11] = [
    WasmFeatures::GC,
    WasmFeatures::FUNCTION_REFERENCES,
    WasmFeatures::EXCEPTIONS,
    WasmFeatures::LEGACY_EXCEPTIONS,
    WasmFeatures::THREADS,
    WasmFeatures::SHARED_EVERYTHING_THREADS,
    WasmFeatures::MEMORY64,
    WasmFeatures::CUSTOM_PAGE_SIZES,
    WasmFeatures::RELAXED_SIMD,
    WasmFeatures::WIDE_ARITHMETIC,
    WasmFeatures::STACK_SWITCHING,
];

/// Where instances get their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// From slots reserved at start.
    Pooled,
    /// From the operating system, one by one: two to three times slower.
    OnDemand,
}

/// The engine and what belongs to it.
pub(crate) struct Runtime {
    pub(crate) engine: Engine,
    pub(crate) allocation: Allocation,
    /// Names the compiler, its settings and the processor: code compiled under another key is not run.
    pub(crate) code_key: String,
    pub(crate) ticker: Arc<Ticker>,
}

/// The engine could not be built at all.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// wasmtime refused the configuration.
    #[error("the WebAssembly engine could not be built: {0:#}")]
    Engine(wasmtime::Error),
    /// A thread of the runtime could not be started.
    #[error("a thread of the policy runtime could not be started")]
    Thread(#[from] std::io::Error),
}

impl Runtime {
    pub(crate) fn new(limits: &Limits) -> Result<Self, EngineError> {
        let code_key = code_key().map_err(EngineError::Engine)?;
        let (engine, allocation) = build(limits, &code_key).map_err(EngineError::Engine)?;
        Ok(Self {
            ticker: Ticker::start(&engine)?,
            engine,
            allocation,
            code_key,
        })
    }
}

fn build(limits: &Limits, code_key: &str) -> wasmtime::Result<(Engine, Allocation)> {
    let mut config = configuration();
    config.module_version(ModuleVersionStrategy::Custom(code_key.to_owned()))?;
    let on_demand = config.clone();
    config.allocation_strategy(pool(limits));
    match Engine::new(&config) {
        Ok(engine) => Ok((engine, Allocation::Pooled)),
        Err(error) => {
            tracing::warn!(
                instances = limits.pool_instances,
                error = format!("{error:#}"),
                "no address space for the policy instance pool; instances are made on demand, which is two to three \
                 times slower. Raise the address-space limit (ulimit -v) or lower pool_instances"
            );
            Engine::new(&on_demand).map(|engine| (engine, Allocation::OnDemand))
        }
    }
}

/// An engine that only compiles: no instance pool, no threads. What it compiles runs in an engine of [`Runtime::new`].
pub(crate) fn compile_only() -> wasmtime::Result<Engine> {
    let mut config = configuration();
    config.module_version(ModuleVersionStrategy::Custom(code_key()?))?;
    Engine::new(&config)
}

fn configuration() -> Config {
    let mut config = Config::new();
    for feature in UNUSED_FEATURES {
        config.wasm_features(feature, false);
    }
    config
        .wasm_tail_call(true)
        .epoch_interruption(true)
        .consume_fuel(true)
        .concurrency_support(false)
        .shared_memory(false)
        .cranelift_nan_canonicalization(true)
        .max_wasm_stack(GUEST_STACK_BYTES)
        .wasm_backtrace_max_frames(Some(TRACE_FRAMES))
        .native_unwind_info(false)
        .operator_cost(prices());
    config
}

/// What instructions cost in fuel: one each, but for those that call into the host. A unit of fuel then buys at most
/// about 5 ns, whatever a guest does in a loop.
fn prices() -> OperatorCost {
    let mut cost = OperatorCost::new();
    cost.MemoryGrow = 100;
    cost.TableGrow = 100;
    for bulk in [
        &mut cost.MemoryCopy,
        &mut cost.MemoryFill,
        &mut cost.MemoryInit,
        &mut cost.DataDrop,
        &mut cost.TableCopy,
        &mut cost.TableFill,
        &mut cost.TableInit,
        &mut cost.ElemDrop,
    ] {
        *bulk = 100;
    }
    cost
}

fn pool(limits: &Limits) -> PoolingAllocationConfig {
    let instances = limits.pool_instances;
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(instances.saturating_mul(4))
        // Interpreted instances have up to four, and are few: one kept ready a version.
        .total_memories(instances.saturating_add(instances / 4))
        .total_tables(instances.saturating_mul(2))
        .max_memories_per_component(limits.interpreted_memories)
        .max_memories_per_module(1)
        .max_core_instances_per_component(limits.core_instances.max(limits.interpreted_core_instances))
        .max_tables_per_component(limits.tables)
        .max_tables_per_module(2)
        .table_elements(limits.table_elements)
        .max_memory_size(limits.memory_bytes.max(limits.large_memory_bytes))
        .max_unused_warm_slots(instances.min(64));
    // Without the kernel's list of written pages (Linux 6.7) the reset would write over all of the bytes that stay,
    // used or not.
    if PoolingAllocationConfig::is_pagemap_scan_available() {
        pool.pagemap_scan(Enabled::Yes)
            .linear_memory_keep_resident(RESIDENT_BYTES)
            .table_keep_resident(RESIDENT_TABLE_BYTES);
    }
    pool
}

/// A key over wasmtime's full version, every compiler setting and the processor's features. The version alone would
/// not do: by default wasmtime compares major versions only, and patch releases fix miscompilations.
fn code_key() -> wasmtime::Result<String> {
    let engine = Engine::new(&configuration())?;
    let mut absorbed = Absorb(blake3::Hasher::new());
    engine.precompile_compatibility_hash().hash(&mut absorbed);
    HOST_ABI.hash(&mut absorbed);
    std::env::consts::ARCH.hash(&mut absorbed);
    Ok(absorbed.0.finalize().to_hex().to_string())
}

/// Feeds `Hash` into BLAKE3, whose result does not depend on the Rust release.
struct Absorb(blake3::Hasher);

impl Hasher for Absorb {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let hash = self.0.finalize();
        hash.as_bytes()
            .iter()
            .take(8)
            .fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
    }
}
