#![forbid(unsafe_code)]
//! The frames a guest sends: valid Ethernet, IPv4 and UDP, numbered, every byte a function of
//! the number.
//!
//! Promises: [`Frames::build`] makes the same frame of the same number every time, so a
//! receiver compares every byte with what was sent. From 42 bytes on a frame is
//! Ethernet/IPv4/UDP, below it is Ethernet with a local experimental type. The number is in the
//! first 8 bytes of the UDP payload; frames that have no room there carry it in their source
//! MAC address.

/// Bytes of Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 42;
/// From here on the UDP payload has room for a number.
const NUMBERED: usize = HEADERS + 8;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Ethernet type "local experimental 1" (IEEE 802).
const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];
const DESTINATION: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// 198.18.0.1 and 198.19.0.1: set aside for benchmarks (RFC 2544).
const FROM: [u8; 4] = [198, 18, 0, 1];
const TO: [u8; 4] = [198, 19, 0, 1];
/// UDP source ports: the dynamic range.
const FIRST_PORT: u16 = 0xc000;
const PORTS: u64 = 0x4000;
/// The discard service.
const DISCARD: u16 = 9;
const UDP: u8 = 17;
/// Starting points in the pattern that numbers are spread over.
const STARTS: u64 = 4093;

/// Which packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    /// Its stream.
    pub stream: u16,
    /// Its place in the stream: 48 bits.
    pub seq: u64,
}

impl Number {
    fn to_bits(self) -> u64 {
        u64::from(self.stream) << 48 | self.seq & 0xffff_ffff_ffff
    }

    fn from_bits(bits: u64) -> Self {
        Number { stream: (bits >> 48) as u16, seq: bits & 0xffff_ffff_ffff }
    }
}

/// Makes frames.
pub struct Frames {
    /// What payloads are cut from.
    pattern: Vec<u8>,
    /// Tells this run's frames from an earlier one's.
    epoch: u64,
    /// Every packet of a stream has the stream's UDP port; else each number has its own.
    port_per_stream: bool,
}

impl Frames {
    /// `epoch` tells runs apart. With several streams each is a flow, which keeps its packets
    /// in order; one alone varies its flow from packet to packet.
    pub fn new(epoch: u64, port_per_stream: bool) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let pattern = std::iter::repeat_with(|| {
            state = mix(state);
            state.to_le_bytes()
        });
        let words = (crate::packet::MAX_PACKET + STARTS as usize).div_ceil(8);
        Frames { pattern: pattern.take(words).flatten().collect(), epoch, port_per_stream }
    }

    /// A number from `0..n` that depends on the packet's number alone.
    pub fn choose(&self, number: Number, n: u64) -> u64 {
        mix(number.to_bits() ^ mix(self.epoch)) % n
    }

    /// Make frame `number` of `len` bytes (at least 14) in `frame`, with a UDP checksum.
    pub fn build(&self, number: Number, len: usize, frame: &mut Vec<u8>) {
        frame.clear();
        frame.extend(DESTINATION);
        frame.extend(source(number, len));
        if len >= HEADERS {
            let port = self.port(number);
            push_ip_and_udp(frame, len, port);
            if len >= NUMBERED {
                frame.extend(number.to_bits().to_be_bytes());
            }
        } else {
            frame.extend(EXPERIMENTAL);
        }
        let start = self.choose(number, STARTS) as usize;
        let missing = len - frame.len();
        frame.extend_from_slice(&self.pattern[start..start + missing]);
        if len >= HEADERS {
            let checksum = udp_checksum(frame);
            frame[40..42].copy_from_slice(&checksum.to_be_bytes());
        }
    }

    /// As [`Frames::build`] but without a UDP checksum (0: not computed), so that the number
    /// may be changed afterwards.
    pub fn build_unsummed(&self, number: Number, len: usize, frame: &mut Vec<u8>) {
        self.build(number, len, frame);
        if len >= HEADERS {
            frame[40..42].fill(0);
        }
    }

    fn port(&self, number: Number) -> u16 {
        let flow = if self.port_per_stream { u64::from(number.stream) } else { number.seq };
        FIRST_PORT | (flow % PORTS) as u16
    }
}

/// The number that a frame claims. Of a short one only the low 24 bits of the place are there:
/// the value nearest to `expected(stream)` is taken.
pub fn number_of(frame: &[u8], expected: impl Fn(u16) -> Option<u64>) -> Option<Number> {
    if let Some(bytes) = frame.get(HEADERS..NUMBERED) {
        return bytes.try_into().ok().map(|b| Number::from_bits(u64::from_be_bytes(b)));
    }
    let mac = frame.get(6..12)?;
    let stream = u16::from_be_bytes([mac[1], mac[2]]);
    let low = u32::from_be_bytes([0, mac[3], mac[4], mac[5]]);
    let near = expected(stream)?;
    // The distance as a signed 24-bit number.
    let distance = (low.wrapping_sub(near as u32) << 8) as i32 >> 8;
    near.checked_add_signed(i64::from(distance)).map(|seq| Number { stream, seq })
}

fn source(number: Number, len: usize) -> [u8; 6] {
    if len >= NUMBERED {
        return SOURCE;
    }
    let [high, low] = number.stream.to_be_bytes();
    let [_, a, b, c] = (number.seq as u32).to_be_bytes();
    [SOURCE[0], high, low, a, b, c]
}

fn push_ip_and_udp(frame: &mut Vec<u8>, len: usize, port: u16) {
    let ip_len = ((len - ETHERNET) as u16).to_be_bytes();
    let udp_len = ((len - ETHERNET - 20) as u16).to_be_bytes();
    frame.extend([8, 0]);
    frame.extend([0x45, 0, ip_len[0], ip_len[1], 0, 0, 0x40, 0, 64, UDP, 0, 0]);
    frame.extend(FROM);
    frame.extend(TO);
    let checksum = !fold(sum(&frame[ETHERNET..ETHERNET + 20]));
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend(DISCARD.to_be_bytes());
    frame.extend([udp_len[0], udp_len[1], 0, 0]);
}

/// Of a frame whose checksum field is zero.
fn udp_checksum(frame: &[u8]) -> u16 {
    let pseudo_header = sum(&frame[26..34]) + u64::from(UDP) + (frame.len() - 34) as u64;
    match !fold(pseudo_header + sum(&frame[34..])) {
        0 => 0xffff,
        checksum => checksum,
    }
}

/// Sum of big-endian 16-bit words, the end padded with zeros. Eight bytes are taken at once: a
/// sum of larger words folds to the same value.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let halves = |word: &[u8; 8]| {
        let word = u64::from_be_bytes(*word);
        (word >> 32) + (word & 0xffff_ffff)
    };
    words.iter().map(halves).sum::<u64>() + halves(&last)
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A bijection that scatters neighbours (the finaliser of splitmix64).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::SlicedPacket;

    fn build(frames: &Frames, stream: u16, seq: u64, len: usize) -> Vec<u8> {
        let mut frame = vec![];
        frames.build(Number { stream, seq }, len, &mut frame);
        frame
    }

    #[test]
    fn frames_are_what_a_parser_expects() {
        let frames = Frames::new(1, false);
        for len in [14, 20, 41, 42, 43, 49, 50, 51, 64, 1518, 65535] {
            let frame = build(&frames, 0, 77, len);
            assert_eq!(frame.len(), len);
            let parsed = SlicedPacket::from_ethernet(&frame).unwrap();
            let Some(etherparse::TransportSlice::Udp(udp)) = parsed.transport else {
                assert!(len < 42 && frame[12..14] == EXPERIMENTAL);
                continue;
            };
            let Some(etherparse::NetSlice::Ipv4(ip)) = parsed.net else { panic!() };
            assert_eq!(
                ip.header().to_header().calc_header_checksum(),
                ip.header().header_checksum()
            );
            let sum = udp.to_header().calc_checksum_ipv4(&ip.header().to_header(), udp.payload());
            assert_eq!(sum.unwrap(), udp.checksum());
            assert_eq!(udp.payload().len(), len - 42);
            assert_eq!(udp.source_port(), 0xc000 + 77);
        }
    }

    #[test]
    fn numbers_are_found_again() {
        let frames = Frames::new(1, true);
        for len in [14, 42, 49, 50, 1000] {
            for seq in [0, 5, 0x1ff_fff0, 0x200_0005] {
                let frame = build(&frames, 3, seq, len);
                // The receiver may be some way before or behind.
                for expected in [seq.saturating_sub(1000), seq, seq + 1000] {
                    let number = number_of(&frame, |stream| (stream == 3).then_some(expected));
                    assert_eq!(number, Some(Number { stream: 3, seq }), "{len} {seq}");
                }
            }
        }
        assert_eq!(number_of(&[0; 11], |_| Some(0)), None);
    }

    #[test]
    fn frames_differ_by_number_and_epoch() {
        let frames = Frames::new(1, false);
        let frame = build(&frames, 0, 1, 100);
        assert_ne!(frame[50..], build(&frames, 0, 2, 100)[50..]);
        assert_ne!(frame[50..], build(&Frames::new(2, false), 0, 1, 100)[50..]);
        assert_ne!(frame[34..36], build(&frames, 0, 2, 100)[34..36]);
        assert_eq!(build(&frames, 0, 1, 14)[..6], DESTINATION);
    }
}
