//! The plain leaf: atomics of the language and byte-wise volatile copies. The oracle of the
//! other leaves' tests, and what unknown architectures run.

use std::sync::atomic::{AtomicU16, Ordering, fence};

/// # Safety
/// `ptr` is valid for reads and aligned to 2.
#[inline]
pub unsafe fn load_acquire(ptr: *const u16) -> u16 {
    // SAFETY: the caller's contract; the atomic is only read.
    unsafe { AtomicU16::from_ptr(ptr.cast_mut()) }.load(Ordering::Acquire)
}

/// # Safety
/// `ptr` is valid for writes and aligned to 2.
#[inline]
pub unsafe fn store_release(ptr: *mut u16, value: u16) {
    // SAFETY: the caller's contract.
    unsafe { AtomicU16::from_ptr(ptr) }.store(value, Ordering::Release);
}

/// Sequentially consistent fence.
#[inline]
pub fn full_fence() {
    fence(Ordering::SeqCst);
}

/// Copy `len` bytes, each read once and written once.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap.
/// Either may be guest memory that somebody else writes meanwhile.
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
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
}
