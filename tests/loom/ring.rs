//! A ring of two entries in a model's memory, and what either side does with it.

use crate::arch::Word16;
use crate::order::{Device, Driver, RingWords};

/// Words of a ring: six shared ones, then descriptor, avail entry and used entry twice.
const WORDS: usize = 12;
const SIZE: u16 = 2;

/// What the chain with free-running index `i` holds: never zero, never the same twice.
fn content(i: u16) -> u16 {
    100 + i
}

/// One of a model's rings.
#[derive(Clone, Copy)]
pub struct Ring {
    base: usize,
    event_idx: bool,
}

impl Ring {
    /// Ring number `n`, on which neither side has asked for a signal. To be called by the
    /// model's first thread, before it starts others.
    pub fn new(n: usize, event_idx: bool) -> Self {
        let ring = Ring { base: n * WORDS, event_idx };
        ring.device().disarm();
        ring.driver().disarm();
        // With EVENT_IDX a stale event, one that no index in the model passes.
        ring.words().used_event.store(u16::MAX);
        ring.words().avail_event.store(u16::MAX);
        ring
    }

    fn word(self, i: usize) -> Word16 {
        Word16(self.base + i)
    }

    fn words(self) -> RingWords {
        RingWords {
            avail_flags: self.word(0),
            avail_idx: self.word(1),
            used_event: self.word(2),
            used_flags: self.word(3),
            used_idx: self.word(4),
            avail_event: self.word(5),
        }
    }

    fn entry(self, kind: usize, i: u16) -> Word16 {
        self.word(6 + 2 * kind + usize::from(i % SIZE))
    }

    /// The device's side.
    pub fn device(self) -> Device {
        Device::new(self.words(), self.event_idx)
    }

    /// The driver's side.
    pub fn driver(self) -> Driver {
        Driver::new(self.words(), self.event_idx)
    }

    /// Driver: write chain `i` and publish it.
    pub fn make_available(self, i: u16) {
        self.entry(0, i).store(content(i));
        self.entry(1, i).store(i);
        self.driver().publish_avail_idx(i + 1);
    }

    /// Device: read the chains from `from` up to `to`.
    pub fn check_available(self, from: u16, to: u16) {
        for i in from..to {
            assert_eq!(self.entry(1, i).load(), i, "stale avail entry");
            assert_eq!(self.entry(0, i).load(), content(i), "stale descriptor");
        }
    }

    /// Device: write used entry `i` and publish it.
    pub fn make_used(self, i: u16) {
        self.entry(2, i).store(content(i));
        self.device().publish_used_idx(i + 1);
    }

    /// Driver: read the used entries from `from` up to `to`.
    pub fn check_used(self, from: u16, to: u16) {
        for i in from..to {
            assert_eq!(self.entry(2, i).load(), content(i), "stale used entry");
        }
    }
}
