//! Nobody polls: the worker sleeps, the guest sleeps, and no wake-up is lost.

use super::common::bridge::{Bed, LIMIT, Peer, alone};
use super::{GO_ON, assert_clean, guest, verify};
use ringbridge::config::ForwardMode;
use ringbridge::frontend::{GuestOptions, RawRing};
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

/// Ask for a packet and wait for it, again and again, each time as near as can be to the moment
/// when the worker arms and falls asleep: a little earlier if the last one found it asleep, else
/// a little later. `ask` says whether it had to kick; a packet is looked for only if the device
/// signals.
fn at_the_moment_of_falling_asleep(
    event_idx: bool,
    peer: &mut Peer,
    mut ask: impl FnMut(&mut Peer, u16) -> bool,
    mut check: impl FnMut(&mut Peer, u16),
) {
    let rx = Driver::new(peer.rx.words(), event_idx);
    let calls = Epoll::new().unwrap();
    let call = peer.rx.events().call.as_raw_fd();
    calls.ctl(ControlOperation::Add, call, EpollEvent::new(EventSet::IN, 0)).unwrap();
    let (mut kicks, mut pause) = (0, 100_000);
    for i in 0..2000 {
        let next = peer.rx.used_idx();
        peer.rx.take_call();
        rx.arm(next);
        assert_eq!(rx.recheck_used(), next);
        if ask(peer, i) {
            kicks += 1;
            pause = pause.max(STEP) - STEP;
        } else {
            pause += STEP;
        }
        while !peer.rx.take_call() {
            let signalled = calls.wait(LIMIT.as_millis() as i32, &mut [EpollEvent::default()]);
            assert_eq!(signalled.unwrap(), 1, "packet {i}: no signal, event_idx {event_idx}");
        }
        assert_eq!(peer.rx.used_idx(), next.wrapping_add(1));
        check(peer, i);
        rx.disarm();
        let until = Instant::now() + Duration::from_nanos(pause + u64::from(i % 8) * STEP / 8);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
    assert!(kicks > 10, "the worker never slept");
}

/// Kick if the device asks for it, after the chain at `idx` was published.
fn kick_if_wanted(ring: &RawRing, event_idx: bool, idx: u16) -> bool {
    let driver = Driver::new(ring.words(), event_idx);
    Driver::fence_before_kick_check();
    let wanted = driver.wants_kick(idx, idx.wrapping_add(1));
    if wanted {
        ring.kick();
    }
    wanted
}

#[test]
fn a_packet_comes_while_the_worker_falls_asleep() {
    let _alone = alone();
    for event_idx in [false, true] {
        let bed = Bed::new(1);
        let options = GuestOptions { event_idx, ..GuestOptions::default() };
        let mut peer = Peer::with(&bed.socket(0), options);
        let ask = |peer: &mut Peer, i| {
            peer.post(&[i as u8; 60]);
            kick_if_wanted(&peer.tx, event_idx, i)
        };
        at_the_moment_of_falling_asleep(event_idx, &mut peer, ask, |peer, i| {
            assert_eq!(peer.receive(), [i as u8; 60]);
        });
    }
}

/// A generator's guest has no room, and has some again.
#[test]
fn room_comes_while_the_worker_falls_asleep() {
    let _alone = alone();
    for event_idx in [false, true] {
        let bed = Bed::with(1, |config, _| config.forward = ForwardMode::TxOnly);
        let options = GuestOptions { event_idx, ..GuestOptions::default() };
        let mut peer = Peer::with(&bed.socket(0), options);
        assert!(peer.rx.wait_used(256, LIMIT));
        let ask = |peer: &mut Peer, i: u16| {
            peer.repost();
            kick_if_wanted(&peer.rx, event_idx, 256 + i)
        };
        at_the_moment_of_falling_asleep(event_idx, &mut peer, ask, |_, _| ());
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
