//! A mapping of a frontend's file, which the frontend may shrink at any moment.
//!
//! Promises: an access to a page that is no longer there ends neither the process nor anybody
//! else's session: the page and all behind it become private memory, and the [`Alarm`] of the
//! session rings, which shuts its socket down; how is in `registry`. The fd is not kept. Made by
//! `memory` for regions and dirty logs. Never touches a byte itself and never prefaults.

use super::registry;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whom a truncated file concerns: a session.
#[derive(Debug, Default)]
pub struct Alarm {
    /// Our own fd of its socket, so that the number is nobody else's while the alarm lives.
    socket: Option<OwnedFd>,
    rung: AtomicBool,
}

impl Alarm {
    /// Shuts `stream` down when it rings.
    ///
    /// # Errors
    /// The operating system's: no more fds.
    pub fn of(stream: &UnixStream) -> io::Result<Self> {
        Ok(Alarm { socket: Some(stream.try_clone()?.into()), rung: AtomicBool::new(false) })
    }

    /// Was a file truncated under a mapping?
    pub fn has_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed)
    }

    /// Called from a signal handler.
    pub(super) fn ring(&self) {
        self.rung.store(true, Ordering::Relaxed);
        if let Some(socket) = &self.socket {
            // SAFETY: async-signal-safe, on an fd that is ours. It fails if the peer was faster.
            unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
        }
    }
}

/// Whole pages of a file, mapped shared, readable and writable.
#[derive(Debug)]
pub struct Mapping {
    at: NonNull<u8>,
    len: usize,
    slot: usize,
    /// Kept for the handler, which finds it through the registry.
    _alarm: Arc<Alarm>,
}

// SAFETY: an address and its length; what lies there is only touched through `arch`.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing changes after `new`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Map `len` bytes of `file` from `offset`, both multiples of `page`, which is the file's
    /// page size in bytes.
    ///
    /// # Errors
    /// The operating system's; `QuotaExceeded` if all guests together have too much already.
    pub fn new(
        file: &File,
        (offset, len): (u64, usize),
        page: usize,
        alarm: &Arc<Alarm>,
    ) -> io::Result<Self> {
        registry::install_handler();
        let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let slot = registry::take(len)?;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping where the system likes; nobody's memory is replaced.
        let at = unsafe {
            let flags = flags | libc::MAP_NORESERVE;
            libc::mmap(ptr::null_mut(), len, prot, flags, file.as_raw_fd(), offset)
        };
        let mapped = if at == libc::MAP_FAILED { None } else { NonNull::new(at.cast::<u8>()) };
        let Some(at) = mapped else {
            let error = io::Error::last_os_error();
            registry::give_back(slot, len);
            return Err(error);
        };
        registry::enter(slot, (at.addr().get(), len), page, alarm);
        Ok(Mapping { at, len, slot, _alarm: Arc::clone(alarm) })
    }

    /// The first byte.
    pub fn ptr(&self) -> NonNull<u8> {
        self.at
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        registry::clear(self.slot);
        // SAFETY: ours, and whoever had an address in it has let go.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
        registry::give_back(self.slot, self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch;
    use std::io::Read;
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::FileExt;

    const PAGE: usize = 4096;

    fn map(file: &File, pages: usize, alarm: &Arc<Alarm>) -> Mapping {
        Mapping::new(file, (0, pages * PAGE), PAGE, alarm).unwrap()
    }

    fn byte(mapping: &Mapping, at: usize) -> u8 {
        let mut byte = 0;
        // SAFETY: inside the mapping.
        unsafe { arch::copy(&raw mut byte, mapping.ptr().as_ptr().add(at), 1) };
        byte
    }

    #[test]
    fn a_truncated_file_rings_and_what_is_left_stays() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let alarm = Arc::new(Alarm::of(&ours).unwrap());
        let file = crate::sys::memfd(c"truncated", 8 * PAGE as u64).unwrap();
        file.write_at(&[7], 0).unwrap();
        let mapping = map(&file, 8, &alarm);
        assert_eq!((byte(&mapping, 0), byte(&mapping, 8 * PAGE - 1)), (7, 0));
        assert!(!alarm.has_rung());
        file.set_len(PAGE as u64).unwrap();
        let (buffer, len) = ([9; 3 * PAGE], 3 * PAGE);
        // SAFETY: the destination is in the mapping.
        unsafe { arch::copy(mapping.ptr().as_ptr().add(PAGE / 2), buffer.as_ptr(), len) };
        assert!(alarm.has_rung());
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "the session ends");
        // The copy was made as a whole, partly into private memory.
        assert_eq!((byte(&mapping, 0), byte(&mapping, PAGE), byte(&mapping, 4 * PAGE)), (7, 9, 0));
    }

    #[test]
    fn many_threads_fault_at_once_and_only_their_alarms_ring() {
        let alarms: Vec<_> = (0..8).map(|_| Arc::new(Alarm::default())).collect();
        let whole = Arc::new(Alarm::default());
        let file = crate::sys::memfd(c"whole", 64 * PAGE as u64).unwrap();
        let other = map(&file, 64, &whole);
        std::thread::scope(|scope| {
            for alarm in &alarms {
                scope.spawn(move || {
                    for _ in 0..50 {
                        let file = crate::sys::memfd(c"gone", 64 * PAGE as u64).unwrap();
                        let mapping = map(&file, 64, alarm);
                        file.set_len(0).unwrap();
                        for page in (0..64).rev() {
                            assert_eq!(byte(&mapping, page * PAGE), 0);
                        }
                    }
                });
            }
        });
        assert!(alarms.iter().all(|alarm| alarm.has_rung()));
        assert_eq!(byte(&other, 63 * PAGE), 0);
        assert!(!whole.has_rung());
    }

    #[test]
    fn slots_and_address_space_come_back() {
        let file = crate::sys::memfd(c"returned", PAGE as u64).unwrap();
        let mapped =
            || std::fs::read_to_string("/proc/self/maps").unwrap().matches("returned").count();
        drop((0..100).map(|_| map(&file, 1, &Arc::default())).collect::<Vec<_>>());
        let used = registry::used();
        assert_eq!(mapped(), 0);
        for _ in 0..1000 {
            map(&file, 1, &Arc::default());
        }
        // Other tests map, too.
        assert!(registry::used() < used + 500);
    }

    /// Pages of hugetlbfs are put over as a whole: no mapping may end inside one.
    #[test]
    fn huge_pages_go_as_a_whole() {
        const HUGE: usize = 2 << 20;
        let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        // SAFETY: a C string.
        let fd = unsafe { libc::memfd_create(c"huge-gone".as_ptr(), flags) };
        let skip = |what: &str| {
            let all = std::env::var_os("RINGBRIDGE_REQUIRE").is_some_and(|all| all == "all");
            assert!(!all, "{what}, and RINGBRIDGE_REQUIRE=all");
            eprintln!("skipped: {what}");
        };
        if fd < 0 {
            return skip("no hugetlbfs");
        }
        // SAFETY: just made, and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(4 * HUGE as u64).unwrap();
        let alarm = Arc::new(Alarm::default());
        // An emulator of another processor may choose an address that suits its own pages only.
        let Ok(mapping) = Mapping::new(&file, (0, 4 * HUGE), HUGE, &alarm) else {
            return skip("huge pages cannot be mapped here");
        };
        // Without huge pages in stock already this faults, which is as good.
        let stocked = byte(&mapping, 0) == 0 && !alarm.has_rung();
        file.set_len(HUGE as u64).unwrap();
        for at in [4 * HUGE - 1, 2 * HUGE + 0x1234, HUGE] {
            assert_eq!(byte(&mapping, at), 0);
        }
        assert!(alarm.has_rung());
        let buffer = vec![9; HUGE + 1];
        // SAFETY: the destination is in the mapping, and crosses from what is left of the file.
        unsafe { arch::copy(mapping.ptr().as_ptr().add(1), buffer.as_ptr(), buffer.len()) };
        assert_eq!((byte(&mapping, 1), byte(&mapping, HUGE + 1)), (9, 9));
        let mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.matches("huge-gone").count()
        };
        assert_eq!(mapped(), usize::from(stocked));
        drop(mapping);
        assert_eq!(mapped(), 0);
    }
}
