//! The end of a cable: frames in and out, as they are, by a plain packet socket.
//!
//! Promises: a VLAN tag that the kernel has taken out is put back; frames that nobody has sent
//! by this file (which the kernel may send by itself) are not shown; every wait has a limit.

use crate::common::bridge::Peer;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(10);
/// Local experiments (IEEE 802): no kernel answers it.
pub const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
const OURS: &[u8] = b"ringbridge";

/// A frame of `len` bytes with this between its addresses and its payload; no two of different
/// numbers are equal.
pub fn frame(number: u32, tags: &[u8], len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    frame.extend(tags);
    frame.extend(ETHERTYPE);
    frame.extend(OURS);
    frame.extend(number.to_be_bytes());
    let filled = frame.len();
    frame.extend((filled..len).map(|i| (i as u32).wrapping_mul(7).wrapping_add(number) as u8));
    frame
}

/// The next frame of ours that comes to a guest.
pub fn guest_receives(guest: &mut Peer) -> Vec<u8> {
    loop {
        let frame = guest.receive();
        if is_ours(&frame) {
            return frame;
        }
    }
}

/// Was it made by [`frame`]?
pub fn is_ours(frame: &[u8]) -> bool {
    frame.windows(OURS.len()).any(|part| part == OURS)
}

/// A socket on an interface.
pub struct Wire(OwnedFd);

impl Wire {
    /// On the interface `name` of this thread's namespace.
    pub fn on(name: &str) -> Self {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: plain calls on plain values; the fd is nobody else's.
        unsafe {
            let fd = libc::socket(libc::AF_PACKET, kind, protocol.into());
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            let socket = OwnedFd::from_raw_fd(fd);
            let one = 1;
            for option in [libc::PACKET_AUXDATA, libc::PACKET_IGNORE_OUTGOING] {
                let set = libc::setsockopt(
                    fd,
                    libc::SOL_PACKET,
                    option,
                    (&raw const one).cast(),
                    size_of::<i32>() as u32,
                );
                assert_eq!(set, 0);
            }
            let mut address: libc::sockaddr_ll = zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            let name = std::ffi::CString::new(name).unwrap();
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            assert!(address.sll_ifindex > 0, "no interface {name:?}");
            let len = size_of::<libc::sockaddr_ll>() as u32;
            assert_eq!(libc::bind(fd, (&raw const address).cast(), len), 0);
            Wire(socket)
        }
    }

    /// Send a frame.
    pub fn send(&self, frame: &[u8]) {
        let end = Instant::now() + LIMIT;
        loop {
            // SAFETY: the frame is readable for its length.
            let n =
                unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
            if n == frame.len() as isize {
                return;
            }
            let error = io::Error::last_os_error();
            let full = [Some(libc::ENOBUFS), Some(libc::EAGAIN)].contains(&error.raw_os_error());
            assert!(full && Instant::now() < end, "{} bytes: {error}", frame.len());
        }
    }

    /// The next frame of ours, if one comes within `limit`.
    pub fn receive_within(&self, limit: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + limit;
        loop {
            match self.next() {
                Some(frame) if is_ours(&frame) => {
                    return Some(frame);
                }
                Some(_) => {}
                None if Instant::now() > end => return None,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// The next frame of ours.
    pub fn receive(&self) -> Vec<u8> {
        self.receive_within(LIMIT).expect("a frame")
    }

    fn next(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 70_000];
        let mut control = [0_u64; 16];
        // SAFETY: the message leads to buffers that outlive the call; control messages are
        // walked by the system's own rules.
        let tag = unsafe {
            let mut part =
                libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
            let mut message: libc::msghdr = zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control) as _;
            let n = libc::recvmsg(self.0.as_raw_fd(), &raw mut message, 0);
            frame.truncate(usize::try_from(n).ok()?);
            let first = libc::CMSG_FIRSTHDR(&raw const message);
            (!first.is_null() && (*first).cmsg_type == libc::PACKET_AUXDATA)
                .then(|| libc::CMSG_DATA(first).cast::<libc::tpacket_auxdata>().read_unaligned())
        };
        if let Some(aux) = tag.filter(|aux| aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0) {
            let tag = [aux.tp_vlan_tpid.to_be_bytes(), aux.tp_vlan_tci.to_be_bytes()];
            frame.splice(12..12, tag.concat());
        }
        Some(frame)
    }
}
