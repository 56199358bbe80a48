//! Buffers of one piece, as tight loops see them: addresses and first cache lines.
//!
//! Promises: copies of a few numbers that fit in registers, so that the compiler need not fear
//! that a store to a packet moves the pool. Buffer numbers come from the pool. Never outlives
//! its [`Pool`](super::Pool).

use super::geometry::PACKET_AT;
use crate::arch;

/// Guest-physical addresses of the headers of simple buffers.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    pub(super) first: u64,
    pub(super) stride: u64,
}

impl Addresses {
    /// That of one buffer.
    #[inline(always)]
    pub fn of(self, buffer: u32) -> u64 {
        self.first + u64::from(buffer) * self.stride
    }
}

/// The first cache lines of simple buffers' packets. Never outlives its [`Pool`].
#[derive(Debug, Clone, Copy)]
pub struct Lines {
    pub(super) first: *mut u8,
    pub(super) stride: usize,
    pub(super) count: u32,
}

impl Lines {
    /// Buffer numbers come from the pool and are below its count.
    #[inline(always)]
    fn of(self, buffer: u32) -> *mut u8 {
        debug_assert!(buffer < self.count);
        self.first.wrapping_add(buffer as usize * self.stride)
    }

    /// Bring it in to read it.
    #[inline(always)]
    pub fn prefetch_read(self, buffer: u32) {
        arch::prefetch_read(self.of(buffer));
    }

    /// Bring it in to write it.
    #[inline(always)]
    pub fn prefetch_write(self, buffer: u32) {
        arch::prefetch_write(self.of(buffer));
    }

    /// `num_buffers` of the header.
    #[inline(always)]
    pub fn num_buffers(self, buffer: u32) -> u16 {
        // SAFETY: a stride is at least a line; 12 is even.
        unsafe { arch::load_u16(self.of(buffer).add(PACKET_AT - 2).cast()) }
    }

    /// Make the virtio-net header zero, of either length: nothing else lies before the packet.
    #[inline(always)]
    pub fn clear_header(self, buffer: u32) {
        let line = self.of(buffer);
        // SAFETY: the first 14 bytes of a stride, which is at least a line.
        unsafe {
            arch::store_u64(line.cast(), 0);
            arch::store_unaligned_u64(line.add(PACKET_AT - 8).cast(), 0);
        }
    }

    /// The packet's 8 bytes from its 42nd on, where numbers are.
    #[inline(always)]
    pub fn load(self, buffer: u32) -> u64 {
        // SAFETY: 64 bytes at a multiple of the stride, which is at least that; 56 is aligned.
        unsafe { arch::load_u64(self.of(buffer).add(PACKET_AT + 42).cast()) }
    }

    /// Write them.
    #[inline(always)]
    pub fn stamp(self, buffer: u32, value: u64) {
        // SAFETY: as in `load`.
        unsafe { arch::store_u64(self.of(buffer).add(PACKET_AT + 42).cast(), value) }
    }
}
