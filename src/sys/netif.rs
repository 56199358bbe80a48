//! Network interfaces of the machine: which there are, and when that changes.
//!
//! Promises: looks only, changes nothing; needs no capability. Called by `control` and by the
//! ports that open an interface.

use super::check;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Longest name of an interface, in bytes.
pub const MAX_NAME: usize = libc::IFNAMSIZ - 1;

/// An interface at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface {
    /// Its number, which it keeps when it is renamed.
    pub index: i32,
    /// It is switched on (`ip link set up`) and has a carrier.
    pub running: bool,
}

/// The interface called `name`, if there is one in this network namespace.
///
/// # Errors
/// The operating system's: no fds.
pub fn find(name: &str) -> io::Result<Option<Interface>> {
    let Some(mut request) = request(name) else { return Ok(None) };
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: the request is initialised and has the size that these calls read and write.
    let found = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFINDEX, &raw mut request) };
    if let Err(error) = check(found) {
        return if error.raw_os_error() == Some(libc::ENODEV) { Ok(None) } else { Err(error) };
    }
    // SAFETY: SIOCGIFINDEX has written this field.
    let index = unsafe { request.ifr_ifru.ifru_ifindex };
    // SAFETY: as above.
    let found = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) };
    if found != 0 {
        // It went between the two calls.
        return Ok(None);
    }
    // SAFETY: SIOCGIFFLAGS has written this field.
    let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
    let up = libc::IFF_UP | libc::IFF_RUNNING;
    Ok(Some(Interface { index, running: flags & up == up }))
}

/// A request about `name`; nothing if no interface can have such a name.
pub(super) fn request(name: &str) -> Option<libc::ifreq> {
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() > MAX_NAME || name.contains('\0') {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Some(request)
}

/// A socket that is not inherited.
pub(super) fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: a plain call.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    check(fd)?;
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Becomes readable when any interface of this network namespace comes, goes or changes.
#[derive(Debug)]
pub struct Changes(OwnedFd);

impl Changes {
    /// From now on.
    ///
    /// # Errors
    /// The operating system's: no fds.
    pub fn watch() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
        let socket = socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE)?;
        // SAFETY: an all-zero sockaddr_nl is valid.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = libc::RTMGRP_LINK as u32;
        let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: the address is initialised and has the length given.
        check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })?;
        Ok(Changes(socket))
    }

    /// Forget what has happened so far; what it was is asked of [`find`]. That messages were
    /// lost for want of room is forgotten, too.
    pub fn clear(&self) {
        let mut buffer = [0_u8; 4096];
        loop {
            let (at, len) = (buffer.as_mut_ptr().cast(), buffer.len());
            // SAFETY: the buffer is writable for its length.
            let n = unsafe { libc::recv(self.0.as_raw_fd(), at, len, 0) };
            let lost = n < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS);
            if n < 0 && !lost {
                return;
            }
        }
    }
}

impl AsRawFd for Changes {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_loopback_and_nothing_with_an_impossible_name() {
        assert!(find("lo").unwrap().is_some_and(|lo| lo.index > 0));
        for name in ["", "no-such-if", "a-name-of-16-byt", "nul\0"] {
            assert_eq!(find(name).unwrap(), None, "{name:?}");
        }
        Changes::watch().unwrap().clear();
    }
}
