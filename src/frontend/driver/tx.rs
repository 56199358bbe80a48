//! A transmit queue: packets go out, their buffers come back.
//!
//! Promises: what is posted is published once a burst; completions are counted with their
//! bytes only when the device has given the buffers back. The fast path is one descriptor a
//! packet.

use super::area::desc_rest;
use super::pool::{Packet, Pool};
use super::queue::{Posted, Queue};
use super::{BURST, RingError};
use crate::arch;

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
        for _ in 0..n {
            let posted = self.queue.take_sent()?;
            bytes += u64::from(posted.len);
            pool.push(posted.buffer);
            if !posted.single() {
                let Posted { buffer, len, buffers, .. } = posted;
                pool.recycle_rest(Packet { buffer, len, buffers });
            }
        }
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
            self.post_simple(pool, packet.buffer, packet.len);
            return true;
        }
        self.descriptors.clear();
        pool.packet_descriptors(packet, &mut self.descriptors);
        let Packet { buffer, len, buffers } = packet;
        self.queue.post_chain(&self.descriptors, Posted { buffer, len, buffers, descs: 0 })
    }

    /// Post a packet in one simple buffer. There is room.
    #[inline(always)]
    pub(in crate::frontend) fn post_simple(&mut self, pool: &Pool, buffer: u32, len: u32) {
        let rest = desc_rest(len + pool.header_len() as u32, 0, 0);
        let posted = Posted { buffer, len, buffers: 1, descs: 1 };
        self.queue.post_one(pool.simple_guest(buffer), Some(rest), posted);
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
    if !pool.simple() {
        pool.write(packet, 0, &[0; 12][..pool.header_len()]);
        return;
    }
    let header = pool.simple_host(packet.buffer);
    // SAFETY: a simple buffer begins with a whole header of 10 or 12 bytes.
    unsafe {
        arch::store_unaligned_u64(header.cast(), 0);
        if pool.header_len() == 12 {
            arch::store_unaligned_u32(header.add(8).cast(), 0);
        } else {
            arch::store_u16(header.add(8).cast(), 0);
        }
    }
}
