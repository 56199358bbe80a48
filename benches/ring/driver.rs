//! A driver that recycles buffers, and the memory it shares with the two devices.
//!
//! Promises: buffers are used first in first out, over twice the ring's size, as a guest's
//! would be; the ring is filled up before every burst. It is written for clarity: it is not
//! measured.

use crate::Work;
use ringbridge::memory::{GuestMemory, RegionSpec};
use ringbridge::sys;
use ringbridge::virtio::RingAddresses;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

/// Entries of the ring.
pub const RING: u16 = 256;
/// Bytes of virtio-net header: `VERSION_1` is negotiated.
const HEADER: usize = 12;
const MERGED_BUFFER: usize = 2048;
const DESC: u64 = 0;
const AVAIL: u64 = 0x2000;
const USED: u64 = 0x3000;
const BUFFERS: u64 = 0x1_0000;
const WRITE: u16 = 2;

/// A guest's memory as both devices see it.
pub struct Memory {
    /// For the driver and `virtio-queue`.
    pub mmap: GuestMemoryMmap,
    /// For ringbridge.
    pub shared: Arc<GuestMemory>,
}

impl Memory {
    fn new(size: usize) -> Self {
        let file = sys::memfd(c"bench", size as u64).expect("memory");
        let offset = FileOffset::new(file.try_clone().expect("an fd"), 0);
        let ranges = [(GuestAddress(0), size, Some(offset))];
        let mmap = GuestMemoryMmap::from_ranges_with_files(ranges).expect("a mapping");
        let spec = RegionSpec { guest: 0, size: size as u64, user: 0, offset: 0, file };
        Memory { mmap, shared: GuestMemory::map(vec![spec], &Arc::default()).expect("a mapping") }
    }
}

/// Where the ring lies: guest and user addresses are the same.
pub const ADDRESSES: RingAddresses = RingAddresses { desc: DESC, avail: AVAIL, used: USED };

/// The driver.
pub struct Driver {
    pub memory: Memory,
    /// Bytes of a buffer as its descriptor says.
    len: u32,
    flags: u16,
    free: VecDeque<u64>,
    posted: VecDeque<u64>,
    avail: u16,
    used: u16,
}

impl Driver {
    pub fn new(work: Work) -> Self {
        let whole = HEADER + work.size;
        let room = match work {
            Work { enqueue: true, mergeable: true, .. } => MERGED_BUFFER,
            Work { enqueue: true, .. } => whole.max(MERGED_BUFFER),
            _ => whole,
        };
        let stride = room.max(MERGED_BUFFER).next_multiple_of(64) as u64;
        let buffers = u64::from(RING) * 2;
        let memory = Memory::new((BUFFERS + buffers * stride) as usize);
        let free: VecDeque<u64> = (0..buffers).map(|i| BUFFERS + i * stride).collect();
        if !work.enqueue {
            let frame: Vec<u8> = (0..whole).map(|i| if i < HEADER { 0 } else { i as u8 }).collect();
            for &buffer in &free {
                memory.mmap.write_slice(&frame, GuestAddress(buffer)).expect("inside");
            }
        }
        let flags = if work.enqueue { WRITE } else { 0 };
        let posted = VecDeque::new();
        let mut driver =
            Driver { memory, len: room as u32, flags, free, posted, avail: 0, used: 0 };
        driver.refill();
        driver
    }

    /// Take back what was used and make as many buffers available. Returns how many.
    pub fn refill(&mut self) -> usize {
        let memory = &self.memory.mmap;
        let used: u16 = memory.load(GuestAddress(USED + 2), Ordering::Acquire).expect("inside");
        let count = used.wrapping_sub(self.used);
        self.used = used;
        self.free.extend(self.posted.drain(..usize::from(count)));
        while self.posted.len() < usize::from(RING) {
            let buffer = self.free.pop_front().expect("twice as many as the ring holds");
            self.posted.push_back(buffer);
            let slot = u64::from(self.avail % RING);
            let rest = u64::from(self.len) | u64::from(self.flags) << 32;
            let (desc, entry) =
                (GuestAddress(DESC + 16 * slot), GuestAddress(AVAIL + 4 + 2 * slot));
            memory.write_obj([buffer, rest], desc).expect("inside");
            memory.write_obj(slot as u16, entry).expect("inside");
            self.avail = self.avail.wrapping_add(1);
        }
        memory.store(self.avail, GuestAddress(AVAIL + 2), Ordering::Release).expect("inside");
        usize::from(count)
    }
}
