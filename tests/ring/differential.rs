//! Ours against `virtio-queue`: the same random driver acts on two equal memories, the two
//! devices serve them, and after every burst used entries, packets and the notify decision
//! must agree, at the end every byte of memory.
//!
//! What the oracle does not decide is not compared: it ignores `NO_INTERRUPT` (so the notify
//! decision is compared with `EVENT_IDX` only), truncates wrong chains in silence (so those only
//! have to come back with length 0, in order), and reads a chain by its readable descriptors
//! wherever they stand.

use crate::bytes;
use crate::guest::{
    Desc, Driver, EVENT_IDX, Guest, INDIRECT, Layout, MRG_RXBUF, NEXT, REGION, VERSION_1, WRITE,
    eventfd, frame, signals,
};
use proptest::prelude::*;
use ringbridge::counters::QueueCounters;
use ringbridge::packet::{ALL, Packets};
use ringbridge::virtio::SplitRing;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use virtio_queue::{Queue, QueueT};

const SIZE: u16 = 128;
/// Descriptors that one chain may use, and so the distance of two heads.
const STRIDE: u16 = 8;
const SLOTS: u16 = SIZE / STRIDE;
/// Bytes that one chain's buffers may take; the middle slot lies over the regions' border.
const ROOM: u64 = 16 << 10;
const BUFFERS: u64 = REGION - SLOTS as u64 / 2 * ROOM - 777;
const TABLES: u64 = 0x2_0000;
const RING: Layout = Layout { size: SIZE, at: 0 };

/// One step of the driver or of the devices.
#[derive(Clone, Debug)]
enum Op {
    /// Post a chain of `len` bytes, cut into pieces.
    Post { len: u32, cuts: Vec<u32>, indirect: bool, wrong: bool },
    /// `used_event` this far ahead of the used index.
    Event(u16),
    /// Both devices take a burst of at most this many.
    Burst(usize),
    /// Our ring is stopped and started again.
    Restart,
}

fn ops(lens: std::ops::Range<u32>, wrong: bool) -> impl Strategy<Value = Vec<Op>> {
    let cuts = prop::collection::vec(0..2000u32, 0..5);
    let post = (lens, cuts, any::<bool>(), prop::bool::weighted(if wrong { 0.2 } else { 0.0 }))
        .prop_map(|(len, cuts, indirect, wrong)| Op::Post { len, cuts, indirect, wrong });
    let op = prop_oneof![
        6 => post,
        1 => (0..40u16).prop_map(Op::Event),
        2 => (1..=64usize).prop_map(Op::Burst),
        1 => Just(Op::Restart),
    ];
    prop::collection::vec(op, 1..120)
}

/// One device's world: a memory, a driver, and which slots are free.
struct Side<'g> {
    driver: Driver<'g>,
    free: VecDeque<u16>,
}

impl<'g> Side<'g> {
    fn new(guest: &'g Guest, base: u16) -> Self {
        Side { driver: Driver::new(guest, RING, base), free: (0..SLOTS).collect() }
    }

    /// Post a chain in the next free slot. Nothing happens if there is none.
    fn post(&mut self, op: &Op, flags: u16, fill: u32) {
        let Op::Post { len, cuts, indirect, wrong } = op else { return };
        let Some(slot) = self.free.pop_front() else { return };
        let mut addr = BUFFERS + u64::from(slot) * ROOM;
        if flags & WRITE == 0 {
            self.driver.guest.write(addr, &frame(*len as usize, fill));
        }
        let mut left = *len;
        let mut lens: Vec<u32> = Vec::new();
        for cut in cuts {
            lens.push(left.min(*cut));
            left -= left.min(*cut);
        }
        lens.push(left);
        let head = slot * STRIDE;
        let table = TABLES + u64::from(slot) * 256;
        let (at, first) =
            if *indirect { (table, 0) } else { (RING.at + u64::from(head) * 16, head) };
        for (k, &len) in (0..).zip(&lens) {
            let last = usize::from(k) + 1 == lens.len();
            let desc = Desc {
                addr: if *wrong && last { 3 * REGION } else { addr },
                // An empty wrong descriptor would be a right one.
                len: if *wrong && last { len.max(1) } else { len },
                flags: flags | if last { 0 } else { NEXT },
                next: first + k + 1,
            };
            self.driver.guest.write_desc(at + u64::from(k) * 16, desc);
            addr += u64::from(len);
        }
        if *indirect {
            self.driver.desc(head, table, lens.len() as u32 * 16, INDIRECT, 0);
        }
        self.driver.publish(head);
    }

    fn used(&mut self) -> Vec<(u32, u32)> {
        let used = self.driver.used();
        self.free.extend(used.iter().map(|&(head, _)| head as u16 / STRIDE));
        used
    }
}

/// Our ring with its call eventfd.
struct Ours {
    ring: Option<SplitRing>,
    call: File,
    features: u64,
}

impl Ours {
    fn new(driver: &Driver, features: u64) -> Self {
        let call = eventfd();
        let mut setup = driver.setup();
        setup.call = Some(call.try_clone().unwrap());
        let memory = Arc::clone(&driver.guest.shared);
        let ring = SplitRing::start(setup, memory, features).map_err(|(_, e)| e).unwrap();
        Ours { ring: Some(ring), call, features }
    }

    fn restart(&mut self, guest: &Guest) {
        let setup = self.ring.take().unwrap().stop();
        let memory = Arc::clone(&guest.shared);
        let ring = SplitRing::start(setup, memory, self.features).map_err(|(_, e)| e).unwrap();
        self.ring = Some(ring);
    }

    fn ring(&mut self) -> &mut SplitRing {
        self.ring.as_mut().unwrap()
    }

    fn notified(&mut self) -> bool {
        self.ring().notify();
        signals(&self.call) > 0
    }
}

fn oracle(base: u16, features: u64) -> Queue {
    let mut queue = Queue::new(SIZE).unwrap();
    queue.set_size(SIZE);
    let halves = |at: u64| (Some(at as u32), Some((at >> 32) as u32));
    let (low, high) = halves(RING.at);
    queue.set_desc_table_address(low, high);
    let (low, high) = halves(RING.avail());
    queue.set_avail_ring_address(low, high);
    let (low, high) = halves(RING.used());
    queue.set_used_ring_address(low, high);
    queue.set_event_idx(features & EVENT_IDX != 0);
    queue.set_next_avail(base);
    queue.set_next_used(base);
    queue.set_ready(true);
    queue
}

/// The plain way to take packets; `None` for a chain that cannot be read as a whole.
fn oracle_receive(queue: &mut Queue, guest: &Guest, max: usize) -> Vec<Option<Vec<u8>>> {
    let mut received = Vec::new();
    while received.len() < max {
        let Some(chain) = queue.pop_descriptor_chain(&guest.mem) else { break };
        let head = chain.head_index();
        received.push(chain.reader(&guest.mem).ok().and_then(|mut reader| {
            let mut bytes = vec![0; reader.available_bytes()];
            reader.read_exact(&mut bytes).ok().map(|()| bytes.split_off(12.min(bytes.len())))
        }));
        queue.add_used(&guest.mem, head, 0).unwrap();
    }
    received
}

/// The plain way to send one packet over as many chains as it takes.
fn oracle_send(queue: &mut Queue, guest: &Guest, packet: &[u8], mergeable: bool) {
    let need = packet.len() + 12;
    let mut chains = Vec::new();
    let mut room = 0;
    while room < need {
        let more = mergeable || chains.is_empty();
        let chain = more.then(|| queue.pop_descriptor_chain(&guest.mem)).flatten();
        let Some(chain) = chain else {
            // Take nothing.
            let back = queue.next_avail().wrapping_sub(chains.len() as u16);
            queue.set_next_avail(back);
            return;
        };
        let head = chain.head_index();
        let writer = chain.writer(&guest.mem).unwrap();
        room += writer.available_bytes();
        chains.push((head, writer));
    }
    let mut rest = vec![0; 10];
    rest.extend((chains.len() as u16).to_le_bytes());
    rest.extend(packet);
    for (head, mut writer) in chains {
        let n = rest.len().min(writer.available_bytes());
        writer.write_all(&rest[..n]).unwrap();
        rest.drain(..n);
        queue.add_used(&guest.mem, head, n as u32).unwrap();
    }
}

fn features() -> impl Strategy<Value = u64> {
    (any::<bool>(), any::<bool>()).prop_map(|(event_idx, mergeable)| {
        VERSION_1 | if event_idx { EVENT_IDX } else { 0 } | if mergeable { MRG_RXBUF } else { 0 }
    })
}

/// Indices near their wrap, and elsewhere.
fn base() -> impl Strategy<Value = u16> {
    prop_oneof![65400..=65535u16, any::<u16>()]
}

fn same_memory(a: &Guest, b: &Guest) -> Result<(), TestCaseError> {
    // Not the devices' flags: asking for kicks is each one's own business.
    for at in (0..2 * REGION).step_by(1 << 20) {
        let (mut x, mut y) = (a.read(at, 1 << 20), b.read(at, 1 << 20));
        if at == 0 {
            for own in [RING.used() as usize, RING.used() as usize + 4 + 8 * SIZE as usize] {
                x[own..own + 2].fill(0);
                y[own..own + 2].fill(0);
            }
        }
        prop_assert!(x == y, "memory differs in the MiB at {at:#x}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn receiving_agrees(ops in ops(0..3000, true), features in features(), base in base()) {
        let guests = [Guest::new(), Guest::new()];
        let mut sides = guests.each_ref().map(|guest| Side::new(guest, base));
        let mut ours = Ours::new(&sides[0].driver, features);
        let mut queue = oracle(base, features);
        let counters = QueueCounters::default();
        let mut packets = Packets::new();
        for (fill, op) in (0..).zip(&ops) {
            match op {
                Op::Post { .. } => sides.iter_mut().for_each(|side| side.post(op, 0, fill)),
                Op::Event(ahead) => sides
                    .iter()
                    .for_each(|s| s.driver.set_used_event(s.driver.used_idx.wrapping_add(*ahead))),
                Op::Restart => ours.restart(&guests[0]),
                Op::Burst(max) => {
                    // SAFETY: the packets are forgotten before the ring goes.
                    unsafe { ours.ring().receive(&mut packets, *max, &counters) };
                    let mut received = (0..packets.len()).map(|i| bytes(&packets, i));
                    let mut received: VecDeque<_> = received.by_ref().collect();
                    packets.clear();
                    ours.ring().complete_receive();
                    let [a, b] = &mut sides;
                    let used = a.used();
                    // Ours may leave what came since it last read avail.idx to the next burst.
                    prop_assert!(!used.is_empty() || queue.next_avail() == b.driver.avail_idx);
                    let theirs = oracle_receive(&mut queue, &guests[1], used.len());
                    for packet in theirs.into_iter().flatten() {
                        if packet.len() >= 14 {
                            prop_assert_eq!(received.pop_front(), Some(packet));
                        }
                    }
                    prop_assert!(received.is_empty());
                    prop_assert_eq!(used, b.used());
                    let decision = queue.needs_notification(&guests[1].mem).unwrap();
                    if features & EVENT_IDX != 0 {
                        prop_assert_eq!(ours.notified(), decision);
                    }
                }
            }
        }
        same_memory(&guests[0], &guests[1])?;
    }

    #[test]
    fn sending_agrees(
        ops in ops(12..3000, false),
        features in features(),
        base in base(),
        lens in prop::collection::vec(14..4000usize, 64),
    ) {
        let guests = [Guest::new(), Guest::new()];
        let mut sides = guests.each_ref().map(|guest| Side::new(guest, base));
        let mut ours = Ours::new(&sides[0].driver, features);
        let mut queue = oracle(base, features);
        let counters = QueueCounters::default();
        let source = Guest::new();
        let mut from = Driver::new(&source, Layout { size: 64, at: 0 }, 0);
        let mut from_ring = from.start(VERSION_1);
        let mut packets = Packets::new();
        for op in &ops {
            match op {
                Op::Post { .. } => sides.iter_mut().for_each(|side| side.post(op, WRITE, 0)),
                Op::Event(ahead) => sides
                    .iter()
                    .for_each(|s| s.driver.set_used_event(s.driver.used_idx.wrapping_add(*ahead))),
                Op::Restart => ours.restart(&guests[0]),
                Op::Burst(n) => {
                    let mut addr = 0x10_0000;
                    for (i, &len) in (0..).zip(&lens[..*n]) {
                        source.write(addr + 12, &frame(len, i as u32));
                        from.desc(i, addr, 12 + len as u32, 0, 0);
                        from.publish(i);
                        addr += 12 + len as u64;
                    }
                    // SAFETY: the packets are forgotten before the ring goes.
                    unsafe { from_ring.receive(&mut packets, *n, &QueueCounters::default()) };
                    let received = packets.len();
                    ours.ring().send(&packets, &ALL[..received], &counters);
                    for i in 0..received {
                        let packet = bytes(&packets, i);
                        oracle_send(&mut queue, &guests[1], &packet, features & MRG_RXBUF != 0);
                    }
                    packets.clear();
                    from_ring.complete_receive();
                    let [a, b] = &mut sides;
                    prop_assert_eq!(a.used(), b.used());
                    let decision = queue.needs_notification(&guests[1].mem).unwrap();
                    if features & EVENT_IDX != 0 {
                        prop_assert_eq!(ours.notified(), decision);
                    }
                }
            }
        }
        same_memory(&guests[0], &guests[1])?;
    }
}
