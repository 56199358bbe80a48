//! A receive queue: empty buffers go out, packets come back.
//!
//! Promises: lengths and `num_buffers` are checked before anybody uses them; a packet whose
//! buffers are not all used yet is kept until they are; one acquire of `used.idx` and one
//! publication a burst. The fast path is one descriptor a buffer.

use super::area::desc_rest;
use super::lines::Lines;
use super::pool::{Packet, Pool};
use super::queue::Queue;
use super::raw::DESC_WRITE;
use super::{BURST, Burst, RingError};
use crate::packet::MAX_PACKET;

/// Offset of `num_buffers` in the virtio-net header.
const NUM_BUFFERS: usize = 10;

/// The first buffers of a packet whose others have not been seen yet.
#[derive(Debug, Clone, Copy)]
struct Partial {
    first: u32,
    last: u32,
    /// Bytes so far, without the header.
    len: u32,
    /// Buffers so far, and in all.
    seen: u16,
    buffers: u16,
}

/// A receive queue.
pub struct RxRing {
    queue: Queue,
    mergeable: bool,
    partial: Option<Partial>,
    descriptors: Vec<(u64, u32)>,
    /// The burst being received: buffers and used lengths.
    chains: [(u32, u32); BURST],
}

impl RxRing {
    /// On `queue`; `mergeable` was negotiated or not.
    pub fn new(queue: Queue, mergeable: bool) -> Self {
        let chains = [(0, 0); BURST];
        RxRing { queue, mergeable, partial: None, descriptors: Vec::new(), chains }
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
            let addresses = pool.simple_addresses();
            // The second word is the same for all, and written by `reset`.
            let mut buffers = pool.taker();
            self.queue.post_each::<false>(n, || {
                let buffer = buffers.take();
                (Packet { buffer, len: 0, buffers: 1 }, addresses.of(buffer), 0)
            });
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
            let buffer = pool.oldest();
            self.descriptors.clear();
            pool.descriptors(buffer, len, &mut self.descriptors);
            let packet = Packet { buffer, len: 0, buffers: 1 };
            if !self.queue.post_chain(&self.descriptors, packet) {
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
        self.poll_lines(pool, burst, Lines::prefetch_read)
    }

    /// As [`RxRing::poll`], of packets whose headers will be written.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn poll_to_write(&mut self, pool: &mut Pool, burst: &mut Burst) -> Result<(), RingError> {
        self.poll_lines(pool, burst, Lines::prefetch_write)
    }

    #[inline(always)]
    fn poll_lines(
        &mut self,
        pool: &mut Pool,
        burst: &mut Burst,
        prefetch: impl Fn(Lines, u32),
    ) -> Result<(), RingError> {
        burst.clear();
        let n = self.queue.used(BURST)?;
        if n == 0 {
            return Ok(());
        }
        let lines = pool.lines();
        self.queue.take(n, false, |i, packet, len| {
            prefetch(lines, packet.buffer);
            self.chains[i] = (packet.buffer, len);
        })?;
        if self.mergeable {
            self.packets::<true>(pool, burst, n)
        } else {
            self.packets::<false>(pool, burst, n)
        }
    }

    #[inline(always)]
    fn packets<const MERGEABLE: bool>(
        &mut self,
        pool: &mut Pool,
        burst: &mut Burst,
        n: usize,
    ) -> Result<(), RingError> {
        let header = pool.header_len() as u32;
        let most = pool.capacity().min(pool.header_len() + MAX_PACKET) as u32;
        for i in 0..n {
            let (buffer, len) = self.chains[i];
            if MERGEABLE && self.partial.is_some() {
                self.resume(pool, burst, (buffer, len))?;
                continue;
            }
            if len < header || len > most {
                return Err(RingError::UsedLength { len, least: header, most });
            }
            if MERGEABLE {
                let buffers = num_buffers(pool, buffer);
                if buffers != 1 {
                    self.begin(pool, (buffer, len), buffers)?;
                    continue;
                }
            }
            burst.push(Packet { buffer, len: (len - header) as u16, buffers: 1 });
        }
        Ok(())
    }

    /// The first buffer of a packet over several, and how many bytes it has.
    #[cold]
    fn begin(
        &mut self,
        pool: &mut Pool,
        (buffer, len): (u32, u32),
        buffers: u16,
    ) -> Result<(), RingError> {
        if buffers == 0 || u32::from(buffers) > pool.count() {
            return Err(RingError::NumBuffers(buffers));
        }
        pool.link(buffer, len, 0);
        let len = len - pool.header_len() as u32;
        self.partial = Some(Partial { first: buffer, last: buffer, len, seen: 1, buffers });
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
        let Some(partial) = &mut self.partial else { return Ok(()) };
        pool.link_next(partial.last, buffer);
        pool.link(buffer, len, 0);
        partial.last = buffer;
        partial.seen += 1;
        partial.len += len;
        if partial.len > MAX_PACKET as u32 {
            return Err(RingError::PacketLength(partial.len));
        }
        if partial.seen == partial.buffers {
            let Partial { first, len, buffers, .. } = *partial;
            burst.push(Packet { buffer: first, len: len as u16, buffers });
            self.partial = None;
        }
        Ok(())
    }
}

/// `num_buffers` of the header in `buffer`.
#[inline(always)]
fn num_buffers(pool: &Pool, buffer: u32) -> u16 {
    if pool.simple() {
        pool.lines().num_buffers(buffer)
    } else {
        let mut header = [0; NUM_BUFFERS + 2];
        pool.read_head(buffer, &mut header);
        u16::from_le_bytes([header[NUM_BUFFERS], header[NUM_BUFFERS + 1]])
    }
}
