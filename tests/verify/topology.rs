//! Ports, guests, queues and workers in every combination that packets meet.

use super::common::bridge::{Bed, LIMIT, alone, vhost};
use super::{assert_clean, assert_counted, guest, verify};
use ringbridge::config::PollMode;
use ringbridge::frontend::{Guest, GuestOptions, Report};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// A guest that sends on what it receives, until it is told to stop.
struct Relay {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Report>,
}

impl Relay {
    fn start(mut guest: Guest) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let size = guest.options().max_size;
        let thread = thread::spawn(move || guest.io(size, 0, Some(LIMIT), &flag).unwrap());
        Relay { stop, thread }
    }

    fn finish(self) -> Report {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn options(interrupts: bool) -> GuestOptions {
    GuestOptions { event_idx: interrupts, interrupts, ..GuestOptions::default() }
}

#[test]
fn two_ports_of_one_guest() {
    let _alone = alone();
    for shared_memory in [false, true] {
        for workers in [1, 2] {
            let bed = Bed::with(2, |config, _| config.workers = vec![None; workers]);
            let options = GuestOptions { shared_memory, ..GuestOptions::default() };
            let mut guest = guest(&bed, &[0, 1], options);
            let report = verify(&mut guest, 14, 256, 150);
            let what = format!("{workers} workers");
            assert_clean(&report, &what);
            drop(guest);
            assert_counted(&bed.stop().0, &report, 0, 1, &what);
        }
    }
}

#[test]
fn two_guests_of_different_kinds() {
    let _alone = alone();
    for (interrupts, poll) in
        [(false, PollMode::Adaptive), (true, PollMode::Adaptive), (true, PollMode::Busy)]
    {
        let bed = Bed::with(2, |config, _| config.poll = poll);
        let relay = GuestOptions { mergeable: false, version_1: false, ..options(interrupts) };
        let relay = Relay::start(guest(&bed, &[1], relay));
        let mut sender = guest(&bed, &[0], options(interrupts));
        let report = verify(&mut sender, 14, 64, 300);
        let relayed = relay.finish();
        let what = format!("interrupts {interrupts}, {poll:?}");
        assert_clean(&report, &what);
        assert_clean(&relayed, &what);
        drop(sender);
        let bridge = bed.stop().0;
        assert_counted(&bridge, &report, 0, 0, &what);
        assert_counted(&bridge, &relayed, 1, 1, &what);
        assert_eq!(report.rx_packets, relayed.rx_packets, "{what}");
    }
}

#[test]
fn several_queue_pairs_keep_each_flow_in_order() {
    let _alone = alone();
    for pairs in [2, 4] {
        for workers in [1, 2] {
            let bed = Bed::with(2, |config, dir| {
                config.workers = vec![None; workers];
                config.ports = (0..2).map(|i| vhost(&dir.path(&i.to_string()), pairs)).collect();
            });
            let options = GuestOptions { queue_pairs: pairs, ..options(workers == 2) };
            let mut guest = guest(&bed, &[0, 1], options);
            let report = verify(&mut guest, 42, 64, 150);
            let what = format!("{pairs} pairs, {workers} workers");
            assert_clean(&report, &what);
            drop(guest);
            assert_counted(&bed.stop().0, &report, 0, 1, &what);
        }
    }
}

/// A port offers more queue pairs than its guest uses.
#[test]
fn a_guest_may_use_fewer_queues() {
    let _alone = alone();
    let bed = Bed::with(1, |config, dir| config.ports = vec![vhost(&dir.path("0"), 8)]);
    for queue_pairs in [1, 3] {
        let before = bed.counters();
        let options = GuestOptions { queue_pairs, ..options(true) };
        let mut guest = guest(&bed, &[0], options);
        let report = verify(&mut guest, 42, 64, 100);
        assert_clean(&report, &format!("{queue_pairs} of 8"));
        let moved = bed.counters().ports[0].rx.packets - before.ports[0].rx.packets;
        assert_eq!(moved, report.tx_packets);
    }
}

#[test]
fn four_ports_two_workers_two_guests_at_once() {
    let _alone = alone();
    for workers in [2, 3, 4] {
        let bed = Bed::with(4, |config, _| config.workers = vec![None; workers]);
        let mut one = guest(&bed, &[0, 1], options(true));
        let mut two = guest(&bed, &[3, 2], options(true));
        let other = thread::spawn(move || verify(&mut two, 14, 128, 200));
        let first = verify(&mut one, 14, 128, 200);
        let second = other.join().unwrap();
        let what = format!("{workers} workers");
        assert_clean(&first, &what);
        assert_clean(&second, &what);
        drop(one);
        let bridge = bed.stop().0;
        assert_counted(&bridge, &first, 0, 1, &what);
        assert_counted(&bridge, &second, 3, 2, &what);
    }
}
