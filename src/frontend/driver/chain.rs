//! The shapes of descriptor chains: what is in the ring's table, what in indirect ones.
//!
//! Promises: no chain, indirect tables included, is longer than the ring (virtio 1.2,
//! 2.7.5.3.1); each descriptor of the ring has an indirect table of its own.

use super::area::{RingPlace, desc_rest};
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
    pub(super) fn shape(&self, pieces: usize) -> Option<(usize, usize)> {
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
    /// Write the indirect table of descriptor `id`; what that descriptor then says: address,
    /// length, flags.
    pub(super) fn fill_table(&self, id: u16, pieces: &[(u64, u32)]) -> (u64, u32, u16) {
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
