//! One virtqueue, the driver's half: chains go out, used entries come back.
//!
//! Promises: descriptors are taken and given back first in first out; each chain is on record
//! in private memory until it comes back, so a used entry is only believed if it names an
//! outstanding chain. What the chains carry is [`RxRing`](super::RxRing)'s and
//! [`TxRing`](super::TxRing)'s matter.

use super::area::{RingArea, RingPlace, desc_rest};
use super::raw::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE};
use super::{Fifo, RingError};
use crate::frontend::options::Table;
use crate::frontend::ram::{Plan, Ram};
use crate::frontend::session::RingEvents;
use crate::virtio::order::Driver;
use std::io;
use std::sync::Arc;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// A queue's needs of memory.
#[derive(Debug, Clone, Copy)]
pub struct QueuePlan {
    place: RingPlace,
    table: Table,
    /// Where the indirect tables are: one per descriptor, of `entries` entries.
    tables: usize,
    entries: usize,
}

impl QueuePlan {
    /// Room for a ring of `size` entries and chains of up to `longest` descriptors.
    pub fn new(plan: &mut Plan, size: u16, table: Table, longest: usize) -> Self {
        let place = RingPlace::new(plan, size);
        let entries = longest.min(usize::from(size));
        let tables = match table {
            Table::Direct => 0,
            Table::Indirect | Table::DirectThenIndirect => {
                plan.place(16 * entries * usize::from(size), 64)
            }
        };
        QueuePlan { place, table, tables, entries }
    }
}

/// An outstanding chain.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Posted {
    pub buffer: u32,
    pub len: u32,
    pub buffers: u16,
    /// Descriptors of the ring that it takes; 0: none is outstanding under this id.
    pub descs: u16,
}

impl Posted {
    /// One buffer in one descriptor of the ring: nothing to walk.
    #[inline(always)]
    pub fn single(self) -> bool {
        self.buffers == 1 && self.descs == 1
    }
}

/// One virtqueue.
pub struct Queue {
    area: RingArea,
    driver: Driver,
    kick: EventFd,
    call: EventFd,
    plan: QueuePlan,
    in_order: bool,
    /// `DESC_WRITE` if the device writes these buffers.
    direction: u16,
    free: Fifo<u16>,
    posted: Box<[Posted]>,
    /// What the avail ring holds.
    avail: Box<[u16]>,
    /// The next descriptor of a chain of several.
    next_desc: Box<[u16]>,
    next_avail: u16,
    next_used: u16,
    /// `used.idx` as last read.
    used_idx: u16,
    /// `avail.idx` when the kick decision was last taken.
    kicked: u16,
    outstanding: u16,
    /// Kicks written.
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
            free: Fifo::new(n as u32),
            posted: vec![Posted::default(); n].into_boxed_slice(),
            avail: vec![0; n].into_boxed_slice(),
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
        self.free.clear();
        for i in 0..self.area.size() {
            self.free.push(i);
            self.area.store_desc_rest(i, rest);
        }
        self.posted.fill(Posted::default());
        // The avail ring begins with the heads in the order in which they will be posted.
        for i in 0..self.area.size() {
            let at = first.wrapping_add(i);
            self.area.store_avail(at, i);
            let slot = self.slot(at);
            self.avail[slot] = i;
        }
        self.next_avail = first;
        self.next_used = first;
        self.used_idx = first;
        self.kicked = first;
        self.outstanding = 0;
        self.driver.disarm();
    }

    #[inline(always)]
    fn slot(&self, at: u16) -> usize {
        usize::from(at) & (self.avail.len() - 1)
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
        self.free.len()
    }

    /// Chains the device has.
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Kicks written so far.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// A descriptor that will be posted soon: bring its line in.
    #[inline(always)]
    pub(in crate::frontend) fn prefetch_next_desc(&self, ahead: u32) {
        self.area.prefetch_desc(self.free.peek(ahead));
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

    /// Take the next used entry, which [`Queue::used`] has counted: the chain, its id and the
    /// used length. The descriptors are free again.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Result<(Posted, u16, u32), RingError> {
        let (id, len) = self.area.load_used(self.next_used);
        if self.in_order {
            self.check_order(id)?;
        }
        self.take_id(id, len)
    }

    /// As [`Queue::take`], for buffers that the device only reads. With `IN_ORDER` it may write
    /// just the last used entry of a batch (virtio 1.2, 2.7.11); the newest one is surely
    /// written, and before it order is all there is.
    #[inline(always)]
    pub(super) fn take_sent(&mut self) -> Result<Posted, RingError> {
        if self.in_order && self.used_idx != self.next_used.wrapping_add(1) {
            let expected = self.avail[self.slot(self.next_used)];
            return self.take_id(u32::from(expected), 0).map(|taken| taken.0);
        }
        self.take().map(|taken| taken.0)
    }

    #[inline(always)]
    fn take_id(&mut self, id: u32, len: u32) -> Result<(Posted, u16, u32), RingError> {
        let at = self.next_used;
        let Some(record) = self.posted.get_mut(id as usize) else {
            return Err(RingError::UsedId { at, id });
        };
        let posted = *record;
        if posted.descs == 0 {
            return Err(RingError::UsedId { at, id });
        }
        record.descs = 0;
        self.next_used = at.wrapping_add(1);
        self.outstanding -= 1;
        self.free.push(id as u16);
        if posted.descs > 1 {
            self.free_rest(id as u16, posted.descs);
        }
        Ok((posted, id as u16, len))
    }

    #[inline(never)]
    fn free_rest(&mut self, head: u16, descs: u16) {
        let mut id = head;
        for _ in 1..descs {
            id = self.next_desc[usize::from(id)];
            self.free.push(id);
        }
    }

    #[inline(never)]
    fn check_order(&self, id: u32) -> Result<(), RingError> {
        let at = self.next_used;
        let expected = self.avail[self.slot(at)];
        if id == u32::from(expected) { Ok(()) } else { Err(RingError::Order { at, id, expected }) }
    }

    /// Post a chain of one descriptor. `rest` is its second word, or `None` if that is there
    /// already. There is room.
    #[inline(always)]
    pub(super) fn post_one(&mut self, addr: u64, rest: Option<u64>, posted: Posted) {
        let Some(id) = self.free.pop() else { return };
        self.area.store_desc_addr(id, addr);
        if let Some(rest) = rest {
            self.area.store_desc_rest(id, rest);
        }
        self.make_avail(id, posted);
    }

    #[inline(always)]
    fn make_avail(&mut self, head: u16, posted: Posted) {
        self.posted[usize::from(head)] = posted;
        let slot = self.slot(self.next_avail);
        // Chains that come back in order find their heads where they left them.
        if self.avail[slot] != head {
            self.avail[slot] = head;
            self.area.store_avail(self.next_avail, head);
        }
        self.next_avail = self.next_avail.wrapping_add(1);
        self.outstanding += 1;
    }

    /// Post a chain of any shape. False if it does not fit now (or ever: a chain longer than
    /// the ring).
    #[inline(never)]
    pub(super) fn post_chain(&mut self, pieces: &[(u64, u32)], posted: Posted) -> bool {
        let direct = match self.plan.table {
            Table::Direct => pieces.len(),
            Table::Indirect => 0,
            Table::DirectThenIndirect => usize::from(pieces.len() > 1),
        };
        let indirect = pieces.len() - direct;
        let descs = direct + usize::from(indirect > 0);
        if self.room() < descs as u32 || pieces.is_empty() {
            return false;
        }
        if indirect > 0 && indirect > self.plan.entries {
            return false;
        }
        let mut head = None;
        let mut last = 0;
        for i in 0..descs {
            let Some(id) = self.free.pop() else { return false };
            match head {
                None => head = Some(id),
                Some(_) => self.next_desc[usize::from(last)] = id,
            }
            last = id;
            let next = if i + 1 < descs { DESC_NEXT } else { 0 };
            let (addr, len, flags) = match pieces.get(i) {
                Some(&(addr, len)) if i < direct => (addr, len, self.direction | next),
                _ => self.fill_table(id, &pieces[direct..]),
            };
            // The next descriptor is the next free one: nothing comes back meanwhile.
            let following = if next == 0 { 0 } else { self.free.peek(0) };
            self.area.store_desc_addr(id, addr);
            self.area.store_desc_rest(id, desc_rest(len, flags, following));
        }
        if let Some(head) = head {
            self.make_avail(head, Posted { descs: descs as u16, ..posted });
        }
        true
    }

    /// Write the indirect table of descriptor `id`; what that descriptor then says.
    fn fill_table(&self, id: u16, pieces: &[(u64, u32)]) -> (u64, u32, u16) {
        let ram = self.area.ram();
        let at = self.plan.tables + 16 * self.plan.entries * usize::from(id);
        for (i, &(addr, len)) in pieces.iter().enumerate() {
            let more = i + 1 < pieces.len();
            let flags = self.direction | if more { DESC_NEXT } else { 0 };
            let next = if more { i as u16 + 1 } else { 0 };
            let mut entry = [0; 16];
            entry[..8].copy_from_slice(&addr.to_le_bytes());
            entry[8..].copy_from_slice(&desc_rest(len, flags, next).to_le_bytes());
            ram.write(at + 16 * i, &entry);
        }
        (ram.guest(at), 16 * pieces.len() as u32, DESC_INDIRECT)
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
