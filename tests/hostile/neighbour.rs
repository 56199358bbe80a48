//! The guest on the ports beside the attacker's: honest, and watching.

use super::common::bridge::{Bed, LIMIT};
use ringbridge::frontend::{Guest, GuestOptions, Link, Report, Sizes, VerifyPlan};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Ports of the neighbour; the attacker has 0 and 1.
const PORTS: [usize; 2] = [2, 3];

/// A bridge of four ports, all served by one worker, and the neighbour's stream through it.
pub struct Street {
    pub bed: Bed,
    stop: Arc<AtomicBool>,
    stream: JoinHandle<Report>,
}

impl Street {
    pub fn new() -> Self {
        let bed = Bed::new(4);
        let options = GuestOptions {
            event_idx: true,
            interrupts: true,
            buffer_size: Some(700),
            ..GuestOptions::default()
        };
        let link = Link::to(PORTS.map(|port| bed.socket(port)));
        let mut guest = Guest::connect(&Link { options, ..link }).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let plan = VerifyPlan { sizes: Sizes { min: 14, max: 1518 }, in_flight: 32 };
        let stream = thread::spawn(move || guest.verify(plan, Some(6 * LIMIT), &flag).unwrap());
        let street = Street { bed, stop, stream };
        street.expect_service();
        street
    }

    /// The neighbour's packets go on.
    pub fn expect_service(&self) {
        let before = self.bed.counters().ports[PORTS[1]].tx.packets;
        self.bed.expect("the neighbour is served", |s| s.ports[PORTS[1]].tx.packets > before + 50);
    }

    /// The neighbour has lost nothing, to the end.
    pub fn finish(self) {
        self.expect_service();
        self.stop.store(true, Ordering::Relaxed);
        let report = self.stream.join().unwrap();
        let losses = [report.lost, report.corrupt, report.duplicated, report.lost_interrupts];
        assert_eq!(losses, [0; 4], "lost, corrupt, duplicated, interrupts lost");
        let bridge = self.bed.stop().0;
        for port in PORTS.map(|port| &bridge.ports[port]) {
            assert_eq!(port.rx.drops.total() + port.tx.drops.total(), 0, "{port:?}");
        }
        assert_eq!(bridge.ports[PORTS[1]].tx.packets, report.rx_packets);
    }
}
