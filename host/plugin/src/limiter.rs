//! Says no to memory and tables beyond the limits, over all of an instance's memories together.

use crate::limits::{Limits, SizeClass};
use wasmtime::ResourceLimiter;

/// Watches one instance grow.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory_limit: usize,
    table_limit: usize,
    core_instances: usize,
    memories: usize,
    tables: usize,
    memory: usize,
    refused: bool,
    /// Bytes that the present stretch of guest code may grow to.
    memory_here: usize,
    left: bool,
}

/// The guest wants more memory than it may take where it runs.
#[derive(Debug, thiserror::Error)]
#[error("the guest wants more memory than it may take on this thread")]
struct NotHere;

impl Limiter {
    pub(crate) fn new(limits: &Limits, class: SizeClass) -> Self {
        Self {
            memory_limit: limits.memory_for(class),
            table_limit: limits.table_elements,
            core_instances: limits.core_instances_for(class),
            memories: limits.memories_for(class),
            tables: limits.tables as usize,
            memory: 0,
            refused: false,
            memory_here: usize::MAX,
            left: false,
        }
    }

    /// Bytes of memory in use.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    /// Bytes of memory allowed.
    pub(crate) fn memory_limit(&self) -> u64 {
        self.memory_limit as u64
    }

    /// Bounds what follows: filling memory costs a page fault for every 4 KiB and next to no fuel, so that a thread
    /// which must not be held up lets guests have little of it.
    pub(crate) fn allow_here(&mut self, bytes: usize) {
        self.memory_here = bytes;
    }

    /// Whether the guest was stopped because it wanted more memory than it may take where it ran.
    pub(crate) fn stopped_here(&self) -> bool {
        self.left
    }

    /// Whether the guest asked for more than it may have.
    pub(crate) fn refused(&self) -> bool {
        self.refused
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let total = self.memory.saturating_add(desired.saturating_sub(current));
        let declared = maximum.is_none_or(|most| desired <= most);
        if total > self.memory_limit {
            self.refused = true;
            return Ok(false);
        }
        if declared && desired > current && total > self.memory_here {
            self.left = true;
            return Err(NotHere.into());
        }
        if declared {
            self.memory = total;
        }
        Ok(declared)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > self.table_limit {
            self.refused = true;
            return Ok(false);
        }
        Ok(maximum.is_none_or(|most| desired <= most))
    }

    fn instances(&self) -> usize {
        self.core_instances
    }

    fn tables(&self) -> usize {
        self.tables
    }

    fn memories(&self) -> usize {
        self.memories
    }
}
