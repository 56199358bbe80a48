//! Packets in a burst: private heads, tails where they already lie.
//!
//! Promises: a packet's *head* (all of a packet of up to 192 bytes, else its first 192) is
//! private memory that safe code may read and rewrite; its *tail* can only be copied out. A
//! [`Burst`] borrows the queue it came from until [`Burst::complete`]. Filled by the receive
//! queues of `port`, edited by `forward`, read by the transmit queues. Never allocates after
//! [`Packets::new`].

use crate::arch;
use crate::counters::Reason;
use crate::offload::Offload;
use std::ops::Range;
use std::sync::Arc;

/// Most packets in a burst.
pub const BURST: usize = 64;
/// Most bytes in a burst, all packets together, but for its last packet.
pub const BURST_BYTES: usize = 256 * 1024;
/// Most tail segments in a burst; also the most descriptors with buffers one chain may have.
pub const SEGMENTS: usize = 1024;
/// Bytes of a longer packet that are copied to its head.
pub const HEAD: usize = 192;
/// Bytes of a cache line, and of the first part of a head that is written at once.
const LINE: usize = 64;
/// Free bytes before every head.
pub const HEADROOM: usize = 64;
/// Shortest packet: an Ethernet header.
pub const MIN_PACKET: usize = 14;
/// Longest packet.
pub const MAX_PACKET: usize = 65535;

/// The numbers of all packets of a burst: outputs take lists of numbers, and this is the list
/// of everything.
pub static ALL: [u8; BURST] = {
    let mut all = [0; BURST];
    let mut i = 0;
    while i < BURST {
        all[i] = i as u8;
        i += 1;
    }
    all
};

/// A stretch of a packet's tail, where it lies: in guest memory or in a port's own buffer.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// First byte; valid until the burst is completed.
    pub ptr: *const u8,
    /// Bytes.
    pub len: u32,
}

/// What is known of one packet.
#[derive(Debug, Clone, Copy, Default)]
struct Meta {
    head_len: u16,
    first_segment: u16,
    segments: u16,
    tail_len: u32,
}

#[repr(align(64))]
struct Slot([u8; HEADROOM + HEAD]);

/// The storage of one burst. A worker has one and uses it again for every burst.
pub struct Packets {
    slots: Box<[Slot; BURST]>,
    meta: [Meta; BURST],
    tails: Box<[Segment; SEGMENTS]>,
    /// What the tails of lent packets lie in.
    lent: Option<Arc<[u8]>>,
    len: usize,
    tails_len: usize,
    bytes: usize,
    /// What is left to be done to each packet, if anything is to any; so that a push writes
    /// nothing here.
    offloads: [Offload; BURST],
    has_offloads: bool,
}

// SAFETY: the segments are plain addresses that are only used while the burst borrows the
// queue that vouches for them; between bursts there are none.
unsafe impl Send for Packets {}

impl Default for Packets {
    fn default() -> Self {
        Self::new()
    }
}

impl Packets {
    /// Empty storage: about 32 KiB.
    pub fn new() -> Self {
        let nowhere = Segment { ptr: std::ptr::null(), len: 0 };
        Packets {
            slots: Box::new([const { Slot([0; HEADROOM + HEAD]) }; BURST]),
            meta: [Meta::default(); BURST],
            tails: Box::new([nowhere; SEGMENTS]),
            lent: None,
            len: 0,
            tails_len: 0,
            bytes: 0,
            offloads: [Offload::default(); BURST],
            has_offloads: false,
        }
    }

    /// Forget all packets.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
        self.tails_len = 0;
        self.bytes = 0;
        self.has_offloads = false;
    }

    /// Is there anything left to be done to any packet?
    #[inline]
    pub fn has_offloads(&self) -> bool {
        self.has_offloads
    }

    /// What is left to be done to packet `i`.
    #[inline]
    pub fn offload(&self, i: usize) -> Offload {
        if self.has_offloads { self.offloads[..self.len][i] } else { Offload::default() }
    }

    /// What is left to be done to the packet that was pushed last, as its virtio-net header says.
    /// Who asks for one packet asks for all of the burst.
    ///
    /// # Errors
    /// The header contradicts the packet, which is forgotten.
    #[inline]
    pub fn offload_last(
        &mut self,
        check: impl FnOnce(&[u8], usize) -> Result<Offload, Reason>,
    ) -> Result<(), Reason> {
        let last = self.len - 1;
        match check(self.head(last), self.packet_len(last)) {
            Ok(offload) => {
                self.offloads[last] = offload;
                self.has_offloads |= !offload.is_nothing();
                Ok(())
            }
            Err(reason) => {
                self.bytes -= self.packet_len(last);
                self.tails_len -= usize::from(self.meta[last].segments);
                self.len = last;
                Err(reason)
            }
        }
    }

    /// Number of packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// No packets?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all packets together.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Length of packet `i` in bytes, head and tail.
    #[inline]
    pub fn packet_len(&self, i: usize) -> usize {
        let meta = &self.meta[..self.len][i];
        meta.head_len as usize + meta.tail_len as usize
    }

    /// The head of packet `i`.
    #[inline]
    pub fn head(&self, i: usize) -> &[u8] {
        let len = self.meta[..self.len][i].head_len as usize;
        &self.slots[i].0[HEADROOM..HEADROOM + len]
    }

    /// The head of packet `i`, to rewrite.
    #[inline]
    pub fn head_mut(&mut self, i: usize) -> &mut [u8] {
        let len = self.meta[..self.len][i].head_len as usize;
        &mut self.slots[i].0[HEADROOM..HEADROOM + len]
    }

    /// The tail of packet `i`.
    #[inline]
    pub(crate) fn tail(&self, i: usize) -> &[Segment] {
        let meta = &self.meta[..self.len][i];
        let first = meta.first_segment as usize;
        &self.tails[first..first + meta.segments as usize]
    }

    /// Copy packet `i`, head and tail, into private memory.
    ///
    /// `out` is as long as the packet ([`Packets::packet_len`]); a longer one keeps its rest, a
    /// shorter one panics.
    pub fn copy_out(&self, i: usize, out: &mut [u8]) {
        let out = &mut out[..self.packet_len(i)];
        // SAFETY: `out` is as long as the packet.
        unsafe { self.copy_to(i, out.as_mut_ptr()) };
    }

    /// Copy packet `i` out, head and tail.
    ///
    /// # Safety
    /// `dst` is valid for writes of [`Packets::packet_len`] bytes. The burst is not completed.
    #[inline(always)]
    pub(crate) unsafe fn copy_to(&self, i: usize, dst: *mut u8) {
        let meta = &self.meta[..self.len][i];
        let head_len = meta.head_len as usize;
        // SAFETY: the head lies in its slot; the segments are valid until the burst ends; the
        // caller vouches for `dst`.
        unsafe {
            arch::copy(dst, self.slots[i].0[HEADROOM..].as_ptr(), head_len);
            if meta.segments > 0 {
                let mut dst = dst.add(head_len);
                for segment in self.tail(i) {
                    arch::copy(dst, segment.ptr, segment.len as usize);
                    dst = dst.add(segment.len as usize);
                }
            }
        }
    }

    /// A packet whose bytes lie in one piece: copy the head, leave the tail where it is.
    ///
    /// # Safety
    /// `ptr` is valid for reads of `len` bytes until the burst is completed. There is room for
    /// a packet and a segment, and `len` is at most [`MAX_PACKET`].
    #[inline(always)]
    pub(crate) unsafe fn push_contiguous(&mut self, ptr: *const u8, len: usize) {
        let head_len = len.min(HEAD);
        let head = self.slots[self.len].0[HEADROOM..].as_mut_ptr();
        // SAFETY: a slot has HEAD bytes after its headroom, and `ptr` has `len`.
        unsafe { arch::copy(head, ptr, head_len) };
        let mut meta = Meta { head_len: head_len as u16, ..Meta::default() };
        if len > HEAD {
            // SAFETY: HEAD < len.
            let tail = Segment { ptr: unsafe { ptr.add(HEAD) }, len: (len - HEAD) as u32 };
            self.push_tail(&mut meta, tail);
        }
        self.finish_push(meta, len);
    }

    /// A packet in any number of pieces.
    ///
    /// # Safety
    /// As [`Packets::push_contiguous`], for every piece; there is room for as many segments.
    pub(crate) unsafe fn push_scattered(&mut self, pieces: &[Segment]) {
        let mut meta = Meta { first_segment: self.tails_len as u16, ..Meta::default() };
        let head = self.slots[self.len].0[HEADROOM..].as_mut_ptr();
        let mut head_len = 0;
        for piece in pieces {
            let to_head = (piece.len as usize).min(HEAD - head_len);
            // SAFETY: head_len + to_head <= HEAD, and to_head <= piece.len.
            let rest = unsafe {
                arch::copy(head.add(head_len), piece.ptr, to_head);
                Segment { ptr: piece.ptr.add(to_head), len: piece.len - to_head as u32 }
            };
            head_len += to_head;
            if rest.len > 0 {
                self.tails[self.tails_len] = rest;
                self.tails_len += 1;
                meta.segments += 1;
                meta.tail_len += rest.len;
            }
        }
        meta.head_len = head_len as u16;
        self.finish_push(meta, head_len + meta.tail_len as usize);
    }

    /// Begin an empty burst of packets whose bytes lie in `buffer`, which is kept alive until
    /// other bytes are lent: this is what makes [`Packets::push_lent`] safe.
    #[inline]
    pub(crate) fn lend(&mut self, buffer: &Arc<[u8]>) {
        self.clear();
        // The same buffer burst after burst costs a comparison and no locked operation.
        if !self.lent.as_ref().is_some_and(|held| Arc::ptr_eq(held, buffer)) {
            self.lent = Some(Arc::clone(buffer));
        }
    }

    /// Forget all packets, and let go of the lent buffer.
    pub(crate) fn take_back(&mut self) {
        self.clear();
        self.lent = None;
    }

    /// A packet that is `range` of the lent buffer (which panics if it is not in there, like
    /// any slice). There is room for a packet, and it is at most [`MAX_PACKET`] long.
    #[inline]
    pub(crate) fn push_lent(&mut self, range: Range<usize>) {
        let bytes = &self.lent.as_deref().unwrap_or_default()[range];
        let (ptr, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: the bytes live as long as `lent` holds their buffer; `lend` forgets all
        // packets before it lets go. One segment a packet never runs out.
        unsafe { self.push_contiguous(ptr, len) }
    }

    /// As [`Packets::push_lent`] of `0..len`, but the packet's first 64 bytes are `line`, as
    /// little-endian words. The buffer has at least [`HEAD`] bytes, even if the packet is
    /// shorter.
    ///
    /// The line is stored whole and in words, so that nobody later loads across a store that
    /// has just been made.
    #[inline(always)]
    pub(crate) fn push_lent_line(&mut self, line: &[u64; 8], len: usize) {
        let head = &mut self.slots[self.len].0[HEADROOM..];
        for (to, word) in head.chunks_exact_mut(8).zip(line) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let mut meta = Meta { head_len: len.min(HEAD) as u16, ..Meta::default() };
        if len > LINE {
            // Whole lines: bytes past the packet's end are never read.
            let buffer = self.lent.as_deref().unwrap_or_default();
            head[LINE..].copy_from_slice(&buffer[LINE..HEAD]);
            if let Some(tail) = buffer[..len].get(HEAD..).filter(|tail| !tail.is_empty()) {
                let tail = Segment { ptr: tail.as_ptr(), len: tail.len() as u32 };
                self.push_tail(&mut meta, tail);
            }
        }
        self.finish_push(meta, len);
    }

    #[inline(always)]
    fn push_tail(&mut self, meta: &mut Meta, tail: Segment) {
        meta.first_segment = self.tails_len as u16;
        meta.segments = 1;
        meta.tail_len = tail.len;
        self.tails[self.tails_len] = tail;
        self.tails_len += 1;
    }

    #[inline(always)]
    fn finish_push(&mut self, meta: Meta, len: usize) {
        self.meta[self.len] = meta;
        self.len += 1;
        self.bytes += len;
    }
}

/// Packets of a burst with other tags: for outputs that want them so.
///
/// The heads are copied, the tails stay where they are.
pub struct Retagged(Packets);

impl Default for Retagged {
    fn default() -> Self {
        Self::new()
    }
}

impl Retagged {
    /// Room for a burst.
    pub fn new() -> Self {
        Retagged(Packets::new())
    }

    /// Call `send` with the packets that `which` numbers, in order, each without the tag that it
    /// has if `pop`, and with `tag` (TCI) if there is one. They are Ethernet frames, tagged if
    /// `pop`. Returns how many are left out: those in more segments than a burst has.
    pub fn with(
        &mut self,
        packets: &Packets,
        which: &[u8],
        (pop, tag): (bool, Option<u16>),
        mut send: impl FnMut(&Packets, &[u8]),
    ) -> u64 {
        let tag = tag.map(|tci| u32::from(tci) | 0x8100 << 16).map(u32::to_be_bytes);
        let tag = tag.as_ref().map_or(&[][..], |tag| tag);
        let mut left_out = 0;
        let edited = &mut self.0;
        edited.clear();
        for &i in which {
            // A head that was full and grows has a segment more.
            let segments = packets.tail(i as usize).len() + 1;
            if edited.tails_len + segments > SEGMENTS {
                send(edited, &ALL[..edited.len()]);
                edited.clear();
            }
            if segments > SEGMENTS {
                left_out += 1;
            } else {
                edited.push_retagged((packets, i as usize), pop, tag);
            }
        }
        send(edited, &ALL[..edited.len()]);
        // What was pushed lies in heads of others.
        edited.clear();
        left_out
    }
}

impl Packets {
    /// Packet `i` of others, with another tag. There is room for it; it is forgotten before
    /// they are.
    fn push_retagged(&mut self, (packets, i): (&Packets, usize), pop: bool, tag: &[u8]) {
        const MACS: usize = 12;
        let cut = if pop { 4 } else { 0 };
        let (macs, rest) = packets.head(i).split_at(MACS);
        let rest = rest.get(cut..).unwrap_or_default();
        let piece = |part: &[u8]| Segment { ptr: part.as_ptr(), len: part.len() as u32 };
        let mut pieces = arrayvec::ArrayVec::<Segment, { SEGMENTS + 3 }>::new_const();
        pieces.extend([piece(macs), piece(tag), piece(rest)]);
        pieces.extend(packets.tail(i).iter().copied());
        // SAFETY: heads are private memory of `packets`, tails valid until its burst is completed;
        // the caller forgets this packet before. Addresses and tag are copied to the head.
        unsafe { self.push_scattered(&pieces) };
        if packets.has_offloads() {
            let moved = packets.offload(i).moved(tag.len() as i16 - cut as i16);
            // It was checked when it came.
            let _ = self.offload_last(|_, _| Ok(moved));
        }
    }
}

/// Who gives the packets of a burst their buffers back.
pub trait Source {
    /// All packets of the burst are sent or dropped: return their buffers, publish once.
    fn complete(&mut self);
}

/// Packets that borrow from one receive queue.
#[must_use = "a burst that is not completed never gives the guest its buffers back"]
pub struct Burst<'q> {
    /// The packets. Forwarders edit heads, outputs read.
    pub packets: &'q mut Packets,
    source: &'q mut dyn Source,
}

impl<'q> Burst<'q> {
    /// The packets in `packets`, received from `source`.
    pub fn new(packets: &'q mut Packets, source: &'q mut dyn Source) -> Self {
        Burst { packets, source }
    }

    /// Give the buffers back and publish.
    #[inline]
    pub fn complete(self) {
        self.packets.clear();
        self.source.complete();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Arc<[u8]> {
        (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
    }

    fn whole(packets: &Packets, i: usize) -> Vec<u8> {
        let mut out = vec![0; packets.packet_len(i)];
        packets.copy_out(i, &mut out);
        out
    }

    #[test]
    fn lent_packets_are_the_bytes_of_the_buffer() {
        let buffer = bytes(70_000);
        let mut packets = Packets::new();
        packets.lend(&buffer);
        let ranges = [0..14, 3..64, 10..202, 10..203, 100..1618, 4465..70_000];
        for range in &ranges {
            packets.push_lent(range.clone());
        }
        for (i, range) in ranges.iter().enumerate() {
            assert_eq!(whole(&packets, i), buffer[range.clone()], "{range:?}");
            assert_eq!(packets.head(i).len(), range.len().min(HEAD));
        }
        assert_eq!(packets.bytes(), ranges.iter().map(ExactSizeIterator::len).sum::<usize>());
    }

    #[test]
    fn the_line_replaces_the_first_64_bytes() {
        let buffer = bytes(2000);
        let line = [0x0706_0504_0302_0100; 8];
        let mut packets = Packets::new();
        for len in [14, 60, 64, 65, 191, 192, 193, 1518, 2000] {
            packets.lend(&buffer);
            packets.push_lent_line(&line, len);
            let mut expected = buffer[..len].to_vec();
            for (i, byte) in expected.iter_mut().take(64).enumerate() {
                *byte = i as u8 % 8;
            }
            assert_eq!(whole(&packets, 0), expected, "{len}");
        }
    }

    #[test]
    fn lending_forgets_the_packets_and_keeps_the_buffer() {
        let mut packets = Packets::new();
        packets.lend(&bytes(1000));
        packets.push_lent(0..1000);
        assert_eq!(whole(&packets, 0), *bytes(1000));
        packets.lend(&bytes(10));
        assert!(packets.is_empty());
        assert_eq!(packets.tails_len, 0);
    }

    #[test]
    fn a_scattered_packet_is_copied_out_in_order() {
        let buffer = bytes(600);
        let piece = |range: Range<usize>| {
            let piece = &buffer[range];
            Segment { ptr: piece.as_ptr(), len: piece.len() as u32 }
        };
        let mut packets = Packets::new();
        let pieces =
            [piece(0..1), piece(1..190), piece(190..300), piece(300..300), piece(300..600)];
        // SAFETY: `buffer` outlives the packets.
        unsafe { packets.push_scattered(&pieces) };
        assert_eq!(whole(&packets, 0), *buffer);
    }
}
