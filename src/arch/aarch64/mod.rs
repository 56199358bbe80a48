//! aarch64: `dmb ish` is the full fence; copies are pairs of vector registers in inline
//! assembly, because guest memory may change under them. (The language's own atomics in `word`
//! compile to `stlrh` and `ldarh`, or to `ldaprh` where the build's target has RCPC.)

mod copy;

pub use super::copy::copy_by_64 as copy_large;
pub use copy::{move4, move8, move16, move64};
use std::arch::asm;
use std::sync::atomic::{Ordering, fence};

/// `dmb ish`.
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}

/// Bring a line in to read it.
#[inline]
pub fn prefetch_read(ptr: *const u8) {
    // SAFETY: a prefetch has no effect on memory and never faults.
    unsafe {
        asm!("prfm pldl1keep, [{}]", in(reg) ptr, options(nostack, preserves_flags, readonly));
    }
}

/// Bring a line in to write it, owned from the start: one trip instead of two.
#[inline]
pub fn prefetch_write(ptr: *mut u8) {
    // SAFETY: a prefetch has no effect on memory and never faults.
    unsafe {
        asm!("prfm pstl1keep, [{}]", in(reg) ptr, options(nostack, preserves_flags, readonly));
    }
}

/// The virtual counter: constant in rate, slower than the processor's clock.
#[inline]
pub fn cycles() -> u64 {
    let ticks;
    // SAFETY: reads a counter that Linux lets every process read.
    unsafe {
        asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags));
    }
    ticks
}
