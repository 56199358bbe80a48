//! Rings against a device that is played by the test, honestly and not.

use super::area::RingPlace;
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

/// All that is received of what `deliver` put there.
fn received(ring: &mut RxRing, pool: &mut Pool) -> Vec<Vec<u8>> {
    let mut burst = Burst::new();
    let mut packets = Vec::new();
    ring.poll(pool, &mut burst).unwrap();
    for packet in &burst {
        let mut bytes = Vec::new();
        pool.read(*packet, &mut bytes);
        assert_eq!(bytes.len(), packet.len as usize + pool.header_len());
        packets.push(bytes.split_off(pool.header_len()));
        pool.recycle(*packet);
    }
    ring.refill(pool);
    packets
}

#[test]
fn receives_in_every_layout() {
    for header in [HeaderPlace::WithData, HeaderPlace::Alone, HeaderPlace::Split(2)] {
        for table in [Table::Direct, Table::Indirect, Table::DirectThenIndirect] {
            for mergeable in [false, true] {
                let layout = Layout { header, data: 3 };
                let options = small(|o| {
                    (o.table, o.layout, o.mergeable) = (table, layout, mergeable);
                });
                let (mut ring, mut pool, mut device) = rx(&options);
                for round in 0..40u8 {
                    device.deliver(12, &[round; 150]);
                    assert_eq!(received(&mut ring, &mut pool), [[round; 150]]);
                }
            }
        }
    }
}

#[test]
fn a_packet_over_several_buffers_waits_for_the_last() {
    let (mut ring, mut pool, mut device) = rx(&small(|o| o.buffer_size = Some(60)));
    for round in 0..30u8 {
        let bytes: Vec<u8> = (0..200).map(|i| round.wrapping_mul(i)).collect();
        device.deliver(12, &bytes);
        // The device may publish the buffers one by one: take one step back.
        device.device.publish_used_idx(device.next_used.wrapping_sub(2));
        assert!(received(&mut ring, &mut pool).is_empty());
        device.publish();
        assert_eq!(received(&mut ring, &mut pool), std::slice::from_ref(&bytes));
    }
    assert_eq!(pool.free() + u32::from(ring.queue().outstanding()), pool.count());
}

#[test]
fn buffers_are_recycled_first_in_first_out() {
    let (mut ring, mut pool, mut device) = rx(&small(|_| ()));
    let mut seen = Vec::new();
    let mut burst = Burst::new();
    for _ in 0..4 * pool.count() {
        device.deliver(12, b"a packet");
        ring.poll(&mut pool, &mut burst).unwrap();
        seen.push(burst[0].buffer);
        pool.recycle(burst[0]);
        ring.refill(&mut pool);
    }
    // All of twice the ring's size take turns.
    assert_eq!(pool.count(), 16);
    assert!(seen.iter().enumerate().all(|(i, &b)| b == i as u32 % 16));
}

#[test]
fn chains_may_come_back_in_any_order() {
    let (mut ring, mut pool, mut device) = rx(&small(|_| ()));
    for round in 0..50 {
        let mut taken: Vec<_> = (0..5).map(|_| device.take().unwrap()).collect();
        taken.rotate_left(round % 5);
        for (i, (head, pieces)) in taken.iter().enumerate() {
            let mut bytes = [0; 26];
            bytes[10] = 1;
            bytes[12..].fill(i as u8 + 1);
            device.ram.write(pieces[0].0, &bytes);
            device.put_used(u32::from(*head), 26);
        }
        device.publish();
        let expected: Vec<_> = (1..=5).map(|i| vec![i; 14]).collect();
        assert_eq!(received(&mut ring, &mut pool), expected);
    }
}

#[test]
fn sends_and_takes_back() {
    for table in [Table::Direct, Table::Indirect, Table::DirectThenIndirect] {
        for header in [HeaderPlace::WithData, HeaderPlace::Alone] {
            let layout = Layout { header, data: 2 };
            let (mut ring, mut pool, mut device) =
                tx(&small(|o| (o.table, o.layout) = (table, layout)));
            for round in 0..40u8 {
                let packet = pool.take(100).unwrap();
                clear_header(&pool, packet);
                pool.write(packet, 12, &[round; 100]);
                assert!(ring.post(&pool, packet));
                ring.publish();
                let (head, pieces) = device.take().unwrap();
                let mut bytes = Vec::new();
                for (at, len) in pieces {
                    let start = bytes.len();
                    bytes.resize(start + len as usize, 0);
                    device.ram.read(at, &mut bytes[start..]);
                }
                assert_eq!(bytes[..12], [0; 12]);
                assert_eq!(bytes[12..], [round; 100]);
                assert_eq!(ring.reclaim(&mut pool), Ok(0));
                device.put_used(head.into(), 0);
                device.publish();
                assert_eq!(ring.reclaim(&mut pool), Ok(1));
            }
            assert_eq!(ring.completed(), Completed { packets: 40, bytes: 4000 });
            assert_eq!(pool.free(), pool.count());
        }
    }
}

#[test]
fn a_full_ring_takes_no_more() {
    let (mut ring, mut pool, _device) = tx(&small(|o| o.layout.header = HeaderPlace::Alone));
    for _ in 0..4 {
        let packet = pool.take(100).unwrap();
        assert!(ring.post(&pool, packet));
    }
    let packet = pool.take(100).unwrap();
    assert!(!ring.post(&pool, packet));
    assert_eq!(ring.queue().outstanding(), 4);
}

#[test]
fn kicks_exactly_when_wanted() {
    for event_idx in [false, true] {
        let (mut ring, mut pool, mut device) = tx(&small(|o| o.event_idx = event_idx));
        let mut send = |device: &mut Played| {
            let before = ring.queue().kicks();
            let packet = pool.take(60).unwrap();
            assert!(ring.post(&pool, packet));
            ring.publish();
            let (head, _) = device.take().unwrap();
            device.put_used(head.into(), 0);
            device.publish();
            ring.reclaim(&mut pool).unwrap();
            ring.queue().kicks() - before
        };
        device.device.disarm();
        if event_idx {
            // Stale: one ring ago.
            device.device.arm(FIRST.wrapping_sub(8));
        }
        assert_eq!([send(&mut device), send(&mut device)], [0, 0]);
        device.device.arm(device.next_avail);
        assert_eq!(send(&mut device), 1);
        // An event index asks once, a flag until it is taken back.
        assert_eq!(send(&mut device), u64::from(!event_idx));
        device.device.arm(device.next_avail.wrapping_add(1));
        assert_eq!([send(&mut device), send(&mut device)], [u64::from(!event_idx), 1]);
    }
}

#[test]
fn interrupts_are_asked_for_exactly_when_armed() {
    for event_idx in [false, true] {
        let (mut ring, mut pool, mut device) = rx(&small(|o| o.event_idx = event_idx));
        let wants = |device: &Played| {
            device.device.wants_interrupt(device.next_used.wrapping_sub(1), device.next_used)
        };
        device.deliver(12, b"fourteen bytes");
        assert!(!wants(&device), "not armed yet");
        assert!(!ring.queue().arm(), "there is a packet");
        ring.queue().disarm();
        assert_eq!(received(&mut ring, &mut pool).len(), 1);
        assert!(ring.queue().arm());
        device.deliver(12, b"fourteen bytes");
        assert!(wants(&device));
        ring.queue().disarm();
        assert_eq!(received(&mut ring, &mut pool).len(), 1);
        device.deliver(12, b"fourteen bytes");
        assert!(!wants(&device), "disarmed");
    }
}

#[test]
fn in_order_devices_may_write_the_last_entry_of_a_batch_alone() {
    let (mut ring, mut pool, mut device) = tx(&small(|o| o.in_order = true));
    for round in 0..20 {
        for _ in 0..5 {
            let packet = pool.take(60).unwrap();
            assert!(ring.post(&pool, packet));
        }
        ring.publish();
        let heads: Vec<u16> = (0..5).map(|_| device.take().unwrap().0).collect();
        device.next_used = device.next_used.wrapping_add(4);
        device.put_used(heads[4].into(), 0);
        device.publish();
        assert_eq!(ring.reclaim(&mut pool), Ok(5), "{round}");
    }
}

/// What receiving says after the device did `lie`.
fn lie(options: &GuestOptions, lie: impl FnOnce(&mut Played)) -> RingError {
    let (mut ring, mut pool, mut device) = rx(options);
    lie(&mut device);
    ring.poll(&mut pool, &mut Burst::new()).unwrap_err()
}

#[test]
fn lies_of_the_device_are_errors() {
    let honest = small(|_| ());
    let used = |id, len| {
        move |device: &mut Played| {
            device.take();
            device.put_used(id, len);
            device.publish();
        }
    };
    let error = lie(&honest, |d| d.device.publish_used_idx(FIRST.wrapping_add(9)));
    let next = FIRST;
    assert_eq!(error, RingError::UsedIndex { idx: 3, next, outstanding: 8 });
    let error = lie(&honest, |d| d.device.publish_used_idx(FIRST.wrapping_sub(1)));
    assert_eq!(error, RingError::UsedIndex { idx: 65529, next, outstanding: 8 });
    for id in [8, 0xffff, 0x1_0000, u32::MAX] {
        assert_eq!(lie(&honest, used(id, 60)), RingError::UsedId { at: FIRST, id });
    }
    let twice = |device: &mut Played| {
        device.put_used(3, 60);
        device.put_used(3, 60);
        device.publish();
    };
    assert_eq!(lie(&honest, twice), RingError::UsedId { at: FIRST + 1, id: 3 });
    for len in [0, 11, 301, u32::MAX] {
        let error = RingError::UsedLength { len, least: 12, most: 300 };
        assert_eq!(lie(&honest, used(0, len)), error);
        assert_eq!(lie(&small(|o| o.mergeable = false), used(0, len)), error);
    }
    // The header is still zero.
    assert_eq!(lie(&honest, used(0, 60)), RingError::NumBuffers(0));
    let in_order = small(|o| o.in_order = true);
    assert_eq!(lie(&in_order, used(1, 60)), RingError::Order { at: FIRST, id: 1, expected: 0 });
}

#[test]
fn lies_about_further_buffers_are_errors() {
    let buffers = |n: u16, lengths: &'static [u32]| {
        lie(&small(|_| ()), move |device| {
            for (i, len) in lengths.iter().enumerate() {
                let (head, pieces) = device.take().unwrap();
                if i == 0 {
                    device.ram.write(pieces[0].0 + 10, &n.to_le_bytes());
                }
                device.put_used(head.into(), *len);
            }
            device.publish();
        })
    };
    assert_eq!(buffers(17, &[300]), RingError::NumBuffers(17));
    let zero = RingError::UsedLength { len: 0, least: 1, most: 300 };
    assert_eq!(buffers(2, &[300, 0]), zero);
    let long = RingError::UsedLength { len: 301, least: 1, most: 300 };
    assert_eq!(buffers(2, &[300, 301]), long);
}

#[test]
fn raw_rings_say_what_they_are_told() {
    let mut plan = Plan::default();
    let place = RingPlace::new(&mut plan, 4);
    let ram = Arc::new(Ram::new(&plan, 0, 1, 0).unwrap());
    let mut raw = RawRing::new(Arc::clone(&ram), place).unwrap();
    let desc = RawDesc { addr: 0x1234, len: 5, flags: DESC_NEXT, next: 0xffff };
    raw.post(3, &[desc]);
    raw.post_head(0x8000);
    raw.set_used_event(7);
    let offset = |user: u64| (user - ram.user(0)) as usize;
    let at = raw.area().user_addresses();
    let mut seen = [0; 16];
    ram.read(offset(at.desc) + 48, &mut seen);
    assert_eq!(seen, desc.bytes());
    let mut avail = [0; 14];
    ram.read(offset(at.avail), &mut avail);
    assert_eq!(avail, [0, 0, 2, 0, 3, 0, 0, 0x80, 0, 0, 0, 0, 7, 0]);
    ram.write(offset(at.used) + 2, &[1, 0, 9, 0, 0, 0, 8, 0, 0, 0]);
    assert_eq!((raw.used_idx(), raw.used(0)), (1, (9, 8)));
}
