//! Device to guest: filling the buffers a guest waits with.
//!
//! Promises: a packet is delivered as a whole or not at all; a range is checked as a whole
//! before its first byte is written; used entries are in avail order, their lengths exact;
//! one publication a burst. What cannot be delivered is counted by its reason. Called by the
//! vhost port's `TxQueue`; never reads payload from the guest it writes to.

use super::chain::{Desc, Direction, Pieces};
use super::net::{HEADER, LEGACY_HEADER};
use super::ring::{MOST_TAKEN, SplitRing};
use crate::arch;
use crate::counters::{QueueCounters, Reason};
use crate::packet::{BURST, MAX_PACKET, Packets, SEGMENTS, Segment};
use arrayvec::ArrayVec;

impl SplitRing {
    /// Copy the packets that `which` numbers to the guest and publish once. What does not fit
    /// is counted in `counters`.
    #[inline]
    pub fn send(&mut self, packets: &Packets, which: &[u8], counters: &QueueCounters) {
        debug_assert!(self.taken.is_empty());
        let mut fitting = ArrayVec::new_const();
        let which = if self.longest < MAX_PACKET {
            self.keep_to_mtu(packets, which, counters, &mut fitting)
        } else {
            which
        };
        let before = self.next_used;
        let logged = self.log.is_some();
        let delivered = match (self.header_len, logged) {
            (HEADER, false) => self.send_burst::<HEADER, false>(packets, which, counters),
            (HEADER, true) => self.send_burst::<HEADER, true>(packets, which, counters),
            (_, false) => self.send_burst::<LEGACY_HEADER, false>(packets, which, counters),
            (_, true) => self.send_burst::<LEGACY_HEADER, true>(packets, which, counters),
        };
        counters.packets.add(delivered.packets);
        counters.bytes.add(delivered.bytes);
        if self.next_used != before {
            self.publish_used(before);
        }
    }

    /// Those of `which` that the guest's MTU allows.
    fn keep_to_mtu<'w>(
        &self,
        packets: &Packets,
        which: &'w [u8],
        counters: &QueueCounters,
        fitting: &'w mut ArrayVec<u8, BURST>,
    ) -> &'w [u8] {
        // What is cut by the guest's own stack counts as what it is cut into.
        let frame_len = |i: usize| packets.offload(i).frame_len(packets.packet_len(i));
        let fits = |i: &u8| frame_len(*i as usize) <= self.longest;
        fitting.extend(which.iter().copied().filter(fits));
        let longer = which.len() - fitting.len();
        if longer > 0 {
            counters.lost(Reason::Mtu, longer as u64);
        }
        fitting
    }

    /// What is `LOGGED` takes the general way, packet by packet: a migrating guest may be slower,
    /// all others must not be.
    fn send_burst<const H: usize, const LOGGED: bool>(
        &mut self,
        packets: &Packets,
        mut which: &[u8],
        counters: &QueueCounters,
    ) -> Delivered {
        let mut delivered = Delivered::default();
        // Descriptors that the walks of this burst may visit: enough for any honest layout (64
        // a packet, or one for every 32 bytes), and a bound on what a guest with absurd chains
        // can cost its neighbours.
        let mut budget = BURST * 64 + packets.bytes() / 32;
        loop {
            if !LOGGED {
                which = self.send_singles::<H>(packets, which, &mut delivered);
            }
            let Some((&i, rest)) = which.split_first() else {
                break;
            };
            match self.send_gathered::<H, LOGGED>(packets, i as usize, &mut budget) {
                Ok(()) => delivered.add(packets.packet_len(i as usize)),
                Err(reason) => counters.lost(reason, 1),
            }
            which = rest;
        }
        delivered
    }

    /// Deliver packets as long as each fits the next chain, that is one buffer in one region, and
    /// nothing is left to be done to it. Returns those that are left.
    #[inline(always)]
    fn send_singles<'w, const H: usize>(
        &mut self,
        packets: &Packets,
        which: &'w [u8],
        delivered: &mut Delivered,
    ) -> &'w [u8] {
        let simple = if packets.has_offloads() {
            let left = |i: &u8| !packets.offload(*i as usize).is_nothing();
            which.iter().position(left).unwrap_or(which.len())
        } else {
            which.len()
        };
        let want = simple.min(MOST_TAKEN);
        let n = self.available(want).min(want);
        let mut heads = [0; MOST_TAKEN];
        let heads = &mut heads[..n];
        self.read_heads(0, heads);
        let mut buffers: ArrayVec<*mut u8, MOST_TAKEN> = ArrayVec::new_const();
        for (&i, &head) in which.iter().zip(heads.iter()) {
            let need = H + packets.packet_len(i as usize);
            let Some(ptr) = self.single_buffer(head, need) else {
                break;
            };
            // SAFETY: H < need, and `need` bytes are mapped at `ptr`.
            arch::prefetch_write(unsafe { ptr.add(H) });
            arch::prefetch_read(ptr);
            buffers.push(ptr);
        }
        let mut used = self.next_used;
        for (&i, (&head, &buffer)) in which.iter().zip(heads.iter().zip(&buffers)) {
            let i = i as usize;
            let len = packets.packet_len(i);
            // SAFETY: `single_buffer` translated H + len bytes at `buffer`.
            unsafe {
                write_header::<H>(buffer, 1);
                packets.copy_to(i, buffer.add(H));
            }
            self.write_used(used, head, (H + len) as u32);
            used = used.wrapping_add(1);
            delivered.add(len);
        }
        self.next_used = used;
        self.next_avail = self.next_avail.wrapping_add(buffers.len() as u16);
        &which[buffers.len()..]
    }

    /// The buffer of a chain that is one writable buffer of at least `need` bytes.
    #[inline(always)]
    fn single_buffer(&mut self, head: u16, need: usize) -> Option<*mut u8> {
        let desc = self.descriptor(head)?;
        if !desc.is_single(Direction::ToGuest) || (desc.len() as usize) < need {
            return None;
        }
        self.translate(desc.addr, need as u64)
    }

    /// Deliver packet `i` to the next chain, or with mergeable buffers to as many as it takes.
    /// `Err` is why it was not delivered: then either nothing was taken, or the chains up to a
    /// bad one have been given back with length 0.
    #[inline(never)]
    fn send_gathered<const H: usize, const LOGGED: bool>(
        &mut self,
        packets: &Packets,
        i: usize,
        budget: &mut usize,
    ) -> Result<(), Reason> {
        let need = (H + packets.packet_len(i)) as u64;
        let mut pieces = Pieces::new();
        let mut chains: ArrayVec<Gathered, SEGMENTS> = ArrayVec::new_const();
        while pieces.bytes < need {
            if self.available(chains.len() + 1) <= chains.len() {
                return Err(Reason::NoBuffers);
            }
            if *budget == 0 || chains.is_full() {
                return self.give_up(&mut chains, Reason::ChainTooLong);
            }
            let mut head = [0];
            self.read_heads(chains.len(), &mut head);
            let Some(desc) = self.descriptor(head[0]) else {
                self.fail_at_head(head[0]);
                return Err(Reason::NoBuffers);
            };
            let walked = self.walk_counted(desc, &mut pieces, budget);
            chains.push(Gathered { head: head[0], end: pieces.bytes.min(need) as u32 });
            // The header must lie in the first buffer (virtio 1.2, 5.1.6.4).
            let short = pieces.bytes < H as u64;
            if let Err(reason) = walked.and(if short { Err(Reason::NoHeader) } else { Ok(()) }) {
                return self.give_up(&mut chains, reason);
            }
            if pieces.bytes < need && !self.mergeable {
                return Err(Reason::TooLong);
            }
        }
        // SAFETY: every piece was translated, and together they hold `need` bytes.
        unsafe { scatter::<H>(packets, i, pieces.as_slice(), chains.len() as u16) };
        if LOGGED && let Some(log) = &self.log {
            log.written(pieces.as_slice(), need);
        }
        self.give_back(&chains);
        Ok(())
    }

    /// The chains gathered so far cannot take the packet: all of them go back empty.
    #[cold]
    fn give_up(&mut self, chains: &mut [Gathered], reason: Reason) -> Result<(), Reason> {
        for chain in chains.iter_mut() {
            chain.end = 0;
        }
        self.give_back(chains);
        Err(reason)
    }

    /// Write the used entries of gathered chains.
    fn give_back(&mut self, chains: &[Gathered]) {
        let mut start = 0;
        for chain in chains {
            self.write_used(self.next_used, chain.head, chain.end - start);
            self.next_used = self.next_used.wrapping_add(1);
            start = chain.end;
        }
        self.next_avail = self.next_avail.wrapping_add(chains.len() as u16);
    }

    fn walk_counted(
        &mut self,
        desc: Desc,
        pieces: &mut Pieces,
        budget: &mut usize,
    ) -> Result<(), Reason> {
        let before = pieces.visited;
        let walked = self.walk(desc, Direction::ToGuest, pieces);
        *budget = budget.saturating_sub(pieces.visited - before);
        walked
    }

    /// Write used entry `at` (free running). It becomes visible with the index.
    #[inline(always)]
    pub(super) fn write_used(&self, at: u16, head: u16, len: u32) {
        let slot = (at & (self.size - 1)) as usize;
        // SAFETY: slot < size, and the used ring has `size` entries of 8 bytes.
        unsafe {
            arch::store_unaligned_u64(
                self.used_ring.as_ptr().add(slot),
                u64::from(head) | u64::from(len) << 32,
            );
        }
    }
}

#[derive(Default)]
struct Delivered {
    packets: u64,
    bytes: u64,
}

impl Delivered {
    #[inline(always)]
    fn add(&mut self, len: usize) {
        self.packets += 1;
        self.bytes += len as u64;
    }
}

/// A chain taken for a packet, and where the packet's bytes in it end.
struct Gathered {
    head: u16,
    end: u32,
}

/// Write the virtio-net header (all zero but `num_buffers`), unless it is there already: a
/// guest that keeps it in the line before its payload then keeps that line, too.
///
/// # Safety
/// `H` bytes are mapped at `ptr`.
#[inline(always)]
unsafe fn write_header<const H: usize>(ptr: *mut u8, num_buffers: u16) {
    let (high, at) = header_tail::<H>(num_buffers);
    // SAFETY: both words lie within the H bytes.
    unsafe {
        let (first, last) = (ptr.cast::<u64>(), ptr.add(at).cast::<u32>());
        if arch::load_unaligned_u64(first) != 0 || arch::load_unaligned_u32(last) != high {
            arch::store_unaligned_u64(first, 0);
            arch::store_unaligned_u32(last, high);
        }
    }
}

/// The last four bytes of a header, and where they begin. The legacy header's overlap its
/// first eight.
#[inline(always)]
fn header_tail<const H: usize>(num_buffers: u16) -> (u32, usize) {
    if H == HEADER { (u32::from(num_buffers) << 16, 8) } else { (0, LEGACY_HEADER - 4) }
}

/// Write header and packet over `pieces`.
///
/// # Safety
/// The pieces are mapped and writable, and hold header and packet.
unsafe fn scatter<const H: usize>(packets: &Packets, i: usize, pieces: &[Segment], num: u16) {
    let header = packets.offload(i).header(num);
    let mut writer = Writer { pieces: pieces.iter(), ptr: std::ptr::null_mut(), left: 0 };
    // SAFETY: the caller vouches for the pieces; header and head are private memory, and the
    // packet's segments stay mapped while its burst lasts.
    unsafe {
        writer.write(header.as_ptr(), H);
        let head = packets.head(i);
        writer.write(head.as_ptr(), head.len());
        for segment in packets.tail(i) {
            writer.write(segment.ptr, segment.len as usize);
        }
    }
}

/// Fills pieces one after the other.
struct Writer<'a> {
    pieces: std::slice::Iter<'a, Segment>,
    ptr: *mut u8,
    left: usize,
}

impl Writer<'_> {
    /// # Safety
    /// `src` is readable for `len` bytes; the pieces are writable and have room for them.
    unsafe fn write(&mut self, mut src: *const u8, mut len: usize) {
        while len > 0 {
            if self.left == 0 {
                let Some(piece) = self.pieces.next() else {
                    debug_assert!(false, "a packet longer than its buffers");
                    return;
                };
                self.ptr = piece.ptr.cast_mut();
                self.left = piece.len as usize;
            }
            let n = len.min(self.left);
            // SAFETY: n is within both `src` and the current piece.
            unsafe {
                arch::copy(self.ptr, src, n);
                self.ptr = self.ptr.add(n);
                src = src.add(n);
            }
            self.left -= n;
            len -= n;
        }
    }
}
