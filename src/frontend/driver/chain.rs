//! The shapes of descriptor chains: what is in the ring's table, what in indirect ones.
//!
//! Promises: no chain, indirect tables included, is longer than the ring (virtio 1.2,
//! 2.7.5.3.1); each descriptor of the ring has an indirect table of its own.

use super::area::{RingPlace, desc_rest};
use super::pool::Packet;
use super::queue::Queue;
use super::raw::{DESC_INDIRECT, DESC_NEXT};
use crate::frontend::options::Table;
use crate::frontend::ram::Plan;

/// A queue's needs of memory.
#[derive(Debug, Clone, Copy)]
pub struct QueuePlan {
    pub(super) place: RingPlace,
    pub(super) table: Table,
    /// Where the indirect tables are: one per descriptor, of `entries` entries.
    tables: usize,
    entries: usize,
    size: usize,
}

impl QueuePlan {
    /// Room for a ring of `size` entries and chains of up to `longest` descriptors.
    pub fn new(plan: &mut Plan, size: u16, table: Table, longest: usize) -> Self {
        let place = RingPlace::new(plan, size);
        let size = usize::from(size);
        let entries = longest.min(size);
        let tables = match table {
            Table::Direct => 0,
            Table::Indirect | Table::DirectThenIndirect => plan.place(16 * entries * size, 64),
        };
        QueuePlan { place, table, tables, entries, size }
    }

    /// How many of `pieces` descriptors are direct, and how many the ring's table holds in all.
    /// `None` for a chain that can never be.
    fn shape(&self, pieces: usize) -> Option<(usize, usize)> {
        let direct = match self.table {
            Table::Direct => pieces,
            Table::Indirect => 0,
            Table::DirectThenIndirect => usize::from(pieces > 1),
        };
        let indirect = pieces - direct;
        let fits = (1..=self.size).contains(&pieces) && (indirect == 0 || indirect <= self.entries);
        fits.then_some((direct, direct + usize::from(indirect > 0)))
    }
}

impl Queue {
    /// Post a chain of any shape. False if it does not fit now (or ever: a chain longer than
    /// the ring).
    #[inline(never)]
    pub(super) fn post_chain(&mut self, pieces: &[(u64, u32)], packet: Packet) -> bool {
        if self.bound {
            self.unbind();
        }
        let Some((direct, descs)) = self.plan.shape(pieces.len()) else { return false };
        if self.room() < descs as u32 {
            return false;
        }
        let (mut head, mut last) = (None, 0);
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
            let following = if next == 0 { 0 } else { self.free.oldest() };
            self.area().fields().store_desc_addr(id, addr);
            self.area().fields().store_desc_rest(id, desc_rest(len, flags, following));
        }
        if let Some(head) = head {
            self.make_avail(head, descs as u16, packet);
        }
        true
    }

    /// Descriptors leave their places: those of places that hold no chain are free.
    #[cold]
    fn unbind(&mut self) {
        self.bound = false;
        let size = self.area().size();
        let mut free = self.free.writer();
        for i in self.outstanding..size {
            free.push(self.chains.heads[self.chains.slot(self.next_used.wrapping_add(i))]);
        }
        drop(free);
        self.chains.descs.fill(1);
    }

    /// Write the indirect table of descriptor `id`; what that descriptor then says: address,
    /// length, flags.
    fn fill_table(&self, id: u16, pieces: &[(u64, u32)]) -> (u64, u32, u16) {
        let ram = self.area().ram();
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
}
