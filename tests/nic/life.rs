//! Interfaces that go down, vanish, come back; guests that do not take what comes.

use crate::common::bridge::{Bed, LIMIT, Peer, alone};
use crate::common::net::{in_new_network, ip, veth};
use crate::common::wait_until;
use crate::wire::{Wire, frame, guest_receives, is_ours};
use ringbridge::config::port;
use std::time::{Duration, Instant};

/// Wait until the bridge has noticed that its second port's interface is up, or is not.
fn expect_link(bed: &Bed, up: bool) {
    let is = || bed.bridge().ports()[1].status.link == up;
    assert!(wait_until(LIMIT, is), "link {up}: {:?}", bed.bridge().ports());
}

#[test]
fn an_interface_goes_down_vanishes_and_comes_back() {
    in_new_network(|| {
        let _alone = alone();
        veth("near", "far", 1518);
        let bed = Bed::with(1, |config, _| {
            config.ports.push(port::parse("af_packet:near").unwrap());
        });
        let mut guest = Peer::connect(&bed.socket(0));
        guest.settle();
        for round in 0..3 {
            expect_link(&bed, true);
            let far = Wire::on("far");
            far.send(&frame(round, &[], 100));
            assert_eq!(guest_receives(&mut guest), frame(round, &[], 100));
            ip("link set near down");
            expect_link(&bed, false);
            let lost = bed.counters().ports[1].tx.drops.total();
            guest.send(&frame(50, &[], 100));
            bed.expect("a loss", |now| now.ports[1].tx.drops.total() > lost);
            ip("link set near up");
            expect_link(&bed, true);
            guest.send(&frame(round, &[], 100));
            assert_eq!(far.receive(), frame(round, &[], 100));
            // Renamed is gone, and so is another one of that name.
            ip("link set near down");
            ip(if round == 0 { "link set near name away" } else { "link del near" });
            expect_link(&bed, false);
            if round == 0 {
                ip("link del away");
            }
            veth("near", "far", 1518);
        }
    });
}

#[test]
fn a_tap_is_deleted_under_load_and_made_again() {
    in_new_network(|| {
        let _alone = alone();
        let bed = Bed::with(1, |config, _| config.ports.push(port::parse("tap:tap0").unwrap()));
        let mut guest = Peer::connect(&bed.socket(0));
        guest.settle();
        for round in 0..3 {
            ip("link set tap0 up");
            expect_link(&bed, true);
            let tap = Wire::on("tap0");
            tap.send(&frame(round, &[], 100));
            assert_eq!(guest_receives(&mut guest), frame(round, &[], 100));
            let (deleted, end) = (Instant::now(), Duration::from_millis(300));
            let mut deleting = Some(());
            while deleted.elapsed() < end {
                guest.send(&frame(7, &[], 200));
                if deleted.elapsed() > end / 2 && deleting.take().is_some() {
                    ip("link del tap0");
                }
            }
            expect_link(&bed, false);
            ip("tuntap add tap0 mode tap");
        }
    });
}

/// Processor time of this process so far.
fn cpu() -> Duration {
    // SAFETY: an all-zero value may be overwritten.
    let used = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64)
    };
    time(used.ru_utime) + time(used.ru_stime)
}

/// A guest that gives no buffers back, before a wire that never rests.
#[test]
fn what_has_no_room_waits_and_costs_nothing() {
    for kind in ["tap:outside", "af_packet:near,blocks=4,block=64k"] {
        in_new_network(move || {
            let _alone = alone();
            if kind != "tap:outside" {
                veth("near", "outside", 1518);
            }
            let bed = Bed::with(1, |config, _| config.ports.push(port::parse(kind).unwrap()));
            ip("link set outside up");
            expect_link(&bed, true);
            let wire = Wire::on("outside");
            let mut guest = Peer::connect(&bed.socket(0));
            guest.settle();
            for i in 0..600 {
                wire.send(&frame(i, &[], 500));
            }
            // All its buffers are used, and the wire goes on.
            bed.expect("a full ring", |now| now.ports[0].tx.packets >= 256);
            std::thread::sleep(Duration::from_millis(50));
            let before = cpu();
            let end = Instant::now() + Duration::from_secs(1);
            let mut i = 600;
            while Instant::now() < end {
                wire.send(&frame(i, &[], 500));
                i += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            let spent = cpu().saturating_sub(before);
            assert!(spent < Duration::from_millis(300), "{spent:?} for nothing");
            // What waits comes at once when there is room, though nothing new arrives, in order.
            let mut last = None;
            let all = wait_until(LIMIT, || {
                while guest.has_frame() {
                    let frame = guest.take();
                    if !is_ours(&frame) {
                        continue;
                    }
                    let number = frame.get(24..28).map(<[u8]>::to_vec);
                    assert!(number > last, "{number:?} after {last:?}");
                    last = number;
                }
                let waiting = if kind == "tap:outside" { 400 } else { 300 };
                bed.counters().ports[0].tx.packets > 256 + waiting / 2
            });
            assert!(all, "{:?}", bed.counters().ports);
            assert_eq!(bed.counters().ports[0].tx.drops.total(), 0);
        });
    }
}
