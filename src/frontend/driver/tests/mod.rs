//! Rings against a device that is played by the test, honestly and not.

mod honest;
mod lies;

use super::*;
use crate::frontend::options::{GuestOptions, HeaderPlace, Layout, Table};
use crate::frontend::ram::{Plan, Ram};
use crate::virtio::order::{Device, RingWords};
use std::sync::Arc;

/// The device's side of one ring: sees memory only through the ring's own addresses.
struct Played {
    ram: Arc<Ram>,
    desc: usize,
    avail: usize,
    used: usize,
    size: u16,
    device: Device,
    next_avail: u16,
    next_used: u16,
}

impl Played {
    fn new(queue: &Queue, words: RingWords, event_idx: bool, first: u16) -> Self {
        let area = queue.area();
        let at = area.user_addresses();
        let offset = |user: u64| (user - area.ram().user(0)) as usize;
        Played {
            ram: Arc::clone(area.ram()),
            desc: offset(at.desc),
            avail: offset(at.avail),
            used: offset(at.used),
            size: area.size(),
            device: Device::new(words, event_idx),
            next_avail: first,
            next_used: first,
        }
    }

    fn number<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.ram.read(offset, &mut bytes);
        bytes
    }

    /// The next chain made available: its head and its pieces (offset, length).
    fn take(&mut self) -> Option<(u16, Vec<(usize, u32)>)> {
        if self.device.load_avail_idx() == self.next_avail {
            return None;
        }
        let slot = usize::from(self.next_avail % self.size);
        self.next_avail = self.next_avail.wrapping_add(1);
        let head = u16::from_le_bytes(self.number(self.avail + 4 + 2 * slot));
        let mut pieces = Vec::new();
        self.walk(self.desc, head, &mut pieces);
        Some((head, pieces))
    }

    fn walk(&self, table: usize, first: u16, pieces: &mut Vec<(usize, u32)>) {
        let mut i = first;
        loop {
            let bytes: [u8; 16] = self.number(table + 16 * usize::from(i));
            let addr = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            let len = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
            let flags = u16::from_le_bytes(bytes[12..14].try_into().unwrap());
            let offset = (addr - self.ram.guest(0)) as usize;
            if flags & DESC_INDIRECT != 0 {
                assert_eq!(flags, DESC_INDIRECT);
                return self.walk(offset, 0, pieces);
            }
            pieces.push((offset, len));
            if flags & DESC_NEXT == 0 {
                return;
            }
            i = u16::from_le_bytes(bytes[14..].try_into().unwrap());
        }
    }

    fn put_used(&mut self, id: u32, len: u32) {
        let entry = u64::from(id) | u64::from(len) << 32;
        let at = self.used + 4 + 8 * usize::from(self.next_used % self.size);
        self.ram.write(at, &entry.to_le_bytes());
        self.next_used = self.next_used.wrapping_add(1);
    }

    fn publish(&self) {
        self.device.publish_used_idx(self.next_used);
    }

    /// Deliver `bytes`, of which the header's place is left out, over as many chains as it takes.
    fn deliver(&mut self, header: usize, bytes: &[u8]) {
        let mut packet = vec![0; header];
        packet.extend(bytes);
        let mut taken = Vec::new();
        let mut room = 0;
        while room < packet.len() {
            let (head, pieces) = self.take().unwrap();
            room += pieces.iter().map(|p| p.1 as usize).sum::<usize>();
            taken.push((head, pieces));
        }
        if header == 12 {
            packet[10..12].copy_from_slice(&(taken.len() as u16).to_le_bytes());
        }
        let mut rest = &packet[..];
        for (head, pieces) in taken {
            let before = rest.len();
            for (at, len) in pieces {
                let (now, later) = rest.split_at(rest.len().min(len as usize));
                self.ram.write(at, now);
                rest = later;
            }
            self.put_used(head.into(), (before - rest.len()) as u32);
        }
        self.publish();
    }
}

const FIRST: u16 = 65530;

fn queue(options: &GuestOptions, device_writes: bool) -> (Queue, Pool, Played) {
    let mut plan = Plan::default();
    let capacity = if device_writes { options.rx_capacity() } else { options.tx_capacity() };
    let header = options.header_len();
    let queue = QueuePlan::new(&mut plan, options.queue_size, options.table, 64);
    let geometry = Geometry::new(&mut plan, options.queue_size, capacity, header, options.layout);
    let ram = Arc::new(Ram::new(&plan, 0, 1, 0).unwrap());
    let features = QueueFeatures { event_idx: options.event_idx, in_order: options.in_order };
    let queue = Queue::new(Arc::clone(&ram), queue, features, device_writes).unwrap();
    let played = Played::new(&queue, queue.area().words(), options.event_idx, FIRST);
    (queue, Pool::new(ram, geometry), played)
}

fn rx(options: &GuestOptions) -> (RxRing, Pool, Played) {
    let (queue, mut pool, played) = queue(options, true);
    let mut ring = RxRing::new(queue, options.mergeable);
    ring.reset(&mut pool, FIRST);
    (ring, pool, played)
}

fn tx(options: &GuestOptions) -> (TxRing, Pool, Played) {
    let (queue, pool, played) = queue(options, false);
    let mut ring = TxRing::new(queue);
    ring.reset(FIRST);
    (ring, pool, played)
}

fn small(change: impl FnOnce(&mut GuestOptions)) -> GuestOptions {
    let mut options = GuestOptions { queue_size: 8, max_size: 200, ..GuestOptions::default() };
    options.buffer_size = Some(300);
    change(&mut options);
    options.check().unwrap();
    options
}
