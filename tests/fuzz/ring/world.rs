//! The guest's memory: three regions of one file, two of them adjacent, one at the end of the
//! address space, none of them whole pages.
//!
//! Promises: around every mapping lies a page that nobody may touch, and around every region
//! bytes of the file that must not change. Mapped once a process, so that an input costs no
//! system call. The fuzzer and the oracle see the file through a mapping of their own.

use ringbridge::memory::{DirtyLog, GuestMemory, RegionSpec};
use ringbridge::sys;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;

const PAGE: usize = 4096;
/// Bytes of the file.
pub const BYTES: usize = 0x9000;
/// What lies in it outside the regions.
const CANARY: u8 = 0xa5;
/// Frontend's addresses are so far above the guest's.
pub const USER: u64 = 0x5500_0000_0000;

/// Guest address, offset in the file, bytes.
pub const REGIONS: [(u64, usize, usize); 3] = [
    (0x1_0000, 0x1000, 0x4000),
    (0x1_4000, 0x5810, 0x17f0),
    (0xffff_ffff_ffff_f000, 0x7100, 0xff0),
];

/// Where the log begins in its file.
const LOG_AT: usize = 0x900;
/// Bytes of the dirty log. It does not reach the last region.
pub const LOG: usize = 512;

/// The memory and its dirty log, and our own look at them.
pub struct World {
    pub memory: Arc<GuestMemory>,
    pub log: Arc<DirtyLog>,
    view: *mut u8,
    log_view: *mut u8,
}

// SAFETY: an address of shared memory, touched by volatile accesses and copies only.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

impl World {
    pub fn new() -> Self {
        let file = sys::memfd(c"fuzzed", BYTES as u64).expect("a memfd");
        let view = map(BYTES, libc::PROT_READ | libc::PROT_WRITE, Some(&file));
        let mut kept = Vec::new();
        let memory = loop {
            let memory = guarded(&file);
            match memory {
                Ok(memory) => break memory,
                // Something lay beside it. While it lies there, the next try goes elsewhere.
                Err(memory) => kept.push(memory),
            }
            assert!(kept.len() < 1000, "no place with room for guard pages");
        };
        let file = sys::memfd(c"log", 2 * PAGE as u64).expect("a memfd");
        let log_view = map(2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, Some(&file));
        let place = (LOG_AT as u64, LOG as u64);
        let log = DirtyLog::map(file, place, &Arc::default()).expect("a log");
        World { memory, log, view, log_view }
    }

    /// No page is dirty.
    pub fn clear_log(&self) {
        // SAFETY: all of the file is mapped there.
        unsafe {
            ptr::write_bytes(self.log_view, CANARY, 2 * PAGE);
            ptr::write_bytes(self.log_view.add(LOG_AT), 0, LOG);
        }
    }

    /// The log. Nothing was written beside it.
    pub fn look_at_log(&self) -> Vec<u8> {
        let mut file = vec![0; 2 * PAGE];
        // SAFETY: all of the file is mapped there.
        unsafe { ptr::copy_nonoverlapping(self.log_view, file.as_mut_ptr(), file.len()) };
        let log = file[LOG_AT..LOG_AT + LOG].to_vec();
        file.drain(LOG_AT..LOG_AT + LOG);
        assert!(file.iter().all(|byte| *byte == CANARY), "written beside the log");
        log
    }

    /// All zero, but for the canaries.
    pub fn clear(&self) {
        // SAFETY: all of the file is mapped there; regions lie in it.
        unsafe {
            ptr::write_bytes(self.view, CANARY, BYTES);
            for (_, offset, len) in REGIONS {
                ptr::write_bytes(self.view.add(offset), 0, len);
            }
        }
    }

    /// Write at an offset of the file what of it lies in a region.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            if in_a_region(offset + i) {
                // SAFETY: regions lie in the file.
                unsafe { self.view.add(offset + i).write_volatile(*byte) };
            }
        }
    }

    /// All of the file.
    pub fn look(&self, out: &mut [u8; BYTES]) {
        // SAFETY: all of the file is mapped there.
        unsafe { ptr::copy_nonoverlapping(self.view, out.as_mut_ptr(), BYTES) };
    }

    /// A word of the file.
    pub fn read_u16(&self, offset: usize) -> u16 {
        assert!(offset + 2 <= BYTES);
        // SAFETY: inside the file.
        let byte = |i| unsafe { self.view.add(offset + i).read_volatile() };
        u16::from_le_bytes([byte(0), byte(1)])
    }
}

fn in_a_region(offset: usize) -> bool {
    REGIONS.iter().any(|(_, at, len)| offset.wrapping_sub(*at) < *len)
}

/// Are the bytes around the regions what they were?
pub fn canaries_live(file: &[u8; BYTES]) -> bool {
    let mut from = 0;
    for (_, offset, len) in REGIONS {
        if file[from..offset].iter().any(|byte| *byte != CANARY) {
            return false;
        }
        from = offset + len;
    }
    file[from..].iter().all(|byte| *byte == CANARY)
}

/// Offset in the file of a guest address, and how many bytes the region has from there.
pub fn place(guest: u64) -> Option<(usize, usize)> {
    REGIONS.iter().find_map(|(at, offset, len)| {
        let from = usize::try_from(guest.wrapping_sub(*at)).ok().filter(|from| from < len)?;
        Some((offset + from, len - from))
    })
}

/// Guest address of a byte of the file in a region.
pub fn guest(offset: usize) -> Option<u64> {
    REGIONS.iter().find_map(|(guest, at, len)| {
        let from = offset.checked_sub(*at).filter(|from| from < len)?;
        Some(guest + from as u64)
    })
}

/// New memory, of a file if there is one.
pub fn map(len: usize, protection: i32, file: Option<&File>) -> *mut u8 {
    let (flags, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: a new mapping where the system likes.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

/// A page that nobody may touch at `at`, if nothing is there.
fn guard(at: *mut u8) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: NOREPLACE: no mapping of anybody's is touched.
    let page = unsafe { libc::mmap(at.cast(), PAGE, libc::PROT_NONE, flags, -1, 0) };
    page == at.cast()
}

/// The regions mapped, with guards on both sides of each. `Err` is memory without them.
fn guarded(file: &File) -> Result<Arc<GuestMemory>, Arc<GuestMemory>> {
    let mut memory: Option<Arc<GuestMemory>> = None;
    for (guest, offset, len) in REGIONS {
        // The system places mappings one below the other, where no hole is left.
        let above = map(PAGE, libc::PROT_NONE, None);
        let file = file.try_clone().expect("an fd");
        let user = guest.wrapping_add(USER);
        let spec = RegionSpec { guest, size: len as u64, user, offset: offset as u64, file };
        let with = match &memory {
            Some(memory) => memory.with(spec),
            None => GuestMemory::map(vec![spec], &Arc::default()),
        };
        let with = with.expect("a memory table");
        let host = with.window(guest).and_then(|window| window.translate(guest, len as u64));
        let host = host.expect("just mapped").as_ptr();
        let lead = offset % PAGE;
        // SAFETY: never dereferenced.
        let (first, end) = unsafe {
            let first = host.sub(lead);
            (first, first.add((lead + len).next_multiple_of(PAGE)))
        };
        // SAFETY: as above.
        if !(end == above && guard(unsafe { first.sub(PAGE) })) {
            return Err(with);
        }
        memory = Some(with);
    }
    Ok(memory.expect("three regions"))
}
