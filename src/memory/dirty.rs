//! The dirty log: which pages of a guest we have written to since the frontend last looked
//! (vhost-user, "Migration").
//!
//! Promises: a bit is set by one atomic operation after the bytes that it stands for were
//! written, so that a frontend that takes the bit finds them; nothing is written outside the
//! log, whatever address is marked. Made by `vhost_user`, marked by `virtio`.

use super::{Alarm, GuestMemory, MemoryError, Region, RegionSpec, check, host, map_region};
use crate::arch;
use std::fs::File;
use std::sync::Arc;

/// Bytes that one bit stands for, whatever the pages of the memory are.
const PAGE: u64 = 4096;

/// Most bytes of a log: a bit for each page of 52 bits of guest addresses, which is more than any
/// processor has. A sparse file costs a frontend nothing, and our address space is everybody's.
const MOST: u64 = 1 << (52 - 12 - 3);

/// A bitmap shared with the frontend: page `n` of the guest is bit `n % 8` of byte `n / 8`.
#[derive(Debug)]
pub struct DirtyLog {
    region: Region,
}

impl DirtyLog {
    /// Map `size` bytes of `file` from `offset` on. `alarm` rings when the file is truncated
    /// later.
    ///
    /// # Errors
    /// What is wrong with the file, as for a region of guest memory at 0.
    pub fn map(
        file: File,
        (offset, size): (u64, u64),
        alarm: &Arc<Alarm>,
    ) -> Result<Arc<Self>, MemoryError> {
        if size > MOST {
            return Err(MemoryError::LogTooLong(size));
        }
        let spec = RegionSpec { guest: 0, size, user: 0, offset, file };
        let metadata = check(&spec)?;
        Ok(Arc::new(DirtyLog { region: map_region(spec, &metadata, alarm)? }))
    }

    /// Does it have a bit for every page of `memory`?
    pub fn covers(&self, memory: &GuestMemory) -> bool {
        memory.regions.iter().all(|r| (r.guest + r.size).div_ceil(PAGE) <= self.region.size * 8)
    }

    /// `len` bytes at guest address `addr` were written. Pages that the log has no bit for are
    /// left out.
    pub fn mark(&self, addr: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = addr.saturating_add(len - 1) / PAGE;
        for page in addr / PAGE..=last.min((self.region.size * 8).saturating_sub(1)) {
            let (byte, bit) = ((page / 8) as usize, page % 8);
            // SAFETY: the byte lies in the log, which is mapped.
            unsafe { arch::or_u8(host(&self.region).add(byte).as_ptr(), 1 << bit) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memfd;
    use std::os::unix::fs::FileExt;

    fn log(file: &File, offset: u64, size: u64) -> Arc<DirtyLog> {
        DirtyLog::map(file.try_clone().unwrap(), (offset, size), &Arc::default()).unwrap()
    }

    fn bytes(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn each_page_that_is_touched_has_its_bit() {
        let file = memfd(c"log", 0x1000).unwrap();
        let log = log(&file, 0, 0x1000);
        log.mark(0, 0);
        log.mark(0x1fff, 1);
        log.mark(0x8fff, 2);
        log.mark(0x2_0000, 0x8000);
        let mut expected = vec![0; 0x1000];
        expected[..6].copy_from_slice(&[0b10, 0b11, 0, 0, 0xff, 0]);
        assert_eq!(bytes(&file), expected);
    }

    #[test]
    fn what_lies_beyond_the_log_is_left_out() {
        let file = memfd(c"log", 0x1000).unwrap();
        // In the middle of a page of the file, and three bytes long.
        let log = log(&file, 100, 3);
        for (addr, len) in [(23 * PAGE, PAGE * 9), (24 * PAGE, 1), (u64::MAX, 1), (u64::MAX, 9)] {
            log.mark(addr, len);
        }
        let mut expected = vec![0; 0x1000];
        expected[102] = 0x80;
        assert_eq!(bytes(&file), expected);
        log.mark(0, u64::MAX);
        expected[100..103].fill(0xff);
        assert_eq!(bytes(&file), expected);
    }

    #[test]
    fn a_log_is_checked_like_memory_and_against_it() {
        let file = memfd(c"log", 0x1000).unwrap();
        let map = |offset, size| {
            DirtyLog::map(file.try_clone().unwrap(), (offset, size), &Arc::default())
        };
        assert!(matches!(map(0, 0), Err(MemoryError::Zero(_))));
        assert!(matches!(map(1, 0x1000), Err(MemoryError::PastEnd { .. })));
        assert!(matches!(map(0, MOST + 1), Err(MemoryError::LogTooLong(_))));
        assert!(matches!(map(u64::MAX, 2), Err(MemoryError::Wraps(_))));
        let disk = File::open("/proc/self/exe").unwrap();
        assert!(matches!(DirtyLog::map(disk, (0, 8), &Arc::default()), Err(MemoryError::Kind(_))));
        let spec = |guest, size| RegionSpec {
            guest,
            size,
            user: 0,
            offset: 0,
            file: file.try_clone().unwrap(),
        };
        let memory = |spec| GuestMemory::map(vec![spec], &Arc::default()).unwrap();
        let log = map(0, 1).unwrap();
        assert!(log.covers(&memory(spec(7 * PAGE, PAGE))));
        assert!(!log.covers(&memory(spec(7 * PAGE + 1, PAGE))));
        assert!(!log.covers(&memory(spec(8 * PAGE, PAGE))));
    }
}
