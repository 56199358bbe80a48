//! Words shared with a guest: relaxed loads and stores, and the ordered 16-bit
//! accesses of the ring protocol.
//!
//! All of them are atomic accesses through raw pointers: a guest that writes at the same time
//! is a race the language allows. Acquire and release are the language's own too: they compile
//! to the cheapest instruction of every architecture. The full fence does not, so it is the
//! leaf's.

use super::{leaf, step::Step};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};

/// A 16-bit word of a ring, in guest memory.
///
/// A pointer, not a reference: it may be copied, and it says nothing about who else writes.
#[derive(Debug, Clone, Copy)]
pub struct Word16(*mut u16);

// SAFETY: the word is only accessed atomically, from whatever thread owns the ring.
unsafe impl Send for Word16 {}

impl Word16 {
    /// # Safety
    /// `ptr` is aligned to 2 and stays valid for reads and writes as long as this value and
    /// its copies are used.
    pub unsafe fn new(ptr: *mut u16) -> Self {
        Word16(ptr)
    }

    /// Relaxed load.
    #[inline]
    pub fn load(self) -> u16 {
        // SAFETY: valid and aligned by the contract of `new`.
        unsafe { AtomicU16::from_ptr(self.0) }.load(Relaxed)
    }

    /// Relaxed store.
    #[inline]
    pub fn store(self, value: u16) {
        // SAFETY: valid and aligned by the contract of `new`.
        unsafe { AtomicU16::from_ptr(self.0) }.store(value, Relaxed);
    }

    /// Load that no later access passes.
    #[inline]
    pub fn load_acquire(self, _step: Step) -> u16 {
        // SAFETY: valid and aligned by the contract of `new`.
        unsafe { AtomicU16::from_ptr(self.0) }.load(Acquire)
    }

    /// Store that no earlier access passes.
    #[inline]
    pub fn store_release(self, value: u16, _step: Step) {
        // SAFETY: valid and aligned by the contract of `new`.
        unsafe { AtomicU16::from_ptr(self.0) }.store(value, Release);
    }
}

/// Full fence: no earlier access is ordered after it, no later one before it.
#[inline]
pub fn full_fence(_step: Step) {
    leaf::full_fence();
}

/// # Safety
/// `ptr` is valid for reads and aligned to 2.
#[inline]
pub unsafe fn load_u16(ptr: *const u16) -> u16 {
    // SAFETY: the caller's contract; the atomic is only read.
    unsafe { AtomicU16::from_ptr(ptr.cast_mut()) }.load(Relaxed)
}

/// # Safety
/// `ptr` is valid for reads and aligned to 8.
#[inline]
pub unsafe fn load_u64(ptr: *const u64) -> u64 {
    // SAFETY: the caller's contract; the atomic is only read.
    unsafe { AtomicU64::from_ptr(ptr.cast_mut()) }.load(Relaxed)
}

/// Two adjacent 64-bit loads, low one first: a descriptor. Each half is read once; the pair is
/// not atomic, and need not be: it is checked as one value after it was read.
///
/// # Safety
/// `ptr` is valid for reads of 16 bytes and aligned to 8.
#[inline]
pub unsafe fn load_u128(ptr: *const u8) -> (u64, u64) {
    // SAFETY: the caller's contract covers both halves.
    unsafe { (load_u64(ptr.cast()), load_u64(ptr.add(8).cast())) }
}

/// # Safety
/// `ptr` is valid for writes and aligned to 8.
#[inline]
pub unsafe fn store_u64(ptr: *mut u64, value: u64) {
    // SAFETY: the caller's contract.
    unsafe { AtomicU64::from_ptr(ptr) }.store(value, Relaxed);
}

/// # Safety
/// `ptr` is valid for writes and aligned to 2.
#[inline]
pub unsafe fn store_u16(ptr: *mut u16, value: u16) {
    // SAFETY: the caller's contract.
    unsafe { AtomicU16::from_ptr(ptr) }.store(value, Relaxed);
}

/// Set bits of a byte that others change, too. Who takes the bits with an acquiring operation
/// sees everything written before.
///
/// # Safety
/// `ptr` is valid for reads and writes.
pub unsafe fn or_u8(ptr: *mut u8, bits: u8) {
    // SAFETY: the caller's contract.
    unsafe { AtomicU8::from_ptr(ptr) }.fetch_or(bits, Release);
}

/// A value at any address: its volatile accesses compile to plain unaligned moves.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Unaligned<T>(T);

/// # Safety
/// `ptr` is valid for reads of 8 bytes; any alignment.
#[inline(always)]
pub unsafe fn load_unaligned_u64(ptr: *const u64) -> u64 {
    // SAFETY: the caller's contract; the packed type needs no alignment.
    unsafe { ptr.cast::<Unaligned<u64>>().read_volatile() }.0
}

/// # Safety
/// `ptr` is valid for reads of 4 bytes; any alignment.
#[inline(always)]
pub unsafe fn load_unaligned_u32(ptr: *const u32) -> u32 {
    // SAFETY: the caller's contract; the packed type needs no alignment.
    unsafe { ptr.cast::<Unaligned<u32>>().read_volatile() }.0
}

/// # Safety
/// `ptr` is valid for writes of 8 bytes; any alignment.
#[inline(always)]
pub unsafe fn store_unaligned_u64(ptr: *mut u64, value: u64) {
    // SAFETY: the caller's contract; the packed type needs no alignment.
    unsafe { ptr.cast::<Unaligned<u64>>().write_volatile(Unaligned(value)) }
}

/// # Safety
/// `ptr` is valid for writes of 4 bytes; any alignment.
#[inline(always)]
pub unsafe fn store_unaligned_u32(ptr: *mut u32, value: u32) {
    // SAFETY: the caller's contract; the packed type needs no alignment.
    unsafe { ptr.cast::<Unaligned<u32>>().write_volatile(Unaligned(value)) }
}
