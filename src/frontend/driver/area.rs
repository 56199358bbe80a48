//! Where one split virtqueue lies in the guest's memory, and its plain fields.
//!
//! Promises: every index is masked or bounded, so no argument leads outside the ring. What
//! needs an ordering is not here but in [`order`](crate::virtio::order).

use crate::arch::{self, Word16};
use crate::frontend::ram::{Plan, Ram};
use crate::virtio::RingAddresses;
use crate::virtio::order::RingWords;
use std::sync::Arc;

/// Cache line: rings begin on one, so that no two rings share any.
const LINE: usize = 64;

/// A planned ring.
#[derive(Debug, Clone, Copy)]
pub struct RingPlace {
    desc: usize,
    avail: usize,
    used: usize,
    size: u16,
}

impl RingPlace {
    /// Room for a ring of `size` entries (a power of two).
    pub fn new(plan: &mut Plan, size: u16) -> Self {
        let n = usize::from(size);
        RingPlace {
            desc: plan.place(16 * n, LINE),
            avail: plan.place(6 + 2 * n, LINE),
            used: plan.place(6 + 8 * n, LINE),
            size,
        }
    }
}

/// A ring in memory.
#[derive(Debug)]
pub struct RingArea {
    ram: Arc<Ram>,
    place: RingPlace,
    fields: Fields,
}

// SAFETY: the pointers lead into `ram`, which the area owns a share of.
unsafe impl Send for RingArea {}

/// A ring's tables. A copy in registers keeps loops tight: the compiler need not fear that a
/// store to the ring changes where the ring is. Never outlives its [`RingArea`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields {
    desc: *mut u64,
    avail_ring: *mut u16,
    used_ring: *mut u64,
    mask: u16,
}

impl RingArea {
    /// The ring at `place`.
    ///
    /// # Panics
    /// If `place` was planned for another memory.
    pub fn new(ram: Arc<Ram>, place: RingPlace) -> Self {
        let n = usize::from(place.size);
        assert!(place.size.is_power_of_two() && place.used + 6 + 8 * n <= ram.size());
        let fields = Fields {
            desc: ram.host(place.desc).cast(),
            avail_ring: ram.host(place.avail + 4).cast(),
            used_ring: ram.host(place.used + 4).cast(),
            mask: place.size - 1,
        };
        RingArea { ram, place, fields }
    }

    /// Entries.
    pub fn size(&self) -> u16 {
        self.place.size
    }

    /// For `SET_VRING_ADDR`.
    pub fn user_addresses(&self) -> RingAddresses {
        RingAddresses {
            desc: self.ram.user(self.place.desc),
            avail: self.ram.user(self.place.avail),
            used: self.ram.user(self.place.used),
        }
    }

    /// The used ring's guest address: where a dirty log has it.
    pub fn used_guest(&self) -> u64 {
        self.ram.guest(self.place.used)
    }

    /// The memory it lies in.
    pub fn ram(&self) -> &Arc<Ram> {
        &self.ram
    }

    /// The words both sides share. Their users must not outlive this area.
    pub(in crate::frontend) fn words(&self) -> RingWords {
        let n = usize::from(self.place.size);
        let (avail, used) = (self.place.avail, self.place.used);
        let word = |offset: usize| {
            // SAFETY: even offsets inside the ring, which `new` found inside the memory; that
            // lives as long as this area, and its words are only used by its owners.
            unsafe { Word16::new(self.ram.host(offset).cast()) }
        };
        RingWords {
            avail_flags: word(avail),
            avail_idx: word(avail + 2),
            used_event: word(avail + 4 + 2 * n),
            used_flags: word(used),
            used_idx: word(used + 2),
            avail_event: word(used + 4 + 8 * n),
        }
    }

    /// All zero, but for the indices and events, which begin at `first`.
    pub fn clear(&self, first: u16) {
        let n = usize::from(self.place.size);
        self.ram.clear(self.place.desc, 16 * n);
        self.ram.clear(self.place.avail, 6 + 2 * n);
        self.ram.clear(self.place.used, 6 + 8 * n);
        let words = self.words();
        words.avail_idx.store(first);
        words.used_idx.store(first);
        words.avail_event.store(first);
        // Nothing asked for until somebody arms: the event lies just behind.
        words.used_event.store(first.wrapping_sub(1));
    }

    /// Its tables, for a loop.
    #[inline(always)]
    pub(super) fn fields(&self) -> Fields {
        self.fields
    }
}

impl Fields {
    /// Address of descriptor `i`.
    #[inline(always)]
    pub fn store_desc_addr(&self, i: u16, addr: u64) {
        // SAFETY: a masked index; the table is 16-byte aligned.
        unsafe { arch::store_u64(self.desc.add(2 * usize::from(i & self.mask)), addr) }
    }

    /// Length, flags and next of descriptor `i`.
    #[inline(always)]
    pub fn store_desc_rest(&self, i: u16, rest: u64) {
        // SAFETY: a masked index; the table is 16-byte aligned.
        unsafe { arch::store_u64(self.desc.add(2 * usize::from(i & self.mask) + 1), rest) }
    }

    /// Bring the line of descriptor `i` in to write it.
    #[inline(always)]
    pub fn prefetch_desc(&self, i: u16) {
        // SAFETY: a masked index.
        arch::prefetch_write(unsafe { self.desc.add(2 * usize::from(i & self.mask)) }.cast());
    }

    /// Bring the lines of the `n` used entries from index `at` on in, all at once: the device has
    /// just written them.
    #[inline(always)]
    pub fn prefetch_used(&self, at: u16, n: usize) {
        for i in (8..n + 8).step_by(8) {
            let at = at.wrapping_add((i - 1).min(n) as u16);
            // SAFETY: a masked index.
            let entry = unsafe { self.used_ring.add(usize::from(at & self.mask)) };
            arch::prefetch_read(entry.cast());
        }
    }

    /// Entry of the avail ring at index `at`.
    #[inline(always)]
    pub fn store_avail(&self, at: u16, head: u16) {
        // SAFETY: a masked index.
        unsafe { arch::store_u16(self.avail_ring.add(usize::from(at & self.mask)), head) }
    }

    /// Entry of the used ring at index `at`: id and length. `used.idx` must have been seen past
    /// it.
    #[inline(always)]
    pub fn load_used(&self, at: u16) -> (u32, u32) {
        // SAFETY: a masked index; a used ring is 4-byte aligned, so the entry may cross an
        // 8-byte border.
        let entry =
            unsafe { arch::load_unaligned_u64(self.used_ring.add(usize::from(at & self.mask))) };
        (entry as u32, (entry >> 32) as u32)
    }
}

/// Length, flags and next of a descriptor as one word.
#[inline(always)]
pub const fn desc_rest(len: u32, flags: u16, next: u16) -> u64 {
    len as u64 | (flags as u64) << 32 | (next as u64) << 48
}
