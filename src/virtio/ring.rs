//! A split virtqueue's life: collected as a [`RingSetup`], started as a [`SplitRing`], stopped
//! into a setup again.
//!
//! Promises: [`SplitRing::start`] validates size, alignment and addresses once; a running ring
//! owns an `Arc<GuestMemory>`, so its pointers cannot outlive the mapping; whoever owns the
//! ring is alone with it. The control thread collects setups, a worker runs rings. Moving
//! packets is in `dequeue` and `enqueue`.

use crate::arch::{self, Word16};
use crate::journal::{Event, Journal};
use crate::memory::{DirtyLog, GuestMemory, Window};
use crate::offload::Able;
use crate::packet::MAX_PACKET;
use crate::sys::bell;
use crate::virtio::log::RingLog;
use crate::virtio::net;
use crate::virtio::order::{Device, RingWords};
use crate::wire;
use arrayvec::ArrayVec;
use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;
use virtio_bindings::virtio_net::{VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

/// Largest ring (virtio 1.2, 2.7).
pub const MAX_RING: u16 = 32768;

/// Where the frontend says a ring lies, in its own address space (vhost-user,
/// `VHOST_USER_SET_VRING_ADDR`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor table, 16-byte aligned.
    pub desc: u64,
    /// Avail ring, 2-byte aligned.
    pub avail: u64,
    /// Used ring, 4-byte aligned.
    pub used: u64,
}

/// All that is known of a ring while it does not run.
#[derive(Debug, Default)]
pub struct RingSetup {
    /// Entries: a power of two, 2 to 32768; 0 until it was set.
    pub size: u16,
    /// Set by `SET_VRING_ADDR`.
    pub addresses: Option<RingAddresses>,
    /// Index of the next chain to take.
    pub base: u16,
    /// The guest kicks here; without one the ring is polled.
    pub kick: Option<File>,
    /// We signal used buffers here.
    pub call: Option<File>,
    /// We signal a broken ring here.
    pub err: Option<File>,
    /// Enabled rings move packets; a started but disabled one is drained or left alone.
    pub enabled: bool,
    /// Where writes to the guest's memory are logged if `VHOST_F_LOG_ALL` is acknowledged. A ring
    /// that has been started gives none back, so that no old log stays mapped.
    pub log: Option<Arc<DirtyLog>>,
    /// The guest address that writes to the used ring are logged at, if they are to be.
    pub used_logged_at: Option<u64>,
    /// Bytes of a packet without its Ethernet header that the guest can take, if it was told.
    pub mtu: Option<u16>,
    /// Where it is told that the ring breaks.
    pub journal: Arc<Journal>,
    /// Index of the virtqueue, to be named there.
    pub index: u16,
}

/// Why a ring could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No size was set, or not a power of two from 2 to 32768.
    #[error("ring size {0} is not a power of two from 2 to 32768")]
    Size(u16),
    /// No addresses were set.
    #[error("the ring has no addresses")]
    NoAddresses,
    /// Misaligned.
    #[error("the {0} at {1:#x} is misaligned")]
    Misaligned(&'static str, u64),
    /// Not inside one region.
    #[error("the {0} at {1:#x} is outside the guest's memory")]
    Outside(&'static str, u64),
}

/// `VHOST_F_LOG_ALL`: writes are logged (vhost-user, "Migration").
pub const VHOST_F_LOG_ALL: u32 = 26;

/// A started split virtqueue, the device's side.
// Features and states that have nothing to do with each other.
#[allow(clippy::struct_excessive_bools)]
pub struct SplitRing {
    pub(super) device: Device,
    pub(super) desc: NonNull<u8>,
    pub(super) avail_ring: NonNull<u16>,
    pub(super) used_ring: NonNull<u64>,
    pub(super) size: u16,
    /// Index of the next chain to take (free running).
    pub(super) next_avail: u16,
    /// `avail.idx` as last read.
    pub(super) avail_idx: u16,
    /// Our copy of `used.idx`: the next entry to write.
    pub(super) next_used: u16,
    /// `used.idx` when the notify decision was last taken.
    notified_used: u16,
    /// The region that the last address fell into.
    pub(super) window: Window,
    /// Bytes of virtio-net header before each packet.
    pub(super) header_len: usize,
    /// Packets may take several chains (`VIRTIO_NET_F_MRG_RXBUF`).
    pub(super) mergeable: bool,
    /// Bytes of the longest frame that the guest may be sent.
    pub(super) longest: usize,
    /// The guest may leave something to be done to its packets.
    pub(super) leaves_work: bool,
    /// What it does itself to those that it is sent.
    able: Able,
    /// Chains taken and not yet given back, in the order they were taken.
    pub(super) taken: ArrayVec<u16, MOST_TAKEN>,
    pub(super) memory: Arc<GuestMemory>,
    /// What is written is logged.
    pub(super) log: Option<Box<RingLog>>,
    /// The ring lies (impossible index); nothing is taken from it any more.
    broken: bool,
    armed: bool,
    /// Kicks of a ring in which nothing has ever been.
    vain_kicks: u8,
    setup: RingSetup,
}

// SAFETY: the pointers lead into `memory`, which the ring owns a share of, and only the ring's
// owner uses them.
unsafe impl Send for SplitRing {}

/// Chains taken in one burst at most, good and bad ones together.
pub(super) const MOST_TAKEN: usize = crate::packet::BURST;

/// So many kicks of an empty ring are no accident: a frontend may kick once when it starts it, and a
/// driver with `EVENT_IDX`, which sees no answer, does not kick again after its first.
const VAIN_KICKS: u8 = 2;

impl SplitRing {
    /// Check `setup` and begin at its base.
    ///
    /// # Errors
    /// The setup comes back with what is wrong with it.
    // The setup must survive a refusal: its fds belong to the frontend's next attempt.
    #[allow(clippy::result_large_err)]
    pub fn start(
        mut setup: RingSetup,
        memory: Arc<GuestMemory>,
        features: u64,
    ) -> Result<Self, (RingSetup, StartError)> {
        let (desc, words, avail_ring, used_ring) = match map_ring(&setup, &memory) {
            Ok(mapped) => mapped,
            Err(error) => return Err((setup, error)),
        };
        let has = |bit: u32| features & (1 << bit) != 0;
        let event_idx = has(VIRTIO_RING_F_EVENT_IDX);
        let log = RingLog::take(&mut setup, &memory, event_idx).filter(|_| has(VHOST_F_LOG_ALL));
        let device = Device::new(words, event_idx);
        device.disarm();
        if let Some(log) = &log {
            log.disarmed();
        }
        Ok(SplitRing {
            device,
            desc,
            avail_ring,
            used_ring,
            size: setup.size,
            next_avail: setup.base,
            avail_idx: setup.base,
            next_used: setup.base,
            notified_used: setup.base,
            window: Window::EMPTY,
            header_len: net::header_len(features),
            mergeable: has(VIRTIO_NET_F_MRG_RXBUF),
            longest: match setup.mtu {
                // The header of the layer below has a tag or none (virtio 1.2, 5.1.4.1).
                Some(mtu) if has(VIRTIO_NET_F_MTU) => mtu as usize + wire::ETHERNET + wire::VLAN,
                _ => MAX_PACKET,
            },
            leaves_work: net::leaves_work(features),
            able: net::able(features),
            taken: ArrayVec::new(),
            memory,
            log,
            broken: false,
            armed: false,
            vain_kicks: 0,
            setup,
        })
    }

    /// Stop here: the setup's base is the next chain not consumed. Nothing is in flight,
    /// because a ring is only stopped between bursts.
    pub fn stop(mut self) -> RingSetup {
        debug_assert!(self.taken.is_empty());
        self.notify();
        self.ask_for_none();
        self.setup.base = self.next_avail;
        self.setup
    }

    /// What may be left to be done to packets that the guest is sent.
    pub fn able(&self) -> Able {
        self.able
    }

    /// Entries.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// May packets be moved?
    #[inline]
    pub fn enabled(&self) -> bool {
        self.setup.enabled
    }

    /// Where it is told what happens to the port.
    pub fn journal(&self) -> &Journal {
        &self.setup.journal
    }

    /// Where the guest kicks, if it can.
    pub fn kick(&self) -> Option<&File> {
        self.setup.kick.as_ref()
    }

    /// Poll instead of waiting for kicks.
    pub fn drop_kick(&mut self) {
        self.setup.kick = None;
    }

    /// Chains that are available, at least `want` if there are as many. `avail.idx` is read
    /// again only when the range known from the last time is too short.
    #[inline]
    pub(super) fn available(&mut self, want: usize) -> usize {
        if self.broken {
            return 0;
        }
        let known = self.avail_idx.wrapping_sub(self.next_avail) as usize;
        if known >= want { known } else { self.refresh() }
    }

    fn refresh(&mut self) -> usize {
        let idx = self.device.load_avail_idx();
        let known = idx.wrapping_sub(self.next_avail);
        if known > self.size {
            let (next, size) = (self.next_avail, self.size);
            self.fail(format_args!(
                "avail.idx {idx} is {known} ahead of {next} in a ring of {size}"
            ));
            return 0;
        }
        self.avail_idx = idx;
        known as usize
    }

    /// Chains that wait for a packet, as far as a burst needs to know.
    #[inline]
    pub fn room(&mut self) -> usize {
        self.available(MOST_TAKEN)
    }

    /// Had it none when that was asked last? Does not look again.
    pub fn had_no_room(&self) -> bool {
        self.broken || self.avail_idx == self.next_avail
    }

    /// The ring contradicts itself: stop it for good, tell the frontend.
    #[cold]
    pub(super) fn fail(&mut self, what: std::fmt::Arguments) {
        if !self.broken {
            self.broken = true;
            self.setup.journal.broken(self.setup.index, what.to_string());
            signal(self.setup.err.as_ref());
        }
    }

    /// The avail ring names a descriptor that the table does not have.
    #[cold]
    pub(super) fn fail_at_head(&mut self, head: u16) {
        let size = self.size;
        self.fail(format_args!("the avail ring names descriptor {head} in a table of {size}"));
    }

    /// Did the ring contradict itself?
    pub fn broken(&self) -> bool {
        self.broken
    }

    /// Is there a used entry that no notify decision was taken for?
    #[inline]
    pub fn wants_notify_check(&self) -> bool {
        self.notified_used != self.next_used
    }

    /// Signal the guest if it asked for it. The caller has called
    /// [`Device::fence_before_notify_check`] since the last publication.
    #[inline]
    pub fn notify_after_fence(&mut self) {
        let (old, new) = (self.notified_used, self.next_used);
        if old != new {
            self.notified_used = new;
            if self.device.wants_interrupt(old, new) {
                signal(self.setup.call.as_ref());
            }
        }
    }

    /// Fence, then signal the guest if it asked for it.
    pub fn notify(&mut self) {
        if self.wants_notify_check() {
            Device::fence_before_notify_check();
            self.notify_after_fence();
        }
    }

    /// Ask for kicks. True if there is nothing to do, so that waiting for one is right.
    pub fn arm(&mut self) -> bool {
        if self.broken {
            return true;
        }
        self.armed = true;
        self.device.arm(self.next_avail);
        if let Some(log) = &self.log {
            log.armed();
        }
        let idx = self.device.recheck_after_arming();
        idx == self.next_avail
    }

    /// The guest has kicked. A driver kicks what it has put into a ring: if that is as it was
    /// born time and again, we do not see the guest's memory but a copy of the frontend's, and
    /// nothing else would ever say so.
    pub fn kicked(&mut self) {
        if self.vain_kicks >= VAIN_KICKS || self.next_avail != 0 {
            return;
        }
        // SAFETY: the table has at least two entries of 16 bytes, 16-byte aligned.
        let first = unsafe { arch::load_u128(self.desc.as_ptr()) };
        if self.device.load_avail_idx() != 0 || first != (0, 0) {
            return;
        }
        self.vain_kicks += 1;
        if self.vain_kicks == VAIN_KICKS {
            let index = self.setup.index;
            let text = format!(
                "ring {index} is kicked and always empty: is the guest's memory shared (share=on)?"
            );
            self.setup.journal.tell(Event::Note { text });
        }
    }

    /// Ask for no more kicks, if any were asked for.
    pub fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.ask_for_none();
        }
    }

    fn ask_for_none(&self) {
        self.device.disarm();
        if let Some(log) = &self.log {
            log.disarmed();
        }
    }
}

/// Add one to an eventfd, without waiting whatever its other holders do. What is no eventfd is
/// the frontend's loss.
fn signal(fd: Option<&File>) {
    if let Some(fd) = fd {
        let _ = bell::ring(fd);
    }
}

type Mapped = (NonNull<u8>, RingWords, NonNull<u16>, NonNull<u64>);

/// Translate the three areas and place the shared words (virtio 1.2, 2.7).
fn map_ring(setup: &RingSetup, memory: &GuestMemory) -> Result<Mapped, StartError> {
    let size = setup.size;
    if !size.is_power_of_two() || !(2..=MAX_RING).contains(&size) {
        return Err(StartError::Size(size));
    }
    let at = setup.addresses.ok_or(StartError::NoAddresses)?;
    let n = u64::from(size);
    let area = |what, addr: u64, align: u64, len| {
        if !addr.is_multiple_of(align) {
            return Err(StartError::Misaligned(what, addr));
        }
        let ptr = memory.translate_user(addr, len).ok_or(StartError::Outside(what, addr))?;
        // The mapping is page aligned, but the region need not be: check what we will use.
        if (ptr.as_ptr() as u64).is_multiple_of(align) {
            Ok(ptr)
        } else {
            Err(StartError::Misaligned(what, addr))
        }
    };
    let desc = area("descriptor table", at.desc, 16, 16 * n)?;
    let avail = area("avail ring", at.avail, 2, 6 + 2 * n)?;
    let used = area("used ring", at.used, 4, 6 + 8 * n)?;
    let word = |base: NonNull<u8>, offset: u64| {
        // SAFETY: every offset below lies inside the area just translated, and is even; the
        // memory stays mapped as long as the ring holds its share of it.
        unsafe { Word16::new(base.as_ptr().add(offset as usize).cast()) }
    };
    let words = RingWords {
        avail_flags: word(avail, 0),
        avail_idx: word(avail, 2),
        used_event: word(avail, 4 + 2 * n),
        used_flags: word(used, 0),
        used_idx: word(used, 2),
        avail_event: word(used, 4 + 8 * n),
    };
    // SAFETY: 4 bytes into areas that are longer.
    let (avail_ring, used_ring) = unsafe { (avail.add(4).cast(), used.add(4).cast()) };
    Ok((desc, words, avail_ring, used_ring))
}
