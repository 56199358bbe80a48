//! A port with several queue pairs: the flow decides which one a packet goes to.

use crate::guest::{Driver, Guest, Layout, VERSION_1, WRITE};
use ringbridge::counters::{QueueCounters, Reason};
use ringbridge::packet::{ALL, Packets};
use ringbridge::port::vhost::TxQueue;
use ringbridge::virtio::{RingSetup, SplitRing};
use std::sync::Arc;

const PAIRS: u64 = 8;
const FLOWS: u8 = 40;
/// Bytes between two buffers.
const STRIDE: u64 = 128;
const HEADER: u64 = 12;
const FRAME: u64 = 60;

/// A frame of flow `flow` (its source address, for want of an IP header) with a number.
fn frame(flow: u8, number: u16) -> Vec<u8> {
    let mut frame = vec![0; FRAME as usize];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 1, flow]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..16].copy_from_slice(&number.to_le_bytes());
    frame
}

/// Where the buffers of `pair` begin.
fn buffers(pair: u64) -> u64 {
    0x10_0000 + pair * 0x1_0000
}

/// The driver of the receive ring of `pair`.
fn receiver(guest: &Guest, pair: u64) -> Driver<'_> {
    let driver = Driver::new(guest, Layout { size: 256, at: 0x1_0000 + pair * 0x2000 }, 0);
    for i in 0..256 {
        driver.desc(i, buffers(pair) + u64::from(i) * STRIDE, 100, WRITE, 0);
    }
    driver
}

/// Make all buffers available that are not. They are used in the order of their numbers.
fn fill(driver: &mut Driver) {
    while driver.avail_idx.wrapping_sub(driver.used_idx) < 256 {
        driver.publish(driver.avail_idx % 256);
    }
}

/// Send one burst with packets of all flows to `queue`; the packets are numbered from `first`.
fn send(guest: &Guest, queue: &mut TxQueue, first: u16) {
    let mut sender = Driver::new(guest, Layout { size: 64, at: 0 }, 0);
    let mut from = sender.start(VERSION_1);
    for i in 0..64 {
        let number = first + i;
        let addr = 0x8_0000 + u64::from(i) * STRIDE;
        let bytes =
            [&[0; HEADER as usize], &frame((number % u16::from(FLOWS)) as u8, number)[..]].concat();
        guest.write(addr, &bytes);
        sender.desc(i, addr, (HEADER + FRAME) as u32, 0, 0);
        sender.publish(i);
    }
    let mut packets = Packets::new();
    // SAFETY: the packets are forgotten before the ring goes.
    unsafe { from.receive(&mut packets, 64, &QueueCounters::default()) };
    queue.send(&packets, &ALL);
    packets.clear();
    from.complete_receive();
}

/// What came through `driver`, the ring of `pair`: flow and number.
fn arrived(driver: &mut Driver, pair: u64) -> Vec<(u8, u16)> {
    let bytes = |(id, _): (u32, u32)| {
        let at = buffers(pair) + u64::from(id) * STRIDE + HEADER;
        driver.guest.read(at, FRAME as usize)
    };
    let used = driver.used();
    let frames: Vec<_> = used.into_iter().map(bytes).collect();
    frames.iter().map(|f| (f[11], u16::from_le_bytes([f[14], f[15]]))).collect()
}

/// Enable or disable the ring of `pair`, as the control plane does it.
fn enable(guest: &Guest, queue: &mut TxQueue, pair: usize, enabled: bool) {
    let setup = RingSetup { enabled, ..queue.take(pair).unwrap().stop() };
    let ring = SplitRing::start(setup, Arc::clone(&guest.shared), VERSION_1);
    assert!(queue.put(pair, Box::new(ring.map_err(|(_, e)| e).unwrap())).is_none());
}

#[test]
fn flows_stay_in_order_on_the_enabled_queues() {
    let guest = Guest::new();
    let counters: Vec<Arc<QueueCounters>> = (0..PAIRS).map(|_| Arc::default()).collect();
    let mut queue = TxQueue::new(&counters);
    let mut drivers: Vec<_> = (0..PAIRS).map(|pair| receiver(&guest, pair)).collect();
    for (pair, driver) in drivers.iter().enumerate() {
        queue.put(pair, Box::new(driver.start(VERSION_1)));
    }
    // All of them, then some, then one, then again all: three bursts each.
    let mut first = 0;
    for disabled in [&[][..], &[0, 3, 7], &[0, 1, 2, 3, 4, 6, 7], &[]] {
        for pair in 0..PAIRS as usize {
            enable(&guest, &mut queue, pair, !disabled.contains(&pair));
        }
        drivers.iter_mut().for_each(fill);
        for _ in 0..3 {
            send(&guest, &mut queue, first);
            first += 64;
        }
        let mut seen = vec![Vec::new(); FLOWS.into()];
        for (pair, driver) in drivers.iter_mut().enumerate() {
            let arrived = arrived(driver, pair as u64);
            assert_eq!(arrived.is_empty(), disabled.contains(&pair), "{pair} of {disabled:?}");
            for (flow, number) in arrived {
                seen[usize::from(flow)].push((pair, number));
            }
        }
        for (flow, packets) in (0..).zip(&seen) {
            let pair = packets[0].0;
            let numbers = (first - 192..first).filter(|n| n % u16::from(FLOWS) == flow);
            let expected: Vec<_> = numbers.map(|number| (pair, number)).collect();
            assert_eq!(packets, &expected, "flow {flow} without {disabled:?}");
        }
    }
    let sent: u64 = counters.iter().map(|c| c.packets.get()).sum();
    assert_eq!(sent, 4 * 3 * 64);
    assert!(counters.iter().all(|c| c.dropped_total() == 0));
    // Nobody left: counted once.
    for pair in 0..PAIRS as usize {
        enable(&guest, &mut queue, pair, false);
    }
    send(&guest, &mut queue, 0);
    let disabled: u64 = counters.iter().map(|c| c.dropped(Reason::Disabled)).sum();
    assert_eq!(disabled, 64);
}
