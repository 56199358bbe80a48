//! Guest to device: every layout of a chain, and every way a chain can be wrong.

use crate::guest::{
    Driver, Guest, INDIRECT, Layout, NEXT, REGION, VERSION_1, WRITE, frame, row, table,
};
use crate::receive;
use ringbridge::counters::{QueueCounters, Reason};
use ringbridge::packet::Packets;

const HEADER: usize = 12;

/// Write `bytes` at `addr` as a chain of descriptors of the given lengths, from `index` on.
fn chain(driver: &Driver, index: u16, addr: u64, bytes: &[u8], lens: &[usize]) {
    driver.guest.write(addr, bytes);
    let mut at = addr;
    for (k, &len) in lens.iter().enumerate() {
        let last = k + 1 == lens.len();
        let next = index + k as u16 + 1;
        driver.desc(index + k as u16, at, len as u32, if last { 0 } else { NEXT }, next);
        at += len as u64;
    }
    assert_eq!(at - addr, bytes.len() as u64);
}

fn with_header(payload: &[u8]) -> Vec<u8> {
    [&[0; HEADER], payload].concat()
}

/// One packet of `payload` in a chain of these lengths comes out as it went in.
fn round_trip(payload: &[u8], lens: &[usize], addr: u64) {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, Layout { size: 2048, at: 0 }, 0);
    let mut ring = driver.start(VERSION_1);
    let counters = QueueCounters::default();
    chain(&driver, 3, addr, &with_header(payload), lens);
    driver.publish(3);
    let received = receive(&mut ring, 64, &counters);
    assert!(received == [payload], "{} bytes as {lens:?} at {addr:#x}", payload.len());
    assert_eq!(driver.used(), [(3, 0)]);
    assert_eq!(counters.packets.get(), 1);
    assert_eq!(counters.bytes.get(), payload.len() as u64);
    assert_eq!(counters.dropped_total(), 0);
}

#[test]
fn one_descriptor_of_every_length_class() {
    for len in [14, 15, 16, 17, 60, 63, 64, 65, 128, 191, 192, 193, 1518, 9000, 65535] {
        round_trip(&frame(len, 1), &[HEADER + len], 0x10_0000);
        round_trip(&frame(len, 2), &[HEADER + len], 0x10_0001);
    }
}

#[test]
fn header_and_payload_split_anywhere() {
    for len in [14, 64, 200, 1518, 65535] {
        let payload = frame(len, 5);
        round_trip(&payload, &[HEADER, len], 0x10_0000);
        round_trip(&payload, &[HEADER + 6, len - 6], 0x10_0000);
        round_trip(&payload, &[1; HEADER].into_iter().chain([len]).collect::<Vec<_>>(), 0x10_0000);
        round_trip(&payload, &[5, 0, 10, len - 5, 0, 2], 0x10_0000);
        let many = len.min(1000);
        let mut lens = vec![1; many];
        lens.insert(0, HEADER);
        lens.push(len - many);
        round_trip(&payload, &lens, 0x10_0003);
    }
}

#[test]
fn buffers_straddle_two_regions() {
    for before in [1, 11, 12, 13, 100, 300] {
        let payload = frame(400, before as u32);
        round_trip(&payload, &[HEADER + 400], REGION - before);
        round_trip(&payload, &[HEADER, 400], REGION - before);
    }
}

#[test]
fn indirect_tables_alone_and_after_direct_descriptors() {
    let payload = frame(300, 9);
    for table_at in [0x20_0000, 0x20_0004, REGION - 16, REGION - 32] {
        for direct_first in [false, true] {
            let guest = Guest::new();
            let mut driver = Driver::new(&guest, Layout { size: 8, at: 0 }, 0);
            let mut ring = driver.start(VERSION_1);
            let counters = QueueCounters::default();
            guest.write(0x10_0000, &with_header(&payload));
            let (skip, head) = if direct_first { (20, 7) } else { (0, 5) };
            driver.desc(7, 0x10_0000, 20, NEXT, 5);
            driver.desc(5, table_at, 48, INDIRECT, 0);
            let base = 0x10_0000 + skip;
            // In the table the chain goes 0, 2, 1.
            table(
                &guest,
                table_at,
                &[
                    (base, 40, NEXT, 2),
                    (base + 140, (172 - skip) as u32, 0, 0),
                    (base + 40, 100, NEXT, 1),
                ],
            );
            driver.publish(head);
            assert_eq!(receive(&mut ring, 64, &counters), [&payload[..]]);
            assert_eq!(driver.used(), [(u32::from(head), 0)]);
        }
    }
}

#[test]
fn the_longest_chains_with_and_without_a_table() {
    let payload = frame(1024 - HEADER, 3);
    round_trip(&payload, &[1; 1024], 0x10_0000);
    for direct in [0, 1, 1023] {
        let guest = Guest::new();
        let mut driver = Driver::new(&guest, Layout { size: 2048, at: 0 }, 0);
        let mut ring = driver.start(VERSION_1);
        let counters = QueueCounters::default();
        guest.write(0x10_0000, &with_header(&payload));
        for i in 0..direct {
            driver.desc(i, 0x10_0000 + u64::from(i), 1, NEXT, i + 1);
        }
        let rest = 1024 - direct;
        driver.desc(direct, 0x20_0000, 16 * u32::from(rest), INDIRECT, 0);
        table(&guest, 0x20_0000, &row(0x10_0000 + u64::from(direct), rest, 0));
        // Twice: the second does not fit the burst of the first.
        driver.publish(0);
        driver.publish(0);
        for _ in 0..2 {
            assert_eq!(receive(&mut ring, 64, &counters), [&payload[..]], "{direct} direct");
        }
        assert_eq!(driver.used(), [(0, 0), (0, 0)]);
        assert_eq!(counters.dropped_total(), 0);
    }
}

/// A wrong chain is counted by its reason and comes back with length 0 in its place, and its
/// neighbours in the ring are delivered.
fn wrong_chain(reason: Reason, make: impl Fn(&Driver)) {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, Layout { size: 2048, at: 0 }, 65534);
    let mut ring = driver.start(VERSION_1);
    let counters = QueueCounters::default();
    for (head, addr) in [(2040, 0x10_0000), (2042, 0x10_1000)] {
        chain(&driver, head, addr, &with_header(&frame(64, addr as u32)), &[HEADER + 64]);
    }
    make(&driver);
    for head in [2040, 0, 2042, 0] {
        driver.publish(head);
    }
    let mut received = receive(&mut ring, 64, &counters);
    // A burst may end early: at 1024 descriptors.
    received.extend(receive(&mut ring, 64, &counters));
    assert_eq!(received, [frame(64, 0x10_0000), frame(64, 0x10_1000)], "{reason:?}");
    assert_eq!(driver.used(), [(2040, 0), (0, 0), (2042, 0), (0, 0)], "{reason:?}");
    assert_eq!(counters.dropped(reason), 2, "{reason:?}");
    assert_eq!(counters.dropped_total(), 2);
    assert!(!ring.broken());
}

#[test]
fn chains_that_are_too_short() {
    wrong_chain(Reason::NoHeader, |d| d.desc(0, 0x10_0000, 0, 0, 0));
    wrong_chain(Reason::NoHeader, |d| d.desc(0, 0x10_0000, 11, 0, 0));
    wrong_chain(Reason::Runt, |d| d.desc(0, 0x10_0000, 12, 0, 0));
    wrong_chain(Reason::Runt, |d| d.desc(0, 0x10_0000, 25, 0, 0));
    wrong_chain(Reason::Runt, |d| {
        d.desc(0, 0x10_0000, 12, NEXT, 1);
        d.desc(1, 0x10_0000, 13, 0, 0);
    });
}

#[test]
fn chains_that_are_too_long() {
    wrong_chain(Reason::TooLong, |d| d.desc(0, 0x10_0000, 65536 + 12, 0, 0));
    wrong_chain(Reason::BadAddress, |d| d.desc(0, 0x10_0000, u32::MAX, 0, 0));
    wrong_chain(Reason::TooLong, |d| {
        for i in 0..40 {
            d.desc(i, 0x10_0000, 0x10_0000, if i < 39 { NEXT } else { 0 }, i + 1);
        }
    });
    // A circle, a self-reference, and an honest chain of 1025 descriptors.
    wrong_chain(Reason::ChainTooLong, |d| d.desc(0, 0x10_0000, 64, NEXT, 0));
    wrong_chain(Reason::ChainTooLong, |d| {
        d.desc(0, 0x10_0000, 0, NEXT, 1);
        d.desc(1, 0x10_0000, 0, NEXT, 0);
    });
    wrong_chain(Reason::ChainTooLong, |d| {
        for i in 0..1025 {
            d.desc(i, 0x10_0000, 20, if i < 1024 { NEXT } else { 0 }, i + 1);
        }
    });
}

#[test]
fn addresses_outside_memory() {
    wrong_chain(Reason::BadAddress, |d| d.desc(0, 2 * REGION, 100, 0, 0));
    wrong_chain(Reason::BadAddress, |d| d.desc(0, 2 * REGION - 50, 100, 0, 0));
    wrong_chain(Reason::BadAddress, |d| d.desc(0, u64::MAX - 20, 100, 0, 0));
    wrong_chain(Reason::BadAddress, |d| d.desc(0, u64::MAX, 1, 0, 0));
    wrong_chain(Reason::BadAddress, |d| {
        d.desc(0, 0x10_0000, 12, NEXT, 1);
        d.desc(1, 1 << 63, 100, 0, 0);
    });
}

#[test]
fn next_and_direction() {
    wrong_chain(Reason::BadNext, |d| d.desc(0, 0x10_0000, 100, NEXT, 2048));
    wrong_chain(Reason::BadNext, |d| d.desc(0, 0x10_0000, 100, NEXT, u16::MAX));
    wrong_chain(Reason::BadDirection, |d| d.desc(0, 0x10_0000, 100, WRITE, 0));
    wrong_chain(Reason::BadDirection, |d| {
        d.desc(0, 0x10_0000, 12, NEXT, 1);
        d.desc(1, 0x10_0000, 100, WRITE, 0);
    });
}

#[test]
fn indirect_tables_that_are_wrong() {
    let at = 0x20_0000;
    for len in [0, 1, 15, 17, 40] {
        wrong_chain(Reason::BadIndirect, |d| d.desc(0, at, len, INDIRECT, 0));
    }
    wrong_chain(Reason::BadIndirect, |d| d.desc(0, at, 16, INDIRECT | NEXT, 1));
    wrong_chain(Reason::BadIndirect, |d| {
        d.desc(0, at, 16, INDIRECT, 0);
        table(d.guest, at, &[(at, 16, INDIRECT, 0)]);
    });
    wrong_chain(Reason::BadNext, |d| {
        d.desc(0, at, 32, INDIRECT, 0);
        table(d.guest, at, &[(0x10_0000, 100, NEXT, 2)]);
    });
    wrong_chain(Reason::ChainTooLong, |d| {
        d.desc(0, at, 32, INDIRECT, 0);
        table(d.guest, at, &[(0x10_0000, 1, NEXT, 1), (0x10_0000, 1, NEXT, 0)]);
    });
    wrong_chain(Reason::ChainTooLong, |d| {
        d.desc(0, at, 16 * 1025, INDIRECT, 0);
        table(d.guest, at, &row(0x10_0000, 1025, 0));
    });
    wrong_chain(Reason::ChainTooLong, |d| {
        d.desc(0, 0x10_0000, 1, NEXT, 1);
        d.desc(1, at, 16 * 1024, INDIRECT, 0);
        table(d.guest, at, &row(0x10_0000, 1024, 0));
    });
    wrong_chain(Reason::BadAddress, |d| d.desc(0, 2 * REGION - 8, 16, INDIRECT, 0));
    wrong_chain(Reason::BadAddress, |d| d.desc(0, u64::MAX - 7, 16, INDIRECT, 0));
    wrong_chain(Reason::BadAddress, |d| {
        d.desc(0, 2 * REGION - 16, u32::MAX - 15, INDIRECT, 0);
        table(d.guest, 2 * REGION - 16, &[(0x10_0000, 1, NEXT, 1)]);
    });
}

#[test]
fn bursts_end_at_their_bounds() {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, Layout { size: 4096, at: 0 }, 0);
    let mut ring = driver.start(VERSION_1);
    let counters = QueueCounters::default();
    let mut packets = Packets::new();
    let mut burst = |ring: &mut ringbridge::virtio::SplitRing, max| {
        // SAFETY: the packets are forgotten before the ring goes.
        unsafe { ring.receive(&mut packets, max, &counters) };
        let n = packets.len();
        packets.clear();
        ring.complete_receive();
        n
    };
    // 10 packets of 65535 bytes: 256 KiB are full after the fifth.
    for i in 0..10 {
        driver.desc(i, 0x10_0000, 65535 + 12, 0, 0);
        driver.publish(i);
    }
    assert_eq!((burst(&mut ring, 64), burst(&mut ring, 64)), (5, 5));
    // 4 chains of 400 descriptors: two fit 1024.
    for c in 0..4 {
        for k in 0..400 {
            let i = c * 400 + k;
            driver.desc(i, 0x10_0000, 20, if k < 399 { NEXT } else { 0 }, i + 1);
        }
        driver.publish(c * 400);
    }
    assert_eq!((burst(&mut ring, 64), burst(&mut ring, 64)), (2, 2));
    // 100 small ones: by number.
    for i in 0..100 {
        driver.desc(i, 0x10_0000, 76, 0, 0);
        driver.publish(i);
    }
    assert_eq!((burst(&mut ring, 10), burst(&mut ring, 64), burst(&mut ring, 64)), (10, 64, 26));
    assert_eq!(driver.used().len(), 114);
}
