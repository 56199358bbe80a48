//! What the instruction set decides: ordered access to shared words, fences, copies of guest
//! bytes, prefetches, the cycle counter.
//!
//! Promises: guest memory is touched by the routines here and by nothing else (the crate's laws
//! of guest memory); none of them makes a reference into it. One leaf per architecture with the
//! same signatures, `portable` is the plain one that the others are tested against. Called by
//! `virtio`, `packet` and the frontend driver, for time and patience by all that polls. Never
//! allocates, never fails.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod copy;
mod step;
mod word;

// The oracle of the tests where it is not the leaf.
#[cfg(any(test, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod portable;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "aarch64")]
#[path = "aarch64/mod.rs"]
mod leaf;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use portable as leaf;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64/mod.rs"]
mod leaf;

#[cfg(target_endian = "big")]
compile_error!("ringbridge reads virtio's little-endian fields as they lie: no big-endian hosts");

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub use copy::copy;
pub use leaf::{cycles, prefetch_read, prefetch_write};
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub use portable::copy;
pub use step::Step;
pub use word::{
    Word16, full_fence, load_u16, load_u64, load_u128, load_unaligned_u32, load_unaligned_u64,
    or_u8, store_u16, store_u64, store_unaligned_u32, store_unaligned_u64,
};

/// One breath in a polling loop that found nothing.
#[inline]
pub fn relax() {
    std::hint::spin_loop();
}
