//! A guest's memory and its side of split virtqueues, written plainly through `vm-memory`:
//! the hand that posts chains, honest or not, for the tests of the rings.

use ringbridge::memory::{GuestMemory, RegionSpec};
use ringbridge::sys;
use ringbridge::virtio::{RingAddresses, RingSetup, SplitRing};
use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::sync::Arc;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

/// Bytes of each of the two regions, which are adjacent.
pub const REGION: u64 = 4 << 20;
/// The frontend's own addresses are these above the guest's.
pub const USER: u64 = 0x5500_0000_0000;
pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

pub const VERSION_1: u64 = 1 << 32;
pub const EVENT_IDX: u64 = 1 << 29;
pub const MRG_RXBUF: u64 = 1 << 15;

pub struct Guest {
    pub mem: GuestMemoryMmap<()>,
    pub shared: Arc<GuestMemory>,
}

/// An eventfd that does not block.
pub fn eventfd() -> File {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: the descriptor was just made and belongs to nobody else.
    unsafe { File::from_raw_fd(fd) }
}

/// Signals since the last call.
pub fn signals(mut fd: &File) -> u64 {
    let mut count = [0; 8];
    fd.read(&mut count).map_or(0, |_| u64::from_ne_bytes(count))
}

impl Guest {
    pub fn new() -> Self {
        let files = [0, 1].map(|_| sys::memfd(c"guest", REGION).unwrap());
        let ranges = files.iter().enumerate().map(|(i, file)| {
            let offset = FileOffset::new(file.try_clone().unwrap(), 0);
            (GuestAddress(i as u64 * REGION), REGION as usize, Some(offset))
        });
        let mem = GuestMemoryMmap::from_ranges_with_files(ranges).unwrap();
        let spec = |(i, file): (usize, File)| {
            let guest = i as u64 * REGION;
            RegionSpec { guest, size: REGION, user: guest + USER, offset: 0, file }
        };
        let specs = files.into_iter().enumerate().map(spec).collect();
        Guest { mem, shared: GuestMemory::map(specs, &Arc::default()).unwrap() }
    }

    pub fn write(&self, addr: u64, bytes: &[u8]) {
        self.mem.write_slice(bytes, GuestAddress(addr)).unwrap();
    }

    pub fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mem.read_slice(&mut bytes, GuestAddress(addr)).unwrap();
        bytes
    }

    fn write_u16(&self, addr: u64, value: u16) {
        self.write(addr, &value.to_le_bytes());
    }

    pub fn read_u16(&self, addr: u64) -> u16 {
        u16::from_le_bytes(self.read(addr, 2).try_into().unwrap())
    }

    pub fn write_desc(&self, at: u64, desc: Desc) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&desc.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&desc.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&desc.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&desc.next.to_le_bytes());
        self.write(at, &bytes);
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Desc {
    pub addr: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

/// Write a table of descriptors (addr, len, flags, next) at `at`.
pub fn table(guest: &Guest, at: u64, descs: &[(u64, u32, u16, u16)]) {
    for (k, &(addr, len, flags, next)) in descs.iter().enumerate() {
        guest.write_desc(at + 16 * k as u64, Desc { addr, len, flags, next });
    }
}

/// A table of `n` buffers of one byte each, from `addr` on, with these flags.
pub fn row(addr: u64, n: u16, flags: u16) -> Vec<(u64, u32, u16, u16)> {
    let more = |i| if i + 1 < n { NEXT } else { 0 };
    (0..n).map(|i| (addr + u64::from(i), 1, flags | more(i), i + 1)).collect()
}

/// Where one virtqueue of a guest lies.
#[derive(Clone, Copy)]
pub struct Layout {
    pub size: u16,
    pub at: u64,
}

impl Layout {
    pub fn avail(self) -> u64 {
        self.at + 16 * u64::from(self.size)
    }

    pub fn used(self) -> u64 {
        (self.avail() + 6 + 2 * u64::from(self.size)).next_multiple_of(4)
    }
}

/// The driver's side of one virtqueue.
pub struct Driver<'g> {
    pub guest: &'g Guest,
    pub layout: Layout,
    pub avail_idx: u16,
    pub used_idx: u16,
}

impl<'g> Driver<'g> {
    pub fn new(guest: &'g Guest, layout: Layout, base: u16) -> Self {
        guest.write_u16(layout.avail() + 2, base);
        guest.write_u16(layout.used() + 2, base);
        Driver { guest, layout, avail_idx: base, used_idx: base }
    }

    /// The device's side of the same virtqueue.
    pub fn start(&self, features: u64) -> SplitRing {
        SplitRing::start(self.setup(), Arc::clone(&self.guest.shared), features)
            .map_err(|(_, error)| error)
            .unwrap()
    }

    pub fn setup(&self) -> RingSetup {
        RingSetup {
            size: self.layout.size,
            addresses: Some(RingAddresses {
                desc: self.layout.at + USER,
                avail: self.layout.avail() + USER,
                used: self.layout.used() + USER,
            }),
            base: self.avail_idx,
            enabled: true,
            ..RingSetup::default()
        }
    }

    pub fn desc(&self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let at = self.layout.at + u64::from(index) * 16;
        self.guest.write_desc(at, Desc { addr, len, flags, next });
    }

    /// Make `head` available; the device sees it at once.
    pub fn publish(&mut self, head: u16) {
        let slot = u64::from(self.avail_idx % self.layout.size);
        self.guest.write_u16(self.layout.avail() + 4 + 2 * slot, head);
        self.set_avail_idx(self.avail_idx.wrapping_add(1));
    }

    pub fn set_avail_idx(&mut self, idx: u16) {
        self.avail_idx = idx;
        self.guest.write_u16(self.layout.avail() + 2, idx);
    }

    pub fn set_avail_flags(&self, flags: u16) {
        self.guest.write_u16(self.layout.avail(), flags);
    }

    pub fn set_used_event(&self, event: u16) {
        self.guest.write_u16(self.layout.avail() + 4 + 2 * u64::from(self.layout.size), event);
    }

    /// The used entries (id, length) since the last call.
    pub fn used(&mut self) -> Vec<(u32, u32)> {
        let idx = self.guest.read_u16(self.layout.used() + 2);
        let mut entries = Vec::new();
        while self.used_idx != idx {
            let slot = u64::from(self.used_idx % self.layout.size);
            let bytes = self.guest.read(self.layout.used() + 4 + 8 * slot, 8);
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            entries.push((word(0), word(4)));
            self.used_idx = self.used_idx.wrapping_add(1);
        }
        entries
    }
}

/// A frame of `len` bytes that differs from others by `seed`.
pub fn frame(len: usize, seed: u32) -> Vec<u8> {
    (0..len).map(|i| (i as u32 * 7 + seed * 31 + (i as u32 >> 8)) as u8).collect()
}
