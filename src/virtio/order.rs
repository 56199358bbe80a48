//! The ordering protocol of one split virtqueue, both sides of it.
//!
//! Promises: every ordered access to the six shared 16-bit words of a ring (virtio 1.2,
//! sections 2.7.6 to 2.7.10) is here, each named for its step and naming what it pairs with.
//! `SplitRing` is the user of [`Device`], the frontend driver the user of [`Driver`]; the loom
//! models in tests/loom compile this very file. It never touches descriptors or payload.

use crate::arch::{Step, Word16, full_fence};

/// `avail.flags`: the driver wants no interrupts (virtio 1.2, 2.7.6).
const AVAIL_F_NO_INTERRUPT: u16 = 1;
/// `used.flags`: the device wants no kicks (virtio 1.2, 2.7.8).
const USED_F_NO_NOTIFY: u16 = 1;

/// The six words both sides share.
#[derive(Clone, Copy)]
pub struct RingWords {
    /// `avail.flags`, written by the driver.
    pub avail_flags: Word16,
    /// `avail.idx`, written by the driver.
    pub avail_idx: Word16,
    /// `used_event`, behind the avail ring, written by the driver.
    pub used_event: Word16,
    /// `used.flags`, written by the device.
    pub used_flags: Word16,
    /// `used.idx`, written by the device.
    pub used_idx: Word16,
    /// `avail_event`, behind the used ring, written by the device.
    pub avail_event: Word16,
}

/// Has `event` been passed by moving an index from `old` to `new`? (virtio 1.2, 2.7.7.1)
#[inline]
fn event_passed(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// The device's half of the protocol.
#[derive(Clone, Copy)]
pub struct Device {
    words: RingWords,
    event_idx: bool,
}

impl Device {
    /// `event_idx`: `VIRTIO_F_EVENT_IDX` was negotiated.
    pub fn new(words: RingWords, event_idx: bool) -> Self {
        Device { words, event_idx }
    }

    /// Acquire: what the driver wrote before it published this index (descriptors, avail
    /// entries, buffers) is visible to every later read. Pairs with
    /// [`Driver::publish_avail_idx`].
    #[inline]
    pub fn load_avail_idx(&self) -> u16 {
        self.words.avail_idx.load_acquire(Step::LoadAvailIdx)
    }

    /// Release: used entries and buffer contents are visible before the index. Pairs with
    /// [`Driver::load_used_idx`]. A plain store: the word is the device's alone.
    #[inline]
    pub fn publish_used_idx(&self, idx: u16) {
        self.words.used_idx.store_release(idx, Step::PublishUsedIdx);
    }

    /// Full fence between the store of `used.idx` and the load in [`Device::wants_interrupt`].
    /// One fence serves all rings published before it. Pairs with [`Driver::recheck_used`].
    #[inline]
    pub fn fence_before_notify_check() {
        full_fence(Step::BeforeNotifyCheck);
    }

    /// Does the driver want an interrupt for the used entries from `old` up to `new`?
    /// [`Device::fence_before_notify_check`] must lie between the publication and this.
    #[inline]
    pub fn wants_interrupt(&self, old: u16, new: u16) -> bool {
        if self.event_idx {
            event_passed(self.words.used_event.load(), old, new)
        } else {
            self.words.avail_flags.load() & AVAIL_F_NO_INTERRUPT == 0
        }
    }

    /// Ask for a kick when the driver publishes the chain at `next_avail`. The answer is only
    /// good after [`Device::recheck_after_arming`].
    pub fn arm(&self, next_avail: u16) {
        if self.event_idx {
            self.words.avail_event.store(next_avail);
        } else {
            self.words.used_flags.store(0);
        }
    }

    /// Full fence, then `avail.idx` again: either this sees a chain published meanwhile, or its
    /// driver sees the request for a kick. Pairs with [`Driver::fence_before_kick_check`].
    pub fn recheck_after_arming(&self) -> u16 {
        full_fence(Step::RecheckAvail);
        self.load_avail_idx()
    }

    /// Ask for no more kicks. A hint without ordering: a late kick does no harm. With
    /// `EVENT_IDX` the stale `avail_event` is the hint and nothing is written.
    pub fn disarm(&self) {
        if !self.event_idx {
            self.words.used_flags.store(USED_F_NO_NOTIFY);
        }
    }
}

/// The driver's half of the protocol.
#[derive(Clone, Copy)]
pub struct Driver {
    words: RingWords,
    event_idx: bool,
}

impl Driver {
    /// `event_idx`: `VIRTIO_F_EVENT_IDX` was negotiated.
    pub fn new(words: RingWords, event_idx: bool) -> Self {
        Driver { words, event_idx }
    }

    /// Release: descriptors, avail entries and buffers are visible before the index. Pairs
    /// with [`Device::load_avail_idx`].
    #[inline]
    pub fn publish_avail_idx(&self, idx: u16) {
        self.words.avail_idx.store_release(idx, Step::PublishAvailIdx);
    }

    /// Acquire: used entries and received bytes are visible after this. Pairs with
    /// [`Device::publish_used_idx`].
    #[inline]
    pub fn load_used_idx(&self) -> u16 {
        self.words.used_idx.load_acquire(Step::LoadUsedIdx)
    }

    /// Full fence between the store of `avail.idx` and the load in [`Driver::wants_kick`].
    /// Pairs with [`Device::recheck_after_arming`].
    #[inline]
    pub fn fence_before_kick_check() {
        full_fence(Step::BeforeKickCheck);
    }

    /// Does the device want a kick for the chains from `old` up to `new`?
    #[inline]
    pub fn wants_kick(&self, old: u16, new: u16) -> bool {
        if self.event_idx {
            event_passed(self.words.avail_event.load(), old, new)
        } else {
            self.words.used_flags.load() & USED_F_NO_NOTIFY == 0
        }
    }

    /// Ask for an interrupt when the device publishes the entry at `next_used`.
    pub fn arm(&self, next_used: u16) {
        if self.event_idx {
            self.words.used_event.store(next_used);
        } else {
            self.words.avail_flags.store(0);
        }
    }

    /// Full fence, then `used.idx` again. Pairs with [`Device::fence_before_notify_check`].
    pub fn recheck_used(&self) -> u16 {
        full_fence(Step::RecheckUsed);
        self.load_used_idx()
    }

    /// Ask for no interrupts (a hint).
    pub fn disarm(&self) {
        if !self.event_idx {
            self.words.avail_flags.store(AVAIL_F_NO_INTERRUPT);
        }
    }
}
