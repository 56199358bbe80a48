//! The mode `icmpecho`: answers ARP requests and ICMP echo requests out of the port they came
//! from, so that a guest can ping any IPv4 address.
//!
//! Promises: what is answered is answered in place, by the head alone; payload in the tail is
//! covered by the updated checksum. Everything else is dropped as [`Reason::NotForUs`],
//! untouched. Not answered on purpose: ARP probes and announcements, by which hosts ask whether
//! an address is free; echo requests in fragments or to broadcast and multicast addresses.

#![forbid(unsafe_code)]

use super::{Forwarder, Outputs, PortId, own_mac};
use crate::counters::Reason;
use crate::packet::Packets;
use crate::wire::{self, ETHERNET, Mac};

/// The forwarder.
pub struct IcmpEcho;

impl Forwarder for IcmpEcho {
    fn forward(&mut self, from: PortId, packets: &mut Packets, out: &mut Outputs) {
        for i in 0..packets.len() {
            let len = packets.packet_len(i);
            match answer(packets.head_mut(i), len, own_mac(from)) {
                Some(()) => out.set(i, from),
                None => out.drop(i, Reason::NotForUs),
            }
        }
    }
}

/// Turn the request in `head`, of a frame of `len` bytes, into its answer from `own`. `None`,
/// and nothing changed, if it is no request.
fn answer(head: &mut [u8], len: usize, own: Mac) -> Option<()> {
    let eth = wire::ethernet(head)?;
    if eth.payload > ETHERNET + wire::VLAN {
        return None;
    }
    let dst: Mac = *head.first_chunk()?;
    let (link, packet) = head.split_at_mut_checked(eth.payload)?;
    match eth.ethertype {
        wire::ETHERTYPE_ARP => answer_arp(packet, own)?,
        wire::ETHERTYPE_IPV4 => answer_echo(packet, len - eth.payload)?,
        _ => return None,
    }
    link.copy_within(6..12, 0);
    // An echo request may come to any address; one that came to a group gets our own.
    let group = dst[0] & 1 != 0;
    link[6..12].copy_from_slice(if group { &own } else { &dst });
    Some(())
}

/// RFC 826: swap sender and target, and say that the address asked for is at `own`.
fn answer_arp(packet: &mut [u8], own: Mac) -> Option<()> {
    // Ethernet, IPv4, lengths 6 and 4, request.
    const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    let arp = packet.first_chunk_mut::<{ wire::ARP }>()?;
    let sender: [u8; 10] = *arp[8..].first_chunk()?;
    let (sender_ip, target_ip) = (&arp[14..18], &arp[24..28]);
    if arp[..8] != REQUEST || sender_ip == [0; 4] || sender_ip == target_ip {
        return None;
    }
    arp[7] = 2;
    arp.copy_within(24..28, 14);
    arp[8..14].copy_from_slice(&own);
    arp[18..28].copy_from_slice(&sender);
    Some(())
}

/// RFC 792: swap the addresses, type 8 becomes type 0. `len` bytes of IP packet arrived.
fn answer_echo(packet: &mut [u8], len: usize) -> Option<()> {
    let ip = wire::ipv4(packet)?;
    let whole = ip.total_len <= len && ip.total_len >= ip.header_len + 8;
    let unicast = ip.dst[0] & 0xF0 < 0xE0;
    if ip.protocol != wire::ICMP || ip.fragment || !whole || !unicast {
        return None;
    }
    let icmp = packet.get_mut(ip.header_len..)?.first_chunk_mut::<8>()?;
    if icmp[..2] != [wire::ECHO_REQUEST, 0] {
        return None;
    }
    let old = u16::from_be_bytes([icmp[2], icmp[3]]);
    let sum = wire::update_checksum(old, u16::from_be_bytes([icmp[0], icmp[1]]), 0);
    icmp[0] = 0;
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    packet[12..20].rotate_left(4);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::Output;
    use crate::forward::tests::{burst, forward, whole};
    use etherparse::{
        ArpEthIpv4Packet, ArpOperation, Icmpv4Type, NetSlice, PacketBuilder, SlicedPacket,
        TransportSlice,
    };

    const GUEST: Mac = [0x52, 0x54, 0, 1, 2, 3];
    const DST: Mac = [0x02, 9, 9, 9, 9, 9];

    fn ping(payload: usize) -> Vec<u8> {
        let payload: Vec<u8> = (0..payload).map(|i| i as u8).collect();
        let mut out = Vec::new();
        PacketBuilder::ethernet2(GUEST, DST)
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .icmpv4_echo_request(77, 5)
            .write(&mut out, &payload)
            .unwrap();
        out
    }

    fn arp(operation: ArpOperation, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let packet = ArpEthIpv4Packet {
            operation,
            sender_mac: GUEST,
            sender_ipv4: sender,
            target_mac: [0; 6],
            target_ipv4: target,
        };
        let mut out = Vec::new();
        PacketBuilder::ethernet2(GUEST, [0xFF; 6]).arp(packet.into()).write(&mut out).unwrap();
        out
    }

    fn tagged(mut frame: Vec<u8>) -> Vec<u8> {
        frame.splice(12..12, [0x81, 0, 0, 42]);
        frame
    }

    fn check_reply(reply: &[u8], request: &[u8], mac: Mac) {
        let sliced = SlicedPacket::from_ethernet(reply).unwrap();
        assert_eq!(reply[..6], GUEST);
        assert_eq!(reply[6..12], mac);
        let Some(NetSlice::Ipv4(ip)) = &sliced.net else { panic!("{reply:x?}") };
        assert_eq!(ip.header().source(), [10, 0, 0, 2]);
        assert_eq!(ip.header().destination(), [10, 0, 0, 1]);
        assert_eq!(ip.header().header_checksum(), ip.header().to_header().calc_header_checksum());
        let Some(TransportSlice::Icmpv4(icmp)) = &sliced.transport else { panic!("{reply:x?}") };
        let Icmpv4Type::EchoReply(echo) = icmp.icmp_type() else { panic!("{reply:x?}") };
        assert_eq!((echo.id, echo.seq), (77, 5));
        assert_eq!(icmp.checksum(), icmp.icmp_type().calc_checksum(icmp.payload()));
        let original = SlicedPacket::from_ethernet(request).unwrap();
        let Some(TransportSlice::Icmpv4(original)) = original.transport else { panic!() };
        assert_eq!(icmp.payload(), original.payload());
    }

    #[test]
    fn pings_are_answered_whatever_their_length() {
        // Inside the head, at its end, far beyond it; with a tag or without.
        let mut frames: Vec<_> = [0, 1, 18, 149, 150, 151, 152, 1472, 1473, 9000].map(ping).into();
        frames.extend([ping(56), ping(1400)].map(tagged));
        let mut packets = burst(&frames);
        let outputs = forward(&mut IcmpEcho, 3, &mut packets);
        assert_eq!(outputs, vec![Output::Port(3); frames.len()]);
        for (i, request) in frames.iter().enumerate() {
            check_reply(&whole(&packets, i), request, DST);
        }
        assert_eq!(whole(&packets, 10)[12..16], [0x81, 0, 0, 42]);
    }

    #[test]
    fn a_ping_to_a_group_address_is_answered_from_our_own() {
        let mut request = ping(56);
        request[..6].fill(0xFF);
        let mut packets = burst(&[request.clone()]);
        assert_eq!(forward(&mut IcmpEcho, 3, &mut packets), [Output::Port(3)]);
        check_reply(&whole(&packets, 0), &request, own_mac(3));
    }

    #[test]
    fn arp_requests_are_answered_with_the_ports_own_mac() {
        let request = arp(ArpOperation::REQUEST, [10, 0, 0, 1], [10, 0, 0, 2]);
        let mut packets = burst(&[request.clone(), tagged(request)]);
        assert_eq!(forward(&mut IcmpEcho, 2, &mut packets), [Output::Port(2); 2]);
        let expected = ArpEthIpv4Packet {
            operation: ArpOperation::REPLY,
            sender_mac: own_mac(2),
            sender_ipv4: [10, 0, 0, 2],
            target_mac: GUEST,
            target_ipv4: [10, 0, 0, 1],
        };
        for i in 0..2 {
            let reply = whole(&packets, i);
            assert_eq!(reply[..6], GUEST);
            assert_eq!(reply[6..12], own_mac(2));
            let sliced = SlicedPacket::from_ethernet(&reply).unwrap();
            let Some(NetSlice::Arp(arp)) = sliced.net else { panic!("{reply:x?}") };
            assert_eq!(ArpEthIpv4Packet::try_from(arp.to_packet()).unwrap(), expected);
        }
    }

    #[test]
    fn the_rest_is_dropped_untouched() {
        let patched = |at: usize, value: u8| {
            let mut frame = ping(56);
            frame[at] = value;
            frame
        };
        let frames = vec![
            // ARP: a reply, a probe, an announcement, cut short.
            arp(ArpOperation::REPLY, [10, 0, 0, 1], [10, 0, 0, 2]),
            arp(ArpOperation::REQUEST, [0; 4], [10, 0, 0, 2]),
            arp(ArpOperation::REQUEST, [10, 0, 0, 1], [10, 0, 0, 1]),
            arp(ArpOperation::REQUEST, [10, 0, 0, 1], [10, 0, 0, 2])[..41].to_vec(),
            // ICMP: a reply, another code, another protocol, fragments, multicast, broadcast,
            // a total length beyond the frame or too short for an ICMP header, two tags.
            patched(34, 0),
            patched(35, 1),
            patched(23, wire::TCP),
            patched(20, 0x20),
            patched(21, 1),
            patched(30, 224),
            patched(30, 255),
            patched(17, 56 + 8 + 20 + 1),
            patched(17, 27),
            tagged(tagged(ping(56))),
            ping(56)[..41].to_vec(),
            // Anything.
            vec![0; 13],
            vec![0x86; 60],
        ];
        let mut packets = burst(&frames);
        let outputs = forward(&mut IcmpEcho, 0, &mut packets);
        for (i, frame) in frames.iter().enumerate() {
            assert_eq!(outputs[i], Output::Drop(Reason::NotForUs), "frame {i}");
            assert_eq!(whole(&packets, i), *frame, "frame {i}");
        }
    }
}
