//! Packets as lists of stretches of memory for system calls that send.
//!
//! Promises: nothing is copied; the lists of a whole burst fit, and are made anew for each.
//! Used by the interfaces' senders.

use crate::packet::{BURST, Packets, SEGMENTS};
use arrayvec::ArrayVec;
use std::ops::Range;

/// Bytes of the longest header before a packet.
const HEADER: usize = 12;
/// Most stretches that a system call takes (`IOV_MAX`).
const MOST: usize = 1024;
/// The stretches of a burst: those of the tails, and a header and a head of each packet.
const STRETCHES: usize = SEGMENTS + 2 * BURST;

/// The lists of one burst.
#[derive(Debug)]
pub struct Gather {
    headers: Box<[[u8; HEADER]; BURST]>,
    stretches: Box<ArrayVec<libc::iovec, STRETCHES>>,
    /// Of each packet.
    ranges: ArrayVec<Range<usize>, BURST>,
}

// SAFETY: addresses that are only used while the packets they came from are borrowed.
unsafe impl Send for Gather {}

impl Gather {
    /// Empty lists.
    pub fn new() -> Self {
        Gather {
            headers: Box::new([[0; HEADER]; BURST]),
            stretches: Box::new(ArrayVec::new()),
            ranges: ArrayVec::new(),
        }
    }

    /// Begin the lists of another burst.
    pub fn clear(&mut self) {
        self.stretches.clear();
        self.ranges.clear();
    }

    /// The list of packet `i` with the first `header_len` bytes of its virtio-net header. False: it lies in more stretches than a call takes.
    pub fn push(&mut self, packets: &Packets, i: usize, header_len: usize) -> bool {
        let (head, tail) = (packets.head(i), packets.tail(i));
        if tail.len() + 2 > MOST {
            return false;
        }
        let header = &mut self.headers[self.ranges.len()][..header_len];
        header.copy_from_slice(&packets.offload(i).header(0)[..header_len]);
        let start = self.stretches.len();
        self.stretches.push(stretch(header.as_ptr(), header.len()));
        self.stretches.push(stretch(head.as_ptr(), head.len()));
        self.stretches.extend(tail.iter().map(|part| stretch(part.ptr, part.len as usize)));
        self.ranges.push(start..self.stretches.len());
        true
    }

    /// The lists, in the order they were pushed in. They lead to memory of the packets.
    pub fn lists(&self) -> impl Iterator<Item = &[libc::iovec]> {
        self.ranges.iter().map(|range| &self.stretches[range.clone()])
    }
}

fn stretch(at: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len }
}
