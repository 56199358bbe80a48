//! Headers good and bad; packets finished, compared with what `etherparse` makes and reads.

use super::*;
use crate::packet::{MAX_PACKET, Packets};
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use std::sync::Arc;

const NEEDS_CSUM: u8 = 1;

/// The frame of a TCP (or UDP) packet with this payload; where its transport header begins.
fn frame(ipv6: bool, tagged: bool, udp: bool, payload: &[u8]) -> (Vec<u8>, usize) {
    let mut out = Vec::new();
    macro_rules! write {
        ($builder:expr) => {
            if udp {
                $builder.udp(7, 9).write(&mut out, payload).unwrap();
            } else {
                let tcp = $builder.tcp(7, 9, 0xffff_f000, 1000).cwr().psh().fin().ack(3);
                tcp.options_raw(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2])
                    .unwrap()
                    .write(&mut out, payload)
                    .unwrap();
            }
        };
    }
    macro_rules! ip {
        ($builder:expr) => {
            if ipv6 {
                write!($builder.ipv6([1; 16], [2; 16], 64))
            } else {
                write!($builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64))
            }
        };
    }
    let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
    if tagged {
        ip!(ethernet.single_vlan(10.try_into().unwrap()));
    } else {
        ip!(ethernet);
    }
    let at = ETHERNET + if tagged { 4 } else { 0 } + if ipv6 { IPV6 } else { IPV4 };
    (out, at)
}

fn raw(gso: u32, size: u16, start: usize, offset: u16) -> [u8; HEADER] {
    let mut raw = [0; HEADER];
    (raw[0], raw[1]) = (NEEDS_CSUM, gso as u8);
    raw[4..6].copy_from_slice(&size.to_le_bytes());
    raw[6..8].copy_from_slice(&(start as u16).to_le_bytes());
    raw[8..10].copy_from_slice(&offset.to_le_bytes());
    raw
}

fn check(raw: [u8; HEADER], frame: &[u8]) -> Result<Offload, Reason> {
    Offload::check(raw, &frame[..frame.len().min(192)], frame.len())
}

/// What is delivered to an output that can do nothing.
fn finished(frame: &[u8], offload: Offload) -> Vec<Vec<u8>> {
    let buffer: Arc<[u8]> = frame.into();
    let mut packets = Packets::new();
    packets.lend(&buffer);
    packets.push_lent(0..frame.len());
    packets.offload_last(|_, _| Ok(offload)).unwrap();
    let mut out = Vec::new();
    deliver(&packets, &[0], Able::NOTHING, &mut None, |packets, which| {
        for &i in which {
            let mut frame = vec![0; packets.packet_len(i as usize)];
            packets.copy_out(i as usize, &mut frame);
            assert!(packets.offload(i as usize).is_nothing());
            out.push(frame);
        }
    });
    out
}

/// Fail unless all lengths and checksums of a frame are right; its TCP sequence number, flags
/// (CWR, PSH, FIN), and payload.
fn right(frame: &[u8]) -> (u32, [bool; 3], Vec<u8>) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let net = packet.net.unwrap();
    if let NetSlice::Ipv4(ip) = &net {
        let header = ip.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
    }
    match (packet.transport.unwrap(), &net) {
        (TransportSlice::Tcp(tcp), NetSlice::Ipv4(ip)) => {
            let (from, to) = (ip.header().source(), ip.header().destination());
            assert_eq!(tcp.checksum(), tcp.calc_checksum_ipv4(from, to).unwrap());
            (tcp.sequence_number(), [tcp.cwr(), tcp.psh(), tcp.fin()], tcp.payload().to_vec())
        }
        (TransportSlice::Tcp(tcp), NetSlice::Ipv6(ip)) => {
            let (from, to) = (ip.header().source(), ip.header().destination());
            assert_eq!(tcp.checksum(), tcp.calc_checksum_ipv6(from, to).unwrap());
            (tcp.sequence_number(), [tcp.cwr(), tcp.psh(), tcp.fin()], tcp.payload().to_vec())
        }
        (TransportSlice::Udp(udp), net) => {
            let header = udp.to_header();
            let sum = match net {
                NetSlice::Ipv4(ip) => {
                    let (from, to) = (ip.header().source(), ip.header().destination());
                    header.calc_checksum_ipv4_raw(from, to, udp.payload())
                }
                NetSlice::Ipv6(ip) => {
                    let (from, to) = (ip.header().source(), ip.header().destination());
                    header.calc_checksum_ipv6_raw(from, to, udp.payload())
                }
                NetSlice::Arp(_) => panic!(),
            };
            assert_eq!(header.checksum, sum.unwrap());
            assert_eq!(usize::from(header.length), udp.payload().len() + 8);
            (0, [false; 3], udp.payload().to_vec())
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn segments_are_what_a_sender_without_offloads_would_send(
        ipv6: bool,
        tagged: bool,
        udp: bool,
        size in LEAST_SEGMENT..9000,
        len in 1_usize..60_000,
    ) {
        let payload: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let (frame, at) = frame(ipv6, tagged, udp, &payload);
        let gso = match (udp, ipv6) {
            (true, _) => VIRTIO_NET_HDR_GSO_UDP_L4,
            (false, true) => VIRTIO_NET_HDR_GSO_TCPV6 | VIRTIO_NET_HDR_GSO_ECN,
            (false, false) => VIRTIO_NET_HDR_GSO_TCPV4 | VIRTIO_NET_HDR_GSO_ECN,
        };
        let mut whole = frame.clone();
        if len <= size.into() {
            // Only a checksum, whose field holds the pseudo header's sum.
            let sum = at + if udp { 6 } else { 16 };
            let pseudo = wire::sum(&frame[at - if ipv6 { 32 } else { 8 }..at])
                + u64::from(if udp { UDP_PROTOCOL } else { TCP })
                + (frame.len() - at) as u64;
            whole[sum..sum + 2].copy_from_slice(&wire::fold(pseudo).to_be_bytes());
        }
        let offload = check(raw(gso, size, at, if udp { 6 } else { 16 }), &whole).unwrap();
        let segments = finished(&whole, offload);
        prop_assert_eq!(segments.len(), len.div_ceil(size.into()));
        let mut all = Vec::new();
        for (i, segment) in segments.iter().enumerate() {
            let (sequence, [cwr, psh, fin], payload) = right(segment);
            if !udp {
                prop_assert_eq!(sequence, 0xffff_f000_u32.wrapping_add(all.len() as u32));
                let last = i + 1 == segments.len();
                prop_assert_eq!([cwr, psh, fin], [i == 0, last, last]);
            }
            prop_assert!(segment.len() <= offload.frame_len(whole.len()));
            all.extend(payload);
        }
        prop_assert!(all == payload);
    }

    #[test]
    fn no_header_of_any_bytes_is_believed_in_vain(
        header: [u8; HEADER],
        bytes in prop::collection::vec(any::<u8>(), 14..300),
        plausible: bool,
    ) {
        let mut frame = bytes;
        if plausible {
            let (good, _) = self::frame(false, false, header[1] & 4 != 0, &frame);
            frame = good;
        }
        if let Ok(offload) = check(header, &frame) {
            // Whatever was believed can be done.
            finished(&frame, offload);
        }
    }
}

#[test]
fn headers_are_what_they_were() {
    let (frame, at) = frame(true, true, false, &[7; 5000]);
    let gso = VIRTIO_NET_HDR_GSO_TCPV6 | VIRTIO_NET_HDR_GSO_ECN;
    let header = raw(gso, 1400, at, 16);
    let offload = check(header, &frame).unwrap();
    let mut whole = [&header[..], &[2, 0]].concat();
    // The length of the headers is ours: Ethernet, tag, IPv6, TCP with options.
    whole[2..4].copy_from_slice(&(at as u16 + 32).to_le_bytes());
    assert_eq!(offload.header(2)[..], whole);
    assert_eq!(offload.frame_len(frame.len()), at + 32 + 1400);
    assert_eq!(Offload::default().header(1), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    let able = Able { checksum: true, tcp6: true, ..Able::NOTHING };
    assert!(!able.does(offload) && Able { ecn: true, ..able }.does(offload));
}

#[test]
fn what_contradicts_the_packet_is_refused() {
    let (tcp, at) = frame(false, false, false, &[1; 4000]);
    let (udp, _) = frame(false, false, true, &[1; 4000]);
    let good = raw(VIRTIO_NET_HDR_GSO_TCPV4, 1448, at, 16);
    assert!(check(good, &tcp).is_ok());
    let wrong = [
        ("no checksum", [0, 1, 0, 0, 0xa8, 5, at as u8, 0, 16, 0]),
        ("no size", raw(VIRTIO_NET_HDR_GSO_TCPV4, 0, at, 16)),
        ("tiny segments", raw(VIRTIO_NET_HDR_GSO_TCPV4, 47, at, 16)),
        ("IPv6", raw(VIRTIO_NET_HDR_GSO_TCPV6, 1448, at, 16)),
        ("UDP", raw(VIRTIO_NET_HDR_GSO_UDP_L4, 1448, at, 6)),
        ("UFO", raw(3, 1448, at, 6)),
        ("no such type", raw(2, 1448, at, 16)),
        ("ECN of nothing", raw(VIRTIO_NET_HDR_GSO_ECN, 1448, at, 16)),
        ("another start", raw(VIRTIO_NET_HDR_GSO_TCPV4, 1448, at + 1, 16)),
        ("another field", raw(VIRTIO_NET_HDR_GSO_TCPV4, 1448, at, 6)),
        ("in the addresses", raw(0, 0, 6, 0)),
        ("behind the head", raw(0, 0, 180, 16)),
        ("behind all", raw(0, 0, 0xffff, 0xffff)),
    ];
    for (what, header) in wrong {
        assert_eq!(check(header, &tcp), Err(Reason::BadOffload), "{what}");
    }
    assert_eq!(check(good, &udp), Err(Reason::BadOffload));
    assert_eq!(check(good, &tcp[..at + 20]), Err(Reason::BadOffload), "headers cut off");
    let mut fragment = tcp.clone();
    fragment[ETHERNET + 6] = 0x20;
    assert_eq!(check(good, &fragment), Err(Reason::BadOffload));
    let mut short = tcp.clone();
    short[at + 12] = 0x40;
    assert_eq!(check(good, &short), Err(Reason::BadOffload), "4 words of TCP header");
    // A runt of a packet, and one as long as can be.
    assert_eq!(check(raw(0, 0, 14, 0), &tcp[..15]), Err(Reason::BadOffload));
    let mut long = tcp;
    long.resize(MAX_PACKET, 0);
    assert!(check(good, &long).is_ok());
}

#[test]
fn order_is_kept_among_those_that_are_finished_and_those_that_are_not() {
    let (large, at) = frame(false, false, false, &[1; 10_000]);
    let frames: Vec<Vec<u8>> =
        (0..6).map(|i| if i % 3 == 1 { large.clone() } else { vec![i; 60] }).collect();
    let buffer: Arc<[u8]> = frames.concat().into();
    let mut packets = Packets::new();
    packets.lend(&buffer);
    let mut start = 0;
    for frame in &frames {
        packets.push_lent(start..start + frame.len());
        start += frame.len();
        let header = match frame.len() {
            60 => [0; HEADER],
            _ => raw(VIRTIO_NET_HDR_GSO_TCPV4, 100, at, 16),
        };
        packets.offload_last(|head, len| Offload::check(header, head, len)).unwrap();
    }
    let seen = |able| {
        let mut seen = Vec::new();
        deliver(&packets, &[0, 1, 2, 4, 5], able, &mut None, |packets, which| {
            seen.extend(
                which
                    .iter()
                    .map(|&i| (packets.head(i as usize)[0], packets.packet_len(i as usize))),
            );
        });
        seen
    };
    let whole = [(0, 60), (4, large.len()), (2, 60), (4, large.len()), (5, 60)];
    assert_eq!(seen(Able::ALL), whole);
    let cut = seen(Able { checksum: true, ..Able::NOTHING });
    assert_eq!(cut.len(), 3 + 2 * 100);
    assert_eq!([cut[0], cut[101], cut[202]], [(0, 60), (2, 60), (5, 60)]);
}
