//! The allocator of a policy: a fixed arena first, growing memory after it.
//!
//! A fresh instance answers one question and is dropped. Growing its memory would cost more than the answer: the host
//! changes page protections to grow it, and again to take the pages back for the next instance. What a decision of 64
//! routes allocates fits the arena, which is part of the memory that an instance begins with.

use core::alloc::Layout;
use core::arch::wasm32::memory_grow;
use core::mem::MaybeUninit;
use talc::base::{Talc, binning::Binning};
use talc::cell::TalcSyncCell;
use talc::source::Source;
use talc::wasm::WasmBinning;

/// Rows of 64 routes are 6 KiB and their costs 2 KiB; the bindings copy them once, and name tables are of that order.
const ARENA_BYTES: usize = 64 << 10;

/// A page of WebAssembly memory.
const PAGE_BYTES: usize = 64 << 10;

/// What the allocator writes into a piece of memory beside what it hands out, with room to spare.
const BOOKKEEPING_BYTES: usize = 1 << 10;

static mut ARENA: [MaybeUninit<u8>; ARENA_BYTES] = [MaybeUninit::uninit(); ARENA_BYTES];

#[global_allocator]
static ALLOCATOR: TalcSyncCell<Memory, WasmBinning> = TalcSyncCell::new_wasm(Memory::Arena);

/// Where more memory comes from.
#[derive(Debug)]
enum Memory {
    /// From the arena, which is whole.
    Arena,
    /// From the instance's memory, which grows.
    Growth,
}

// SAFETY: only the allocator that is handed in is spoken to, and nothing here allocates.
unsafe impl Source for Memory {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        if matches!(talc.source, Self::Arena) {
            talc.source = Self::Growth;
            // SAFETY: nobody else names the arena, and this branch is taken once.
            let claimed = unsafe { talc.claim((&raw mut ARENA).cast(), ARENA_BYTES) };
            return claimed.map(drop).ok_or(());
        }
        let bytes = layout.size() + layout.align() + BOOKKEEPING_BYTES;
        let pages = bytes.div_ceil(PAGE_BYTES);
        match memory_grow::<0>(pages) {
            usize::MAX => Err(()),
            // SAFETY: the pages begin where the memory ended and are no one's yet.
            before => unsafe { talc.claim((before * PAGE_BYTES) as *mut u8, pages * PAGE_BYTES) }
                .map(drop)
                .ok_or(()),
        }
    }
}
