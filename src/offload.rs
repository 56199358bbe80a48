//! What a packet's sender has left to be done by whoever sends it on: a checksum, or the cutting
//! of one large TCP or UDP packet into many (virtio 1.2, 5.1.6.2).
//!
//! Promises: an [`Offload`] was checked against its packet, field by field, so that an output may
//! believe it; [`deliver`] passes it on where the output does the rest itself, and else does it
//! here, in order. Receive queues make it, transmit queues use it. Allocates once an output that
//! first needs it.

#![forbid(unsafe_code)]

mod finish;

pub use finish::{Finisher, deliver};

use crate::counters::Reason;
use crate::wire::{self, ETHERNET, IPV4, IPV6, TCP, UDP_PROTOCOL};
use virtio_bindings::virtio_net::{
    VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_ECN, VIRTIO_NET_HDR_GSO_NONE,
    VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6, VIRTIO_NET_HDR_GSO_UDP_L4,
};

/// Bytes of the virtio-net header that are the sender's: all but `num_buffers`.
pub const HEADER: usize = 10;
/// Bytes of a TCP header without options.
const TCP_HEADER: usize = 20;
/// Where the checksum is in a TCP and in a UDP header.
const TCP_CHECKSUM: u16 = 16;
const UDP_CHECKSUM: u16 = 6;
/// Smallest segments that are cut: less is no protocol's, and only work for whoever cuts.
const LEAST_SEGMENT: u16 = 48;
/// IPv6 extension headers that may stand before TCP or UDP: hop-by-hop, routing, destination.
const EXTENSIONS: [u8; 3] = [0, 43, 60];

/// The kinds, in the order of what they ask of an output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Nothing,
    Checksum,
    Tcp4,
    Tcp6,
    Udp,
}

/// What is left to be done to a packet; by default nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offload {
    kind: Kind,
    /// TCP: the first segment alone keeps CWR (RFC 3168).
    ecn: bool,
    /// Where the bytes begin that the checksum is over.
    csum_start: u16,
    /// Where it goes, from there.
    csum_offset: u16,
    /// Bytes of all headers of a packet that is to be cut.
    headers: u16,
    /// Bytes of payload of each segment.
    size: u16,
}

impl Offload {
    /// The first 10 bytes of a virtio-net header, little-endian, checked against the packet,
    /// which has `len` bytes and begins with `head`. Flags that are not known are ignored, as
    /// the spec asks; that a checksum is valid is not remembered.
    ///
    /// # Errors
    /// `bad_offload`: a field contradicts the packet.
    pub fn check(raw: [u8; HEADER], head: &[u8], len: usize) -> Result<Self, Reason> {
        let word = |at: usize| u16::from_le_bytes([raw[at], raw[at + 1]]);
        let gso = u32::from(raw[1]);
        if u32::from(raw[0]) & VIRTIO_NET_HDR_F_NEEDS_CSUM == 0 {
            let none = gso == VIRTIO_NET_HDR_GSO_NONE;
            return if none { Ok(Offload::default()) } else { Err(Reason::BadOffload) };
        }
        let (csum_start, csum_offset) = (word(6), word(8));
        let field = usize::from(csum_start) + usize::from(csum_offset);
        let inside = usize::from(csum_start) >= ETHERNET && field + 2 <= head.len().min(len);
        let checksum =
            Offload { kind: Kind::Checksum, csum_start, csum_offset, ..Offload::default() };
        let kind = match gso & !VIRTIO_NET_HDR_GSO_ECN {
            _ if !inside => return Err(Reason::BadOffload),
            VIRTIO_NET_HDR_GSO_NONE if gso == VIRTIO_NET_HDR_GSO_NONE => return Ok(checksum),
            VIRTIO_NET_HDR_GSO_TCPV4 => Kind::Tcp4,
            VIRTIO_NET_HDR_GSO_TCPV6 => Kind::Tcp6,
            VIRTIO_NET_HDR_GSO_UDP_L4 if gso & VIRTIO_NET_HDR_GSO_ECN == 0 => Kind::Udp,
            _ => return Err(Reason::BadOffload),
        };
        let size = word(4);
        let ecn = gso & VIRTIO_NET_HDR_GSO_ECN != 0;
        let cut =
            Offload { kind, ecn, size, ..checksum }.fitting(head).ok_or(Reason::BadOffload)?;
        let payload = len.checked_sub(cut.headers.into()).filter(|payload| *payload > 0);
        match payload.ok_or(Reason::BadOffload)? {
            // One segment: nothing to cut.
            payload if payload <= size.into() => Ok(checksum),
            _ => Ok(cut),
        }
    }

    /// Itself with the length of its headers, if they are what it says.
    fn fitting(self, head: &[u8]) -> Option<Self> {
        let transport = transport(head)?;
        let (protocol, checksum) =
            if self.kind == Kind::Udp { (UDP_PROTOCOL, UDP_CHECKSUM) } else { (TCP, TCP_CHECKSUM) };
        let version = match self.kind {
            Kind::Tcp4 => transport.ipv4,
            Kind::Tcp6 => !transport.ipv4,
            _ => true,
        };
        let fits = version
            && transport.protocol == protocol
            && usize::from(self.csum_start) == transport.at
            && self.csum_offset == checksum
            && self.size >= LEAST_SEGMENT;
        let header = match self.kind {
            Kind::Udp => wire::UDP,
            _ => usize::from(head.get(transport.at + 12)? >> 4) * 4,
        };
        let headers = transport.at + header;
        let sane = header >= TCP_HEADER || self.kind == Kind::Udp;
        (fits && sane && headers <= head.len())
            .then_some(Offload { headers: headers as u16, ..self })
    }

    /// Is there nothing to do?
    #[inline]
    pub fn is_nothing(self) -> bool {
        self.kind == Kind::Nothing
    }

    /// The packet has got `bytes` more before its network header, or less: a VLAN tag.
    #[must_use]
    pub fn moved(self, bytes: i16) -> Self {
        let moved = |at: u16| if at == 0 { 0 } else { at.saturating_add_signed(bytes) };
        match self.kind {
            Kind::Nothing => self,
            _ => {
                Offload { csum_start: moved(self.csum_start), headers: moved(self.headers), ..self }
            }
        }
    }

    /// The longest frame that comes of a packet of `len` bytes.
    #[inline]
    pub fn frame_len(self, len: usize) -> usize {
        match self.kind {
            Kind::Nothing | Kind::Checksum => len,
            _ => len.min(usize::from(self.headers) + usize::from(self.size)),
        }
    }

    /// A whole virtio-net header that says so (virtio 1.2, 5.1.6), in `num_buffers` buffers.
    pub fn header(self, num_buffers: u16) -> [u8; 12] {
        let gso = match self.kind {
            Kind::Nothing | Kind::Checksum => VIRTIO_NET_HDR_GSO_NONE,
            Kind::Tcp4 => VIRTIO_NET_HDR_GSO_TCPV4,
            Kind::Tcp6 => VIRTIO_NET_HDR_GSO_TCPV6,
            Kind::Udp => VIRTIO_NET_HDR_GSO_UDP_L4,
        };
        let ecn = if self.ecn { VIRTIO_NET_HDR_GSO_ECN } else { 0 };
        let needs = if self.is_nothing() { 0 } else { VIRTIO_NET_HDR_F_NEEDS_CSUM };
        let mut header = [0; 12];
        (header[0], header[1]) = (needs as u8, (gso | ecn) as u8);
        let words = [self.headers, self.size, self.csum_start, self.csum_offset, num_buffers];
        for (to, word) in header[2..].chunks_exact_mut(2).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        header
    }
}

/// The TCP or UDP header of a frame.
struct Transport {
    at: usize,
    protocol: u8,
    ipv4: bool,
}

/// Find it in the frame's head.
fn transport(head: &[u8]) -> Option<Transport> {
    let ethernet = wire::ethernet(head)?;
    let packet = head.get(ethernet.payload..)?;
    match ethernet.ethertype {
        wire::ETHERTYPE_IPV4 => {
            let ip = wire::ipv4(packet)?;
            let at = ethernet.payload + ip.header_len;
            (!ip.fragment).then_some(Transport { at, protocol: ip.protocol, ipv4: true })
        }
        wire::ETHERTYPE_IPV6 => {
            let mut protocol = *packet.get(6)?;
            let mut at = IPV6;
            while EXTENSIONS.contains(&protocol) {
                protocol = *packet.get(at)?;
                at += (usize::from(*packet.get(at + 1)?) + 1) * 8;
            }
            let version = packet.first()? >> 4;
            let at = ethernet.payload + at;
            (version == 6).then_some(Transport { at, protocol, ipv4: false })
        }
        _ => None,
    }
}

/// What an output does itself.
// A feature each.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Able {
    /// Checksums.
    pub checksum: bool,
    /// TCP over IPv4.
    pub tcp4: bool,
    /// TCP over IPv6.
    pub tcp6: bool,
    /// TCP with CWR.
    pub ecn: bool,
    /// UDP.
    pub udp: bool,
}

impl Able {
    /// Nothing.
    pub const NOTHING: Able =
        Able { checksum: false, tcp4: false, tcp6: false, ecn: false, udp: false };
    /// All there is.
    pub const ALL: Able = Able { checksum: true, tcp4: true, tcp6: true, ecn: true, udp: true };

    /// Does it do this?
    #[inline]
    pub fn does(self, offload: Offload) -> bool {
        let kind = match offload.kind {
            Kind::Nothing => return true,
            Kind::Checksum => true,
            Kind::Tcp4 => self.tcp4,
            Kind::Tcp6 => self.tcp6,
            Kind::Udp => self.udp,
        };
        self.checksum && kind && (self.ecn || !offload.ecn)
    }
}

const _: () = assert!(IPV4 + ETHERNET < crate::packet::HEAD);

#[cfg(test)]
mod tests;
