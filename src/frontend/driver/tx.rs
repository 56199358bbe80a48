//! A transmit queue: packets go out, their buffers come back.
//!
//! Promises: what is posted is published once a burst; completions are counted with their
//! bytes only when the device has given the buffers back. The fast path is one descriptor a
//! packet.

use super::area::desc_rest;
use super::pool::{Packet, Pool};
use super::queue::Queue;
use super::{BURST, Burst, RingError};

/// Packets whose lines are fetched ahead of the one being posted.
const AHEAD: u32 = 8;

/// What came back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Completed {
    /// Packets.
    pub packets: u64,
    /// Their bytes, without virtio-net headers.
    pub bytes: u64,
}

/// A transmit queue.
pub struct TxRing {
    queue: Queue,
    descriptors: Vec<(u64, u32)>,
    completed: Completed,
}

impl TxRing {
    /// On `queue`.
    pub fn new(queue: Queue) -> Self {
        TxRing { queue, descriptors: Vec::new(), completed: Completed::default() }
    }

    /// The queue beneath.
    pub fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Begin at index `first`, empty. The device must not run the ring meanwhile.
    pub fn reset(&mut self, first: u16) {
        self.queue.reset(first, 0);
    }

    /// All that has been sent since the ring was made.
    pub fn completed(&self) -> Completed {
        self.completed
    }

    /// Give buffers that the device is done with back to `pool`, up to 64 packets' worth.
    ///
    /// # Errors
    /// The device broke a rule; the ring is of no more use.
    #[inline]
    pub fn reclaim(&mut self, pool: &mut Pool) -> Result<usize, RingError> {
        let n = self.queue.used(BURST)?;
        let mut bytes = 0;
        let mut recycler = pool.recycler();
        self.queue.take(n, true, |_, packet, _| {
            bytes += u64::from(packet.len);
            recycler.recycle(packet);
        })?;
        self.completed.packets += n as u64;
        self.completed.bytes += bytes;
        Ok(n)
    }

    /// Post a packet that lies in buffers of `pool`, virtio-net header first. False if there is
    /// no room: the buffers stay the caller's.
    #[inline]
    pub fn post(&mut self, pool: &Pool, packet: Packet) -> bool {
        if packet.buffers == 1 && pool.simple() && self.queue.direct() {
            if self.queue.room() == 0 {
                return false;
            }
            self.post_simple(pool, &[packet]);
            return true;
        }
        self.descriptors.clear();
        pool.packet_descriptors(packet, &mut self.descriptors);
        self.queue.post_chain(&self.descriptors, packet)
    }

    /// Post packets in one simple buffer each. There is room for them all.
    #[inline(always)]
    fn post_simple(&mut self, pool: &Pool, packets: &[Packet]) {
        let addresses = pool.simple_addresses();
        let header = pool.header_len() as u32;
        let mut packets = packets.iter();
        self.queue.post_each::<true>(packets.len() as u32, || {
            let packet = packets.next().copied().unwrap_or_default();
            let rest = desc_rest(u32::from(packet.len) + header, 0, 0);
            (packet, addresses.of(packet.buffer), rest)
        });
    }

    /// Post a burst just as it was received: all of it, or nothing and false if there is no
    /// room for it or it is not of simple packets.
    #[inline(always)]
    pub fn post_received(&mut self, pool: &Pool, burst: &Burst) -> bool {
        let single = burst.iter().all(|packet| packet.buffers == 1);
        let fits = burst.len() <= self.queue.room() as usize;
        if !(single && fits && pool.simple() && self.queue.direct()) {
            return false;
        }
        let lines = pool.lines();
        for packet in burst {
            // An honest guest looks at its packets: the load cannot be left out.
            lines.load(packet.buffer);
            lines.clear_header(packet.buffer);
        }
        self.post_simple(pool, burst);
        true
    }

    /// Post `n` packets of `len` bytes from the oldest free buffers of `pool`, which are simple;
    /// `stamp` goes into the first line of each, counting up. There are as many, and room.
    #[inline(always)]
    pub fn post_stamped(&mut self, pool: &mut Pool, n: u32, len: u16, stamp: u64) {
        let rest = desc_rest(u32::from(len) + pool.header_len() as u32, 0, 0);
        let addresses = pool.simple_addresses();
        let lines = pool.lines();
        let mut stamp = stamp;
        let mut buffers = pool.taker();
        self.queue.post_each::<true>(n, || {
            let buffer = buffers.take();
            lines.prefetch_write(buffers.peek(AHEAD));
            lines.stamp(buffer, stamp.to_be());
            stamp += 1;
            (Packet { buffer, len, buffers: 1 }, addresses.of(buffer), rest)
        });
    }

    /// Publish what was posted, and kick if that is wanted.
    #[inline]
    pub fn publish(&mut self) {
        self.queue.publish();
    }
}

/// Make the header of a received packet one of a packet to send: all zero (virtio 1.2,
/// 5.1.6.2.1: nothing is offloaded and `num_buffers` must be 0).
#[inline]
pub fn clear_header(pool: &Pool, packet: Packet) {
    if pool.simple() {
        pool.lines().clear_header(packet.buffer);
    } else {
        pool.write(packet, 0, &[0; 12][..pool.header_len()]);
    }
}
