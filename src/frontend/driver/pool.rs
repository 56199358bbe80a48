//! Packet buffers in the guest's memory, recycled first in first out.
//!
//! Promises: a pool has at least twice as many buffers as its ring has entries, so a buffer
//! comes back to a ring only after all others did; it is cut into pieces by the layout asked
//! for, and every byte is reached through those pieces. Buffers are numbers; a packet over
//! several is a linked list kept here, in private memory.

use super::fifo::{Fifo, Reader, Writer};
use super::geometry::{Geometry, PACKET_AT};
use super::lines::{Addresses, Lines};
use crate::frontend::ram::Ram;
use std::sync::Arc;

/// A packet in buffers of a pool. Small and aligned, so that it travels in a register: spilled
/// in parts and read back whole it would cost more than all else that is done to it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(8))]
pub struct Packet {
    /// Its first buffer; the others are linked to it.
    pub buffer: u32,
    /// Bytes, without the virtio-net header.
    pub len: u16,
    /// Number of buffers.
    pub buffers: u16,
}

#[derive(Debug, Clone, Copy, Default)]
struct Link {
    next: u32,
    /// Bytes in this buffer, the virtio-net header included.
    len: u32,
}

/// Gives buffers back to a [`Pool`].
pub struct Recycler<'a> {
    free: Writer<'a, u32>,
    links: &'a [Link],
}

impl Recycler<'_> {
    /// Those of a packet.
    #[inline(always)]
    pub fn recycle(&mut self, packet: Packet) {
        self.free.push(packet.buffer);
        let mut buffer = packet.buffer;
        for _ in 1..packet.buffers {
            buffer = self.links[buffer as usize].next;
            self.free.push(buffer);
        }
    }
}

/// The buffers of one ring.
#[derive(Debug)]
pub struct Pool {
    ram: Arc<Ram>,
    geometry: Geometry,
    free: Fifo<u32>,
    links: Box<[Link]>,
    /// Our pointer to, and the guest-physical address of, buffer 0.
    host: *mut u8,
    guest: u64,
}

// SAFETY: the pointer leads into `ram`, which the pool owns a share of.
unsafe impl Send for Pool {}

impl Pool {
    /// The buffers planned as `geometry` in `ram`, all free.
    ///
    /// # Panics
    /// If `geometry` was planned for another memory.
    pub fn new(ram: Arc<Ram>, geometry: Geometry) -> Self {
        let Geometry { at, stride, count, .. } = geometry;
        assert!(at + stride * count as usize <= ram.size());
        let mut pool = Pool {
            free: Fifo::new(count),
            links: vec![Link::default(); count as usize].into_boxed_slice(),
            host: ram.host(at),
            guest: ram.guest(at),
            geometry,
            ram,
        };
        pool.reset();
        pool
    }

    /// All buffers are free again.
    pub fn reset(&mut self) {
        self.free.clear();
        let mut free = self.free.writer();
        (0..self.geometry.count).for_each(|buffer| free.push(buffer));
    }

    /// All buffers.
    pub fn count(&self) -> u32 {
        self.geometry.count
    }

    /// Free buffers.
    #[inline(always)]
    pub fn free(&self) -> u32 {
        self.free.len()
    }

    /// Bytes of a buffer, the virtio-net header included.
    pub fn capacity(&self) -> usize {
        self.geometry.capacity
    }

    /// Bytes of the virtio-net header.
    #[inline(always)]
    pub fn header_len(&self) -> usize {
        self.geometry.header_len
    }

    /// Descriptors of one whole buffer.
    pub fn pieces(&self) -> usize {
        self.geometry.pieces.len()
    }

    /// Is every buffer one piece? Then it begins at [`Pool::simple_host`].
    #[inline(always)]
    pub fn simple(&self) -> bool {
        self.geometry.pieces.len() == 1
    }

    /// Take the buffer that was free longest.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Take buffers for a packet of `len` bytes (at most 65535). None are taken if there are not enough.
    pub fn take(&mut self, len: usize) -> Option<Packet> {
        let mut left = self.geometry.header_len + len;
        let buffers = left.div_ceil(self.geometry.capacity);
        if buffers as u32 > self.free() {
            return None;
        }
        let first = self.pop()?;
        let mut last = first;
        for _ in 1..buffers {
            let next = self.pop()?;
            self.link(last, self.geometry.capacity as u32, next);
            left -= self.geometry.capacity;
            last = next;
        }
        self.link(last, left as u32, 0);
        Some(Packet { buffer: first, len: len as u16, buffers: buffers as u16 })
    }

    /// Give the buffers of a packet back.
    pub fn recycle(&mut self, packet: Packet) {
        self.recycler().recycle(packet);
    }

    /// Record that `len` bytes of `buffer` are used and that `next` follows it.
    pub fn link(&mut self, buffer: u32, len: u32, next: u32) {
        self.links[buffer as usize] = Link { next, len };
    }

    /// Record what follows `buffer`; its length stays.
    pub fn link_next(&mut self, buffer: u32, next: u32) {
        self.links[buffer as usize].next = next;
    }

    /// Where simple buffers are for the device, for a loop.
    #[inline(always)]
    pub fn simple_addresses(&self) -> Addresses {
        Addresses { first: self.simple_guest(0), stride: self.geometry.stride as u64 }
    }

    /// To take free buffers, in a loop.
    #[inline(always)]
    pub fn taker(&mut self) -> Reader<'_, u32> {
        self.free.reader()
    }

    /// To give the buffers of packets back, in a loop.
    #[inline(always)]
    pub fn recycler(&mut self) -> Recycler<'_> {
        Recycler { free: self.free.writer(), links: &self.links }
    }

    /// The buffer that was free longest.
    pub fn oldest(&self) -> u32 {
        self.free.oldest()
    }

    /// Guest-physical address of the header of a simple buffer.
    #[inline(always)]
    pub fn simple_guest(&self, buffer: u32) -> u64 {
        let offset = buffer as usize * self.geometry.stride + PACKET_AT - self.geometry.header_len;
        self.guest + offset as u64
    }

    /// The first lines of simple buffers' packets, for a loop.
    #[inline(always)]
    pub fn lines(&self) -> Lines {
        Lines { first: self.host, stride: self.geometry.stride, count: self.geometry.count }
    }

    /// The pieces that the first `len` bytes of a buffer take: offsets in the memory, lengths.
    fn pieces_of(&self, buffer: u32, len: u32) -> impl Iterator<Item = (usize, u32)> + '_ {
        let base = self.geometry.at + buffer as usize * self.geometry.stride;
        let mut left = len;
        self.geometry.pieces.iter().map_while(move |piece| {
            let len = piece.len.min(left);
            left -= len;
            (len > 0).then_some((base + piece.at as usize, len))
        })
    }

    /// The descriptors (address, length) of `len` bytes in one buffer.
    pub fn descriptors(&self, buffer: u32, len: u32, to: &mut Vec<(u64, u32)>) {
        to.extend(self.pieces_of(buffer, len).map(|(at, len)| (self.ram.guest(at), len)));
    }

    /// The descriptors of a whole packet, its virtio-net header included.
    pub fn packet_descriptors(&self, packet: Packet, to: &mut Vec<(u64, u32)>) {
        self.each_buffer(packet, |buffer, len| self.descriptors(buffer, len, to));
    }

    fn each_buffer(&self, packet: Packet, mut what: impl FnMut(u32, u32)) {
        if packet.buffers == 1 {
            return what(packet.buffer, u32::from(packet.len) + self.geometry.header_len as u32);
        }
        let mut buffer = packet.buffer;
        for _ in 0..packet.buffers {
            let link = self.links[buffer as usize];
            what(buffer, link.len);
            buffer = link.next;
        }
    }

    /// Copy a packet out, its virtio-net header included.
    pub fn read(&self, packet: Packet, to: &mut Vec<u8>) {
        to.clear();
        self.each_buffer(packet, |buffer, len| {
            for (at, len) in self.pieces_of(buffer, len) {
                let start = to.len();
                to.resize(start + len as usize, 0);
                self.ram.read(at, &mut to[start..]);
            }
        });
    }

    /// The first `to.len()` bytes of a buffer.
    pub fn read_head(&self, buffer: u32, to: &mut [u8]) {
        let mut done = 0;
        for (at, len) in self.pieces_of(buffer, to.len() as u32) {
            self.ram.read(at, &mut to[done..done + len as usize]);
            done += len as usize;
        }
    }

    /// Write `bytes` behind the first `skip` bytes of a packet, of which the virtio-net header
    /// is part; no more than it holds.
    pub fn write(&self, packet: Packet, skip: usize, bytes: &[u8]) {
        let (mut skip, mut rest) = (skip, bytes);
        self.each_buffer(packet, |buffer, len| {
            for (at, len) in self.pieces_of(buffer, len) {
                let skipped = skip.min(len as usize);
                skip -= skipped;
                let (now, later) = rest.split_at(rest.len().min(len as usize - skipped));
                self.ram.write(at + skipped, now);
                rest = later;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::options::{HeaderPlace, Layout};
    use crate::frontend::ram::Plan;

    fn layouts() -> Vec<Layout> {
        let places = [HeaderPlace::WithData, HeaderPlace::Alone, HeaderPlace::Split(5)];
        places.iter().flat_map(|&header| [1, 2, 7].map(|data| Layout { header, data })).collect()
    }

    fn whole(buffer: u32, len: u16) -> Packet {
        Packet { buffer, len, buffers: 1 }
    }

    #[test]
    fn buffers_are_taken_for_a_packet_or_not_at_all() {
        let mut pool = pool(100, 12, Layout::ONE);
        let packet = pool.take(489).unwrap();
        assert_eq!((packet.buffer, packet.buffers, pool.free()), (0, 6, 2));
        let mut descriptors = vec![];
        pool.packet_descriptors(packet, &mut descriptors);
        assert_eq!(
            descriptors.iter().map(|d| d.1).collect::<Vec<_>>(),
            [100, 100, 100, 100, 100, 1]
        );
        assert!(pool.take(189).is_none());
        assert_eq!(pool.take(188).unwrap().buffers, 2);
        pool.recycle(packet);
        assert_eq!(pool.free(), 6);
    }

    fn pool(capacity: usize, header_len: usize, layout: Layout) -> Pool {
        let mut plan = Plan::default();
        let geometry = Geometry::new(&mut plan, 4, capacity, header_len, layout);
        let ram = Arc::new(Ram::new(&plan, 0, 2, 0).unwrap());
        Pool::new(ram, geometry)
    }

    #[test]
    fn what_is_written_is_read_and_neighbours_are_untouched() {
        for layout in layouts() {
            let pool = pool(200, 12, layout);
            for b in 0..pool.count() {
                pool.write(whole(b, 188), 0, &[b as u8; 200]);
            }
            let mut bytes = vec![];
            for b in 0..pool.count() {
                pool.read(whole(b, 188), &mut bytes);
                assert_eq!(bytes, [b as u8; 200]);
            }
        }
    }

    #[test]
    fn a_packet_over_several_buffers_is_one() {
        let mut pool = pool(100, 12, Layout { header: HeaderPlace::Alone, data: 2 });
        pool.link(3, 100, 5);
        pool.link(5, 100, 1);
        pool.link(1, 7, 0);
        let packet = Packet { buffer: 3, len: 195, buffers: 3 };
        let written: Vec<u8> = (0..207).collect();
        pool.write(packet, 0, &written[..10]);
        pool.write(packet, 10, &written[10..]);
        let mut bytes = vec![];
        pool.read(packet, &mut bytes);
        assert_eq!(bytes, written);
        pool.read(whole(5, 88), &mut bytes);
        assert_eq!(bytes, written[100..200]);
        let mut descriptors = vec![];
        pool.packet_descriptors(packet, &mut descriptors);
        let lengths: Vec<u32> = descriptors.iter().map(|d| d.1).collect();
        assert_eq!(lengths, [12, 37, 51, 12, 37, 51, 7]);
        while pool.pop().is_some() {}
        pool.recycle(packet);
        assert_eq!(
            [pool.pop(), pool.pop(), pool.pop(), pool.pop()],
            [Some(3), Some(5), Some(1), None]
        );
    }

    #[test]
    fn the_stamp_lies_at_the_packets_42nd_byte() {
        for header in [10, 12] {
            let pool = pool(300, header, Layout::ONE);
            pool.lines().stamp(2, u64::from_le_bytes(*b"stampede"));
            let mut bytes = vec![];
            pool.read(whole(2, 100), &mut bytes);
            assert_eq!(&bytes[header + 42..header + 50], b"stampede");
            assert_eq!(pool.lines().load(2), u64::from_le_bytes(*b"stampede"));
        }
    }
}
