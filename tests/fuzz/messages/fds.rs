//! Fds of every kind that a frontend may send, and how many of them this process has.
//!
//! Made once a process. Where what is in them matters it is made anew for every input.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

/// Bytes of the file with honest rings in it.
pub const MEMORY: u64 = 0x1_0000;
/// How many kinds there are.
pub const KINDS: usize = 16;

pub struct Fds {
    fds: [OwnedFd; KINDS],
    /// The other ends, and what else must stay open.
    _kept: Vec<OwnedFd>,
    memory: File,
}

impl Fds {
    pub fn new() -> Self {
        let memfd = |len| ringbridge::sys::memfd(c"fuzzed", len).expect("a memfd");
        let memory = memfd(MEMORY);
        let (pipe_read, pipe_write) = std::io::pipe().expect("a pipe");
        let (full_read, mut full_write) = std::io::pipe().expect("a pipe");
        nonblocking(&full_write);
        while full_write.write(&[0; 4096]).is_ok() {}
        let (socket, peer) = UnixStream::pair().expect("sockets");
        let (orphan, _) = UnixStream::pair().expect("sockets");
        let path = std::env::temp_dir().join(format!("ringbridge-fuzz-{}", std::process::id()));
        let disk = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let disk = disk.expect("a file");
        disk.set_len(MEMORY).expect("room");
        std::fs::remove_file(&path).expect("our file");
        // SAFETY: plain calls; a new fd, or -1, which `owned` refuses.
        let (plain, blocking, full, epoll) = unsafe {
            (
                owned(libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)),
                owned(libc::eventfd(0, libc::EFD_CLOEXEC)),
                owned(libc::eventfd(0, libc::EFD_CLOEXEC)),
                owned(libc::epoll_create1(libc::EPOLL_CLOEXEC)),
            )
        };
        let full = File::from(full);
        (&full).write_all(&(u64::MAX - 1).to_ne_bytes()).expect("room");
        let fds = [
            memory.try_clone().expect("an fd").into(),
            memfd(MEMORY).into(),
            memfd(0x1000).into(),
            memfd(1 << 40).into(),
            memfd(0).into(),
            plain,
            blocking,
            full.into(),
            pipe_read.into(),
            pipe_write.into(),
            full_write.into(),
            socket.into(),
            orphan.into(),
            File::open("/").expect("a directory").into(),
            disk.into(),
            epoll,
        ];
        Fds { fds, _kept: vec![full_read.into(), peer.into()], memory }
    }

    pub fn get(&self, kind: usize) -> RawFd {
        self.fds[kind % KINDS].as_raw_fd()
    }

    /// Write into the memory with honest rings.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        if at + bytes.len() as u64 <= MEMORY {
            self.memory.write_all_at(bytes, at).expect("room");
        }
    }
}

fn owned(fd: RawFd) -> OwnedFd {
    assert!(fd >= 0);
    // SAFETY: a new fd that nobody else knows.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn nonblocking(fd: &impl AsRawFd) {
    // SAFETY: a plain call.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
}

/// How many fds this process has open.
pub fn open() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

/// What they lead to.
pub fn list() -> String {
    let entries = std::fs::read_dir("/proc/self/fd").expect("procfs");
    let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    links.map(|link| link.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// Is a file of ours mapped?
pub fn mapped() -> bool {
    const NAME: &[u8] = b"memfd:fuzzed ";
    let maps = std::fs::read("/proc/self/maps").expect("procfs");
    // In Rust every comparison would be traced, for the fuzzer to learn from.
    // SAFETY: both are as long as is said.
    let found =
        unsafe { libc::memmem(maps.as_ptr().cast(), maps.len(), NAME.as_ptr().cast(), NAME.len()) };
    !found.is_null()
}
