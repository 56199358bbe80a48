//! Descriptor chains: reading the heads the driver made available and walking what they lead
//! to (virtio 1.2, 2.7.5).
//!
//! Promises: every descriptor is read once, into a local, and checked before it is used; a
//! walk visits at most [`SEGMENTS`] descriptors and region borders, and one descriptor that leads
//! to an indirect table, whatever the guest wrote; what comes out are pieces that lie in the
//! guest's memory as a whole. Never reads or writes a buffer.

use super::ring::SplitRing;
use crate::arch;
use crate::counters::Reason;
use crate::memory::{GuestMemory, Window};
use crate::packet::{SEGMENTS, Segment};
use arrayvec::ArrayVec;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};

const NEXT: u16 = VRING_DESC_F_NEXT as u16;
const WRITE: u16 = VRING_DESC_F_WRITE as u16;
const INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;
/// Bytes of a descriptor.
const DESC: u64 = 16;

/// A descriptor, as it was read.
#[derive(Clone, Copy)]
pub(super) struct Desc {
    pub addr: u64,
    rest: u64,
}

impl Desc {
    /// Bytes of the buffer.
    #[inline(always)]
    pub fn len(self) -> u32 {
        self.rest as u32
    }

    #[inline(always)]
    fn flags(self) -> u16 {
        (self.rest >> 32) as u16
    }

    #[inline(always)]
    fn next(self) -> u16 {
        (self.rest >> 48) as u16
    }

    /// The whole chain is this one buffer, and the device may do with it what `direction`
    /// says.
    #[inline(always)]
    pub fn is_single(self, direction: Direction) -> bool {
        self.flags() & (NEXT | WRITE | INDIRECT) == direction.flag()
    }
}

/// Which way the bytes of a chain go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Guest to device: every descriptor is readable.
    FromGuest,
    /// Device to guest: every descriptor is writable.
    ToGuest,
}

impl Direction {
    #[inline(always)]
    fn flag(self) -> u16 {
        match self {
            Direction::FromGuest => 0,
            Direction::ToGuest => WRITE,
        }
    }
}

/// The buffers of one or more chains, in order, as they are mapped.
pub(super) struct Pieces {
    items: ArrayVec<Segment, SEGMENTS>,
    /// Bytes of all pieces together.
    pub bytes: u64,
    /// Descriptors visited, good or bad, but for those that lead to indirect tables, and borders
    /// of regions crossed: what the walks have cost.
    pub visited: usize,
}

impl Pieces {
    /// No pieces.
    #[inline]
    pub fn new() -> Self {
        Pieces { items: ArrayVec::new_const(), bytes: 0, visited: 0 }
    }

    /// The pieces.
    #[inline]
    pub fn as_slice(&self) -> &[Segment] {
        &self.items
    }

    #[inline]
    fn push(&mut self, ptr: *const u8, len: u32) -> Result<(), Reason> {
        self.bytes += u64::from(len);
        self.items.try_push(Segment { ptr, len }).map_err(|_| Reason::ChainTooLong)
    }

    /// The first bytes, as many as `out` has room for and there are, which is left zero behind
    /// them.
    pub fn copy_first(&self, out: &mut [u8]) {
        let mut at = 0;
        for piece in &self.items {
            let n = (piece.len as usize).min(out.len() - at);
            // SAFETY: both have n bytes; the piece was translated, and its ring keeps it mapped.
            unsafe { arch::copy(out[at..].as_mut_ptr(), piece.ptr, n) };
            at += n;
        }
    }

    /// Forget the first `n` bytes (there are as many): the virtio-net header, over however
    /// many descriptors it is spread. The rest is what remains.
    pub fn skip(&mut self, n: usize) -> &[Segment] {
        let mut left = n as u32;
        let mut first = 0;
        while left > 0 && left >= self.items[first].len {
            left -= self.items[first].len;
            first += 1;
        }
        if left > 0 {
            let piece = &mut self.items[first];
            // SAFETY: left < piece.len.
            piece.ptr = unsafe { piece.ptr.add(left as usize) };
            piece.len -= left;
        }
        &self.items[first..]
    }
}

impl SplitRing {
    /// Read `heads.len()` entries of the avail ring from `ahead` entries after the next one.
    #[inline(always)]
    pub(super) fn read_heads(&self, ahead: usize, heads: &mut [u16]) {
        let mask = self.size as usize - 1;
        let at = (self.next_avail as usize + ahead) & mask;
        let first = heads.len().min(self.size as usize - at);
        let ring = self.avail_ring.as_ptr();
        // SAFETY: the avail ring has `size` entries of 2 bytes; at + first <= size, and the
        // rest wraps to the start. `heads` holds both runs.
        unsafe {
            arch::copy(heads.as_mut_ptr().cast(), ring.add(at).cast(), first * 2);
            if first < heads.len() {
                let rest = heads.len() - first;
                arch::copy(heads.as_mut_ptr().add(first).cast(), ring.cast(), rest * 2);
            }
        }
    }

    /// Read descriptor `head`. `None`: there is no such descriptor, so the ring lies.
    #[inline(always)]
    pub(super) fn descriptor(&self, head: u16) -> Option<Desc> {
        if head >= self.size {
            return None;
        }
        // SAFETY: head < size, and the table has `size` entries of 16 bytes, 16-byte aligned.
        let (addr, rest) = unsafe { arch::load_u128(self.desc.as_ptr().add(head as usize * 16)) };
        Some(Desc { addr, rest })
    }

    /// Where the buffer of `len` bytes at guest address `addr` is mapped, if one region holds
    /// all of it.
    #[inline(always)]
    pub(super) fn translate(&mut self, addr: u64, len: u64) -> Option<*mut u8> {
        match self.window.translate(addr, len) {
            Some(ptr) => Some(ptr.as_ptr()),
            None => translate_slow(&self.memory, &mut self.window, addr, len),
        }
    }

    /// Walk the chain that begins with `first` and add its buffers to `pieces`.
    ///
    /// # Errors
    /// What is wrong with the chain. Pieces may have been added by then.
    pub(super) fn walk(
        &mut self,
        first: Desc,
        direction: Direction,
        pieces: &mut Pieces,
    ) -> Result<(), Reason> {
        let mut desc = first;
        loop {
            if desc.flags() & INDIRECT != 0 {
                // An indirect descriptor ends its chain (virtio 1.2, 2.7.5.3.1). It has no
                // buffer of its own: a table may have as many as a chain without one.
                if desc.flags() & NEXT != 0 {
                    return Err(Reason::BadIndirect);
                }
                return self.walk_indirect(desc, direction, pieces);
            }
            pieces.visited += 1;
            self.add_piece(desc, direction, pieces)?;
            if desc.flags() & NEXT == 0 {
                return Ok(());
            }
            if pieces.visited >= SEGMENTS {
                return Err(Reason::ChainTooLong);
            }
            desc = self.descriptor(desc.next()).ok_or(Reason::BadNext)?;
        }
    }

    fn walk_indirect(
        &mut self,
        table: Desc,
        direction: Direction,
        pieces: &mut Pieces,
    ) -> Result<(), Reason> {
        let len = u64::from(table.len());
        if len == 0 || !len.is_multiple_of(DESC) {
            return Err(Reason::BadIndirect);
        }
        let entries = len / DESC;
        let mut index = 0;
        loop {
            if pieces.visited >= SEGMENTS {
                return Err(Reason::ChainTooLong);
            }
            pieces.visited += 1;
            let at = table.addr.checked_add(index * DESC).ok_or(Reason::BadAddress)?;
            let desc = self.read_indirect(at).ok_or(Reason::BadAddress)?;
            if desc.flags() & INDIRECT != 0 {
                return Err(Reason::BadIndirect);
            }
            self.add_piece(desc, direction, pieces)?;
            if desc.flags() & NEXT == 0 {
                return Ok(());
            }
            index = u64::from(desc.next());
            if index >= entries {
                return Err(Reason::BadNext);
            }
        }
    }

    /// Read a descriptor of an indirect table; such a table may lie at any address.
    fn read_indirect(&mut self, at: u64) -> Option<Desc> {
        let ptr = self.translate(at, DESC)?;
        let mut bytes = [0u64; 2];
        // SAFETY: 16 bytes are mapped at `ptr`, and `bytes` has as many.
        unsafe { arch::copy(bytes.as_mut_ptr().cast(), ptr, DESC as usize) };
        Some(Desc { addr: bytes[0], rest: bytes[1] })
    }

    fn add_piece(
        &mut self,
        desc: Desc,
        direction: Direction,
        pieces: &mut Pieces,
    ) -> Result<(), Reason> {
        if desc.flags() & WRITE != direction.flag() {
            return Err(Reason::BadDirection);
        }
        let (mut addr, mut left) = (desc.addr, u64::from(desc.len()));
        while left > 0 {
            if let Some(ptr) = self.translate(addr, left) {
                return pieces.push(ptr, left as u32);
            }
            // The buffer crosses into the next region: take it piece by piece. Each costs a
            // lookup, and one descriptor can cross every region that there is.
            if pieces.visited >= SEGMENTS {
                return Err(Reason::ChainTooLong);
            }
            pieces.visited += 1;
            let here = self.window.bytes_from(addr).min(left);
            let ptr = self.window.translate(addr, here).filter(|_| here > 0);
            pieces.push(ptr.ok_or(Reason::BadAddress)?.as_ptr(), here as u32)?;
            addr = addr.checked_add(here).ok_or(Reason::BadAddress)?;
            left -= here;
        }
        Ok(())
    }
}

/// Look the region up and remember it. `None` also when the buffer only begins there.
#[cold]
fn translate_slow(
    memory: &GuestMemory,
    window: &mut Window,
    addr: u64,
    len: u64,
) -> Option<*mut u8> {
    *window = memory.window(addr).unwrap_or(Window::EMPTY);
    window.translate(addr, len).map(std::ptr::NonNull::as_ptr)
}
