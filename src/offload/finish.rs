//! Checksums and segments made in software, for outputs that do not make them.
//!
//! Promises: what comes out is what a sender without offloads would have sent: right lengths,
//! identifications, sequence numbers, flags and checksums, the payload unchanged; the packets of
//! a list stay in order. A payload is copied twice on this way, and summed while it is in the
//! cache.

#![forbid(unsafe_code)]

use super::{Able, Kind, Offload};
use crate::packet::{ALL, BURST, HEAD, MAX_PACKET, Packets};
use crate::wire::{self, IPV4, TCP, UDP_PROTOCOL};
use arrayvec::ArrayVec;
use std::sync::Arc;

/// Segments of one list, and their headers.
const BUFFER: usize = MAX_PACKET + BURST * HEAD;
/// TCP flags: FIN and PSH are the last segment's, CWR the first one's.
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// What is needed to finish packets.
pub struct Finisher {
    whole: Box<[u8]>,
    buffer: Arc<[u8]>,
    segments: Packets,
}

impl Default for Finisher {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Finisher {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("Finisher")
    }
}

impl Finisher {
    /// About 180 KiB.
    pub fn new() -> Self {
        Finisher {
            whole: vec![0; MAX_PACKET].into(),
            buffer: vec![0; BUFFER].into(),
            segments: Packets::new(),
        }
    }

    /// Finish packet `i`; `send` gets what comes of it, in lists of a burst at most.
    fn finish(&mut self, packets: &Packets, i: usize, mut send: impl FnMut(&Packets, &[u8])) {
        let (offload, len) = (packets.offload(i), packets.packet_len(i));
        packets.copy_out(i, &mut self.whole);
        let mut cut = Cut { offload, whole: &mut self.whole[..len], done: 0, number: 0 };
        loop {
            // Nobody else has the buffer once the last list is forgotten.
            self.segments.take_back();
            let Some(buffer) = Arc::get_mut(&mut self.buffer) else { return };
            let mut frames = ArrayVec::<_, BURST>::new();
            let mut at = 0;
            while !frames.is_full()
                && let Some(len) = cut.next(&mut buffer[at..])
            {
                frames.push(at..at + len);
                at += len;
            }
            if frames.is_empty() {
                return;
            }
            self.segments.lend(&self.buffer);
            for frame in &frames {
                self.segments.push_lent(frame.clone());
            }
            send(&self.segments, &ALL[..frames.len()]);
        }
    }
}

/// A packet on its way into segments.
struct Cut<'a> {
    offload: Offload,
    whole: &'a mut [u8],
    /// Bytes of payload that are in segments.
    done: usize,
    /// Of the next segment.
    number: u16,
}

impl Cut<'_> {
    /// Put the next segment at the beginning of `out`; its length, or none if all is done.
    fn next(&mut self, out: &mut [u8]) -> Option<usize> {
        match self.offload.kind {
            Kind::Nothing | Kind::Checksum => self.only(out),
            Kind::Tcp4 | Kind::Tcp6 | Kind::Udp => self.segment(out),
        }
    }

    fn only(&mut self, out: &mut [u8]) -> Option<usize> {
        let first = std::mem::replace(&mut self.number, 1) == 0;
        let len = self.whole.len();
        if !first {
            return None;
        }
        let out = &mut out[..len];
        out.copy_from_slice(self.whole);
        if self.offload.kind == Kind::Checksum {
            // The field holds the sum of the pseudo header already.
            let start = usize::from(self.offload.csum_start);
            put_checksum(&mut out[start..], self.offload.csum_offset.into(), 0);
        }
        Some(len)
    }

    fn segment(&mut self, out: &mut [u8]) -> Option<usize> {
        let headers = usize::from(self.offload.headers);
        let payload = &self.whole[headers..];
        let left = payload.len() - self.done;
        if left == 0 {
            return None;
        }
        let size = left.min(self.offload.size.into());
        let out = &mut out[..headers + size];
        out[..headers].copy_from_slice(&self.whole[..headers]);
        out[headers..].copy_from_slice(&payload[self.done..self.done + size]);
        let last = size == left;
        self.network(out);
        self.transport(out, last);
        self.done += size;
        self.number += 1;
        Some(out.len())
    }

    /// Length and identification of the IP header.
    fn network(&self, out: &mut [u8]) {
        let Some(ethernet) = wire::ethernet(out) else { return };
        let ip = &mut out[ethernet.payload..];
        let len = ip.len();
        if ip[0] >> 4 == 4 {
            let header = usize::from(ip[0] & 0xf) * 4;
            put16(ip, 2, len as u16);
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(self.number);
            put16(ip, 4, id);
            put16(ip, 10, 0);
            put_checksum(&mut ip[..header], 10, 0);
        } else {
            put16(ip, 4, (len - wire::IPV6) as u16);
        }
    }

    fn transport(&self, out: &mut [u8], last: bool) {
        let start = usize::from(self.offload.csum_start);
        let pseudo = pseudo_header(out, start, self.offload.kind == Kind::Udp);
        let transport = &mut out[start..];
        if self.offload.kind == Kind::Udp {
            put16(transport, 4, transport.len() as u16);
        } else {
            let field = [transport[4], transport[5], transport[6], transport[7]];
            let sequence = u32::from_be_bytes(field).wrapping_add(self.done as u32);
            transport[4..8].copy_from_slice(&sequence.to_be_bytes());
            if !last {
                transport[13] &= !FIN_PSH;
            }
            if self.number > 0 {
                transport[13] &= !CWR;
            }
        }
        let at = usize::from(self.offload.csum_offset);
        put16(transport, at, 0);
        put_checksum(transport, at, pseudo);
    }
}

/// The sum over addresses, length and protocol (RFC 9293, 3.1; RFC 8200, 8.1) of the frame whose
/// TCP or UDP header begins at `start`.
fn pseudo_header(frame: &[u8], start: usize, udp: bool) -> u64 {
    let Some(ethernet) = wire::ethernet(frame) else { return 0 };
    let ip = &frame[ethernet.payload..];
    let addresses = if ip[0] >> 4 == 4 { &ip[12..IPV4] } else { &ip[8..wire::IPV6] };
    let protocol = if udp { UDP_PROTOCOL } else { TCP };
    wire::sum(addresses) + u64::from(protocol) + (frame.len() - start) as u64
}

/// Put the checksum over `bytes`, and what was summed already, at `at`. That it is 0 means to
/// UDP that there is none: the other zero says the same.
fn put_checksum(bytes: &mut [u8], at: usize, summed: u64) {
    let sum = match !wire::fold(wire::sum(bytes) + summed) {
        0 => 0xffff,
        sum => sum,
    };
    put16(bytes, at, sum);
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Give `send` all packets that `which` numbers, in order: as they are if the output is `able`
/// to do the rest, else finished.
pub fn deliver(
    packets: &Packets,
    which: &[u8],
    able: Able,
    finisher: &mut Option<Box<Finisher>>,
    mut send: impl FnMut(&Packets, &[u8]),
) {
    let mut start = 0;
    for (k, &i) in which.iter().enumerate() {
        if able.does(packets.offload(i as usize)) {
            continue;
        }
        if start < k {
            send(packets, &which[start..k]);
        }
        start = k + 1;
        finisher.get_or_insert_with(Box::default).finish(packets, i as usize, &mut send);
    }
    if start < which.len() {
        send(packets, &which[start..]);
    }
}
