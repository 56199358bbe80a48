//! Nobody polls: the worker sleeps, the guest sleeps, and no wake-up is lost.

use super::common::bridge::{Bed, LIMIT, Peer, alone};
use super::{GO_ON, assert_clean, guest, verify};
use ringbridge::config::ForwardMode;
use ringbridge::frontend::GuestOptions;
use ringbridge::virtio::order::Driver;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

/// Nanoseconds.
const STEP: u64 = 2000;

/// A guest that works a moment and is silent for longer than a worker spins.
#[test]
fn bursts_with_silence_between_them() {
    let _alone = alone();
    for event_idx in [false, true] {
        let bed = Bed::new(1);
        let options = GuestOptions { event_idx, interrupts: true, ..GuestOptions::default() };
        let mut guest = guest(&bed, &[0], options);
        let before = guest.kicks();
        for in_flight in [1, 2, 64].into_iter().cycle().take(30) {
            assert_clean(&verify(&mut guest, 14, in_flight, 1), "a short burst");
        }
        // Each burst found the worker asleep.
        assert!(guest.kicks() - before >= 30);
    }
}

/// Packets one by one, each as near as can be to the moment when the worker arms and falls
/// asleep: a little earlier if the last one found it asleep, else a little later. Kicked only if
/// the device asks for it, looked for only if it signals.
#[test]
fn packets_at_the_moment_of_falling_asleep() {
    let _alone = alone();
    for event_idx in [false, true] {
        let bed = Bed::new(1);
        let options = GuestOptions { event_idx, ..GuestOptions::default() };
        let mut peer = Peer::with(&bed.socket(0), options);
        let [rx, tx] = [&peer.rx, &peer.tx].map(|ring| Driver::new(ring.words(), event_idx));
        let calls = Epoll::new().unwrap();
        let call = peer.rx.events().call.as_raw_fd();
        calls.ctl(ControlOperation::Add, call, EpollEvent::new(EventSet::IN, 0)).unwrap();
        let mut kicks = 0;
        let mut pause = 100_000;
        for i in 0..2000_u16 {
            peer.rx.take_call();
            rx.arm(peer.received());
            assert_eq!(rx.recheck_used(), peer.received());
            peer.post(&[i as u8; 60]);
            Driver::fence_before_kick_check();
            if tx.wants_kick(i, i.wrapping_add(1)) {
                peer.tx.kick();
                kicks += 1;
                pause = pause.max(STEP) - STEP;
            } else {
                pause += STEP;
            }
            while !peer.rx.take_call() {
                let signalled = calls.wait(LIMIT.as_millis() as i32, &mut [EpollEvent::default()]);
                assert_eq!(signalled.unwrap(), 1, "packet {i}: no signal, event_idx {event_idx}");
            }
            assert_eq!(peer.receive(), [i as u8; 60]);
            rx.disarm();
            let until = Instant::now() + Duration::from_nanos(pause + u64::from(i % 8) * STEP / 8);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
        assert!(kicks > 10, "the worker never slept");
    }
}

/// The worker sleeps while the guest has no buffers, and wakes when it has some again.
#[test]
fn a_generator_wakes_when_there_is_room() {
    let _alone = alone();
    for event_idx in [false, true] {
        for queue_size in [2, 256] {
            let bed = Bed::with(1, |config, _| config.forward = ForwardMode::TxOnly);
            let options =
                GuestOptions { event_idx, interrupts: true, queue_size, ..GuestOptions::default() };
            let mut guest = guest(&bed, &[0], options);
            for _ in 0..20 {
                let mut received = 0;
                let start = Instant::now();
                // More than the ring held: the worker has noticed.
                while received <= u64::from(queue_size) {
                    assert!(start.elapsed() < LIMIT, "it sleeps on, {received} packets");
                    let moment = Some(Duration::from_millis(2));
                    let report = guest.rxonly(64, moment, &GO_ON).unwrap();
                    assert_eq!(report.lost_interrupts, 0);
                    received += report.rx_packets;
                }
                std::thread::sleep(Duration::from_millis(3));
            }
        }
    }
}
