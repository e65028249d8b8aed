//! The one wasmtime engine: its configuration, its instance pool, the clock that ends overlong calls.

use crate::limits::Limits;
use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wasmtime::{Config, Engine, ModuleVersionStrategy, PoolingAllocationConfig, WasmFeatures};

/// How often the epoch advances: the resolution of every deadline.
const TICK: Duration = Duration::from_millis(1);

/// Raised whenever the host changes what compiled code may rely on beyond wasmtime's own settings.
const HOST_ABI: u32 = 1;

/// Stack of a guest: an honest policy needs a few KiB, and a runaway recursion should end soon. Far less than the
/// 2 MiB of a serving thread, whose own frames come on top.
const GUEST_STACK_BYTES: usize = 256 << 10;

/// Frames in a trap's trace: enough to see where, cheap enough for a storm of traps.
const TRACE_FRAMES: NonZeroUsize = NonZeroUsize::new(8).expect("8 is not zero");

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
    ticker_lateness_us: Arc<AtomicU64>,
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
        let ticker_lateness_us = start_ticker(&engine)?;
        Ok(Self {
            engine,
            allocation,
            code_key,
            ticker_lateness_us,
        })
    }

    /// The longest that a tick of the deadline clock has come late, in microseconds.
    pub(crate) fn ticker_lateness_us(&self) -> u64 {
        self.ticker_lateness_us.load(Ordering::Relaxed)
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
        .native_unwind_info(false);
    config
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

/// Advances the epoch until the engine is gone. A thread of its own: a task of the serving runtime would stop ticking
/// exactly when guests keep that runtime busy.
fn start_ticker(engine: &Engine) -> Result<Arc<AtomicU64>, std::io::Error> {
    let lateness = Arc::new(AtomicU64::new(0));
    let (engine, seen) = (engine.weak(), lateness.clone());
    std::thread::Builder::new()
        .name("policy-ticker".into())
        .spawn(move || {
            let mut last = Instant::now();
            loop {
                std::thread::sleep(TICK);
                let Some(engine) = engine.upgrade() else { return };
                engine.increment_epoch();
                let late = last.elapsed().saturating_sub(TICK);
                seen.fetch_max(
                    u64::try_from(late.as_micros()).unwrap_or(u64::MAX),
                    Ordering::Relaxed,
                );
                last = Instant::now();
            }
        })?;
    Ok(lateness)
}
