//! Rings that are stopped, moved and started again, and guests that come back.

use super::common::bridge::{Bed, Peer, PeerRings, alone};
use super::{GO_ON, assert_clean, guest, verify};
use ringbridge::counters::Reason;
use ringbridge::frontend::{GuestOptions, Region};
use ringbridge::sys::memfd;
use ringbridge::wire;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SOME: Option<Duration> = Some(Duration::from_millis(20));

/// 100 packets go round and round, and all of them end with the guest, after any number of
/// stops, starts and new memory tables.
#[test]
fn stopped_rings_go_on_where_they_were() {
    let _alone = alone();
    for event_idx in [false, true] {
        let bed = Bed::new(2);
        let options = GuestOptions {
            event_idx,
            interrupts: event_idx,
            first_index: 65500,
            ..GuestOptions::default()
        };
        let mut guest = guest(&bed, &[0, 1], options);
        guest.io(64, 100, SOME, &GO_ON).unwrap();
        for round in 0..10 {
            let bases = guest.stop().unwrap();
            guest.start(&bases).unwrap();
            guest.resend_memory().unwrap();
            // A worker is told of new rings a moment after the frontend has its answer.
            std::thread::sleep(Duration::from_millis(5));
            let report = guest.io(64, 100, SOME, &GO_ON).unwrap();
            assert!(report.rx_packets > 100, "round {round}");
            assert_eq!(report.tx_packets, report.rx_packets, "round {round}");
            assert_eq!((report.lost, report.lost_interrupts), (0, 0), "round {round}");
        }
        let bridge = bed.stop().0;
        assert!(bridge.ports.iter().all(|p| p.rx.drops.total() + p.tx.drops.total() == 0));
    }
}

/// Packets that the guest has not looked at yet when its rings stop are there when they start
/// again, as many as the bridge has sent and no more.
#[test]
fn packets_wait_in_a_ring_that_is_stopped() {
    let _alone = alone();
    for event_idx in [false, true] {
        let bed = Bed::new(1);
        let options = GuestOptions { event_idx, first_index: 65500, ..GuestOptions::default() };
        let mut guest = guest(&bed, &[0], options);
        // One port alone: what is sent comes back, and fills the receive ring.
        assert!(guest.txonly(64, SOME, &GO_ON).unwrap().tx_packets >= 256);
        for _ in 0..3 {
            let bases = guest.stop().unwrap();
            guest.start(&bases).unwrap();
            guest.resend_memory().unwrap();
        }
        let received = guest.rxonly(64, SOME, &GO_ON).unwrap().rx_packets;
        assert_eq!(received, 256);
        assert_eq!(received, bed.stop().0.ports[0].tx.packets);
    }
}

/// The memory table is sent again and again while packets go out and come back.
#[test]
fn a_new_memory_table_under_running_rings_loses_nothing() {
    let _alone = alone();
    let bed = Bed::new(1);
    let Peer { mut session, mut rings } = Peer::connect(&bed.socket(0));
    let ram = Arc::clone(rings.ram());
    echoed_meanwhile(&mut rings, || (0..100).for_each(|_| session.send_memory(&ram).unwrap()));
}

/// Send packets one by one and get each of them back, while `work` is done beside it.
fn echoed_meanwhile(rings: &mut PeerRings, work: impl FnOnce() + Send) {
    let stop = AtomicBool::new(false);
    let mut sent = 0_u32;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            work();
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            rings.send(&sent.to_le_bytes().repeat(20));
            assert_eq!(rings.receive(), sent.to_le_bytes().repeat(20));
            sent += 1;
        }
    });
    assert!(sent > 0);
}

/// Memory is plugged in and pulled out while packets go out and come back.
#[test]
fn regions_that_come_and_go_under_running_rings_lose_nothing() {
    let _alone = alone();
    let bed = Bed::new(1);
    let Peer { mut session, mut rings } = Peer::connect(&bed.socket(0));
    let region = |i: u64| Region {
        guest: (1 << 45) + (i << 32),
        user: (1 << 46) + (i << 32),
        size: 1 << 20,
        file: memfd(c"plugged", 1 << 20).unwrap(),
    };
    let regions: Vec<_> = (0..8).map(region).collect();
    echoed_meanwhile(&mut rings, || {
        for _ in 0..10 {
            for region in &regions {
                session.add_region(region).unwrap();
            }
            for region in regions.iter().rev() {
                session.remove_region(region).unwrap();
            }
        }
    });
}

/// `SEND_RARP` is the next packet from its port, whether rings run there or not.
#[test]
fn a_guest_that_has_moved_is_announced_to_its_peer() {
    let _alone = alone();
    let bed = Bed::new(2);
    let mut peer = Peer::connect(&bed.socket(1));
    peer.settle();
    let mut frontend = UnixStream::connect(bed.socket(0)).unwrap();
    for i in 0..200 {
        let mac = [2, 0, 0, 0, 0, i];
        let mut message = [19_u32, 1, 8].map(u32::to_ne_bytes).concat();
        message.extend(mac);
        message.extend([0; 2]);
        frontend.write_all(&message).unwrap();
        assert_eq!(peer.receive(), wire::rarp(mac));
    }
    let port = &bed.counters().ports[0];
    assert_eq!((port.rx.packets, port.rx.bytes), (200, 200 * 60));
    assert!(port.refused.is_empty());
}

/// What others send to a guest while its rings are changed is lost, and counted.
#[test]
fn what_comes_during_a_new_memory_table_is_delivered_or_counted() {
    let _alone = alone();
    let bed = Bed::new(2);
    let mut sender = Peer::connect(&bed.socket(0));
    let Peer { mut session, mut rings } = Peer::connect(&bed.socket(1));
    rings.settle();
    let stop = AtomicBool::new(false);
    let (mut sent, mut received) = (0, 0);
    std::thread::scope(|scope| {
        let ram = Arc::clone(rings.ram());
        scope.spawn(|| {
            let (session, ram) = (&mut session, ram);
            for _ in 0..100 {
                session.send_memory(&ram).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            sender.send(&[1; 100]);
            sent += 1;
            received += rings.discard();
        }
    });
    bed.expect("each packet is somewhere", |counters| {
        received += rings.discard();
        let drops = counters.ports[1].tx.drops;
        // A receiver that is slow has no buffers now and then.
        let lost = drops.of(Reason::NotConnected) + drops.of(Reason::NoBuffers);
        assert_eq!(lost, drops.total());
        received as u64 + lost == sent
    });
    assert!(received > 0);
}

#[test]
fn restarted_rings_are_as_new() {
    let _alone = alone();
    let bed = Bed::new(1);
    let mut guest = guest(&bed, &[0], GuestOptions::default());
    for round in 0..10 {
        assert_clean(&verify(&mut guest, 14, 64, 10), &format!("round {round}"));
        guest.restart().unwrap();
        guest.resend_memory().unwrap();
    }
    let port = bed.stop().0.ports.remove(0);
    assert_eq!(port.rx.drops.total() + port.tx.drops.total(), 0);
}

/// Guests come, work, and go in order or at once, one with other features than the last.
#[test]
fn guests_come_and_go() {
    let _alone = alone();
    let bed = Bed::new(2);
    let mut moved = 0;
    for round in 0..30_u16 {
        let options = GuestOptions {
            queue_size: 2 << (round % 9),
            mergeable: round % 2 == 0,
            version_1: round % 3 == 0,
            event_idx: round % 5 < 2,
            interrupts: round % 7 < 3,
            max_size: 600,
            ..GuestOptions::default()
        };
        let mut guest = guest(&bed, &[0, 1], options);
        let report = verify(&mut guest, 14, 64, 10);
        assert_clean(&report, &format!("round {round}"));
        moved += report.tx_packets;
        match round % 3 {
            0 => drop(guest.stop().unwrap()),
            1 => {}
            // In the middle of a burst, its rings full.
            _ => moved += guest.txonly(64, SOME, &GO_ON).unwrap().tx_packets,
        }
    }
    let bridge = bed.stop().0;
    assert_eq!(bridge.ports.iter().map(|p| p.rx.packets).sum::<u64>(), moved);
    for port in &bridge.ports {
        assert_eq!(port.rx.drops.total(), 0, "{port:?}");
        // A guest that only sends does not make room.
        assert_eq!(port.tx.drops.total(), port.tx.drops.of(Reason::NoBuffers), "{port:?}");
    }
}
