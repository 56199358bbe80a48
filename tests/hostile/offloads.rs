//! Guests that lie about what is left to be done to their packets.

use crate::attack::{Attack, GOOD, HEADER, Way};
use crate::common::bridge::alone;
use crate::neighbour::Street;
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use ringbridge::counters::Reason;
use ringbridge::frontend::RawDesc;

/// `CSUM`, `GUEST_CSUM`, `HOST_TSO4`, `HOST_TSO6`, `HOST_ECN`.
const OFFLOADS: u64 = 1 << 0 | 1 << 1 | 1 << 11 | 1 << 12 | 1 << 13;
/// Where TCP begins in an Ethernet frame of IPv4.
const TCP: u8 = 34;

/// A TCP packet of IPv4 with so much payload.
fn frame(payload: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let tcp = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let bytes: Vec<u8> = (0..payload).map(|i| i as u8).collect();
    tcp.tcp(7, 9, 1, 1000).write(&mut frame, &bytes).unwrap();
    frame
}

/// Put header and frame into the attacker's first buffer.
fn put(attack: &mut Attack, header: [u8; 10], frame: &[u8]) -> RawDesc {
    let at = attack.raw.scratch() + GOOD;
    attack.raw.ram.write(at, &[&header[..], &[0, 0], frame].concat());
    RawDesc { len: HEADER + frame.len() as u32, ..attack.good(0) }
}

#[test]
fn headers_that_lie_drop_their_packets_alone() {
    let _alone = alone();
    let street = Street::new();
    let mut attack = Attack::new(&street.bed, Way::FromGuest);
    attack.raw.session.add_features(OFFLOADS).unwrap();
    attack.expect_working("before");
    let whole = frame(1200);
    let lies: [(&str, [u8; 10]); 10] = [
        ("GSO without a checksum", [0, 1, 54, 0, 100, 0, TCP, 0, 16, 0]),
        ("segments of no bytes", [1, 1, 54, 0, 0, 0, TCP, 0, 16, 0]),
        ("segments of one byte", [1, 1, 54, 0, 1, 0, TCP, 0, 16, 0]),
        ("IPv6", [1, 4, 54, 0, 100, 0, TCP, 0, 16, 0]),
        ("UDP", [1, 5, 42, 0, 100, 0, TCP, 0, 6, 0]),
        ("no such GSO", [1, 0x7f, 54, 0, 100, 0, TCP, 0, 16, 0]),
        ("TCP elsewhere", [1, 1, 54, 0, 100, 0, TCP + 2, 0, 16, 0]),
        ("a checksum in the addresses", [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("a checksum behind the packet", [1, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
        ("a checksum across the end of the head", [1, 0, 0, 0, 0, 0, 191, 0, 0, 0]),
    ];
    for (what, header) in lies {
        let lost = attack.lost(Reason::BadOffload);
        let desc = put(&mut attack, header, &whole);
        attack.ring().post(0, &[desc]);
        attack.provoke();
        attack.expect_given_back(&[0], what);
        attack.bed.expect(what, |_| attack.lost(Reason::BadOffload) == lost + 1);
        attack.expect_nothing_delivered(what);
        attack.expect_working(what);
    }
    street.finish();
}

/// To a peer that has negotiated nothing: as many packets as it takes, each of them right.
#[test]
fn what_is_asked_for_is_done() {
    let _alone = alone();
    let street = Street::new();
    let mut attack = Attack::new(&street.bed, Way::FromGuest);
    attack.raw.session.add_features(OFFLOADS).unwrap();
    attack.expect_working("before");
    let whole = frame(1200);
    let desc = put(&mut attack, [1, 1, 0, 0, 100, 0, TCP, 0, 16, 0], &whole);
    attack.ring().post(0, &[desc]);
    attack.provoke();
    for i in 0..12_usize {
        let segment = attack.peer.receive();
        let packet = SlicedPacket::from_ethernet(&segment).unwrap();
        let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) =
            (packet.net, packet.transport)
        else {
            panic!()
        };
        let header = ip.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        assert_eq!(tcp.checksum(), tcp.calc_checksum_ipv4([10, 0, 0, 1], [10, 0, 0, 2]).unwrap());
        assert_eq!(tcp.sequence_number(), 1 + 100 * i as u32);
        assert_eq!(tcp.payload(), &whole[54 + 100 * i..][..100]);
    }
    attack.expect_given_back(&[0], "the whole");
    attack.expect_working("after");
    street.finish();
}
