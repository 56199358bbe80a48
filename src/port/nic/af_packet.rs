//! An interface by packet sockets, as a port.
//!
//! Promises: a received packet's tail stays in the block that the kernel put it into, which goes
//! back when all its packets are done with; a burst takes packets of one block. VLAN tags that
//! the kernel has taken out are put back. Used by the queues above.

use super::gather::Gather;
use crate::counters::{QueueCounters, Reason};
use crate::offload::Offload;
use crate::packet::{BURST, BURST_BYTES, MAX_PACKET, MIN_PACKET, Packets, Segment};
use crate::sys::packet_socket::{HEADER, Ring};
use libc::{
    TP_STATUS_KERNEL, TP_STATUS_LOSING, TP_STATUS_USER, TP_STATUS_VLAN_TPID_VALID,
    TP_STATUS_VLAN_VALID, tpacket_block_desc, tpacket3_hdr,
};
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of the two addresses that a VLAN tag stands behind.
const MACS: usize = 12;
/// Bytes of a tag.
const TAG: u16 = 4;
/// The TPID of a tag that comes without one.
const TPID: u16 = 0x8100;

/// Receives from one ring.
#[derive(Debug)]
pub struct Receiver {
    ring: Ring,
    /// The block that is looked at now, or next.
    block: usize,
    /// What is left of it.
    left: Option<Left>,
}

/// The packets of a block that were not received yet.
#[derive(Debug)]
struct Left {
    packets: u32,
    /// The next one's header, as bytes from the block's beginning.
    at: usize,
}

impl Receiver {
    /// From this ring.
    pub fn new(ring: Ring) -> Self {
        Receiver { ring, block: 0, left: None }
    }

    /// Becomes readable when a block is full, or one millisecond old.
    pub fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Forget that the interface went down: it is watched by others.
    pub fn take_error(&mut self) {
        self.ring.take_error();
    }

    /// Take up to `max` packets into `packets`, which is empty.
    ///
    /// # Safety
    /// The packets are cleared before [`Receiver::complete`] is called or this is dropped.
    pub unsafe fn receive(&mut self, packets: &mut Packets, max: usize, counters: &QueueCounters) {
        let block = self.ring.block(self.block);
        if self.left.is_none() {
            self.left = open(block);
        }
        let Some(left) = &mut self.left else { return };
        let size = self.ring.size().block;
        let mut losing = false;
        while left.packets > 0 && packets.len() < max && packets.bytes() < BURST_BYTES {
            // SAFETY: the kernel has given us the block, and headers that lie inside.
            let header = unsafe {
                let header = block.add(left.at).cast::<tpacket3_hdr>();
                header.read()
            };
            // SAFETY: as above.
            if let Err(reason) = unsafe { push(packets, block.add(left.at), &header) } {
                counters.lost(reason, 1);
            }
            losing |= header.tp_status & TP_STATUS_LOSING != 0;
            left.packets -= 1;
            left.at += header.tp_next_offset as usize;
            if left.at + size_of::<tpacket3_hdr>() > size {
                left.packets = 0;
            }
        }
        if losing {
            counters.lost(Reason::Missed, self.ring.lost());
        }
    }

    /// The packets are done with; and with the last of them the block.
    pub fn complete(&mut self) {
        if self.left.as_ref().is_some_and(|left| left.packets == 0) {
            self.left = None;
            // Pairs with the kernel's look at the status before it fills the block again: it
            // comes after all that we have read there.
            status(self.ring.block(self.block)).store(TP_STATUS_KERNEL, Ordering::Release);
            self.block = (self.block + 1) % self.ring.size().blocks;
        }
    }
}

/// A block's status.
fn status<'ring>(block: *mut u8) -> &'ring AtomicU32 {
    let at = offset_of!(tpacket_block_desc, hdr);
    // SAFETY: the block is mapped while its ring lives, which outlives the callers' use; the
    // status is its first field there, aligned to 4, and shared with the kernel alone.
    unsafe { AtomicU32::from_ptr(block.add(at).cast()) }
}

/// What is in a block, if it is ours.
fn open(block: *mut u8) -> Option<Left> {
    // Pairs with the kernel's store of the status behind all that it has written to the block.
    if status(block).load(Ordering::Acquire) & TP_STATUS_USER == 0 {
        return None;
    }
    // SAFETY: ours until we give it back; any bits are valid, and V3 blocks have this header.
    let header = unsafe { block.cast::<tpacket_block_desc>().read().hdr.bh1 };
    Some(Left { packets: header.num_pkts, at: header.offset_to_first_pkt as usize })
}

/// Push the packet whose header is at `at`.
///
/// # Safety
/// The kernel has put it there, and its block is ours until the packets are cleared.
unsafe fn push(packets: &mut Packets, at: *mut u8, header: &tpacket3_hdr) -> Result<(), Reason> {
    let tagged = header.tp_status & TP_STATUS_VLAN_VALID != 0;
    let len = header.tp_snaplen as usize;
    let whole = len + if tagged { 4 } else { 0 };
    if len < MIN_PACKET {
        return Err(Reason::Runt);
    }
    if header.tp_snaplen < header.tp_len || whole > MAX_PACKET {
        return Err(Reason::TooLong);
    }
    // SAFETY: `len` bytes of the frame lie there.
    unsafe {
        let frame = at.add(usize::from(header.tp_mac)).cast_const();
        if !tagged {
            packets.push_contiguous(frame, len);
            return packets.offload_last(|head, len| Offload::check(header_of(frame), head, len));
        }
        let known = header.tp_status & TP_STATUS_VLAN_TPID_VALID != 0;
        let tpid = if known { header.hv1.tp_vlan_tpid } else { TPID };
        let tag = (u32::from(tpid) << 16 | (header.hv1.tp_vlan_tci & 0xffff)).to_be_bytes();
        let piece = |ptr, len| Segment { ptr, len };
        // Addresses and tag are short enough for the head, where they are copied to.
        packets.push_scattered(&[
            piece(frame, MACS as u32),
            piece(tag.as_ptr(), tag.len() as u32),
            piece(frame.add(MACS), (len - MACS) as u32),
        ]);
        // The header does not know of the tag.
        let mut header = header_of(frame);
        let start = u16::from_le_bytes([header[6], header[7]]).saturating_add(TAG);
        header[6..8].copy_from_slice(&start.to_le_bytes());
        packets.offload_last(|head, len| Offload::check(header, head, len))
    }
}

/// The virtio-net header before a frame, whose multi-byte fields are in the machine's order.
///
/// # Safety
/// The kernel has put both there.
unsafe fn header_of(frame: *const u8) -> [u8; HEADER] {
    // SAFETY: the caller's promise.
    let mut header = unsafe { frame.sub(HEADER).cast::<[u8; HEADER]>().read() };
    for word in header[2..].chunks_exact_mut(2) {
        word.copy_from_slice(&u16::from_ne_bytes([word[0], word[1]]).to_le_bytes());
    }
    header
}

/// Sends by one socket.
#[derive(Debug)]
pub struct Sender {
    socket: OwnedFd,
    gather: Gather,
}

impl Sender {
    /// By this socket.
    pub fn new(socket: OwnedFd) -> Self {
        Sender { socket, gather: Gather::new() }
    }

    /// Send the packets that `which` numbers.
    pub fn send(&mut self, packets: &Packets, which: &[u8], counters: &QueueCounters) {
        self.gather.clear();
        let mut lens = arrayvec::ArrayVec::<usize, BURST>::new();
        for &i in which {
            if self.gather.push(packets, i as usize, HEADER) {
                lens.push(packets.packet_len(i as usize));
            } else {
                counters.lost(Reason::ChainTooLong, 1);
            }
        }
        // SAFETY: an all-zero message has no address, no control data and no parts.
        let empty: libc::mmsghdr = unsafe { std::mem::zeroed() };
        let mut messages = [empty; BURST];
        for (message, list) in messages.iter_mut().zip(self.gather.lists()) {
            message.msg_hdr.msg_iov = list.as_ptr().cast_mut();
            message.msg_hdr.msg_iovlen = list.len() as _;
        }
        let mut rest = &mut messages[..lens.len()];
        let mut lens = &lens[..];
        while !rest.is_empty() {
            // SAFETY: the lists lead to memory of `packets`, which is borrowed.
            let n = unsafe {
                let (at, len) = (rest.as_mut_ptr(), rest.len() as u32);
                libc::sendmmsg(self.socket.as_raw_fd(), at, len, libc::MSG_DONTWAIT)
            };
            let done = match usize::try_from(n) {
                Ok(n) => {
                    counters.packets.add(n as u64);
                    counters.bytes.add(lens[..n].iter().sum::<usize>() as u64);
                    n
                }
                Err(_) => refused(&io::Error::last_os_error(), rest.len(), counters),
            };
            rest = &mut rest[done..];
            lens = &lens[done..];
        }
    }
}

/// Count what an error is about: the first packet, or all that are left. Returns how many.
fn refused(error: &io::Error, left: usize, counters: &QueueCounters) -> usize {
    let (reason, n) = match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => (Reason::NoBuffers, left),
        // The interface is down, or gone.
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => (Reason::OutputError, left),
        Some(libc::EMSGSIZE) => (Reason::Mtu, 1),
        _ => (Reason::OutputError, 1),
    };
    counters.lost(reason, n as u64);
    n
}
