//! x86-64: total store order makes acquire and release plain moves; a locked operation on the
//! stack is the full fence; copies are vector moves in inline assembly, because guest memory
//! may change under them.

mod copy;

pub use copy::copy;
use std::arch::{asm, x86_64};
use std::sync::atomic::{AtomicU16, Ordering};

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

/// A locked read-modify-write of the stack's top line: cheaper than `mfence`, as strong for
/// ordinary memory.
#[inline]
pub fn full_fence() {
    // SAFETY: ors zero into the word on top of the stack, which keeps its value. The block is not
    // `nostack`, so the compiler leaves no red zone there, and memory accesses stay around it.
    unsafe { asm!("lock or dword ptr [rsp], 0", options()) }
}

/// Bring a line in to read it.
#[inline]
pub fn prefetch_read(ptr: *const u8) {
    // SAFETY: a prefetch has no effect on memory and never faults.
    unsafe { x86_64::_mm_prefetch::<{ x86_64::_MM_HINT_T0 }>(ptr.cast()) }
}

/// Bring a line in to write it, owned from the start: one trip instead of two.
#[inline]
pub fn prefetch_write(ptr: *mut u8) {
    // SAFETY: a prefetch has no effect on memory and never faults; `prefetchw` decodes as a
    // no-operation where it is not implemented.
    unsafe { asm!("prefetchw [{}]", in(reg) ptr, options(nostack, preserves_flags, readonly)) }
}

/// The time stamp counter.
#[inline]
pub fn cycles() -> u64 {
    // SAFETY: reads a counter that every x86-64 processor has.
    unsafe { x86_64::_rdtsc() }
}
