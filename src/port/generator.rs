//! The packets of `txonly`: made, not received.
//!
//! Promises: frames of exactly the size asked for, each with a number of its own. From 42
//! bytes on they are Ethernet, IPv4 and UDP (to port 9, discard, between the benchmark
//! addresses of RFC 2544, from 64 source ports in turn), with a valid IPv4 checksum and none
//! for UDP; the number follows as 64 little-endian bits, as far as it fits. Shorter ones are
//! Ethernet with an ethertype for experiments and the number. A worker owns it as the receive
//! half of a port that is not there. Never allocates once it is made, never ends.

#![forbid(unsafe_code)]

use crate::packet::{BURST, BURST_BYTES, HEAD, MAX_PACKET, MIN_PACKET, Packets, Source};
use crate::wire::{self, ETHERNET, IPV4, UDP};
use std::sync::Arc;

/// Bytes before the payload of a UDP frame.
const HEADERS: usize = ETHERNET + IPV4 + UDP;
/// First of the source ports; the low byte is free for the flow.
const FIRST_PORT: u16 = 0xC000;
/// Number of source ports: the flows.
const FLOWS: u64 = 64;

/// Makes packets.
#[derive(Debug)]
pub struct Generator {
    size: usize,
    /// Most packets in a burst.
    burst: usize,
    /// A whole frame of number 0, but at least as long as a head.
    frame: Arc<[u8]>,
    /// Its first line.
    line: [u64; 8],
    /// The number of the next packet.
    number: u64,
}

impl Generator {
    /// Of frames of `size` bytes, without FCS; sizes outside of 14 to 65535 are brought to the
    /// nearer end.
    pub fn new(size: usize) -> Self {
        let size = size.clamp(MIN_PACKET, MAX_PACKET);
        let frame = template(size);
        let mut line = [0; 8];
        for (word, bytes) in line.iter_mut().zip(frame.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let burst = (BURST_BYTES / size).clamp(1, BURST);
        Generator { size, burst, frame: frame.into(), line, number: 0 }
    }

    /// Make up to `max` packets in `packets`, which is cleared.
    #[inline]
    pub fn receive(&mut self, packets: &mut Packets, max: usize) {
        let count = max.min(self.burst);
        packets.lend(&self.frame);
        if self.size >= HEADERS {
            self.fill(packets, count, udp_line);
        } else {
            self.fill(packets, count, short_line);
        }
    }

    #[inline(always)]
    fn fill(
        &mut self,
        packets: &mut Packets,
        count: usize,
        line: impl Fn(&[u64; 8], u64) -> [u64; 8],
    ) {
        for number in self.number..self.number + count as u64 {
            packets.push_lent_line(&line(&self.line, number), self.size);
        }
        self.number += count as u64;
    }
}

impl Source for Generator {
    fn complete(&mut self) {
        // Nobody lent anything.
    }
}

/// The first line of UDP frame `number`: the port's low byte is byte 35, the number begins at
/// byte 42.
#[inline(always)]
fn udp_line(template: &[u64; 8], number: u64) -> [u64; 8] {
    let mut line = *template;
    line[4] |= (number % FLOWS) << 24;
    line[5] |= number << 16;
    line[6] |= number >> 48;
    line
}

/// The first line of short frame `number`: the number begins at byte 14.
#[inline(always)]
fn short_line(template: &[u64; 8], number: u64) -> [u64; 8] {
    let mut line = *template;
    line[1] |= number << 48;
    line[2] |= number >> 16;
    line
}

/// Frame number 0 of `size` bytes, padded to the length of a head.
fn template(size: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..size.max(HEAD)).map(|i| i as u8).collect();
    frame[..6].copy_from_slice(&[0x02, 0, 0, 0, 0, 0]);
    frame[6..12].copy_from_slice(&[0x02, 0x72, 0x62, 0, 0, 0]);
    let ethertype = if size >= HEADERS { wire::ETHERTYPE_IPV4 } else { wire::ETHERTYPE_EXPERIMENT };
    frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
    if size < HEADERS {
        frame[ETHERNET..ETHERNET + 8].fill(0);
        return frame;
    }
    // At most 65535 - 14: it always fits.
    let ip_len = (size - ETHERNET) as u16;
    if let Some(header) = frame[ETHERNET..].first_chunk_mut() {
        let (src, dst) = ([198, 18, 0, 1], [198, 18, 0, 2]);
        wire::put_ipv4(header, ip_len, wire::UDP_PROTOCOL, src, dst);
    }
    let udp = [FIRST_PORT, 9, ip_len - IPV4 as u16, 0].map(u16::to_be_bytes);
    frame[ETHERNET + IPV4..HEADERS].copy_from_slice(udp.as_flattened());
    frame[HEADERS..HEADERS + 8].fill(0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    /// The first `bursts` bursts of frames of `size` bytes.
    fn frames(size: usize, bursts: usize) -> Vec<Vec<u8>> {
        let mut generator = Generator::new(size);
        let mut packets = Packets::new();
        let mut frames = Vec::new();
        for _ in 0..bursts {
            generator.receive(&mut packets, BURST);
            for i in 0..packets.len() {
                let mut frame = vec![0; packets.packet_len(i)];
                packets.copy_out(i, &mut frame);
                frames.push(frame);
            }
        }
        frames
    }

    #[test]
    fn udp_frames_are_valid_numbered_and_of_the_size() {
        for size in [42, 50, 60, 64, 65, 128, 191, 192, 193, 1518, 9000, 65535] {
            let mut ports = std::collections::BTreeSet::new();
            for (number, frame) in frames(size, 20).iter().enumerate() {
                assert_eq!(frame.len(), size);
                let sliced = SlicedPacket::from_ethernet(frame).unwrap();
                let Some(NetSlice::Ipv4(ip)) = &sliced.net else { panic!("{size}") };
                let header = ip.header().to_header();
                assert_eq!(header.header_checksum, header.calc_header_checksum());
                let Some(TransportSlice::Udp(udp)) = &sliced.transport else { panic!("{size}") };
                assert_eq!(udp.destination_port(), 9);
                assert_eq!(udp.payload().len(), size - 42);
                ports.insert(udp.source_port());
                let number = (number as u64).to_le_bytes();
                let there = udp.payload().len().min(8);
                assert_eq!(udp.payload()[..there], number[..there], "{size}");
                for (i, byte) in frame.iter().enumerate().skip(50) {
                    assert_eq!(*byte, i as u8, "byte {i} of {size}");
                }
            }
            let last = FIRST_PORT + FLOWS as u16 - 1;
            assert_eq!(ports.first(), Some(&FIRST_PORT), "{size}");
            assert!(ports.last() == Some(&last) || size > 9000, "{size}: {ports:?}");
        }
    }

    #[test]
    fn short_frames_carry_as_much_of_the_number_as_fits() {
        for size in [14, 15, 16, 21, 22, 41] {
            for (number, frame) in frames(size, 5).iter().enumerate() {
                assert_eq!(frame.len(), size);
                assert_eq!(frame[12..14], [0x88, 0xB5]);
                let there = (size - 14).min(8);
                assert_eq!(frame[14..14 + there], (number as u64).to_le_bytes()[..there]);
            }
        }
    }

    #[test]
    fn large_numbers_are_written_whole() {
        for (size, at) in [(64, 42), (30, 14)] {
            let mut generator = Generator::new(size);
            generator.number = 0x8877_6655_4433_2211;
            let mut packets = Packets::new();
            generator.receive(&mut packets, 1);
            let number = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
            assert_eq!(packets.head(0)[at..at + 8], number);
        }
    }

    #[test]
    fn bursts_are_limited_by_packets_and_by_bytes() {
        let mut packets = Packets::new();
        for (size, max, expected) in [(64, 64, 64), (64, 7, 7), (64, 1000, 64), (65535, 64, 4)] {
            Generator::new(size).receive(&mut packets, max);
            assert_eq!(packets.len(), expected, "{size} {max}");
        }
    }
}
