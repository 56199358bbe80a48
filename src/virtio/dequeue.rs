//! Guest to device: taking the packets a guest sends.
//!
//! Promises: *peek* the chains of a burst, *copy* their heads into private memory, leave the
//! tails where they are; `complete_receive` *commits* and *publishes* once. Every chain comes
//! back with length 0 in the order it was taken, good or bad; a bad one is counted by its
//! reason. A burst ends at `max` packets, 256 KiB or 1024 descriptors. Called by the vhost
//! port's `RxQueue`; never writes to a buffer.

use super::chain::{Desc, Direction, Pieces};
use super::ring::{MOST_TAKEN, SplitRing};
use crate::arch;
use crate::counters::{QueueCounters, Reason};
use crate::offload::{self, Offload};
use crate::packet::{BURST_BYTES, MAX_PACKET, MIN_PACKET, Packets, SEGMENTS};
use arrayvec::ArrayVec;

/// What a first look at a chain found.
#[derive(Clone, Copy)]
enum Peeked {
    /// One readable buffer in one region: where its payload begins, and how long it is.
    Single { payload: *const u8, len: u32 },
    /// Anything else, to be walked.
    Chain(Desc),
}

impl SplitRing {
    /// Take up to `max` packets that the guest sends into `packets`, which is empty. The chains
    /// stay ours until [`SplitRing::complete_receive`].
    ///
    /// # Safety
    /// The tails of `packets` lie in the guest's memory, which this ring keeps mapped: the
    /// packets are cleared, or never looked at again, before the ring is dropped or stopped.
    #[inline]
    pub unsafe fn receive(&mut self, packets: &mut Packets, max: usize, counters: &QueueCounters) {
        debug_assert!(packets.is_empty() && self.taken.is_empty());
        let n = self.available(1).min(max).min(MOST_TAKEN);
        if n == 0 {
            return;
        }
        if self.leaves_work {
            self.receive_available::<true>(n, packets, counters);
        } else {
            self.receive_available::<false>(n, packets, counters);
        }
        if !packets.is_empty() {
            counters.packets.add(packets.len() as u64);
            counters.bytes.add(packets.bytes() as u64);
        }
    }

    /// `WORK`: the guest may leave something to be done, which its headers say.
    fn receive_available<const WORK: bool>(
        &mut self,
        n: usize,
        packets: &mut Packets,
        counters: &QueueCounters,
    ) {
        let mut heads = [0; MOST_TAKEN];
        let heads = &mut heads[..n];
        self.read_heads(0, heads);
        let mut peeked: ArrayVec<Peeked, MOST_TAKEN> = ArrayVec::new_const();
        for &head in heads.iter() {
            let Some(desc) = self.descriptor(head) else {
                break;
            };
            peeked.push(self.peek(desc));
        }
        let mut visited = 0;
        for (&head, peeked) in heads.iter().zip(&peeked) {
            if packets.bytes() >= BURST_BYTES || visited >= SEGMENTS {
                return;
            }
            match *peeked {
                // SAFETY: `peek` translated `len` bytes at `payload`, which stay mapped while
                // the ring lives; the packets borrow it until `complete_receive`. One segment
                // a packet, and the walked ones are counted by `visited`: there is room.
                Peeked::Single { payload, len } => unsafe {
                    packets.push_contiguous(payload, len as usize);
                    visited += 1;
                    if WORK {
                        let mut header = [0; offload::HEADER];
                        let at = payload.sub(self.header_len);
                        arch::copy(header.as_mut_ptr(), at, header.len());
                        check_offload(packets, header, counters);
                    }
                },
                Peeked::Chain(desc) => match self.receive_chain(desc, packets, visited) {
                    Received::Packet(cost, header) => {
                        visited += cost;
                        if WORK {
                            check_offload(packets, header, counters);
                        }
                    }
                    Received::Bad(reason, cost) => {
                        counters.lost(reason, 1);
                        visited += cost;
                    }
                    Received::NoRoom => return,
                },
            }
            self.taken.push(head);
        }
        if let Some(&head) = heads.get(peeked.len()) {
            self.fail_at_head(head);
        }
    }

    #[inline(always)]
    fn peek(&mut self, desc: Desc) -> Peeked {
        let header = self.header_len;
        let len = desc.len() as usize;
        if desc.is_single(Direction::FromGuest)
            && len.wrapping_sub(header + MIN_PACKET) <= MAX_PACKET - MIN_PACKET
            && let Some(buffer) = self.translate(desc.addr, len as u64)
        {
            // SAFETY: header < len, and `len` bytes are mapped at `buffer`.
            let payload = unsafe { buffer.add(header) };
            arch::prefetch_read(payload);
            return Peeked::Single { payload, len: (len - header) as u32 };
        }
        Peeked::Chain(desc)
    }

    #[inline(never)]
    fn receive_chain(&mut self, desc: Desc, packets: &mut Packets, visited: usize) -> Received {
        let mut pieces = Pieces::new();
        let walked = self.walk(desc, Direction::FromGuest, &mut pieces);
        let cost = pieces.visited.max(pieces.as_slice().len());
        if let Err(reason) = walked {
            return Received::Bad(reason, cost);
        }
        let header = self.header_len;
        let Some(len) = pieces.bytes.checked_sub(header as u64) else {
            return Received::Bad(Reason::NoHeader, cost);
        };
        if len < MIN_PACKET as u64 {
            return Received::Bad(Reason::Runt, cost);
        }
        if len > MAX_PACKET as u64 {
            return Received::Bad(Reason::TooLong, cost);
        }
        if visited + cost > SEGMENTS {
            return Received::NoRoom;
        }
        let mut first = [0; offload::HEADER];
        pieces.copy_first(&mut first);
        // SAFETY: the walk translated every piece; the packets borrow the ring that keeps them
        // mapped. All segments of the burst together were just checked to fit.
        unsafe { packets.push_scattered(pieces.skip(header)) };
        Received::Packet(cost, first)
    }

    /// Give back every chain taken by [`SplitRing::receive`], in order, and publish once.
    #[inline]
    pub fn complete_receive(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let before = self.next_used;
        for &head in &self.taken {
            self.write_used(self.next_used, head, 0);
            self.next_used = self.next_used.wrapping_add(1);
        }
        self.next_avail = self.next_avail.wrapping_add(self.taken.len() as u16);
        self.taken.clear();
        self.publish_used(before);
    }
}

/// Believe what a header says of the packet that was pushed last, or forget both.
fn check_offload(packets: &mut Packets, header: [u8; offload::HEADER], counters: &QueueCounters) {
    let checked = packets.offload_last(|head, len| Offload::check(header, head, len));
    if let Err(reason) = checked {
        counters.lost(reason, 1);
    }
}

/// What became of a walked chain, and how many descriptors or segments it took.
enum Received {
    /// And its virtio-net header, but for the last field.
    Packet(usize, [u8; offload::HEADER]),
    Bad(Reason, usize),
    /// It fits the next burst, not this one.
    NoRoom,
}
