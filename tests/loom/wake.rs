//! One side publishes and signals if it was asked to, the other arms, rechecks and sleeps. A
//! signal that is lost leaves the sleeper asleep, which loom reports as a deadlock.

use crate::doorbell::Doorbells;
use crate::order::{Device, Driver};
use crate::ring::Ring;
use loom::thread;

/// A driver that takes `count` used entries and sleeps when there are none.
fn drive(ring: Ring, call: &Doorbells, count: u16) {
    let driver = ring.driver();
    let mut next = 0;
    while next < count {
        let idx = driver.load_used_idx();
        if idx != next {
            ring.check_used(next, idx);
            next = idx;
            continue;
        }
        driver.arm(next);
        if driver.recheck_used() == next {
            call.sleep();
        }
        driver.disarm();
    }
}

/// Device: ask for a kick. True if the ring is still empty: sleeping is right.
pub fn arm_and_recheck(ring: Ring, next: u16) -> bool {
    ring.device().arm(next);
    ring.device().recheck_after_arming() == next
}

/// A worker that takes `count` chains of each ring and sleeps when there are none.
fn work(rings: &[Ring], kicks: &Doorbells, count: u16) {
    let mut next = vec![0; rings.len()];
    while next.iter().any(|&n| n < count) {
        let mut moved = false;
        for (ring, next) in rings.iter().zip(&mut next) {
            let idx = ring.device().load_avail_idx();
            ring.check_available(*next, idx);
            moved |= idx != *next;
            *next = idx;
        }
        if !moved {
            if rings.iter().zip(&next).all(|(&ring, &next)| arm_and_recheck(ring, next)) {
                kicks.sleep();
            }
            for ring in rings {
                ring.device().disarm();
            }
        }
    }
}

/// Two used entries, each with its own notify check, to a driver that sleeps.
pub fn interrupt<const EVENT_IDX: bool>() {
    let ring = Ring::new(0, EVENT_IDX);
    let call = Doorbells::new();
    let bell = call.clone();
    let device = thread::spawn(move || {
        for i in 0..2 {
            ring.make_used(i);
            Device::fence_before_notify_check();
            if ring.device().wants_interrupt(i, i + 1) {
                bell.ring(0);
            }
        }
    });
    drive(ring, &call, 2);
    device.join().unwrap();
}

/// One used entry on each of two rings, one fence, two checks; a driver for each ring.
pub fn interrupts_of_two_rings<const EVENT_IDX: bool>() {
    let rings = [Ring::new(0, EVENT_IDX), Ring::new(1, EVENT_IDX)];
    let calls = [Doorbells::new(), Doorbells::new()];
    let call = calls[1].clone();
    let driver = thread::spawn(move || drive(rings[1], &call, 1));
    let bells = calls.clone();
    let device = thread::spawn(move || {
        for ring in rings {
            ring.make_used(0);
        }
        Device::fence_before_notify_check();
        for (ring, bell) in rings.iter().zip(&bells) {
            if ring.device().wants_interrupt(0, 1) {
                bell.ring(0);
            }
        }
    });
    drive(rings[0], &calls[0], 1);
    driver.join().unwrap();
    device.join().unwrap();
}

/// `count` chains, each with its own kick check.
pub fn submit(ring: Ring, kick: &Doorbells, n: usize, count: u16) {
    for i in 0..count {
        ring.make_available(i);
        Driver::fence_before_kick_check();
        if ring.driver().wants_kick(i, i + 1) {
            kick.ring(n);
        }
    }
}

/// Two chains to a worker that sleeps.
pub fn kick<const EVENT_IDX: bool>() {
    let ring = Ring::new(0, EVENT_IDX);
    let kicks = Doorbells::new();
    let bell = kicks.clone();
    let driver = thread::spawn(move || submit(ring, &bell, 0, 2));
    work(&[ring], &kicks, 2);
    driver.join().unwrap();
}

/// One chain on each of two rings, from two guests, to one worker that sleeps.
pub fn kicks_of_two_rings<const EVENT_IDX: bool>() {
    let rings = [Ring::new(0, EVENT_IDX), Ring::new(1, EVENT_IDX)];
    let kicks = Doorbells::new();
    let drivers = [0, 1].map(|n| {
        let (ring, bell) = (rings[n], kicks.clone());
        thread::spawn(move || submit(ring, &bell, n, 1))
    });
    work(&rings, &kicks, 1);
    for driver in drivers {
        driver.join().unwrap();
    }
}
