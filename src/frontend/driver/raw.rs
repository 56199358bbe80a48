//! A virtqueue whose driver may break every rule: for tests that attack a backend.
//!
//! Promises: what the caller says is written as it is, hostile or not; nothing it says leads
//! outside the guest's memory on our side.

use super::area::{RingArea, RingPlace, desc_rest};
use crate::frontend::ram::Ram;
use crate::frontend::session::RingEvents;
use crate::virtio::order::{Driver, RingWords};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// The chain goes on at `next` (virtio 1.2, 2.7.5).
pub const DESC_NEXT: u16 = 1;
/// The device writes here.
pub const DESC_WRITE: u16 = 2;
/// An indirect table.
pub const DESC_INDIRECT: u16 = 4;

/// A descriptor, honest or not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RawDesc {
    /// Guest-physical address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// `DESC_*`.
    pub flags: u16,
    /// Index of the next one.
    pub next: u16,
}

impl RawDesc {
    /// As it lies in memory: what an indirect table is made of.
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..].copy_from_slice(&desc_rest(self.len, self.flags, self.next).to_le_bytes());
        bytes
    }
}

/// A virtqueue without rules.
pub struct RawRing {
    area: RingArea,
    kick: EventFd,
    call: EventFd,
    avail_idx: u16,
}

impl RawRing {
    /// The ring at `place`, all zero.
    ///
    /// # Errors
    /// The eventfds'.
    pub fn new(ram: Arc<Ram>, place: RingPlace) -> io::Result<Self> {
        let area = RingArea::new(ram, place);
        area.clear(0);
        let (kick, call) = (EventFd::new(EFD_NONBLOCK)?, EventFd::new(EFD_NONBLOCK)?);
        Ok(RawRing { area, kick, call, avail_idx: 0 })
    }

    /// The ring.
    pub fn area(&self) -> &RingArea {
        &self.area
    }

    /// Its eventfds.
    pub fn events(&self) -> RingEvents<'_> {
        RingEvents { kick: &self.kick, call: &self.call }
    }

    /// All zero, with all indices at `first`.
    pub fn reset(&mut self, first: u16) {
        self.area.clear(first);
        self.avail_idx = first;
    }

    /// Write descriptor `i`.
    pub fn set_desc(&mut self, i: u16, desc: RawDesc) {
        self.area.fields().store_desc_addr(i, desc.addr);
        self.area.fields().store_desc_rest(i, desc_rest(desc.len, desc.flags, desc.next));
    }

    /// Write `descs` to the table from `first` on, linked as they say themselves, put `first`
    /// into the next entry of the avail ring, and publish that.
    pub fn post(&mut self, first: u16, descs: &[RawDesc]) {
        for (i, desc) in descs.iter().enumerate() {
            self.set_desc(first.wrapping_add(i as u16), *desc);
        }
        self.post_head(first);
    }

    /// Put any number into the next entry of the avail ring, and publish that.
    pub fn post_head(&mut self, head: u16) {
        self.area.fields().store_avail(self.avail_idx, head);
        self.set_avail_idx(self.avail_idx.wrapping_add(1));
    }

    /// Publish any avail index.
    pub fn set_avail_idx(&mut self, idx: u16) {
        self.avail_idx = idx;
        Driver::new(self.area.words(), false).publish_avail_idx(idx);
    }

    /// The words both sides share, for tests of the ordering; not to be used longer than the
    /// guest lives.
    pub fn words(&self) -> RingWords {
        self.area.words()
    }

    /// Write `avail.flags`.
    pub fn set_avail_flags(&mut self, flags: u16) {
        self.area.words().avail_flags.store(flags);
    }

    /// Write `used_event`.
    pub fn set_used_event(&mut self, event: u16) {
        self.area.words().used_event.store(event);
    }

    /// Read `used.flags`.
    pub fn used_flags(&self) -> u16 {
        self.area.words().used_flags.load()
    }

    /// Read `avail_event`.
    pub fn avail_event(&self) -> u16 {
        self.area.words().avail_event.load()
    }

    /// Kick.
    pub fn kick(&self) {
        let _ = self.kick.write(1);
    }

    /// Was the call eventfd signalled? Takes the signal.
    pub fn take_call(&self) -> bool {
        self.call.read().is_ok()
    }

    /// `used.idx`; entries before it may be read.
    pub fn used_idx(&self) -> u16 {
        Driver::new(self.area.words(), false).load_used_idx()
    }

    /// Used entry at index `at`: id and length.
    pub fn used(&self, at: u16) -> (u32, u32) {
        self.area.fields().load_used(at)
    }

    /// Wait until `used.idx` is `idx`. False if it is not within `limit`.
    pub fn wait_used(&self, idx: u16, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.used_idx() != idx {
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(Duration::from_micros(200));
        }
        true
    }
}
