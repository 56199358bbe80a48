//! A TAP as a port: what the host sends to it we receive, and the other way round.
//!
//! Promises: a packet is read into private memory and copied from there; what is sent goes to
//! the kernel from where it lies. Used by the queues above.

use super::gather::Gather;
use crate::counters::{QueueCounters, Reason};
use crate::offload::{self, Offload};
use crate::packet::{BURST, BURST_BYTES, MAX_PACKET, MIN_PACKET, Packets};
use crate::sys::tap::HEADER;
use crate::wire;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Packets lie one after the other, each on a cache line of its own.
const LINE: usize = 64;
/// How many polls find nothing without asking after one that did: a system call in every loop of
/// a worker would slow its other ports, and the idle loops of one that waits are short.
const SKIPPED: u8 = 15;
/// A burst may end with a packet of any length.
const BUFFER: usize = BURST_BYTES + BURST * LINE + ROOM;
/// What a packet may need; one that is too long fills it.
const ROOM: usize = HEADER + MAX_PACKET + 1;

/// Receives from one queue.
#[derive(Debug)]
pub struct Receiver {
    fd: Arc<OwnedFd>,
    buffer: Box<[u8]>,
    /// Polls that are left to skip.
    skip: u8,
    gone: bool,
}

impl Receiver {
    /// From this queue. Memory is taken as packets come.
    pub fn new(fd: &Arc<OwnedFd>) -> Self {
        Receiver { fd: Arc::clone(fd), buffer: vec![0; BUFFER].into(), skip: 0, gone: false }
    }

    /// Its fd, unless the interface is gone.
    pub fn fd(&self) -> Option<RawFd> {
        (!self.gone).then(|| self.fd.as_raw_fd())
    }

    /// Read up to `max` packets into `packets`, which is empty.
    ///
    /// # Safety
    /// The packets are cleared before this is called again or dropped.
    pub unsafe fn receive(&mut self, packets: &mut Packets, max: usize, counters: &QueueCounters) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        let mut at = 0;
        // What is dropped takes room, too.
        while packets.len() < max && packets.bytes() < BURST_BYTES && at <= BUFFER - ROOM {
            let room = &mut self.buffer[at..][..ROOM];
            // SAFETY: `room` is writable for its length.
            let n =
                unsafe { libc::read(self.fd.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) };
            let Ok(n) = usize::try_from(n) else {
                if at == 0 {
                    self.skip = SKIPPED;
                }
                // Else there is nothing, or the interface is down, and both will pass.
                self.gone = io::Error::last_os_error().raw_os_error() == Some(libc::EBADFD);
                return;
            };
            let len = n.saturating_sub(HEADER);
            match len {
                ..MIN_PACKET => counters.lost(Reason::Runt, 1),
                MIN_PACKET..=MAX_PACKET => {
                    // SAFETY: these bytes were just written, and stay until the next call. One
                    // segment a packet never runs out.
                    unsafe { packets.push_contiguous(room.as_ptr().add(HEADER), len) };
                    let header = *room.first_chunk().unwrap_or(&[0; offload::HEADER]);
                    let check = |head: &[u8], len| Offload::check(header, head, len);
                    if let Err(reason) = packets.offload_last(check) {
                        counters.lost(reason, 1);
                    }
                }
                _ => counters.lost(Reason::TooLong, 1),
            }
            at += n.next_multiple_of(LINE);
        }
    }
}

/// Sends to all queues.
#[derive(Debug)]
pub struct Sender {
    fds: Vec<Arc<OwnedFd>>,
    gather: Gather,
}

impl Sender {
    /// To these queues, at least one; the flow decides which, and the host answers by the same.
    pub fn new(fds: Vec<Arc<OwnedFd>>) -> Self {
        debug_assert!(!fds.is_empty());
        Sender { fds, gather: Gather::new() }
    }

    /// Send the packets that `which` numbers.
    pub fn send(&mut self, packets: &Packets, which: &[u8], counters: &QueueCounters) {
        let (mut sent, mut bytes) = (0, 0);
        self.gather.clear();
        for (k, &i) in which.iter().enumerate() {
            let i = i as usize;
            if !self.gather.push(packets, i, HEADER) {
                counters.lost(Reason::ChainTooLong, 1);
                continue;
            }
            let Err(error) = self.write(packets, i) else {
                (sent, bytes) = (sent + 1, bytes + packets.packet_len(i) as u64);
                continue;
            };
            match error.raw_os_error() {
                // It has no room, or is down: that is so for all others, too.
                Some(libc::EAGAIN | libc::ENOBUFS) => {
                    counters.lost(Reason::NoBuffers, (which.len() - k) as u64);
                    break;
                }
                Some(libc::EIO | libc::EBADFD) => {
                    counters.lost(Reason::OutputError, (which.len() - k) as u64);
                    break;
                }
                _ => counters.lost(Reason::OutputError, 1),
            }
        }
        counters.packets.add(sent);
        counters.bytes.add(bytes);
    }

    /// Write packet `i`, whose list was just made.
    fn write(&self, packets: &Packets, i: usize) -> io::Result<()> {
        let queue = match self.fds.len() {
            1 => 0,
            queues => wire::flow_hash(packets.head(i)) as usize % queues,
        };
        let Some(list) = self.gather.lists().last() else { return Ok(()) };
        let fd = self.fds[queue].as_raw_fd();
        // SAFETY: the list leads to memory of `packets`, which is borrowed.
        let n = unsafe { libc::writev(fd, list.as_ptr(), list.len() as libc::c_int) };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
