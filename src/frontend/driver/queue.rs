//! One virtqueue, the driver's half: chains go out, used entries come back.
//!
//! Promises: descriptors are taken and given back first in first out; each chain is on record
//! in private memory until it comes back, so a used entry is only believed if it names an
//! outstanding chain. What the chains carry is [`RxRing`](super::RxRing)'s and
//! [`TxRing`](super::TxRing)'s matter.
//!
//! Records lie by the place in the avail ring at which a chain was posted, in the order in which
//! the device gives chains back: a device that keeps the order finds each record where it
//! is, for one that does not [`Chains::reorder`] exchanges records. As long as every chain is
//! one descriptor the queue is *bound*: the descriptor of a place stays with it, so the avail
//! ring, once written, is never written again. The first longer chain unbinds it.

use super::area::{Fields, RingArea};
use super::chain::QueuePlan;
use super::raw::DESC_WRITE;
use super::{Fifo, Packet, RingError};
use crate::frontend::options::Table;
use crate::frontend::ram::Ram;
use crate::frontend::session::RingEvents;
use crate::virtio::order::Driver;
use std::io;
use std::sync::Arc;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// What is recorded of each place in the avail ring.
#[derive(Debug)]
pub(super) struct Chains {
    /// The chain's first descriptor: what the avail ring holds there.
    pub heads: Box<[u16]>,
    /// What it carries.
    packets: Box<[Packet]>,
    /// Descriptors it takes.
    pub descs: Box<[u16]>,
}

impl Chains {
    pub fn slot(&self, at: u16) -> usize {
        usize::from(at) & (self.heads.len() - 1)
    }

    /// The device gives chain `id` back before the one posted at `at`. Exchange their records,
    /// if `id` is among the `outstanding` chains that begin at `at`. Both places of the avail
    /// ring have been read by the device, so they may be written.
    #[cold]
    fn reorder(
        &mut self,
        fields: Fields,
        at: u16,
        id: u32,
        outstanding: u16,
    ) -> Result<(), RingError> {
        let due = self.slot(at);
        for ahead in 1..outstanding {
            let other_at = at.wrapping_add(ahead);
            let other = self.slot(other_at);
            if u32::from(self.heads[other]) == id {
                self.heads.swap(due, other);
                self.packets.swap(due, other);
                self.descs.swap(due, other);
                fields.store_avail(at, self.heads[due]);
                fields.store_avail(other_at, self.heads[other]);
                return Ok(());
            }
        }
        Err(RingError::UsedId { at, id })
    }
}

/// One virtqueue.
pub struct Queue {
    area: RingArea,
    driver: Driver,
    kick: EventFd,
    call: EventFd,
    pub(super) plan: QueuePlan,
    in_order: bool,
    /// `DESC_WRITE` if the device writes these buffers.
    pub(super) direction: u16,
    pub(super) chains: Chains,
    pub(super) bound: bool,
    /// Free descriptors of a queue that is not bound.
    pub(super) free: Fifo<u16>,
    /// The next descriptor of a chain of several.
    pub(super) next_desc: Box<[u16]>,
    next_avail: u16,
    pub(super) next_used: u16,
    /// `used.idx` as last read.
    used_idx: u16,
    /// `avail.idx` when the kick decision was last taken.
    kicked: u16,
    pub(super) outstanding: u16,
    kicks: u64,
}

impl Queue {
    /// A queue as planned, for a device that writes its buffers or reads them.
    ///
    /// # Errors
    /// The eventfds'.
    pub fn new(
        ram: Arc<Ram>,
        plan: QueuePlan,
        features: QueueFeatures,
        device_writes: bool,
    ) -> io::Result<Self> {
        let area = RingArea::new(ram, plan.place);
        let n = usize::from(area.size());
        Ok(Queue {
            driver: Driver::new(area.words(), features.event_idx),
            kick: EventFd::new(EFD_NONBLOCK)?,
            call: EventFd::new(EFD_NONBLOCK)?,
            plan,
            in_order: features.in_order,
            direction: if device_writes { DESC_WRITE } else { 0 },
            chains: Chains {
                heads: vec![0; n].into_boxed_slice(),
                packets: vec![Packet::default(); n].into_boxed_slice(),
                descs: vec![0; n].into_boxed_slice(),
            },
            bound: true,
            free: Fifo::new(n as u32),
            next_desc: vec![0; n].into_boxed_slice(),
            next_avail: 0,
            next_used: 0,
            used_idx: 0,
            kicked: 0,
            outstanding: 0,
            kicks: 0,
            area,
        })
    }

    /// Empty, in memory too, with all indices at `first`; every descriptor's second word is
    /// `rest`. The device must not run the ring meanwhile.
    pub(super) fn reset(&mut self, first: u16, rest: u64) {
        self.area.clear(first);
        let fields = self.area.fields();
        for i in 0..self.area.size() {
            let at = first.wrapping_add(i);
            fields.store_desc_rest(i, rest);
            fields.store_avail(at, i);
            let slot = self.chains.slot(at);
            self.chains.heads[slot] = i;
        }
        self.bound = true;
        self.free.clear();
        self.next_avail = first;
        self.next_used = first;
        self.used_idx = first;
        self.kicked = first;
        self.outstanding = 0;
        self.driver.disarm();
    }

    /// The ring.
    pub fn area(&self) -> &RingArea {
        &self.area
    }

    /// Its eventfds.
    pub fn events(&self) -> RingEvents<'_> {
        RingEvents { kick: &self.kick, call: &self.call }
    }

    /// Is a buffer of one piece a chain of one descriptor?
    #[inline(always)]
    pub(in crate::frontend) fn direct(&self) -> bool {
        self.plan.table == Table::Direct
    }

    /// Free descriptors.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        if self.bound {
            u32::from(self.area.size()) - u32::from(self.outstanding)
        } else {
            self.free.len()
        }
    }

    /// Chains the device has.
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Kicks written so far.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Used entries to take, at most `max`. `used.idx` is read once, and only if all entries
    /// known of have been taken.
    #[inline(always)]
    pub(super) fn used(&mut self, max: usize) -> Result<usize, RingError> {
        if self.used_idx == self.next_used {
            let idx = self.driver.load_used_idx();
            let new = idx.wrapping_sub(self.next_used);
            if new > self.outstanding {
                let (next, outstanding) = (self.next_used, self.outstanding);
                return Err(RingError::UsedIndex { idx, next, outstanding });
            }
            self.used_idx = idx;
        }
        Ok(usize::from(self.used_idx.wrapping_sub(self.next_used)).min(max))
    }

    /// Take the next `n` used entries, which [`Queue::used`] has counted; `each` gets an entry's
    /// place in the burst, what its chain carried, and the used length. The descriptors are
    /// free again. `sent`: the device only reads these buffers, so lengths do not matter.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        n: usize,
        sent: bool,
        mut each: impl FnMut(usize, Packet, u32),
    ) -> Result<(), RingError> {
        let first = self.next_used;
        let fields = self.area.fields();
        fields.prefetch_used(first, n);
        let mask = self.chains.heads.len() - 1;
        for i in 0..n {
            let at = first.wrapping_add(i as u16);
            let slot = usize::from(at) & mask;
            let (id, len) = fields.load_used(at);
            let due = self.chains.heads[..=mask][slot];
            if id != u32::from(due) {
                self.out_of_order(at, id, i, sent)?;
            }
            // Four descriptors share a line, which will be written again soon.
            if slot.is_multiple_of(4) || i == 0 {
                fields.prefetch_desc(due);
            }
            each(i, self.chains.packets[..=mask][slot], len);
        }
        if !self.bound {
            self.free(first, n);
        }
        self.next_used = first.wrapping_add(n as u16);
        self.outstanding -= n as u16;
        Ok(())
    }

    /// The used entry at `at`, `i` behind the first, does not name the chain that is due.
    #[cold]
    fn out_of_order(&mut self, at: u16, id: u32, i: usize, sent: bool) -> Result<(), RingError> {
        if !self.in_order {
            let outstanding = self.outstanding - i as u16;
            return self.chains.reorder(self.area.fields(), at, id, outstanding);
        }
        // The device may write just the last entry of a batch (virtio 1.2, 2.7.11). Of buffers
        // that it only read, order then tells all there is; the newest is surely written.
        if sent && at.wrapping_add(1) != self.used_idx {
            return Ok(());
        }
        let expected = self.chains.heads[self.chains.slot(at)];
        Err(RingError::Order { at, id, expected })
    }

    /// The descriptors of the `n` chains posted at `first` and after are free again.
    #[inline(never)]
    fn free(&mut self, first: u16, n: usize) {
        let mut free = self.free.writer();
        for i in 0..n {
            let slot = self.chains.slot(first.wrapping_add(i as u16));
            let mut id = self.chains.heads[slot];
            free.push(id);
            for _ in 1..self.chains.descs[slot] {
                id = self.next_desc[usize::from(id)];
                free.push(id);
            }
        }
    }

    /// Post `n` chains of one descriptor; `next` gives what each carries, in one buffer, and the
    /// descriptor's two words. Without `REST` the second one is there already. There is room for
    /// them all.
    #[inline(always)]
    pub(super) fn post_each<const REST: bool>(
        &mut self,
        n: u32,
        mut next: impl FnMut() -> (Packet, u64, u64),
    ) {
        debug_assert!(n <= self.room());
        let fields = self.area.fields();
        if !self.bound {
            for _ in 0..n {
                self.post_unbound(next());
            }
            return;
        }
        let mask = self.chains.heads.len() - 1;
        let heads = &self.chains.heads[..=mask];
        let packets = &mut self.chains.packets[..=mask];
        for i in 0..n {
            let slot = usize::from(self.next_avail.wrapping_add(i as u16)) & mask;
            let (packet, addr, rest) = next();
            fields.store_desc_addr(heads[slot], addr);
            if REST {
                fields.store_desc_rest(heads[slot], rest);
            }
            packets[slot] = packet;
        }
        self.next_avail = self.next_avail.wrapping_add(n as u16);
        self.outstanding += n as u16;
    }

    /// The same for one chain in a queue that is not bound, where descriptors are reused in
    /// any shape: both words are written.
    #[inline(never)]
    fn post_unbound(&mut self, (packet, addr, rest): (Packet, u64, u64)) {
        let Some(id) = self.free.pop() else { return };
        self.area.fields().store_desc_addr(id, addr);
        self.area.fields().store_desc_rest(id, rest);
        self.make_avail(id, 1, packet);
    }

    pub(super) fn make_avail(&mut self, head: u16, descs: u16, packet: Packet) {
        let at = self.next_avail;
        let slot = self.chains.slot(at);
        if self.chains.heads[slot] != head {
            self.chains.heads[slot] = head;
            self.area.fields().store_avail(at, head);
        }
        self.chains.packets[slot] = packet;
        self.chains.descs[slot] = descs;
        self.next_avail = at.wrapping_add(1);
        self.outstanding += 1;
    }

    /// Make everything posted visible to the device; kick it if it wants that.
    #[inline(always)]
    pub fn publish(&mut self) {
        if self.kicked == self.next_avail {
            return;
        }
        self.driver.publish_avail_idx(self.next_avail);
        Driver::fence_before_kick_check();
        if self.driver.wants_kick(self.kicked, self.next_avail) {
            self.kick();
        }
        self.kicked = self.next_avail;
    }

    /// Kick, wanted or not: once after a ring was started.
    pub fn kick(&mut self) {
        self.kicks += 1;
        // A full counter is a pending kick: as good.
        let _ = self.kick.write(1);
    }

    /// Ask for an interrupt at the next used entry. True if there is none yet.
    pub fn arm(&mut self) -> bool {
        self.driver.arm(self.next_used);
        self.used_idx == self.next_used && self.driver.recheck_used() == self.next_used
    }

    /// Ask for no more interrupts.
    pub fn disarm(&mut self) {
        self.driver.disarm();
    }

    /// Has the device used something that was not taken yet?
    pub fn has_used(&self) -> bool {
        self.driver.load_used_idx() != self.next_used
    }

    /// Was the call eventfd signalled? Takes the signal.
    pub fn take_call(&self) -> bool {
        self.call.read().is_ok()
    }
}

/// What of the features concerns a queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueFeatures {
    /// `VIRTIO_RING_F_EVENT_IDX`.
    pub event_idx: bool,
    /// `VIRTIO_F_IN_ORDER`.
    pub in_order: bool,
}
