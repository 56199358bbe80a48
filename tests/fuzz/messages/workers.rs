//! Stands for the workers: runs the rings of a session on the session's own thread, whenever the
//! control plane asks for something.

use crate::fds::Fds;
use ringbridge::counters::QueueCounters;
use ringbridge::packet::{ALL, Packets};
use ringbridge::vhost_user::{RingLost, Rings};
use ringbridge::virtio::SplitRing;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

pub struct Workers<'a> {
    fds: &'a Fds,
    running: RefCell<BTreeMap<u16, Box<SplitRing>>>,
    packets: RefCell<Packets>,
    counters: QueueCounters,
    /// What the guest writes, one a turn: where, and what.
    scribbles: Vec<(u16, [u8; 8])>,
    next: Cell<usize>,
}

impl<'a> Workers<'a> {
    pub fn new(fds: &'a Fds, scribbles: Vec<(u16, [u8; 8])>) -> Self {
        Workers {
            fds,
            running: RefCell::default(),
            packets: RefCell::default(),
            counters: QueueCounters::default(),
            scribbles,
            next: Cell::new(0),
        }
    }

    /// Rings that were not asked back.
    pub fn left(&self) -> usize {
        self.running.borrow().len()
    }

    /// Every transmit ring once, to every receive ring; as a worker's turn.
    fn turn(&self) {
        if let Some((at, bytes)) = self.scribbles.get(self.next.get()) {
            self.next.set(self.next.get() + 1);
            self.fds.write((*at).into(), bytes);
        }
        let (mut rings, mut packets) = (self.running.borrow_mut(), self.packets.borrow_mut());
        let odd: Vec<u16> = rings.keys().copied().filter(|index| index % 2 == 1).collect();
        for index in odd {
            if let Some(ring) = rings.get_mut(&index) {
                // SAFETY: the packets are cleared before the ring goes.
                unsafe { ring.receive(&mut packets, 32, &self.counters) };
            }
            let n = packets.len();
            for ring in rings.iter_mut().filter(|(index, ring)| *index % 2 == 0 && ring.enabled()) {
                ring.1.send(&packets, &ALL[..n], &self.counters);
            }
            packets.clear();
            if let Some(ring) = rings.get_mut(&index) {
                ring.complete_receive();
                ring.kicked();
            }
        }
        for ring in rings.values_mut() {
            ring.notify();
            ring.arm();
            ring.disarm();
        }
    }
}

impl Rings for Workers<'_> {
    fn start(&self, index: u16, ring: Box<SplitRing>) {
        let before = self.running.borrow_mut().insert(index, ring);
        assert!(before.is_none(), "ring {index} was started twice");
        self.turn();
    }

    fn stop(&self, index: u16) -> Result<Box<SplitRing>, RingLost> {
        self.turn();
        let ring = self.running.borrow_mut().remove(&index);
        Ok(ring.unwrap_or_else(|| panic!("ring {index} was not started")))
    }

    fn inject(&self, frame: Arc<[u8]>) -> Result<(), RingLost> {
        assert!(frame.len() >= 14);
        self.turn();
        Ok(())
    }
}
