//! The plain leaf: a fence of the language and byte-wise volatile copies. The oracle of the
//! other leaves' tests, and what unknown architectures run.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

/// Sequentially consistent fence.
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}

/// Copy `len` bytes, each read once and written once.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes. Either may be guest memory that
/// somebody else reads and writes meanwhile. They may overlap, as a guest's buffers may whatever
/// we think of it: then it is anybody's guess which of their bytes end up in `dst`.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    for i in 0..len {
        // SAFETY: `i < len`, and both ranges are valid by the caller's contract.
        unsafe { dst.add(i).write_volatile(src.add(i).read_volatile()) };
    }
}

/// No prefetch.
#[inline]
pub fn prefetch_read(_ptr: *const u8) {}

/// No prefetch.
#[inline]
pub fn prefetch_write(_ptr: *mut u8) {}

/// Nanoseconds stand in for cycles.
#[inline]
pub fn cycles() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
