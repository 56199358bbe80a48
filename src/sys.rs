//! The few things of the system that no crate in use wraps well: CPU affinity, termination by
//! signal, the limit of open files, an owned epoll fd, a memfd, a stdout that may be closed, the rate of the cycle counter.
//!
//! Promises: safe functions with checked results. Sockets are in [`unix`], their files in
//! [`socket_file`], eventfds of others in [`bell`]; interfaces are in [`netif`], [`tap`] and
//! [`packet_socket`].

pub mod bell;
pub mod netif;
pub mod packet_socket;
pub mod socket_file;
pub mod tap;
pub mod unix;

use crate::arch;
use std::error::Error;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pin the calling thread to one CPU.
///
/// # Errors
/// The operating system's, for a CPU that does not exist or is not allowed.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is valid and empty.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `cpu` is below CPU_SETSIZE, and `set` outlives both calls.
    let rc = unsafe {
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The CPUs this process may run on, ascending.
///
/// # Errors
/// The operating system's.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: an all-zero cpu_set_t is valid and empty.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable and of the size given.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every index is below CPU_SETSIZE.
    Ok((0..libc::CPU_SETSIZE as usize).filter(|&c| unsafe { libc::CPU_ISSET(c, &set) }).collect())
}

/// The user that this process acts as.
pub fn user() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() }
}

/// Allow as many open files as the system would: a guest of many queues and regions has more than
/// the usual limit, which is for programs that use `select`.
///
/// # Errors
/// The operating system's; the limit is as it was then.
pub fn raise_file_limit() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable, and outlives both calls.
    let done = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0
        }
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What a system call that answers -1 for an error has done.
fn check(rc: libc::c_int) -> io::Result<()> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A new epoll instance, owned.
///
/// # Errors
/// The operating system's: no more fds.
pub fn new_epoll() -> io::Result<OwnedFd> {
    let fd = epoll::create(true)?;
    // SAFETY: the descriptor was just made and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A new file of `len` zero bytes in memory, which others may map: a guest's memory. `name`
/// stands in `/proc`, nothing else.
///
/// # Errors
/// The operating system's: no more fds, or a length that no file has.
pub fn memfd(name: &CStr, len: u64) -> io::Result<File> {
    // SAFETY: the name is a C string; the result is checked.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and belongs to nobody else.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len)?;
    Ok(file)
}

/// SIGINT and SIGTERM, taken by waiting instead of by a handler.
#[derive(Debug)]
pub struct Termination(libc::sigset_t);

impl Termination {
    /// From now on both signals wait for [`Termination::wait`], in this thread and in those
    /// that it starts later.
    ///
    /// # Errors
    /// The operating system's.
    pub fn catch() -> io::Result<Self> {
        // SAFETY: an all-zero sigset_t may be overwritten by sigemptyset.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is writable and outlives the calls; the old mask is not asked for.
        let rc = unsafe {
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut())
        };
        if rc == 0 { Ok(Termination(set)) } else { Err(io::Error::from_raw_os_error(rc)) }
    }

    /// Wait for one of the signals, at most `timeout`. True if one came.
    pub fn wait(&self, timeout: Duration) -> bool {
        let timeout = libc::timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: the set and the timeout outlive the call; no details are asked for.
        unsafe {
            libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), &raw const timeout) > 0
        }
    }
}

/// End this process as if SIGTERM had come to it: [`Termination`] takes it.
///
/// # Errors
/// The operating system's.
pub fn terminate() -> io::Result<()> {
    // SAFETY: plain calls.
    let done = unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// An error and its causes in one line.
pub fn with_causes(error: &dyn Error) -> String {
    std::iter::successors(error.source(), |cause| (*cause).source())
        .fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}

/// Print to stdout. Whoever closed it has read enough: that is no reason to panic.
pub fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// A flag that SIGINT or SIGTERM raises. To be called before other threads are started, which
/// would get the signals instead.
///
/// # Errors
/// The operating system's.
pub fn stop_on_signal() -> io::Result<Arc<AtomicBool>> {
    let signals = Termination::catch()?;
    let stop = Arc::new(AtomicBool::new(false));
    let raised = Arc::clone(&stop);
    // Ends with the process.
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        while !signals.wait(Duration::from_hours(1)) {}
        raised.store(true, Ordering::Relaxed);
    })?;
    Ok(stop)
}

/// How many ticks a second the cycle counter makes, as measured in 5 ms.
pub fn cycles_per_second() -> f64 {
    let (start, first) = (Instant::now(), arch::cycles());
    std::thread::sleep(Duration::from_millis(5));
    let ticks = arch::cycles().wrapping_sub(first);
    ticks as f64 / start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn pins_to_an_allowed_cpu_and_refuses_an_impossible_one() {
        let cpus = allowed_cpus().unwrap();
        std::thread::spawn(move || {
            pin_to_cpu(cpus[0]).unwrap();
            assert_eq!(allowed_cpus().unwrap(), [cpus[0]]);
            assert!(pin_to_cpu(100_000).is_err());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_memfd_is_as_long_as_asked_and_not_inherited() {
        let file = memfd(c"sys-test", 5000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 5000);
        // SAFETY: a plain query on an open fd.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        assert!(memfd(c"sys-test", u64::MAX).is_err());
    }

    #[test]
    fn the_counter_ticks() {
        assert!(cycles_per_second() > 1e6);
    }
}
