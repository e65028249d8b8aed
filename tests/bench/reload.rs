//! Reloads under load: eight versions of a router in turn while another thread asks, and what the process keeps of them.

use crate::inputs::Inputs;
use crate::subjects::{Unprepared, answer, binding, loader, tenant};
use crate::{Readiness, measure};
use arc_swap::ArcSwap;
use portolan_policy::{Policy, QuestionKind};
use portolan_ports::PolicyLoader;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The shipped routers that take turns.
const ROUTERS: [&str; 8] = [
    "lowest-cost",
    "round-robin",
    "random",
    "least-loaded",
    "region-cache-aware",
    "global-cache-aware",
    "prefix-affinity",
    "threshold",
];

/// What many reloads took and left.
#[derive(Debug)]
pub struct Reloads {
    /// Half of the reloads, from the artefact to the policy in place, took at most this.
    pub median: Duration,
    /// Half of the swaps of the pointer took at most this.
    pub swap_median: Duration,
    /// Calls answered meanwhile; all of them were answered well.
    pub calls: u64,
    /// Resident memory in KiB, read ten times at equal distances.
    pub resident_kib: Vec<u64>,
}

/// Reloads so often.
///
/// # Errors
/// When a component cannot be read or loaded.
pub fn reloads(folder: &Path, count: usize) -> Result<Reloads, Unprepared> {
    let loader = loader(Readiness::Ahead)?;
    let mut versions = Vec::new();
    for name in ROUTERS {
        let path = folder.join(format!("{name}.wasm"));
        let component =
            std::fs::read(&path).map_err(|e| Unprepared::new(format!("{}: {e}", path.display())))?;
        let question = (tenant()?, QuestionKind::Routing, name);
        let bound = binding(&loader, &component, Readiness::Ahead, question);
        let sealed = loader
            .compile(&component)
            .map_err(|e| Unprepared::new(e.to_string()))?;
        versions.push((bound, component, sealed));
    }
    let load = |i: usize| -> Result<Arc<dyn Policy>, Unprepared> {
        let (bound, component, sealed) = &versions[i % versions.len()];
        let loaded = loader.load(bound, component, Some(sealed));
        loaded.map_err(|e| Unprepared::new(e.to_string()))
    };
    let active = ArcSwap::from_pointee(load(0)?);
    let (over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut took, mut swaps, mut resident_kib) = (Vec::new(), Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let inputs = Inputs::new(16);
            while !over.load(Ordering::Relaxed) {
                answer(&***active.load(), &inputs.routing());
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut run = || {
            for i in 1..=count {
                let begun = Instant::now();
                let next = Arc::new(load(i)?);
                let loaded = Instant::now();
                active.store(next);
                swaps.push(loaded.elapsed());
                took.push(begun.elapsed());
                if i % (count / 10).max(1) == 0 {
                    resident_kib.push(measure::resident_kib());
                }
            }
            Ok(())
        };
        let done = run();
        over.store(true, Ordering::Relaxed);
        done
    })?;
    took.sort();
    swaps.sort();
    Ok(Reloads {
        median: took[took.len() / 2],
        swap_median: swaps[swaps.len() / 2],
        calls: calls.into_inner(),
        resident_kib,
    })
}
