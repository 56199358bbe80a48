//! A mapping of a frontend's file, which the frontend may shrink at any moment.
//!
//! Promises: an access to a page that is no longer there ends neither the process nor anybody
//! else's session: the page and all behind it become private memory, and the [`Alarm`] of the
//! session rings, which shuts its socket down. The fd is not kept. Made by `memory` for regions
//! and dirty logs. Never touches a byte itself and never prefaults.
//!
//! # The signal handler
//!
//! It runs on whatever thread has touched the page, in the middle of a copy, and does only what
//! a handler may: it reads the registry, which is plain atomics, and calls `mmap` and
//! `shutdown`. The thread that faults holds the mapping alive (law 1 of the crate: whoever has
//! an address has an `Arc` of what it leads into), so its entry cannot change meanwhile; entries
//! of others can, and a sequence number tells.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, Once, PoisonError};

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
    fn ring(&self) {
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
    /// The operating system's; `QuotaExceeded` if there are too many mappings already.
    pub fn new(
        file: &File,
        (offset, len): (u64, usize),
        page: usize,
        alarm: &Arc<Alarm>,
    ) -> io::Result<Self> {
        install_handler();
        let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let slot = take_slot()?;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping where the system likes; nobody's memory is replaced.
        let at = unsafe {
            let flags = flags | libc::MAP_NORESERVE;
            libc::mmap(ptr::null_mut(), len, prot, flags, file.as_raw_fd(), offset)
        };
        let mapped = if at == libc::MAP_FAILED { None } else { NonNull::new(at.cast::<u8>()) };
        let Some(at) = mapped else {
            let error = io::Error::last_os_error();
            free_slots().push(slot);
            return Err(error);
        };
        SLOTS[slot].fill(at.addr().get(), len, page, Arc::as_ptr(alarm).cast_mut());
        Ok(Mapping { at, len, slot, _alarm: Arc::clone(alarm) })
    }

    /// The first byte.
    pub fn ptr(&self) -> NonNull<u8> {
        self.at
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        SLOTS[self.slot].fill(0, 0, 0, ptr::null_mut());
        // SAFETY: ours, and whoever had an address in it has let go.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
        free_slots().push(self.slot);
    }
}

/// Most mappings at a time: 256 guests with all their regions, never touched until used.
const MOST: usize = 1 << 17;

/// A mapping, as the handler sees it. An empty one has no bytes.
struct Slot {
    /// Odd while the slot is being written.
    sequence: AtomicU32,
    start: AtomicUsize,
    len: AtomicUsize,
    page: AtomicUsize,
    alarm: AtomicPtr<Alarm>,
}

static SLOTS: [Slot; MOST] = [const {
    Slot {
        sequence: AtomicU32::new(0),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        alarm: AtomicPtr::new(ptr::null_mut()),
    }
}; MOST];
/// Slots that were ever used: what the handler looks at.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Slots below [`USED`] that are free. The handler never looks here.
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn free_slots() -> std::sync::MutexGuard<'static, Vec<usize>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take_slot() -> io::Result<usize> {
    let mut free = free_slots();
    if let Some(slot) = free.pop() {
        return Ok(slot);
    }
    // Under the lock: the only writer.
    let slot = USED.load(Ordering::Relaxed);
    if slot == MOST {
        let what = format!("there are {MOST} mappings of guest memory already");
        return Err(io::Error::new(io::ErrorKind::QuotaExceeded, what));
    }
    USED.store(slot + 1, Ordering::Release);
    Ok(slot)
}

/// What the handler found.
struct Found {
    start: usize,
    end: usize,
    page: usize,
    alarm: *const Alarm,
}

impl Slot {
    /// Only the owner of the slot writes it.
    fn fill(&self, start: usize, len: usize, page: usize, alarm: *mut Alarm) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        // Pairs with the fence in `find`: who sees a field of the new mapping sees an odd or a
        // later number.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        self.alarm.store(alarm, Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// The mapping in this slot, if `addr` lies in it. A slot that changes meanwhile is not the
    /// one of a thread that faults.
    fn find(&self, addr: usize) -> Option<Found> {
        let before = self.sequence.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let len = self.len.load(Ordering::Relaxed);
        let page = self.page.load(Ordering::Relaxed);
        let alarm = self.alarm.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let stable = before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before;
        let inside = addr.wrapping_sub(start) < len;
        (stable && inside).then(|| Found { start, end: start + len, page, alarm })
    }
}

fn install_handler() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: an all-zero sigaction is valid; the handler has the signature that SA_SIGINFO
        // asks for, and does only what is async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            // It cannot fail for a signal that exists.
            libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
        }
    });
}

/// A page of some mapping is not there.
extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system passes what SA_SIGINFO promises; errno is this thread's.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        let addr = (*info).si_addr().addr();
        let used = USED.load(Ordering::Acquire);
        match SLOTS[..used].iter().find_map(|slot| slot.find(addr)) {
            // A signal that somebody sends has no address, but something else in its place.
            Some(found) if (*info).si_code > 0 && replace(&found, addr) => (*found.alarm).ring(),
            // Not ours: it happens again, and ends the process as it would have.
            _ => {
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
            }
        }
        *errno = saved;
    }
}

/// Put private memory where `addr` is and over all behind it, which is gone as well: page by
/// page, a large file would need more mappings than a process may have.
///
/// # Safety
/// `found` is a live mapping, and `addr` lies in it.
unsafe fn replace(found: &Found, addr: usize) -> bool {
    let from = addr - (addr - found.start) % found.page;
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    let flags = flags | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // All the rest may be more than a machine that does not overcommit has to give.
    [found.end - from, found.page].into_iter().any(|len| {
        let at = ptr::with_exposed_provenance_mut(from);
        // SAFETY: whole pages of a mapping of ours; what reads or writes there goes on.
        unsafe { libc::mmap(at, len, prot, flags, -1, 0) != libc::MAP_FAILED }
    })
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
        let used = USED.load(Ordering::Relaxed);
        assert_eq!(mapped(), 0);
        for _ in 0..1000 {
            map(&file, 1, &Arc::default());
        }
        // Other tests map, too.
        assert!(USED.load(Ordering::Relaxed) < used + 500);
    }

    /// Pages of hugetlbfs are put over as a whole: no mapping may end inside one.
    #[test]
    fn huge_pages_go_as_a_whole() {
        const HUGE: usize = 2 << 20;
        let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
        // SAFETY: a C string.
        let fd = unsafe { libc::memfd_create(c"huge-gone".as_ptr(), flags) };
        if fd < 0 {
            let all = std::env::var_os("RINGBRIDGE_REQUIRE").is_some_and(|all| all == "all");
            assert!(!all, "no hugetlbfs, and RINGBRIDGE_REQUIRE=all");
            return eprintln!("skipped: no hugetlbfs");
        }
        // SAFETY: just made, and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(4 * HUGE as u64).unwrap();
        let alarm = Arc::new(Alarm::default());
        let mapping = Mapping::new(&file, (0, 4 * HUGE), HUGE, &alarm).unwrap();
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

    /// A fault of nobody's ends the process, as it would without us.
    #[test]
    fn a_fault_outside_is_not_survived() {
        // SAFETY: the child does nothing but fault and exit.
        let child = unsafe {
            let file = crate::sys::memfd(c"foreign", PAGE as u64).unwrap();
            install_handler();
            let at = libc::mmap(
                ptr::null_mut(),
                PAGE,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            file.set_len(0).unwrap();
            match libc::fork() {
                0 => {
                    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                    libc::setrlimit(libc::RLIMIT_CORE, &raw const limit);
                    at.cast::<u8>().read_volatile();
                    libc::_exit(0)
                }
                child => child,
            }
        };
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS, "{status}");
    }
}
