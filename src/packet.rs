//! Packets in a burst: private heads, tails where they already lie.
//!
//! Promises: a packet's *head* (all of a packet of up to 192 bytes, else its first 192) is
//! private memory that safe code may read and rewrite; its *tail* can only be copied out. A
//! [`Burst`] borrows the queue it came from until [`Burst::complete`]. Filled by the RxQueues
//! of `port`, edited by `forward`, read by the TxQueues. Never allocates after
//! [`Packets::new`].

use crate::arch;

/// Most packets in a burst.
pub const BURST: usize = 64;
/// Most bytes in a burst, all packets together, but for its last packet.
pub const BURST_BYTES: usize = 256 * 1024;
/// Most tail segments in a burst; also the most descriptors one chain may have.
pub const SEGMENTS: usize = 1024;
/// Bytes of a longer packet that are copied to its head.
pub const HEAD: usize = 192;
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
    len: usize,
    tails_len: usize,
    bytes: usize,
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
            len: 0,
            tails_len: 0,
            bytes: 0,
        }
    }

    /// Forget all packets.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
        self.tails_len = 0;
        self.bytes = 0;
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
            meta.first_segment = self.tails_len as u16;
            meta.segments = 1;
            meta.tail_len = tail.len;
            self.tails[self.tails_len] = tail;
            self.tails_len += 1;
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

    /// A packet from private memory: `head` is copied (at most [`HEAD`] bytes), `tail` is
    /// borrowed as it lies.
    ///
    /// # Safety
    /// `tail` is valid for reads until the burst is completed. There is room for a packet and
    /// a segment.
    pub(crate) unsafe fn push_private(&mut self, head: &[u8], tail: Segment) {
        let mut meta = Meta { head_len: head.len() as u16, ..Meta::default() };
        self.slots[self.len].0[HEADROOM..HEADROOM + head.len()].copy_from_slice(head);
        if tail.len > 0 {
            meta.first_segment = self.tails_len as u16;
            meta.segments = 1;
            meta.tail_len = tail.len;
            self.tails[self.tails_len] = tail;
            self.tails_len += 1;
        }
        self.finish_push(meta, head.len() + tail.len as usize);
    }

    #[inline(always)]
    fn finish_push(&mut self, meta: Meta, len: usize) {
        self.meta[self.len] = meta;
        self.len += 1;
        self.bytes += len;
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
