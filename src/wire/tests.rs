//! `wire` against `etherparse`, which shares nothing with it.

use super::*;
use etherparse::{
    LaxLinkExtSlice, LaxSlicedPacket, LinkSlice, NetSlice, PacketBuilder, SlicedPacket,
    TransportSlice,
};
use proptest::prelude::*;

/// A frame as a test wants it.
#[derive(Debug, Clone)]
struct Frame {
    tags: u8,
    v6: bool,
    udp: bool,
    addresses: [u8; 32],
    ports: (u16, u16),
    payload: Vec<u8>,
}

impl Frame {
    fn build(&self) -> Vec<u8> {
        let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let [s4, d4] = [0, 16].map(|at| *self.addresses[at..].first_chunk::<4>().unwrap());
        let [s6, d6] = [0, 16].map(|at| *self.addresses[at..].first_chunk::<16>().unwrap());
        let id = |n| etherparse::VlanId::try_new(n).unwrap();
        let net = match (self.tags, self.v6) {
            (0, false) => link.ipv4(s4, d4, 64),
            (1, false) => link.single_vlan(id(7)).ipv4(s4, d4, 64),
            (_, false) => link.double_vlan(id(7), id(8)).ipv4(s4, d4, 64),
            (0, true) => link.ipv6(s6, d6, 64),
            (1, true) => link.single_vlan(id(7)).ipv6(s6, d6, 64),
            (_, true) => link.double_vlan(id(7), id(8)).ipv6(s6, d6, 64),
        };
        let mut out = Vec::new();
        if self.udp {
            net.udp(self.ports.0, self.ports.1).write(&mut out, &self.payload).unwrap();
        } else {
            net.tcp(self.ports.0, self.ports.1, 1, 1).write(&mut out, &self.payload).unwrap();
        }
        out
    }
}

fn frames() -> impl Strategy<Value = Frame> {
    let payload = prop::collection::vec(any::<u8>(), 0..300);
    (0..3_u8, any::<bool>(), any::<bool>(), any::<[u8; 32]>(), any::<(u16, u16)>(), payload)
        .prop_map(|(tags, v6, udp, addresses, ports, payload)| Frame {
            tags,
            v6,
            udp,
            addresses,
            ports,
            payload,
        })
}

/// Frames that say IPv4 or a tag more often than chance would.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let types = prop::sample::select(vec![[8, 0], [8, 6], [0x81, 0], [0x88, 0xA8], [0x86, 0xDD]]);
    (prop::collection::vec(any::<u8>(), 0..120), types, any::<bool>(), any::<bool>()).prop_map(
        |(mut frame, ethertype, typed, v4)| {
            if typed && frame.len() >= ETHERNET {
                frame[12..14].copy_from_slice(&ethertype);
            }
            if v4 && frame.len() > ETHERNET {
                frame[14] = 0x45;
            }
            frame
        },
    )
}

proptest! {
    #[test]
    fn headers_are_where_etherparse_sees_them(frame in frames()) {
        let bytes = frame.build();
        let sliced = SlicedPacket::from_ethernet(&bytes).unwrap();
        let eth = ethernet(&bytes).unwrap();
        prop_assert_eq!(eth.payload, ETHERNET + sliced.link_exts.len() * VLAN);
        if let Some(NetSlice::Ipv4(v4)) = &sliced.net {
            let ours = ipv4(&bytes[eth.payload..]).unwrap();
            prop_assert_eq!(eth.ethertype, ETHERTYPE_IPV4);
            prop_assert_eq!(ours, Ipv4 {
                header_len: v4.header().slice().len(),
                total_len: v4.header().total_len() as usize,
                protocol: v4.header().protocol().0,
                fragment: v4.header().is_fragmenting_payload(),
                dst: v4.header().destination(),
            });
            let header = &bytes[eth.payload..eth.payload + ours.header_len];
            prop_assert_eq!(checksum(header), 0);
        } else {
            prop_assert_eq!(eth.ethertype, ETHERTYPE_IPV6);
        }
    }

    #[test]
    fn noise_and_truncation_never_panic_and_agree(frame in noise()) {
        flow_hash(&frame);
        let ours = ethernet(&frame);
        let theirs = LaxSlicedPacket::from_ethernet(&frame);
        // What etherparse says in its lax mode about the last header that is there in full.
        let seen = theirs.as_ref().ok().and_then(|p| {
            let Some(LinkSlice::Ethernet2(eth)) = &p.link else { return None };
            let tags = p.link_exts.iter().take(2).filter_map(|ext| match ext {
                LaxLinkExtSlice::Vlan(tag) => Some(tag.ether_type().0),
                LaxLinkExtSlice::Macsec(_) => None,
            });
            let types: Vec<u16> = std::iter::once(eth.ether_type().0).chain(tags).collect();
            let payload = ETHERNET + (types.len() - 1) * VLAN;
            Some(Ethernet { ethertype: *types.last()?, payload })
        });
        match ours {
            None => prop_assert!(
                seen.is_none_or(|eth| TAGS.contains(&eth.ethertype)), "{seen:?}"
            ),
            // etherparse skips this one, too.
            Some(eth) if eth.ethertype == 0x9100 => {}
            Some(eth) => prop_assert_eq!(Some(eth), seen),
        }
    }

    #[test]
    fn a_flow_has_one_hash(frame in frames(), tags in 0..3_u8, payload in any::<[u8; 9]>()) {
        let other = Frame { tags, payload: payload.to_vec(), ..frame.clone() };
        let (a, b) = (frame.build(), other.build());
        prop_assert_eq!(flow_hash(&a), flow_hash(&b));
        prop_assert_eq!(flow_hash(&a), any_flow_hash(&a));
        // A head of 100 bytes is enough.
        prop_assert_eq!(flow_hash(&a), flow_hash(&a[..a.len().min(100)]));
    }

    #[test]
    fn another_port_or_address_is_another_flow(frame in frames(), bit in 0..16_u32) {
        let port = Frame { ports: (frame.ports.0 ^ 1 << bit, frame.ports.1), ..frame.clone() };
        prop_assert_ne!(flow_hash(&frame.build()), flow_hash(&port.build()));
        let mut address = frame.clone();
        address.addresses[bit as usize & 3] ^= 1;
        prop_assert_ne!(flow_hash(&frame.build()), flow_hash(&address.build()));
    }

    #[test]
    fn options_and_fragments_keep_a_flow_together(frame in frames()) {
        let frame = Frame { tags: 0, v6: false, ..frame };
        let plain = frame.build();
        let mut options = plain.clone();
        options[14] = 0x46;
        options.splice(34..34, [1, 1, 1, 1]);
        let total_len = options.len() as u16 - 14;
        options[16..18].copy_from_slice(&total_len.to_be_bytes());
        prop_assert_eq!(flow_hash(&plain), flow_hash(&options));
        let (mut first, mut later) = (plain.clone(), plain.clone());
        first[20] |= 0x20;
        later[21] |= 0x10;
        later[34..38].fill(0xAA);
        prop_assert_eq!(flow_hash(&first), flow_hash(&later));
        let ip = ipv4(&first[14..]).unwrap();
        prop_assert!(ip.fragment && !ipv4(&plain[14..]).unwrap().fragment);
    }

    #[test]
    fn the_checksum_is_the_one_etherparse_writes(frame in frames()) {
        let bytes = Frame { tags: 0, v6: false, udp: true, ..frame }.build();
        let sliced = SlicedPacket::from_ethernet(&bytes).unwrap();
        let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!() };
        let mut pseudo = bytes[26..34].to_vec();
        pseudo.extend([0, UDP_PROTOCOL]);
        pseudo.extend(udp.length().to_be_bytes());
        pseudo.extend(udp.slice());
        // Over data with its checksum in place.
        prop_assert_eq!(checksum(&pseudo), 0);
    }

    #[test]
    fn an_updated_checksum_verifies(mut data in prop::collection::vec(any::<u8>(), 4..200),
                                    zero in any::<bool>(), new in any::<u16>()) {
        if zero { data.fill(0); }
        data[..2].fill(0);
        let sum = checksum(&data);
        data[..2].copy_from_slice(&sum.to_be_bytes());
        let old = u16::from_be_bytes([data[2], data[3]]);
        data[2..4].copy_from_slice(&new.to_be_bytes());
        data[..2].copy_from_slice(&update_checksum(sum, old, new).to_be_bytes());
        prop_assert_eq!(checksum(&data), 0);
    }
}

#[test]
fn an_all_zero_echo_reply_verifies() {
    // Type 8 to type 0 and nothing else: the one packet where 0 would be wrong.
    let sum = update_checksum(checksum(&[8, 0, 0, 0, 0, 0, 0, 0]), 0x0800, 0);
    assert_eq!(sum, 0xFFFF);
}

#[test]
fn an_ipv4_header_reads_back() {
    let mut out = [0xFF; IPV4];
    put_ipv4(&mut out, 1504, UDP_PROTOCOL, [192, 168, 0, 1], [192, 168, 0, 2]);
    let theirs = etherparse::Ipv4HeaderSlice::from_slice(&out).unwrap();
    assert_eq!(theirs.header_checksum(), theirs.to_header().calc_header_checksum());
    assert_eq!(theirs.total_len(), 1504);
    assert_eq!(theirs.source(), [192, 168, 0, 1]);
    assert!(theirs.dont_fragment() && !theirs.is_fragmenting_payload());
}

#[test]
fn contradictory_ipv4_is_refused() {
    let mut good = [0; IPV4];
    put_ipv4(&mut good, 20, ICMP, [10, 0, 0, 1], [10, 0, 0, 2]);
    assert!(ipv4(&good).is_some());
    assert_eq!(ipv4(&good[..19]), None);
    for (at, value) in [(0, 0x65), (0, 0x44), (0, 0x46), (3, 19)] {
        let mut bad = good;
        bad[at] = value;
        assert_eq!(ipv4(&bad), None, "byte {at} = {value:#x}");
    }
}

#[test]
fn what_is_not_ip_is_hashed_by_its_macs() {
    let arp = |mac, more| {
        let mut frame = vec![0xFF; 42];
        frame[11] = mac;
        frame[12..14].copy_from_slice(&[8, 6]);
        frame[20] = more;
        flow_hash(&frame)
    };
    assert_eq!(arp(1, 1), arp(1, 2));
    assert_ne!(arp(1, 1), arp(2, 1));
    flow_hash(&[]);
}

#[test]
fn flows_spread_over_queues() {
    let mut queues = [0_u32; 8];
    for port in 0..4096 {
        let frame = Frame {
            tags: 0,
            v6: false,
            udp: true,
            addresses: [10; 32],
            ports: (port, 9),
            payload: vec![],
        };
        queues[((u64::from(flow_hash(&frame.build())) * 8) >> 32) as usize] += 1;
    }
    // A fair spread is 512 each; this is deterministic, so it holds or it does not.
    assert!(queues.iter().all(|n| (384..=640).contains(n)), "{queues:?}");
}
