//! All mappings of frontends' files, for the handler of SIGBUS: it runs on whatever thread has
//! touched a page that is gone, in the middle of a copy.
//!
//! Promises: the handler does only what a handler may: it reads the slots, which are plain
//! atomics, and calls `mmap` and `shutdown`; a fault anywhere else ends the process as it would
//! without us. The thread that faults holds the mapping alive (law 1 of the crate: whoever has an
//! address has an `Arc` of what it leads into), so its slot cannot change meanwhile; those of
//! others can, and a sequence number tells. Called by `mapping`, which empties a slot before it
//! unmaps.

use super::Alarm;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

/// Most mappings at a time, of all guests together: 3000 guests as QEMU makes them, 58 with all
/// their regions. Linux lets a process have 65530, and one becomes two when its file is truncated:
/// at that limit the handler could not map, nor anybody allocate, and the process would end.
const MOST: usize = 30_000;
/// Most bytes of them, half of what x86-64 gives a process, for the same reason.
const MOST_BYTES: u64 = 64 << 40;

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
/// The handler never looks here.
static BOOKS: Mutex<Books> = Mutex::new(Books { used: 0, free: Vec::new(), bytes: 0 });

/// Which slots are whose.
struct Books {
    /// As [`USED`].
    used: usize,
    /// Slots below `used` that are free.
    free: Vec<usize>,
    /// Bytes of all mappings.
    bytes: u64,
}

impl Books {
    /// A slot for a mapping of `len` bytes; or why there is none.
    fn take(&mut self, len: usize) -> Result<usize, String> {
        let bytes = self.bytes.saturating_add(len as u64);
        if bytes > MOST_BYTES {
            let most = MOST_BYTES >> 40;
            return Err(format!("all guests together would have more than {most} TiB"));
        }
        if self.free.is_empty() && self.used == MOST {
            return Err(format!("all guests together have {MOST} mappings already"));
        }
        self.bytes = bytes;
        Ok(self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        }))
    }

    fn give_back(&mut self, slot: usize, len: usize) {
        self.free.push(slot);
        self.bytes -= len as u64;
    }
}

fn books() -> MutexGuard<'static, Books> {
    BOOKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A slot for a mapping of `len` bytes, empty for now.
///
/// # Errors
/// `QuotaExceeded`: all guests together have too much already.
pub(super) fn take(len: usize) -> io::Result<usize> {
    let mut books = books();
    let slot = books.take(len).map_err(|why| io::Error::new(io::ErrorKind::QuotaExceeded, why))?;
    // Under the lock: the only writer.
    USED.store(books.used, Ordering::Release);
    Ok(slot)
}

/// The slot of a mapping of `len` bytes, which is empty again.
pub(super) fn give_back(slot: usize, len: usize) {
    books().give_back(slot, len);
}

/// From now on a fault in these bytes rings `alarm`, which must live until [`clear`].
pub(super) fn enter(slot: usize, (start, len): (usize, usize), page: usize, alarm: &Arc<Alarm>) {
    SLOTS[slot].fill(start, len, page, Arc::as_ptr(alarm).cast_mut());
}

/// The mapping is about to go.
pub(super) fn clear(slot: usize) {
    SLOTS[slot].fill(0, 0, 0, ptr::null_mut());
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
        // Pairs with the fence in `fill`: who has seen a field of the new mapping sees here that
        // the number has changed.
        fence(Ordering::Acquire);
        let stable = before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before;
        let inside = addr.wrapping_sub(start) < len;
        (stable && inside).then(|| Found { start, end: start + len, page, alarm })
    }
}

/// Catch faults, once for the process.
pub(super) fn install_handler() {
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
    // SAFETY: the system passes what SA_SIGINFO promises; errno is this thread's. What was found
    // holds the address that this very thread has touched, so the mapping is alive, and with it
    // its alarm; all calls are async-signal-safe.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        let (addr, sent) = ((*info).si_addr().addr(), (*info).si_code <= 0);
        let used = USED.load(Ordering::Acquire);
        match SLOTS[..used].iter().find_map(|slot| slot.find(addr)) {
            // A signal that somebody sends has no address, but something else in its place.
            Some(found) if !sent && replace(&found, addr) => (*found.alarm).ring(),
            // Not ours: it happens again, and ends the process as it would have.
            _ => {
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
                if sent {
                    libc::raise(libc::SIGBUS);
                }
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
pub(super) fn used() -> usize {
    USED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    const PAGE: usize = 4096;

    /// A fault of nobody's ends the process, as it would without us, and so does a signal that
    /// was sent.
    #[test]
    fn a_fault_outside_is_not_survived() {
        let file = crate::sys::memfd(c"foreign", PAGE as u64).unwrap();
        let (prot, fd) = (libc::PROT_READ, file.as_raw_fd());
        install_handler();
        // SAFETY: a new mapping, of which the handler knows nothing.
        let at = unsafe { libc::mmap(ptr::null_mut(), PAGE, prot, libc::MAP_SHARED, fd, 0) };
        file.set_len(0).unwrap();
        for sent in [false, true] {
            // SAFETY: the child does nothing but fault, or signal itself, and exit.
            let child = unsafe {
                match libc::fork() {
                    0 => {
                        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                        libc::setrlimit(libc::RLIMIT_CORE, &raw const limit);
                        if sent {
                            libc::raise(libc::SIGBUS);
                        } else {
                            at.cast::<u8>().read_volatile();
                        }
                        libc::_exit(0)
                    }
                    child => child,
                }
            };
            let mut status = 0;
            // SAFETY: our own child.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            let died = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS;
            assert!(died, "sent {sent}: {status}");
        }
        // SAFETY: mapped above.
        unsafe { libc::munmap(at, PAGE) };
    }

    #[test]
    fn all_guests_together_leave_something_to_the_process() {
        let new = || Books { used: 0, free: Vec::new(), bytes: 0 };
        let mut many = new();
        assert!((0..MOST).all(|slot| many.take(PAGE) == Ok(slot)));
        assert!(many.take(PAGE).is_err());
        many.give_back(7, PAGE);
        assert_eq!(many.take(PAGE), Ok(7));
        assert!(many.take(PAGE).is_err());
        let mut large = new();
        assert_eq!(large.take(MOST_BYTES as usize - PAGE), Ok(0));
        assert!(large.take(PAGE + 1).is_err());
        assert_eq!(large.take(PAGE), Ok(1));
        large.give_back(0, MOST_BYTES as usize - PAGE);
        assert_eq!((large.take(PAGE), large.bytes), (Ok(0), 2 * PAGE as u64));
    }
}
