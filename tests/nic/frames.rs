//! Frames of all kinds, both ways, byte for byte.

use crate::common::bridge::{Bed, Peer, alone};
use crate::common::net::{in_new_network, ip, veth};
use crate::wire::{Wire, frame, guest_receives};
use ringbridge::config::port;

/// Tags behind the addresses, and the length of the frame without them.
const SHAPES: [(&[u8], usize); 8] = [
    (&[], 60),
    (&[], 61),
    (&[], 206),
    (&[], 1514),
    (&[], 9014),
    (&[0x81, 0, 0x20, 10], 60),
    (&[0x81, 0, 0, 10], 9014),
    (&[0x88, 0xa8, 0, 20, 0x81, 0, 0x60, 30], 1000),
];

fn frames() -> impl Iterator<Item = Vec<u8>> {
    (0..4).flat_map(|round| {
        SHAPES
            .iter()
            .enumerate()
            .map(move |(i, (tags, len))| frame(round * 100 + i as u32, tags, len + tags.len()))
    })
}

/// All that is sent by one comes out of the other.
fn passes(from: &Wire, to: &Wire) {
    for frame in frames() {
        from.send(&frame);
        let came = to.receive();
        assert!(came == frame, "{} bytes became {}: {came:02x?}", frame.len(), came.len());
    }
}

#[test]
fn between_a_tap_and_a_packet_socket() {
    in_new_network(|| {
        let _alone = alone();
        veth("near", "far", 9018);
        let bed = Bed::with(0, |config, _| {
            config.ports = ["tap:tap0", "af_packet:near"].map(|p| port::parse(p).unwrap()).into();
        });
        ip("link set tap0 mtu 9018 up");
        let (tap, far) = (Wire::on("tap0"), Wire::on("far"));
        passes(&tap, &far);
        passes(&far, &tap);
        let totals = bed.stop().0;
        for port in totals.ports {
            assert_eq!((port.rx.drops.total(), port.tx.drops.total()), (0, 0), "{port:?}");
            assert!(port.rx.packets >= 32 && port.tx.packets >= 32);
        }
    });
}

#[test]
fn between_queues_of_a_tap_and_rings_of_a_packet_socket() {
    in_new_network(|| {
        let _alone = alone();
        veth("near", "far", 9018);
        let bed = Bed::with(0, |config, _| {
            let ports = ["tap:tap0,queues=4", "af_packet:near,queues=3,block=128k,blocks=4"];
            config.ports = ports.map(|p| port::parse(p).unwrap()).into();
            config.workers = vec![None, None];
        });
        ip("link set tap0 mtu 9018 up");
        let (tap, far) = (Wire::on("tap0"), Wire::on("far"));
        for _ in 0..5 {
            passes(&tap, &far);
            passes(&far, &tap);
        }
        drop(bed);
    });
}

#[test]
fn between_a_guest_and_each() {
    for port in ["tap:outside", "af_packet:near"] {
        in_new_network(move || {
            let _alone = alone();
            if port == "af_packet:near" {
                veth("near", "outside", 1518);
            }
            let bed = Bed::with(1, |config, _| config.ports.push(port::parse(port).unwrap()));
            ip("link set outside up");
            let outside = Wire::on("outside");
            let mut guest = Peer::connect(&bed.socket(0));
            guest.settle();
            for frame in frames().filter(|frame| frame.len() < 1520) {
                outside.send(&frame);
                assert_eq!(guest_receives(&mut guest), frame);
                guest.send(&frame);
                assert_eq!(outside.receive(), frame);
            }
        });
    }
}
