//! TAP interfaces: frames that the host's network stack sends come out of an fd, and what is
//! written there it receives.
//!
//! Promises: every fd is non-blocking, owned, of a TAP (not a TUN) without packet information,
//! and has a virtio-net header of [`HEADER`] bytes before each frame, little-endian. Used by
//! the TAP port. Gives no interface an address and switches none on.

use super::check;
use super::netif::{MAX_NAME, request};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

/// Bytes of the virtio-net header: with `num_buffers`.
pub const HEADER: usize = 12;
/// An interface whose last user has just ended may be busy for a moment.
const BUSY: std::time::Duration = std::time::Duration::from_millis(300);

/// Why there is no TAP.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// No driver, or no right to use it.
    #[error("cannot open /dev/net/tun; load the module tun, and let this user read and write it")]
    Device(#[source] io::Error),
    /// To make an interface takes a right, to use one that is ours does not.
    #[error(
        "cannot make or attach {0}: that takes CAP_NET_ADMIN, or an interface made for this \
         user: ip tuntap add {0} mode tap user $USER{1}"
    )]
    Permission(String, &'static str),
    /// Somebody else has it.
    #[error("{0} is in use by another process, or has fewer queues than asked for")]
    Busy(String),
    /// It is another kind of interface, or has another number of queues.
    #[error(
        "{0} is no TAP that fits: it must be of mode tap, and have multi_queue if and only if \
         queues= is above 1"
    )]
    Kind(String),
    /// No such fd, or of something else.
    #[error("fd {0} is not a TAP; give the number of an open one (a TUN or macvtap is another)")]
    Fd(RawFd),
    /// An fd of an interface with another name than the port's.
    #[error("fd {0} is the TAP {1}, and the port is called tap:{2}; give both one name")]
    OtherName(RawFd, String, String),
    /// The rest.
    #[error("cannot set up {0}")]
    System(String, #[source] io::Error),
}

/// Open `queues` queues of the TAP `name`, which is made if it is not there and then goes with
/// its last queue.
///
/// # Errors
/// What is wrong, for the operator.
pub fn open(name: &str, queues: u16) -> Result<Vec<OwnedFd>, TapError> {
    (0..queues).map(|_| open_queue(name, queues > 1)).collect()
}

fn open_queue(name: &str, several: bool) -> Result<OwnedFd, TapError> {
    let file = device()?;
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    if several {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    let start = std::time::Instant::now();
    loop {
        let error = match attach(&file, name, flags) {
            Ok(()) => break,
            Err(error) => error,
        };
        let name = name.to_string();
        match error.raw_os_error() {
            Some(libc::EBUSY) if start.elapsed() < BUSY => {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            Some(libc::EBUSY | libc::E2BIG) => return Err(TapError::Busy(name)),
            Some(libc::EINVAL) => return Err(TapError::Kind(name)),
            Some(libc::EPERM) => {
                return Err(TapError::Permission(name, if several { " multi_queue" } else { "" }));
            }
            _ => return Err(TapError::System(name, error)),
        }
    }
    let fd = OwnedFd::from(file);
    prepare(&fd).map_err(|error| TapError::System(name.into(), error))?;
    Ok(fd)
}

fn device() -> Result<File, TapError> {
    let options = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).write(true).custom_flags(options).open("/dev/net/tun");
    file.map_err(TapError::Device)
}

fn attach(file: &File, name: &str, flags: i32) -> io::Result<()> {
    let mut request = request(name).ok_or(io::ErrorKind::InvalidInput)?;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the request is initialised and of the size that the call reads and writes.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })
}

/// Our own fd of the TAP queue that this process was given as `fd`, and the interface's name.
///
/// # Errors
/// It is none.
pub fn inherit(fd: RawFd) -> Result<(OwnedFd, String), TapError> {
    let not = |_| TapError::Fd(fd);
    if fd < 0 {
        return Err(TapError::Fd(fd));
    }
    // SAFETY: the number is not negative; that it may be closed is found out by the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let fd = fd.try_clone_to_owned().map_err(not)?;
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: the request is of the size that the call writes.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF, &raw mut request) })
        .map_err(not)?;
    // SAFETY: TUNGETIFF has written this field.
    let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
    let wanted = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    let name: String = request.ifr_name[..MAX_NAME]
        .iter()
        .take_while(|c| **c != 0)
        .map(|c| *c as u8 as char)
        .collect();
    if flags & (wanted | libc::IFF_TUN) != wanted {
        return Err(TapError::Kind(name));
    }
    // SAFETY: plain calls on an owned fd.
    let set = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    check(set)
        .and_then(|()| prepare(&fd))
        .map_err(|error| TapError::System(name.clone(), error))?;
    Ok((fd, name))
}

/// Settle the length and the byte order of the header.
fn prepare(fd: &OwnedFd) -> io::Result<()> {
    let wanted = HEADER as libc::c_int;
    let (mut got, little) = (0, 1);
    // SAFETY: each call reads or writes the int it is given.
    unsafe {
        check(libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const wanted))?;
        check(libc::ioctl(fd.as_raw_fd(), libc::TUNGETVNETHDRSZ, &raw mut got))?;
        check(libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETLE, &raw const little))?;
    }
    // Old kernels ignore what they do not know.
    if got == wanted { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// What may come out of the TAP unfinished: checksums, and segments of TCP put together.
///
/// # Errors
/// The operating system's.
pub fn set_offloads(fd: &OwnedFd, checksums: bool, segments: bool) -> io::Result<()> {
    let mut offloads = 0;
    if checksums {
        offloads |= libc::TUN_F_CSUM;
    }
    if checksums && segments {
        offloads |= libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    }
    // SAFETY: the argument is a number.
    let set =
        unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offloads)) };
    check(set)
}

/// Is `name` a name that an interface can have?
pub fn is_name(name: &str) -> bool {
    let odd = |c: char| c.is_whitespace() || c == '/' || c == '%' || c.is_control();
    !name.is_empty() && name.len() <= MAX_NAME && !name.contains(odd) && name != "." && name != ".."
}
