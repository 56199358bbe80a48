//! The guest's memory: memfds, mapped once, released on drop.
//!
//! Promises: one stretch of guest-physical addresses, mapped in one piece here; a backend gets
//! it as one or more adjacent regions, each a file of its own, so that it maps them apart.
//! Guest-physical addresses, the frontend's user addresses and our own pointers are three
//! different numbers: a backend that takes one for another fails. Never makes a reference into
//! the memory.

use crate::arch;
use crate::sys;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

/// Alignment of regions: the page.
const PAGE: usize = 4096;
/// Guest-physical address of the first guest memory; each further one is a step above.
const GUEST_BASE: u64 = 0x1_0000_0000;
/// User address of the first guest memory.
const USER_BASE: u64 = 0x5000_0000_0000;
/// From one guest memory to the next: more than any has bytes.
const STEP: u64 = 0x100_0000_0000;

/// Places things one after the other; the sum is the memory's size.
#[derive(Debug, Default)]
pub struct Plan {
    bytes: usize,
}

impl Plan {
    /// Room for `bytes` at a multiple of `align` (a power of two): its offset.
    pub fn place(&mut self, bytes: usize, align: usize) -> usize {
        let at = self.bytes.next_multiple_of(align);
        self.bytes = at + bytes;
        at
    }
}

/// A region as a backend is told of it.
#[derive(Debug)]
pub struct Region {
    /// Guest-physical address.
    pub guest: u64,
    /// User address.
    pub user: u64,
    /// Bytes.
    pub size: usize,
    /// The memfd; the region begins at its first byte.
    pub file: File,
}

/// A guest's memory.
#[derive(Debug)]
pub struct Ram {
    host: NonNull<u8>,
    size: usize,
    guest: u64,
    user: u64,
    regions: Vec<Region>,
}

// SAFETY: the memory is shared with a backend anyway; all accesses go through raw pointers.
unsafe impl Send for Ram {}
// SAFETY: as above; the fields never change.
unsafe impl Sync for Ram {}

impl Ram {
    /// Memory for all of `plan` in `regions` regions. The first `whole` bytes (rings) stay in
    /// one region, the rest is cut evenly. `number` tells several guest memories apart: it
    /// decides the addresses.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(plan: &Plan, whole: usize, regions: usize, number: u64) -> io::Result<Self> {
        let whole = whole.next_multiple_of(PAGE).max(PAGE);
        let cut = plan.bytes.saturating_sub(whole).div_ceil(regions).next_multiple_of(PAGE);
        let sizes: Vec<usize> =
            (0..regions).map(|i| cut.max(PAGE) + if i == 0 { whole } else { 0 }).collect();
        let size = sizes.iter().sum();
        let host = reserve(size)?;
        let mut ram = Ram {
            host,
            size,
            guest: GUEST_BASE + number * STEP,
            user: USER_BASE + number * STEP,
            regions: Vec::with_capacity(regions),
        };
        let mut at = 0;
        for size in sizes {
            let file = sys::memfd(c"ringbridge-guest", size as u64)?;
            // SAFETY: `at + size` lies inside the reservation, which nothing else uses yet.
            unsafe { map_over(ram.host.as_ptr().add(at), size, &file)? };
            let (guest, user) = (ram.guest + at as u64, ram.user + at as u64);
            ram.regions.push(Region { guest, user, size, file });
            at += size;
        }
        Ok(ram)
    }

    /// The regions, ascending.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Guest-physical address of the byte at `offset`.
    #[inline]
    pub fn guest(&self, offset: usize) -> u64 {
        self.guest + offset as u64
    }

    /// User address of the byte at `offset`: what ring addresses are given in.
    pub fn user(&self, offset: usize) -> u64 {
        self.user + offset as u64
    }

    /// Our pointer to the byte at `offset`, which is at most the size.
    #[inline]
    pub(super) fn host(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.size);
        // SAFETY: the mapping has `size` bytes.
        unsafe { self.host.as_ptr().add(offset) }
    }

    /// Copy `bytes` to `offset`.
    ///
    /// # Panics
    /// If they do not fit there: the caller's mistake.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.size));
        // SAFETY: the range was just checked; the slice is private memory.
        unsafe { arch::copy(self.host(offset), bytes.as_ptr(), bytes.len()) }
    }

    /// Copy from `offset` to `bytes`.
    ///
    /// # Panics
    /// If the memory ends before that: the caller's mistake.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.size));
        // SAFETY: the range was just checked; the slice is private memory.
        unsafe { arch::copy(bytes.as_mut_ptr(), self.host(offset), bytes.len()) }
    }

    /// Set `len` bytes at `offset` to zero.
    pub(super) fn clear(&self, offset: usize, len: usize) {
        const ZEROS: [u8; PAGE] = [0; PAGE];
        let end = offset + len;
        for at in (offset..end).step_by(PAGE) {
            self.write(at, &ZEROS[..PAGE.min(end - at)]);
        }
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        // SAFETY: the whole reservation, mapped by `new`; whoever has pointers into it holds an
        // `Arc` of this.
        unsafe { libc::munmap(self.host.as_ptr().cast(), self.size) };
    }
}

/// Address space without memory.
fn reserve(size: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping wherever the system wants it.
    let ptr = unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0) };
    if ptr == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(ptr.cast()).ok_or_else(io::Error::last_os_error)
}

/// # Safety
/// `ptr` is page aligned and `size` bytes there are a reservation of ours.
unsafe fn map_over(ptr: *mut u8, size: usize, file: &File) -> io::Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: replaces a reservation of ours, by the caller's contract.
    let mapped = unsafe { libc::mmap(ptr.cast(), size, protection, flags, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn regions_are_adjacent_and_apart() {
        let mut plan = Plan::default();
        plan.place(5000, 16);
        plan.place(100_000, 64);
        let ram = Ram::new(&plan, 5000, 3, 1).unwrap();
        let regions = ram.regions();
        assert_eq!(regions.len(), 3);
        assert!(ram.size() >= 105_000);
        let mut next = (ram.guest(0), ram.user(0));
        for r in regions {
            assert_eq!((r.guest, r.user), next);
            next = (r.guest + r.size as u64, r.user + r.size as u64);
        }
        assert!(regions[0].size >= 5000);
        // Bytes across the border of the first two files.
        let border = regions[0].size;
        ram.write(border - 2, &[1, 2, 3, 4]);
        let mut seen = [0; 4];
        regions[0].file.read_exact_at(&mut seen[..2], border as u64 - 2).unwrap();
        regions[1].file.read_exact_at(&mut seen[2..], 0).unwrap();
        assert_eq!(seen, [1, 2, 3, 4]);
    }

    #[test]
    fn clear_clears_exactly() {
        let mut plan = Plan::default();
        plan.place(20_000, 1);
        let ram = Ram::new(&plan, 0, 1, 0).unwrap();
        ram.write(99, &[7; 9003]);
        ram.clear(100, 9001);
        let mut seen = vec![1; 9003];
        ram.read(99, &mut seen);
        assert_eq!((seen[0], seen[9002]), (7, 7));
        assert!(seen[1..9002].iter().all(|&b| b == 0));
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn writes_outside_are_refused() {
        let ram = Ram::new(&Plan::default(), 0, 1, 0).unwrap();
        ram.write(ram.size() - 1, &[0, 0]);
    }
}
