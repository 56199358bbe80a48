//! x86-64: a locked operation on the stack is the full fence; copies are vector moves in inline
//! assembly, because guest memory may change under them. (Total store order makes acquire and
//! release plain moves: the language's own atomics in `word` compile to them.)

pub(super) mod copy;

pub use copy::{copy_large, move4, move8, move16, move64};
use std::arch::{asm, x86_64};

/// A locked read-modify-write of the stack's top line: cheaper than `mfence`, as strong for
/// ordinary memory.
#[inline]
pub fn full_fence() {
    // SAFETY: ors zero into the word on top of the stack, which keeps its value, atomically. It
    // pushes nothing and stays out of the red zone below. Not `nomem`: the compiler moves no
    // memory access across it. Flags are not preserved and not declared so.
    unsafe { asm!("lock or dword ptr [rsp], 0", options(nostack)) }
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
