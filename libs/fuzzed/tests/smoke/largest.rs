//! Tracks the largest allocation that a thread has requested.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// Starts tracking anew.
pub fn forget() {
    LARGEST.set(0);
}

/// The size of the largest allocation in bytes.
pub fn allocation() -> usize {
    LARGEST.get()
}

/// The system's allocator, which also records requested sizes.
pub struct Noting;

impl Noting {
    fn note(bytes: usize) {
        // A thread that is ending no longer has this variable.
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
    }
}

// SAFETY: every call is forwarded unchanged to the system's allocator; recording does not allocate.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract, and all memory comes from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::note(size);
        // SAFETY: the caller upholds the contract, and all memory comes from the system's allocator.
        unsafe { System.realloc(at, layout, size) }
    }
}
