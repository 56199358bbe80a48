//! Frames as bytes: where the fields of Ethernet, ARP, IPv4, ICMP and UDP lie, checksums, and
//! the hash of a flow.
//!
//! Promises: pure functions over byte slices; truncated or nonsensical input is answered with
//! `None` (or a hash of what is there), never with a panic. All multi-byte fields are big-endian
//! on the wire and native in the values here. Called by `forward`, by the generator and for the
//! choice of a guest's receive queue. Never allocates.

#![forbid(unsafe_code)]

/// Bytes of an Ethernet header without tags.
pub const ETHERNET: usize = 14;
/// Bytes of a VLAN tag.
pub const VLAN: usize = 4;
/// Bytes of an IPv4 header without options.
pub const IPV4: usize = 20;
/// Bytes of an IPv6 header.
pub const IPV6: usize = 40;
/// Bytes of a UDP header.
pub const UDP: usize = 8;
/// Bytes of an ARP packet for IPv4 over Ethernet.
pub const ARP: usize = 28;

/// Ethertype of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// Ethertype of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Ethertype of reverse ARP.
const ETHERTYPE_RARP: u16 = 0x8035;
/// Ethertype of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86DD;
/// Ethertype for local experiments (IEEE 802, 9.2.3.4): nobody else's packets.
pub const ETHERTYPE_EXPERIMENT: u16 = 0x88B5;
/// Ethertypes that announce a VLAN tag: customer (802.1Q), service (802.1ad).
const TAGS: [u16; 2] = [0x8100, 0x88A8];

/// IP protocol number of ICMP.
pub const ICMP: u8 = 1;
/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP_PROTOCOL: u8 = 17;
/// IP protocol number of SCTP.
const SCTP: u8 = 132;

/// ICMP type of an echo request; an echo reply is type 0.
pub const ECHO_REQUEST: u8 = 8;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// The shortest Ethernet frame, without FCS.
const SHORTEST: usize = 60;

/// The broadcast by which a host that has moved makes bridges learn where it is: a reverse ARP
/// request (RFC 903) from `mac` about itself, padded to the shortest frame.
pub fn rarp(mac: Mac) -> [u8; SHORTEST] {
    let mut frame = [0; SHORTEST];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&ETHERTYPE_RARP.to_be_bytes());
    // Ethernet, IPv4, lengths of their addresses, request reverse.
    frame[14..22].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 3]);
    // Sender and target; neither has an IPv4 address yet.
    frame[22..28].copy_from_slice(&mac);
    frame[32..38].copy_from_slice(&mac);
    frame
}

/// Big-endian 16 bits at `at`.
#[inline]
pub fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

/// An Ethernet header, tags included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ethernet {
    /// The ethertype behind the tags.
    pub ethertype: u16,
    /// Where the payload begins: 14, 18 or 22.
    pub payload: usize,
}

/// Read an Ethernet header and skip up to two VLAN tags.
///
/// `None` if the frame ends before the ethertype. A third tag is payload, its ethertype is
/// answered.
#[inline]
pub fn ethernet(frame: &[u8]) -> Option<Ethernet> {
    let mut payload = ETHERNET;
    let mut ethertype = be16(frame, payload - 2)?;
    while TAGS.contains(&ethertype) && payload < ETHERNET + 2 * VLAN {
        payload += VLAN;
        ethertype = be16(frame, payload - 2)?;
    }
    Some(Ethernet { ethertype, payload })
}

/// What an IPv4 header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4 {
    /// Bytes of the header, options included: 20 to 60.
    pub header_len: usize,
    /// Bytes of the packet, header included.
    pub total_len: usize,
    /// The protocol inside.
    pub protocol: u8,
    /// A fragment, be it the first one: ports or ICMP fields may be elsewhere.
    pub fragment: bool,
    /// Destination address.
    pub dst: [u8; 4],
}

/// Read an IPv4 header at the beginning of `bytes`.
///
/// `None` if it is not there in full, is of another version, or contradicts itself. The
/// checksum is not looked at.
#[inline]
pub fn ipv4(bytes: &[u8]) -> Option<Ipv4> {
    let fixed: &[u8; IPV4] = bytes.first_chunk()?;
    let header_len = usize::from(fixed[0] & 0xF) * 4;
    let total_len = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    if fixed[0] >> 4 != 4 || header_len < IPV4 || bytes.len() < header_len {
        return None;
    }
    // More fragments follow, or this is not the first.
    let fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3FFF != 0;
    let dst = [fixed[16], fixed[17], fixed[18], fixed[19]];
    (total_len >= header_len).then_some(Ipv4 {
        header_len,
        total_len,
        protocol: fixed[9],
        fragment,
        dst,
    })
}

/// Write an IPv4 header of 20 bytes (don't fragment, TTL 64) with its checksum.
pub fn put_ipv4(out: &mut [u8; IPV4], total_len: u16, protocol: u8, src: [u8; 4], dst: [u8; 4]) {
    *out = [0; IPV4];
    out[0] = 0x45;
    out[2..4].copy_from_slice(&total_len.to_be_bytes());
    out[6] = 0x40;
    out[8] = 64;
    out[9] = protocol;
    out[12..16].copy_from_slice(&src);
    out[16..20].copy_from_slice(&dst);
    let sum = checksum(out);
    out[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// The internet checksum of `bytes` (RFC 1071): what goes into a checksum field that was zero
/// while it was computed. Over bytes that contain a right checksum it is 0.
fn checksum(bytes: &[u8]) -> u16 {
    !fold(sum(bytes))
}

/// The sum of `bytes` as 16-bit words, the last one padded with zero, as [`fold`] takes it.
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let (pairs, odd) = rest.as_chunks::<2>();
    sum += pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum::<u64>();
    if let [last] = odd {
        sum += u64::from(*last) << 8;
    }
    sum
}

/// The checksum after a 16-bit field under it changed from `old` to `new` (RFC 1624, equation
/// 3), without the other bytes.
///
/// Never 0 but 0xFFFF, which is the same number to whoever verifies it, and the only right one
/// over bytes that are all zero. A checksum that was wrong stays as wrong as it was.
pub fn update_checksum(sum: u16, old: u16, new: u16) -> u16 {
    match !fold(u64::from(!sum) + u64::from(!old) + u64::from(new)) {
        0 => 0xFFFF,
        sum => sum,
    }
}

/// Add the carries back in until there are none.
pub fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum >> 16) + (sum & 0xFFFF);
    }
    sum as u16
}

const MIX: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xD1B5_4A32_D192_ED03];

/// One multiplication of 64 by 64 bits, both halves folded together.
#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ MIX[0]) * u128::from(b ^ MIX[1]);
    product as u64 ^ (product >> 64) as u64
}

#[inline(always)]
fn finish(mixed: u64) -> u32 {
    (mixed ^ (mixed >> 32)) as u32
}

#[inline(always)]
fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP_PROTOCOL | SCTP)
}

/// A hash of the flow that `frame` (at least its first 100 bytes, or all of it) belongs to.
///
/// Over addresses, protocol and ports of IPv4 and IPv6; without ports in fragments and where
/// there are none; over the MAC addresses of anything else. VLAN tags make no difference. Frames of
/// one flow have one value, in every version of this program that runs at the same time; it is
/// not keyed, so not for tables that an attacker may fill.
#[inline]
pub fn flow_hash(frame: &[u8]) -> u32 {
    // Untagged IPv4 without options, not a fragment, with ports: nearly every packet.
    if let Some(f) = frame.first_chunk::<{ ETHERNET + IPV4 + 4 }>()
        && [f[12], f[13], f[14]] == [0x08, 0x00, 0x45]
        && u16::from_ne_bytes([f[20], f[21]]) & 0x3FFF_u16.to_be() == 0
        && has_ports(f[23])
    {
        let addresses =
            u64::from_ne_bytes([f[26], f[27], f[28], f[29], f[30], f[31], f[32], f[33]]);
        let ports = u32::from_ne_bytes([f[34], f[35], f[36], f[37]]);
        return finish(mix(addresses, u64::from(ports) << 8 | u64::from(f[23])));
    }
    any_flow_hash(frame)
}

/// [`flow_hash`] of every kind of frame, without the short cut.
#[inline(never)]
fn any_flow_hash(frame: &[u8]) -> u32 {
    let by_address = ethernet(frame).and_then(|eth| {
        let packet = frame.get(eth.payload..)?;
        match eth.ethertype {
            ETHERTYPE_IPV4 => ipv4_flow_hash(packet),
            ETHERTYPE_IPV6 => ipv6_flow_hash(packet),
            _ => None,
        }
    });
    by_address.unwrap_or_else(|| {
        let mut macs = [0; 16];
        let there = frame.len().min(12);
        macs[..there].copy_from_slice(&frame[..there]);
        let [a, b] = words(&macs);
        finish(mix(a, b))
    })
}

fn ipv4_flow_hash(packet: &[u8]) -> Option<u32> {
    let ip = ipv4(packet)?;
    let [addresses] = words(packet.get(12..)?.first_chunk::<8>()?);
    let ports = if ip.fragment { 0 } else { ports(packet, ip.header_len, ip.protocol) };
    Some(finish(mix(addresses, u64::from(ports) << 8 | u64::from(ip.protocol))))
}

fn ipv6_flow_hash(packet: &[u8]) -> Option<u32> {
    let header = packet.first_chunk::<IPV6>()?;
    let [a, b, c, d] = words(header[8..].first_chunk::<32>()?);
    let ports = ports(packet, IPV6, header[6]);
    let last = u64::from(ports) << 8 | u64::from(header[6]);
    Some(finish(mix(mix(a, b), mix(c, d).rotate_left(1) ^ last)))
}

/// Source and destination port, as they lie; 0 without any.
fn ports(packet: &[u8], at: usize, protocol: u8) -> u32 {
    let there = packet.get(at..).and_then(<[u8]>::first_chunk).filter(|_| has_ports(protocol));
    there.map_or(0, |ports| u32::from_ne_bytes(*ports))
}

/// Bytes as words, as they lie.
fn words<const BYTES: usize, const WORDS: usize>(bytes: &[u8; BYTES]) -> [u64; WORDS] {
    const { assert!(BYTES == 8 * WORDS) };
    let (chunks, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|i| u64::from_ne_bytes(chunks[i]))
}

#[cfg(test)]
mod tests;
