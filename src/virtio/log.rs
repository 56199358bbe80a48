//! What a ring writes to the guest's memory, entered in the frontend's dirty log.
//!
//! Promises: a page is marked after it was written, payload and used entries before the index
//! that publishes them, the index itself before the guest is signalled; so whatever was written
//! is marked once a ring has stopped. Costs a ring that is not logged one look a burst. Called by
//! `ring` and `enqueue`; never writes to the guest's memory.

use super::ring::{RingSetup, SplitRing};
use crate::memory::{DirtyLog, GuestMemory, WayBack};
use crate::packet::Segment;
use std::sync::Arc;

/// Offsets in the used ring (virtio 1.2, 2.7.8), in bytes.
const FLAGS: u64 = 0;
const IDX: u64 = 2;
const ENTRIES: u64 = 4;
const ENTRY: u64 = 8;

/// The log of one ring.
pub(super) struct RingLog {
    log: Arc<DirtyLog>,
    way_back: WayBack,
    /// The used ring's address in the log's terms, if it is to be logged.
    used: Option<u64>,
    size: u16,
    event_idx: bool,
}

impl RingLog {
    /// The log of the ring that is about to start, if it has one. The setup keeps none.
    pub fn take(
        setup: &mut RingSetup,
        memory: &GuestMemory,
        event_idx: bool,
    ) -> Option<Box<RingLog>> {
        let log = setup.log.take()?;
        let (used, size) = (setup.used_logged_at, setup.size);
        Some(Box::new(RingLog { log, way_back: memory.way_back(), used, size, event_idx }))
    }

    /// `len` bytes from `offset` of the used ring were written.
    fn used(&self, offset: u64, len: u64) {
        if let Some(at) = self.used.and_then(|used| used.checked_add(offset)) {
            self.log.mark(at, len);
        }
    }

    /// The used entries `from` up to `to` (free running) were written.
    fn entries(&self, from: u16, to: u16) {
        let (n, at) = (to.wrapping_sub(from), from & (self.size - 1));
        let first = n.min(self.size - at);
        self.used(ENTRIES + ENTRY * u64::from(at), ENTRY * u64::from(first));
        self.used(ENTRIES, ENTRY * u64::from(n - first));
    }

    /// The guest was asked for kicks.
    pub fn armed(&self) {
        if self.event_idx {
            self.used(ENTRIES + ENTRY * u64::from(self.size), 2);
        } else {
            self.used(FLAGS, 2);
        }
    }

    /// It was asked for none: with `EVENT_IDX` by writing nothing.
    pub fn disarmed(&self) {
        if !self.event_idx {
            self.used(FLAGS, 2);
        }
    }

    /// The first `len` bytes of `pieces` were written.
    pub fn written(&self, pieces: &[Segment], len: u64) {
        let mut left = len;
        for piece in pieces {
            let here = left.min(piece.len.into());
            // A piece lies in one region.
            if let Some(addr) = self.way_back.guest(piece.ptr) {
                self.log.mark(addr, here);
            }
            left -= here;
            if left == 0 {
                return;
            }
        }
    }
}

impl SplitRing {
    /// Make the used entries since `from` visible.
    #[inline]
    pub(super) fn publish_used(&self, from: u16) {
        match &self.log {
            None => self.device.publish_used_idx(self.next_used),
            Some(log) => self.publish_logged(log, from),
        }
    }

    #[cold]
    fn publish_logged(&self, log: &RingLog, from: u16) {
        log.entries(from, self.next_used);
        self.device.publish_used_idx(self.next_used);
        log.used(IDX, 2);
    }
}
