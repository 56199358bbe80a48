//! Indices, notifications, ring sizes, and rings that lie.

use crate::guest::{
    Driver, EVENT_IDX, Guest, Layout, REGION, USER, VERSION_1, WRITE, eventfd, frame, signals,
};
use crate::receive;
use ringbridge::counters::{QueueCounters, Reason};
use ringbridge::virtio::{RingSetup, SplitRing, StartError};
use std::fs::File;
use std::sync::Arc;

/// A driver and its ring, with the call and error eventfds.
fn with_fds(driver: &Driver, features: u64) -> (SplitRing, File, File) {
    let (call, err) = (eventfd(), eventfd());
    let setup = RingSetup {
        call: Some(call.try_clone().unwrap()),
        err: Some(err.try_clone().unwrap()),
        ..driver.setup()
    };
    let memory = Arc::clone(&driver.guest.shared);
    let ring = SplitRing::start(setup, memory, features).map_err(|(_, e)| e).unwrap();
    (ring, call, err)
}

fn post(driver: &mut Driver, head: u16, seed: u32) {
    let addr = 0x20_0000 + u64::from(head % 1024) * 128;
    driver.guest.write(addr + 12, &frame(64, seed));
    driver.desc(head, addr, 76, 0, 0);
    driver.publish(head);
}

#[test]
fn every_ring_size_around_the_wrap_of_the_indices() {
    let guest = Guest::new();
    for size in (1..=15).map(|bits| 1 << bits) {
        let mut driver = Driver::new(&guest, Layout { size, at: 0 }, 65531);
        let mut ring = driver.start(VERSION_1);
        let counters = QueueCounters::default();
        let mut seed = 0;
        for round in 0..6 {
            let n = size.min(3 + round % 2);
            let heads: Vec<u16> = (0..n).map(|k| (size - 1 - k) % size).collect();
            let first = seed;
            for &head in &heads {
                post(&mut driver, head, seed);
                seed += 1;
            }
            let expected: Vec<_> = (first..seed).map(|s| frame(64, s)).collect();
            assert_eq!(receive(&mut ring, 64, &counters), expected, "size {size}");
            let used: Vec<_> = heads.iter().map(|&h| (u32::from(h), 0)).collect();
            assert_eq!(driver.used(), used, "size {size}");
        }
    }
}

#[test]
fn a_full_ring_of_32768() {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, Layout { size: 32768, at: 0 }, 40_000);
    let mut ring = driver.start(VERSION_1);
    let counters = QueueCounters::default();
    for head in 0..32768 {
        driver.desc(head, 0x20_0000, 76, 0, 0);
        driver.publish(head);
    }
    let mut n = 0;
    while n < 32768 {
        let got = receive(&mut ring, 64, &counters).len();
        assert!(got > 0, "stuck after {n}");
        n += got;
    }
    assert_eq!(driver.used().len(), 32768);
    assert!(receive(&mut ring, 64, &counters).is_empty());
}

#[test]
fn a_ring_that_lies_stops_alone_and_says_so() {
    let guest = Guest::new();
    for jump in [9, 100, 32768, 65000] {
        let mut driver = Driver::new(&guest, Layout { size: 8, at: 0 }, 65530);
        let (mut ring, _call, err) = with_fds(&driver, VERSION_1);
        let counters = QueueCounters::default();
        post(&mut driver, 1, 1);
        assert_eq!(receive(&mut ring, 64, &counters).len(), 1);
        driver.set_avail_idx(driver.avail_idx.wrapping_add(jump));
        assert!(receive(&mut ring, 64, &counters).is_empty());
        assert!(ring.broken());
        assert_eq!(signals(&err), 1, "jump of {jump}");
        // Nothing brings it back but a new start, and the frontend is told once.
        driver.set_avail_idx(65532);
        assert!(receive(&mut ring, 64, &counters).is_empty());
        assert_eq!((signals(&err), driver.used().len()), (0, 1));
        assert_eq!(ring.stop().base, 65531);
    }
}

#[test]
fn a_head_that_is_no_descriptor_stops_the_ring_after_the_good_ones() {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, Layout { size: 8, at: 0 }, 0);
    let (mut ring, _call, err) = with_fds(&driver, VERSION_1);
    let counters = QueueCounters::default();
    post(&mut driver, 3, 1);
    driver.publish(8);
    post(&mut driver, 4, 2);
    assert_eq!(receive(&mut ring, 64, &counters), [frame(64, 1)]);
    assert!(ring.broken());
    assert_eq!(signals(&err), 1);
    assert!(receive(&mut ring, 64, &counters).is_empty());
    assert_eq!(driver.used(), [(3, 0)]);

    // The same where the device writes.
    let mut receiver = Driver::new(&guest, Layout { size: 8, at: 0x1_0000 }, 0);
    let (mut to, _call, err) = with_fds(&receiver, VERSION_1);
    receiver.desc(1, 0x20_0000, 1000, WRITE, 0);
    receiver.publish(1);
    receiver.publish(65535);
    let mut packets = ringbridge::packet::Packets::new();
    let mut sender = Driver::new(&guest, Layout { size: 8, at: 0 }, 0);
    let mut from = sender.start(VERSION_1);
    (0..3).for_each(|i| post(&mut sender, i, u32::from(i)));
    // SAFETY: the packets are forgotten before the ring goes.
    unsafe { from.receive(&mut packets, 64, &counters) };
    let sent = QueueCounters::default();
    to.send(&packets, &[0, 1, 2], &sent);
    packets.clear();
    from.complete_receive();
    assert_eq!((sent.packets.get(), sent.dropped(Reason::NoBuffers)), (1, 2));
    assert_eq!((signals(&err), to.broken()), (1, true));
    assert_eq!(receiver.used(), [(1, 76)]);
}

#[test]
fn no_interrupt_is_honoured() {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, Layout { size: 8, at: 0 }, 0);
    let (mut ring, call, _err) = with_fds(&driver, VERSION_1);
    let counters = QueueCounters::default();
    post(&mut driver, 0, 0);
    receive(&mut ring, 64, &counters);
    assert_eq!(signals(&call), 1);
    // One decision a burst, and none without a used entry.
    post(&mut driver, 0, 0);
    post(&mut driver, 1, 0);
    receive(&mut ring, 64, &counters);
    assert_eq!(signals(&call), 1);
    receive(&mut ring, 64, &counters);
    assert_eq!(signals(&call), 0);
    driver.set_avail_flags(1);
    post(&mut driver, 0, 0);
    receive(&mut ring, 64, &counters);
    assert_eq!(signals(&call), 0);
}

#[test]
fn used_event_is_honoured_exactly() {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, Layout { size: 8, at: 0 }, 65533);
    let (mut ring, call, _err) = with_fds(&driver, VERSION_1 | EVENT_IDX);
    let counters = QueueCounters::default();
    // (used_event, chains in the burst, signalled?), from index 65533 on.
    for (event, chains, expected) in [
        (65533, 1, 1), // 65534: passed
        (65533, 2, 0), // 0: already passed
        (1, 1, 0),     // 1: not yet
        (1, 1, 1),     // 2
        (6, 4, 0),     // 6
        (5, 1, 0),     // 7: behind
        (9, 3, 1),     // 10
    ] {
        driver.set_used_event(event);
        (0..chains).for_each(|i| post(&mut driver, i, 0));
        receive(&mut ring, 64, &counters);
        assert_eq!(signals(&call), expected, "event {event}");
    }
}

#[test]
fn arming_asks_for_kicks_and_sees_what_is_there() {
    let guest = Guest::new();
    for features in [VERSION_1, VERSION_1 | EVENT_IDX] {
        let layout = Layout { size: 8, at: 0 };
        let mut driver = Driver::new(&guest, layout, 7);
        let mut ring = driver.start(features);
        let flags = |d: &Driver| d.guest.read_u16(layout.used());
        let event = |d: &Driver| d.guest.read_u16(layout.used() + 4 + 8 * 8);
        assert!(ring.arm());
        if features & EVENT_IDX == 0 {
            assert_eq!(flags(&driver), 0);
        } else {
            assert_eq!(event(&driver), 7);
        }
        ring.disarm();
        if features & EVENT_IDX == 0 {
            assert_eq!(flags(&driver), 1);
        }
        post(&mut driver, 0, 0);
        assert!(!ring.arm(), "a chain is waiting");
        assert_eq!(receive(&mut ring, 64, &QueueCounters::default()).len(), 1);
    }
}

#[test]
fn stop_and_start_at_the_base_neither_loses_nor_doubles() {
    let guest = Guest::new();
    let mut driver = Driver::new(&guest, Layout { size: 16, at: 0 }, 65530);
    let counters = QueueCounters::default();
    let mut ring = driver.start(VERSION_1);
    for round in 0..5 {
        (0..10).for_each(|i| post(&mut driver, i, u32::from(round * 10 + i)));
        assert_eq!(receive(&mut ring, 4, &counters).len(), 4);
        let setup = ring.stop();
        assert_eq!(setup.base, 65530u16.wrapping_add(round * 10 + 4));
        ring = SplitRing::start(setup, Arc::clone(&guest.shared), VERSION_1)
            .map_err(|(_, e)| e)
            .unwrap();
        let rest: Vec<_> = (4..10).map(|i| frame(64, round as u32 * 10 + i)).collect();
        assert_eq!(receive(&mut ring, 64, &counters), rest);
        assert_eq!(driver.used().len(), 10);
    }
}

#[test]
fn setups_that_cannot_start() {
    let guest = Guest::new();
    let driver = Driver::new(&guest, Layout { size: 8, at: 0 }, 0);
    let start = |change: fn(&mut RingSetup)| {
        let mut setup = driver.setup();
        change(&mut setup);
        SplitRing::start(setup, Arc::clone(&guest.shared), VERSION_1).map_err(|(_, e)| e).err()
    };
    assert!(start(|_| ()).is_none());
    for size in [0, 1, 3, 100, 32767, 32769, 65535] {
        let mut setup = driver.setup();
        setup.size = size;
        let error = SplitRing::start(setup, Arc::clone(&guest.shared), 0).map_err(|(_, e)| e).err();
        assert!(matches!(error, Some(StartError::Size(s)) if s == size));
    }
    assert!(matches!(start(|s| s.addresses = None), Some(StartError::NoAddresses)));
    let misaligned: [fn(&mut RingSetup); 3] = [
        |s| s.addresses.as_mut().unwrap().desc += 8,
        |s| s.addresses.as_mut().unwrap().avail += 1,
        |s| s.addresses.as_mut().unwrap().used += 2,
    ];
    for change in misaligned {
        assert!(matches!(start(change), Some(StartError::Misaligned(..))));
    }
    let outside: [fn(&mut RingSetup); 4] = [
        |s| s.addresses.as_mut().unwrap().desc = 0,
        |s| s.addresses.as_mut().unwrap().desc = USER + REGION - 16,
        |s| s.addresses.as_mut().unwrap().avail = USER + 2 * REGION - 8,
        |s| s.addresses.as_mut().unwrap().used = u64::MAX - 3,
    ];
    for change in outside {
        assert!(matches!(start(change), Some(StartError::Outside(..))));
    }
}
