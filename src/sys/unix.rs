//! Unix stream sockets where std's own calls would block or leave a gap, and what is done to
//! fds that arrive over one.
//!
//! Promises: [`bind`], [`listen`] and [`connect`] never block; every fd made here is owned and
//! close-on-exec. Called by `control`, `vhost_user` and `frontend`. Never removes a file.

use super::check;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Longest path of a socket, in bytes.
pub const MAX_PATH: usize = 107;

/// Create the socket file `path`. Nobody can connect before [`listen`]: the gap in which its
/// permissions and owner are set.
///
/// # Errors
/// `InvalidInput` for a path that is empty, longer than [`MAX_PATH`] or contains a zero byte;
/// `AddrInUse` if it exists; else the operating system's.
pub fn bind(path: &Path) -> io::Result<OwnedFd> {
    let (address, len) = address(path)?;
    let socket = socket()?;
    // SAFETY: `address` is an initialised sockaddr_un of which `len` bytes are in use.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(socket)
}

/// Let frontends connect to a bound socket. The listener is non-blocking.
///
/// # Errors
/// The operating system's.
pub fn listen(socket: OwnedFd) -> io::Result<UnixListener> {
    const BACKLOG: libc::c_int = 128;
    // SAFETY: a plain call on an owned fd.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(socket.into())
}

/// Connect to `path` now or not at all: std's connect waits without limit for a listener whose
/// backlog is full. The stream is blocking.
///
/// # Errors
/// As [`bind`] for the path; `ConnectionRefused` if nobody listens; `WouldBlock` if the
/// listener's backlog is full; else the operating system's.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let (address, len) = address(path)?;
    let socket = socket()?;
    // SAFETY: `address` is an initialised sockaddr_un of which `len` bytes are in use.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Look at the first bytes that wait in `stream` without taking them, nor the fds that came
/// with them. Waits for at least one byte; 0 means that the peer is gone.
///
/// # Errors
/// The operating system's.
pub fn peek(stream: &UnixStream, buf: &mut [u8]) -> io::Result<usize> {
    look(stream, buf, 0)
}

/// Is the peer still there, as far as can be told without waiting?
pub fn is_open(stream: &UnixStream) -> bool {
    match look(stream, &mut [0], libc::MSG_DONTWAIT) {
        Ok(n) => n > 0,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

fn look(stream: &UnixStream, buf: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
    let (fd, flags) = (stream.as_raw_fd(), flags | libc::MSG_PEEK);
    // SAFETY: `buf` is writable for the length given.
    let n = unsafe { libc::recv(fd, buf.as_mut_ptr().cast(), buf.len(), flags) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Can nothing but bytes be kept in this fd? A socket keeps fds that are on their way through it,
/// and what is made by a system call of its own (epoll, `io_uring`) keeps what it works on; an
/// eventfd or a pipe keeps none.
///
/// # Errors
/// The operating system's.
pub fn keeps_no_fds(fd: &impl AsFd) -> io::Result<bool> {
    let fd = fd.as_fd();
    let kind = File::from(fd.try_clone_to_owned()?).metadata()?.file_type();
    // Without /proc it cannot be told what an anonymous file is.
    let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
    let name = name.as_os_str().as_bytes();
    let anonymous = name.starts_with(b"anon_inode:") && name != b"anon_inode:[eventfd]";
    Ok(!kind.is_socket() && !anonymous)
}

/// Make reads and writes return at once, whoever made the fd and however it was opened.
///
/// # Errors
/// The operating system's, for an fd that can do neither.
pub fn set_nonblocking(fd: &impl AsFd) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: a plain query on a borrowed fd.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    check(flags)?;
    // SAFETY: F_SETFL takes an integer.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) })
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a plain call.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    check(fd)?;
    // SAFETY: a new fd that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() > MAX_PATH || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: an all-zero sockaddr_un is a valid value to be overwritten.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // The zero byte behind the path is part of the address.
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
    Ok((address, len as libc::socklen_t))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_bound_socket_refuses_until_it_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = bind(&path).unwrap();
        assert_eq!(connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let listener = listen(socket).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let mut stream = connect(&path).unwrap();
        stream.write_all(b"hello").unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        assert!(is_open(&accepted), "with bytes that wait");
        accepted.set_nonblocking(false).unwrap();
        let mut buf = [0; 12];
        assert_eq!(peek(&accepted, &mut buf).unwrap(), 5);
        assert_eq!(peek(&accepted, &mut buf[..2]).unwrap(), 2);
        accepted.read_exact(&mut buf[..5]).unwrap();
        assert_eq!(&buf[..5], b"hello");
        assert!(is_open(&accepted), "and without");
        drop(stream);
        assert_eq!(peek(&accepted, &mut buf).unwrap(), 0);
        assert!(!is_open(&accepted));
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_full_backlog_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listener = listen(bind(&path).unwrap()).unwrap();
        let mut waiting = Vec::new();
        let refused = loop {
            match connect(&path) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 1000);
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn impossible_paths_are_refused() {
        let long = "x".repeat(MAX_PATH + 1);
        for path in ["", "a\0b", long.as_str()] {
            assert_eq!(bind(Path::new(path)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        let dir = tempfile::tempdir().unwrap();
        let fill = MAX_PATH - dir.path().as_os_str().len() - 1;
        bind(&dir.path().join("x".repeat(fill))).unwrap();
    }

    #[test]
    fn what_can_keep_fds_is_known() {
        let (reader, writer) = io::pipe().unwrap();
        let event = vmm_sys_util::eventfd::EventFd::new(0).unwrap();
        // SAFETY: the fd is open while it is borrowed.
        let event = unsafe { std::os::fd::BorrowedFd::borrow_raw(event.as_raw_fd()) };
        let zero = File::open("/dev/zero").unwrap();
        for none in [&event as &dyn AsFd, &reader, &writer, &zero] {
            assert!(keeps_no_fds(&none).unwrap());
        }
        let socket = UnixStream::pair().unwrap().0;
        let epoll = crate::sys::new_epoll().unwrap();
        for some in [&socket as &dyn AsFd, &epoll] {
            assert!(!keeps_no_fds(&some).unwrap());
        }
    }

    #[test]
    fn any_fd_becomes_non_blocking() {
        let (mut a, _b) = UnixStream::pair().unwrap();
        set_nonblocking(&a).unwrap();
        assert_eq!(a.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
