//! Memory cut into hundreds of small regions: a buffer that lies over all their borders costs
//! as much as a chain of as many descriptors, and counts as much.

use crate::guest::{Driver, Guest, Layout, NEXT, USER, VERSION_1, WRITE};
use ringbridge::counters::{QueueCounters, Reason};
use ringbridge::memory::{GuestMemory, RegionSpec};
use ringbridge::packet::{ALL, Packets};
use ringbridge::virtio::SplitRing;
use std::sync::Arc;
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

const PAGE: u64 = 4096;
/// One region for the rings up to here, then one a page.
const RINGS: u64 = 0x10_0000;
const PAGES: u64 = 500;
const ALL_PAGES: u32 = (PAGES * PAGE) as u32;

fn cut(guest: &Guest) -> Arc<GuestMemory> {
    let file = guest.mem.iter().next().unwrap().file_offset().unwrap().file();
    let spec = |guest, size| {
        let file = file.try_clone().unwrap();
        RegionSpec { guest, size, user: guest + USER, offset: guest, file }
    };
    let pages = (0..PAGES).map(|i| spec(RINGS + i * PAGE, PAGE));
    GuestMemory::map(std::iter::once(spec(0, RINGS)).chain(pages).collect(), &Arc::default())
        .unwrap()
}

fn start(driver: &Driver, memory: &Arc<GuestMemory>) -> SplitRing {
    SplitRing::start(driver.setup(), Arc::clone(memory), VERSION_1).map_err(|(_, e)| e).unwrap()
}

#[test]
fn receive_buffers_over_hundreds_of_borders_use_the_bursts_budget_up() {
    let guest = Guest::new();
    let memory = cut(&guest);
    let mut sender = Driver::new(&guest, Layout { size: 64, at: 0 }, 0);
    let mut receiver = Driver::new(&guest, Layout { size: 128, at: 0x1_0000 }, 0);
    let (mut from, mut to) = (start(&sender, &memory), start(&receiver, &memory));
    for i in 0..64 {
        sender.desc(i, 0x8_0000, 12 + 60, 0, 0);
        sender.publish(i);
        // Two descriptors, a thousand pieces.
        receiver.desc(2 * i, RINGS, ALL_PAGES, WRITE | NEXT, 2 * i + 1);
        receiver.desc(2 * i + 1, RINGS, ALL_PAGES, WRITE, 0);
        receiver.publish(2 * i);
    }
    // A single descriptor of enough bytes in one region would be taken without a walk.
    let mut packets = Packets::new();
    // SAFETY: the packets are forgotten before the ring goes.
    unsafe { from.receive(&mut packets, 64, &QueueCounters::default()) };
    assert_eq!(packets.len(), 64);
    let counters = QueueCounters::default();
    to.send(&packets, &ALL[..64], &counters);
    packets.clear();
    from.complete_receive();
    let delivered = counters.packets.get();
    assert!((1..=5).contains(&delivered), "{delivered} packets into {} pieces", delivered * 1000);
    assert_eq!(counters.dropped(Reason::ChainTooLong), 64 - delivered);
}

#[test]
fn a_sent_packet_over_many_borders_arrives_or_is_too_long() {
    let guest = Guest::new();
    let memory = cut(&guest);
    let mut sender = Driver::new(&guest, Layout { size: 2048, at: 0 }, 0);
    let mut from = start(&sender, &memory);
    // 15 borders: a packet. 500 borders twice, and once more: neither a packet nor a stall.
    sender.desc(0, RINGS, 65_000, 0, 0);
    sender.publish(0);
    for i in 1..4 {
        sender.desc(i, RINGS, ALL_PAGES, if i < 3 { NEXT } else { 0 }, i + 1);
    }
    sender.publish(1);
    // As many descriptors as a chain may have, the last one over the border.
    for i in 10..1034 {
        let last = i == 1033;
        sender.desc(i, RINGS + PAGE - 1, 1 + u32::from(last), if last { 0 } else { NEXT }, i + 1);
    }
    sender.publish(10);
    let counters = QueueCounters::default();
    let mut received = Vec::new();
    for _ in 0..4 {
        received.extend(crate::receive(&mut from, 64, &counters).iter().map(Vec::len));
    }
    assert_eq!(received, [65_000 - 12]);
    assert_eq!(counters.dropped(Reason::ChainTooLong), 2);
    assert_eq!(sender.used(), [(0, 0), (1, 0), (10, 0)]);
}
