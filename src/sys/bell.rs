//! Adding one to an eventfd that is somebody else's, without ever waiting for it.
//!
//! Promises: [`ring`] returns at once, whatever the other holders of the open file do. A plain
//! write does not: whoever shares the file may fill the counter and make the file blocking
//! between any check of ours and the write. So the kernel rings: a read of nothing, submitted
//! with the eventfd as what its completion is told to (`IOCB_FLAG_RESFD` of `io_submit`), which
//! adds one or leaves a full counter as it is. Called by `virtio` for call and error fds, and by
//! `vhost_user` for new ones. Where the kernel has no asynchronous I/O (emulators), it is a
//! plain write after all.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// `struct iocb` of the kernel's ABI (`linux/aio_abi.h`) on little-endian machines.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    reqprio: i16,
    fildes: u32,
    buf: u64,
    nbytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

/// `struct io_event` of the same.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IoEvent {
    data: u64,
    obj: u64,
    res: i64,
    res2: i64,
}

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_FLAG_RESFD: u32 = 1;
/// Completions that may be waiting to be taken.
const EVENTS: usize = 512;
/// Take them this often: they say nothing.
const TAKE_EVERY: u32 = 128;

/// The kernel's side of it, one for all threads.
struct Ringer {
    context: libc::c_ulong,
    /// What is read nothing from.
    null: File,
    rung: AtomicU32,
}

/// Add one to the eventfd `fd`. A full counter stays: a signal is pending, as good.
///
/// # Errors
/// It is no eventfd.
pub fn ring(fd: &File) -> io::Result<()> {
    match ringer() {
        Some(ringer) => ringer.ring(fd.as_raw_fd()),
        None => match (&mut &*fd).write(&1u64.to_ne_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        },
    }
}

/// Get ready, which takes an fd, so that no worker has to.
pub fn prepare() {
    ringer();
}

fn ringer() -> Option<&'static Ringer> {
    static RINGER: OnceLock<Option<Ringer>> = OnceLock::new();
    let made = RINGER.get_or_init(|| {
        Ringer::new()
            .inspect_err(|error| {
                tracing::warn!(
                    "no asynchronous I/O ({error}): a frontend can make the bridge wait for its \
                     call eventfd; see fs.aio-max-nr"
                );
            })
            .ok()
    });
    made.as_ref()
}

impl Ringer {
    fn new() -> io::Result<Self> {
        let null = File::open("/dev/null")?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the context is writable; it lives as long as the process.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, EVENTS, &raw mut context) };
        if made != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Ringer { context, null, rung: AtomicU32::new(0) })
    }

    fn ring(&self, fd: RawFd) -> io::Result<()> {
        if self.rung.fetch_add(1, Ordering::Relaxed) % TAKE_EVERY == TAKE_EVERY - 1 {
            self.take();
        }
        let mut rung = self.submit(fd);
        if rung.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            // Other threads have filled it.
            self.take();
            rung = self.submit(fd);
        }
        rung
    }

    fn submit(&self, fd: RawFd) -> io::Result<()> {
        let mut iocb = Iocb {
            opcode: IOCB_CMD_PREAD,
            fildes: self.null.as_raw_fd() as u32,
            flags: IOCB_FLAG_RESFD,
            resfd: fd as u32,
            ..Iocb::default()
        };
        let mut list = [&raw mut iocb];
        // SAFETY: one request, which is read before the call returns and has no buffer.
        let n = unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, list.as_mut_ptr()) };
        if n == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Forget what was completed.
    fn take(&self) {
        let mut events = [IoEvent::default(); EVENTS];
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: room for as many events as are asked for; it does not wait.
        unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0,
                EVENTS,
                events.as_mut_ptr(),
                &raw const now,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::FromRawFd;

    fn eventfd(count: u64, flags: i32) -> File {
        // SAFETY: takes no pointers; the descriptor is new and ours.
        let mut file = unsafe { File::from_raw_fd(libc::eventfd(0, flags)) };
        file.write_all(&count.to_ne_bytes()).unwrap();
        file
    }

    fn count(mut file: &File) -> u64 {
        let mut count = [0; 8];
        file.read_exact(&mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    #[test]
    fn each_ring_adds_one_however_many_there_are() {
        let file = eventfd(5, 0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..3000).for_each(|_| ring(&file).unwrap()));
            }
        });
        assert_eq!(count(&file), 12_005);
    }

    #[test]
    fn a_full_counter_is_not_waited_for() {
        if ringer().is_none() {
            return eprintln!("skipped: no asynchronous I/O here");
        }
        // Blocking, and no room for one more.
        let file = eventfd(u64::MAX - 1, 0);
        for _ in 0..2000 {
            ring(&file).unwrap();
        }
        assert!(count(&file) >= u64::MAX - 1);
        ring(&file).unwrap();
        assert_eq!(count(&file), 1);
    }

    #[test]
    fn nothing_else_is_rung() {
        if ringer().is_none() {
            return eprintln!("skipped: no asynchronous I/O here");
        }
        let (_reader, writer) = io::pipe().unwrap();
        for file in
            [File::open("/dev/null").unwrap(), File::from(std::os::fd::OwnedFd::from(writer))]
        {
            assert_eq!(ring(&file).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
