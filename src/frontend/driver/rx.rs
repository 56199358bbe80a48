//! A receive queue: empty buffers go out, packets come back.
//!
//! Promises: lengths and `num_buffers` are checked before anybody uses them; a packet whose
//! buffers are not all used yet is kept until they are; one acquire of `used.idx` and one
//! publication a burst. The fast path is one descriptor a buffer.

use super::area::desc_rest;
use super::pool::{Packet, Pool};
use super::queue::{Posted, Queue};
use super::raw::DESC_WRITE;
use super::{BURST, Burst, RingError};
use crate::arch;

/// Offset of `num_buffers` in the virtio-net header.
const NUM_BUFFERS: usize = 10;

/// The first buffers of a packet whose others have not been seen yet.
#[derive(Debug, Clone, Copy)]
struct Partial {
    packet: Packet,
    last: u32,
    missing: u16,
}

/// A receive queue.
pub struct RxRing {
    queue: Queue,
    mergeable: bool,
    partial: Option<Partial>,
    descriptors: Vec<(u64, u32)>,
}

impl RxRing {
    /// On `queue`; `mergeable` was negotiated or not.
    pub fn new(queue: Queue, mergeable: bool) -> Self {
        RxRing { queue, mergeable, partial: None, descriptors: Vec::new() }
    }

    /// The queue beneath.
    pub fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Begin at index `first` with a ring as full as it gets, of buffers from `pool`, which has
    /// all its buffers. The device must not run the ring meanwhile.
    pub fn reset(&mut self, pool: &mut Pool, first: u16) {
        self.partial = None;
        self.descriptors.reserve(pool.pieces());
        self.queue.reset(first, desc_rest(pool.capacity() as u32, DESC_WRITE, 0));
        self.refill(pool);
    }

    /// Post all free buffers that there is room for, and publish them.
    #[inline]
    pub fn refill(&mut self, pool: &mut Pool) {
        if self.simple(pool) {
            let n = self.queue.room().min(pool.free());
            for _ in 0..n {
                let Some(buffer) = pool.pop() else { break };
                let posted = Posted { buffer, len: 0, buffers: 1, descs: 1 };
                // The second word was written by `reset` and is the same for all.
                self.queue.post_one(pool.simple_guest(buffer), None, posted);
            }
        } else {
            self.refill_pieces(pool);
        }
        self.queue.publish();
    }

    fn simple(&self, pool: &Pool) -> bool {
        pool.simple() && self.queue.direct()
    }

    fn refill_pieces(&mut self, pool: &mut Pool) {
        let len = pool.capacity() as u32;
        while pool.free() > 0 {
            let buffer = pool.peek(0);
            self.descriptors.clear();
            pool.descriptors(buffer, len, &mut self.descriptors);
            let posted = Posted { buffer, len, buffers: 1, descs: 0 };
            if !self.queue.post_chain(&self.descriptors, posted) {
                break;
            }
            pool.pop();
        }
    }

    /// Receive up to 64 packets. Their buffers are the caller's until it gives them back to
    /// `pool`.
    ///
    /// # Errors
    /// The device broke a rule; the ring is of no more use.
    #[inline]
    pub fn poll(&mut self, pool: &mut Pool, burst: &mut Burst) -> Result<(), RingError> {
        burst.clear();
        let n = self.queue.used(BURST)?;
        if n == 0 {
            return Ok(());
        }
        let mut chains = [(0u32, 0u32); BURST];
        for (i, chain) in chains[..n].iter_mut().enumerate() {
            let (posted, id, len) = self.queue.take()?;
            // Four descriptors share a line; it will be written to refill the ring.
            if id.is_multiple_of(4) || i == 0 {
                self.queue.area().prefetch_desc(id);
            }
            pool.prefetch(posted.buffer, false);
            *chain = (posted.buffer, len);
        }
        if self.mergeable {
            self.packets::<true>(pool, burst, &chains[..n])
        } else {
            self.packets::<false>(pool, burst, &chains[..n])
        }
    }

    #[inline(always)]
    fn packets<const MERGEABLE: bool>(
        &mut self,
        pool: &mut Pool,
        burst: &mut Burst,
        chains: &[(u32, u32)],
    ) -> Result<(), RingError> {
        let header = pool.header_len() as u32;
        let most = pool.capacity() as u32;
        for &(buffer, len) in chains {
            if MERGEABLE && self.partial.is_some() {
                self.resume(pool, burst, (buffer, len))?;
                continue;
            }
            if len < header || len > most {
                return Err(RingError::UsedLength { len, least: header, most });
            }
            let packet = Packet { buffer, len: len - header, buffers: 1 };
            if MERGEABLE {
                let buffers = num_buffers(pool, buffer);
                if buffers != 1 {
                    self.begin(pool, packet, buffers)?;
                    continue;
                }
            }
            burst.push(packet);
        }
        Ok(())
    }

    /// The first buffer of a packet over several.
    #[cold]
    fn begin(&mut self, pool: &mut Pool, packet: Packet, buffers: u16) -> Result<(), RingError> {
        if buffers == 0 || u32::from(buffers) > pool.count() {
            return Err(RingError::NumBuffers(buffers));
        }
        pool.link(packet.buffer, packet.len + pool.header_len() as u32, 0);
        self.partial = Some(Partial { packet, last: packet.buffer, missing: buffers - 1 });
        Ok(())
    }

    /// A further buffer of a packet over several.
    #[cold]
    fn resume(
        &mut self,
        pool: &mut Pool,
        burst: &mut Burst,
        (buffer, len): (u32, u32),
    ) -> Result<(), RingError> {
        let most = pool.capacity() as u32;
        if len == 0 || len > most {
            return Err(RingError::UsedLength { len, least: 1, most });
        }
        let Some(mut partial) = self.partial.take() else { return Ok(()) };
        // The previous last buffer keeps its length and learns its successor.
        pool.link_next(partial.last, buffer);
        pool.link(buffer, len, 0);
        partial.last = buffer;
        partial.missing -= 1;
        partial.packet.len += len;
        partial.packet.buffers += 1;
        if partial.missing == 0 {
            burst.push(partial.packet);
        } else {
            self.partial = Some(partial);
        }
        Ok(())
    }
}

#[inline(always)]
fn num_buffers(pool: &Pool, buffer: u32) -> u16 {
    if pool.simple() {
        // SAFETY: a buffer of one piece holds a whole header at an even address: the packet
        // after it begins at 14, the header has 12 bytes.
        unsafe { arch::load_u16(pool.simple_host(buffer).add(NUM_BUFFERS).cast()) }
    } else {
        let mut header = [0; NUM_BUFFERS + 2];
        pool.read_head(buffer, &mut header);
        u16::from_le_bytes([header[NUM_BUFFERS], header[NUM_BUFFERS + 1]])
    }
}
