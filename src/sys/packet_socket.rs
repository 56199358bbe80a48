//! Packet sockets: all frames of an interface, received through a ring of blocks that the
//! kernel fills and we empty (`TPACKET_V3`, packet(7)), and sent by `sendmmsg`.
//!
//! Promises: both sockets are owned, non-blocking and have a virtio-net header of [`HEADER`]
//! bytes with each frame; what this machine itself sends by the interface is not received. Used by
//! the `af_packet` port.

use super::check;
use super::netif::{self, Interface};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};

/// Bytes of the virtio-net header that comes with each frame: without `num_buffers`, whatever
/// larger size is asked for.
pub const HEADER: usize = 10;
/// How long a block that is not full may wait for more frames, in milliseconds.
const RETIRE_MS: u32 = 1;
/// The ring's frames have no fixed size; the kernel wants to be told one.
const FRAME: usize = 2048;

/// Why an interface was not opened.
#[derive(Debug, thiserror::Error)]
pub enum PacketSocketError {
    /// Nobody has this name.
    #[error("there is no interface {0}; ip link shows those there are")]
    NoInterface(String),
    /// Not without a capability.
    #[error(
        "packet sockets take CAP_NET_RAW: run as root, or once setcap cap_net_raw+ep on the \
         ringbridge binary"
    )]
    Permission,
    /// The ring is too large.
    #[error("no memory for a ring of {blocks} blocks of {block} bytes; give fewer by blocks=")]
    Memory {
        /// Blocks asked for.
        blocks: usize,
        /// Bytes of each.
        block: usize,
    },
    /// The rest.
    #[error("cannot {0} on {1}")]
    System(&'static str, String, #[source] io::Error),
}

/// What `receiver` is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSize {
    /// Bytes of a block: whole pages, a power of two.
    pub block: usize,
    /// Number of blocks.
    pub blocks: usize,
}

/// A ring of blocks, mapped.
#[derive(Debug)]
pub struct Ring {
    at: NonNull<u8>,
    size: RingSize,
    socket: OwnedFd,
}

// SAFETY: an address of a mapping that is this one's alone, and goes with it.
unsafe impl Send for Ring {}

impl Ring {
    /// Where block `i` begins.
    ///
    /// # Panics
    /// There are not so many.
    pub fn block(&self, i: usize) -> *mut u8 {
        assert!(i < self.size.blocks);
        // SAFETY: inside the mapping.
        unsafe { self.at.as_ptr().add(i * self.size.block) }
    }

    /// Its shape.
    pub fn size(&self) -> RingSize {
        self.size
    }

    /// Frames that the kernel had no room for since it was asked last.
    pub fn lost(&self) -> u64 {
        // SAFETY: an all-zero value may be overwritten.
        let mut stats: libc::tpacket_stats_v3 = unsafe { std::mem::zeroed() };
        let got = get(&self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut stats);
        if got.is_ok() { u64::from(stats.tp_drops) } else { 0 }
    }

    /// The error that the socket has kept, such as that the interface went down; it is told
    /// once.
    pub fn take_error(&self) -> i32 {
        let mut error = 0;
        let _ = get(&self.socket, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
        error
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `receivers`, and whoever had an address in it has let go.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.size.block * self.size.blocks) };
    }
}

/// `queues` rings that share the frames of the interface `name` by flow.
///
/// # Errors
/// What is wrong, for the operator.
pub fn receivers(name: &str, queues: u16, size: RingSize) -> Result<Vec<Ring>, PacketSocketError> {
    let interface = interface(name)?;
    let rings: Result<Vec<_>, _> =
        (0..queues).map(|_| receiver(name, interface.index, size)).collect();
    let rings = rings?;
    if queues > 1 {
        share(&rings).map_err(|e| PacketSocketError::System("share frames", name.into(), e))?;
    }
    Ok(rings)
}

fn interface(name: &str) -> Result<Interface, PacketSocketError> {
    let found = netif::find(name);
    let found = found.map_err(|e| PacketSocketError::System("look", name.into(), e))?;
    found.ok_or_else(|| PacketSocketError::NoInterface(name.into()))
}

fn receiver(name: &str, index: i32, size: RingSize) -> Result<Ring, PacketSocketError> {
    let system = |what| move |e| PacketSocketError::System(what, name.into(), e);
    // Without a protocol nothing is received before the ring is there.
    let socket = open()?;
    let one = 1;
    let options = [
        (libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V3 as libc::c_int),
        (libc::PACKET_VNET_HDR, one),
        (libc::PACKET_IGNORE_OUTGOING, one),
    ];
    for (option, value) in options {
        set(&socket, option, &value).map_err(system("set an option"))?;
    }
    let request = libc::tpacket_req3 {
        tp_block_size: size.block as u32,
        tp_block_nr: size.blocks as u32,
        tp_frame_size: FRAME as u32,
        tp_frame_nr: (size.block / FRAME * size.blocks) as u32,
        tp_retire_blk_tov: RETIRE_MS,
        tp_sizeof_priv: 0,
        tp_feature_req_word: 0,
    };
    let too_much = |_| PacketSocketError::Memory { blocks: size.blocks, block: size.block };
    set(&socket, libc::PACKET_RX_RING, &request).map_err(too_much)?;
    let len = size.block * size.blocks;
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping where the system likes, of the ring that was just made.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, socket.as_raw_fd(), 0) };
    let mapped = if at == libc::MAP_FAILED { None } else { NonNull::new(at.cast::<u8>()) };
    let Some(at) = mapped else { return Err(too_much(io::Error::last_os_error())) };
    let ring = Ring { at, size, socket };
    bind(&ring.socket, index, libc::ETH_P_ALL as u16).map_err(system("listen"))?;
    let promiscuous = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(&ring.socket, libc::PACKET_ADD_MEMBERSHIP, &promiscuous).map_err(system("hear all"))?;
    Ok(ring)
}

/// Frames go to one ring each, those of a flow to the same one.
fn share(rings: &[Ring]) -> io::Result<()> {
    let by_flow = libc::PACKET_FANOUT_HASH;
    // The kernel chooses a number for the first, which the others are told.
    let mut group = (by_flow | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16;
    for (i, ring) in rings.iter().enumerate() {
        set(&ring.socket, libc::PACKET_FANOUT, &group)?;
        if i == 0 {
            let mut chosen = 0_u32;
            get(&ring.socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &mut chosen)?;
            group = by_flow << 16 | (chosen & 0xffff);
        }
    }
    Ok(())
}

/// A socket to send by the interface `name`, past its queueing discipline.
///
/// # Errors
/// What is wrong, for the operator.
pub fn sender(name: &str) -> Result<OwnedFd, PacketSocketError> {
    let system = |what| move |e| PacketSocketError::System(what, name.into(), e);
    let index = interface(name)?.index;
    let socket = open()?;
    let one: libc::c_int = 1;
    set(&socket, libc::PACKET_VNET_HDR, &one).map_err(system("set an option"))?;
    set(&socket, libc::PACKET_QDISC_BYPASS, &one).map_err(system("set an option"))?;
    bind(&socket, index, 0).map_err(system("send"))?;
    Ok(socket)
}

fn open() -> Result<OwnedFd, PacketSocketError> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
    netif::socket(libc::AF_PACKET, kind, 0).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => PacketSocketError::Permission,
        _ => PacketSocketError::System("open a packet socket", "this machine".into(), error),
    })
}

/// `protocol` 0: nothing is received.
fn bind(socket: &OwnedFd, index: i32, protocol: u16) -> io::Result<()> {
    // SAFETY: an all-zero address is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is initialised and has the length given.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) })
}

/// Set an option of the packet level to a plain value.
fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let (value, len) = (ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the value is readable for the length given.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, value, len) })
}

/// Read an option, a plain value for which any bits are valid.
fn get<T>(socket: &OwnedFd, level: i32, option: i32, value: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let value = ptr::from_mut(value).cast();
    // SAFETY: the value is writable for the length given.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, value, &raw mut len) })
}
