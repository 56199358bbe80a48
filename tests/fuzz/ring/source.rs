//! An honest guest beside the fuzzed one, whose packets are sent to it.

use crate::world::map;
use ringbridge::counters::QueueCounters;
use ringbridge::memory::{GuestMemory, RegionSpec};
use ringbridge::packet::Packets;
use ringbridge::sys;
use ringbridge::virtio::{RingAddresses, RingSetup, SplitRing};
use std::ptr;
use std::sync::Arc;

/// Lengths that packets have.
pub const LENGTHS: [u32; 16] =
    [14, 15, 60, 64, 65, 128, 191, 192, 193, 256, 1000, 1518, 2048, 4000, 9000, 65535];
const HEADER: u32 = 12;
const SIZE: u16 = 64;
/// Descriptors, avail and used ring; then what all packets have in common.
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
const DATA: u64 = 0x3000;

pub struct Source {
    /// Our own look at its memory.
    view: *mut u8,
    ring: SplitRing,
    next: u16,
    counters: QueueCounters,
}

// SAFETY: an address of memory that only this and its ring touch.
unsafe impl Send for Source {}

impl Source {
    pub fn new() -> Self {
        let size = 0x2_0000;
        let file = sys::memfd(c"source", size).expect("a memfd");
        let view = map(size as usize, libc::PROT_READ | libc::PROT_WRITE, Some(&file));
        let spec = RegionSpec { guest: 0, size, user: 0, offset: 0, file };
        let memory = GuestMemory::map(vec![spec], &Arc::default()).expect("a table");
        let addresses = RingAddresses { desc: 0, avail: AVAIL, used: USED };
        let setup = RingSetup { size: SIZE, addresses: Some(addresses), ..RingSetup::default() };
        let ring = SplitRing::start(setup, memory, 1 << 32).map_err(|(_, error)| error);
        let source = Source {
            view,
            ring: ring.expect("a ring"),
            next: 0,
            counters: QueueCounters::default(),
        };
        let noise: Vec<u8> = (0..size - DATA).map(|i| (i * 131 >> 3) as u8 | 1).collect();
        source.put(DATA, &noise);
        source
    }

    /// Packets of these lengths.
    pub fn fill(&mut self, packets: &mut Packets, lengths: &[u32]) {
        for len in lengths {
            let slot = u64::from(self.next % SIZE);
            let desc = u128::from(DATA) | u128::from(HEADER + len) << 64;
            self.put(16 * slot, &desc.to_le_bytes());
            self.put(AVAIL + 4 + 2 * slot, &(slot as u16).to_le_bytes());
            self.next = self.next.wrapping_add(1);
        }
        self.put(AVAIL + 2, &self.next.to_le_bytes());
        // SAFETY: the ring lives as long as the process.
        unsafe { self.ring.receive(packets, lengths.len(), &self.counters) };
    }

    /// The packets are sent. Those that the burst had no room for are thrown away.
    pub fn complete(&mut self, packets: &mut Packets) {
        loop {
            packets.clear();
            self.ring.complete_receive();
            // SAFETY: as above.
            unsafe { self.ring.receive(packets, 64, &self.counters) };
            if packets.is_empty() {
                return;
            }
        }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        // SAFETY: what is put there is less than what is mapped.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.view.add(at as usize), bytes.len())
        };
    }
}
