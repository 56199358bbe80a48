//! Every mode with ports that were added.

use super::common::bridge::{Bed, Peer, alone, vhost};
use ringbridge::config::{ForwardMode, port};
use ringbridge::counters::Reason;
use ringbridge::frontend::{Guest, Link};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A bridge with nothing but two null ports, and two vhost ports that were added to it.
fn added(forward: ForwardMode) -> (Bed, [PathBuf; 2]) {
    let bed = Bed::with(0, |config, _| {
        config.forward = forward;
        config.workers = vec![None; 2];
        config.ports = vec![port::parse("null").unwrap(); 2];
    });
    let paths = ["a", "b"].map(|name| bed.dir.path(name));
    for (i, path) in paths.iter().enumerate() {
        assert_eq!(bed.bridge().add_port(&vhost(path, 1)).unwrap(), 2 + i);
    }
    (bed, paths)
}

#[test]
fn mac_and_macswap() {
    let _alone = alone();
    let frame: Vec<u8> = (0..60).collect();
    let cases = [
        (ForwardMode::Mac, [2, 0, 0, 0, 0, 3, 2, 0x72, 0x62, 0, 0, 3]),
        (ForwardMode::MacSwap, [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5]),
    ];
    for (mode, macs) in cases {
        let (_bed, paths) = added(mode);
        let [mut from, mut to] = paths.each_ref().map(|path| Peer::connect(path));
        from.settle();
        to.settle();
        from.send(&frame);
        assert_eq!(to.receive(), [&macs[..], &frame[12..]].concat());
    }
}

#[test]
fn rxonly() {
    let _alone = alone();
    let (bed, paths) = added(ForwardMode::RxOnly);
    Peer::connect(&paths[1]).send(&[1; 60]);
    bed.expect("received", |s| s.ports[3].rx.packets == 1 && s.ports[3].rx.drops.total() == 0);
}

#[test]
fn txonly_has_a_generator_for_each_and_none_for_those_that_go() {
    let _alone = alone();
    let (bed, paths) = added(ForwardMode::TxOnly);
    let some = Some(Duration::from_millis(50));
    for _ in 0..3 {
        for path in &paths {
            let mut guest = Guest::connect(&Link::to([path])).unwrap();
            bed.expect("buffers are filled", |s| s.ports[2].tx.packets + s.ports[3].tx.packets > 0);
            assert!(guest.rxonly(64, some, &AtomicBool::new(false)).unwrap().rx_packets > 0);
        }
        let name = format!("vhost:{}", paths[0].display());
        let gone = bed.bridge().remove_port(&name).unwrap();
        assert!(gone.tx.packets > 0 && gone.tx.drops.total() == 0, "{gone:?}");
        bed.bridge().add_port(&vhost(&paths[0], 1)).unwrap();
    }
    // What a guest sends has no output.
    Peer::connect(&paths[0]).send(&[1; 60]);
    bed.expect("dropped", |s| s.ports[2].rx.drops.of(Reason::NoOutput) == 1);
}

#[test]
fn icmpecho() {
    let _alone = alone();
    let (_bed, paths) = added(ForwardMode::IcmpEcho);
    let mut request = vec![0xFF; 6];
    request.extend([0x52, 0x54, 0, 1, 2, 3, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    request.extend([0x52, 0x54, 0, 1, 2, 3, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
    let mut peer = Peer::connect(&paths[1]);
    peer.settle();
    peer.send(&request);
    let answer = peer.receive();
    assert_eq!((&answer[..6], answer[21]), (&request[6..12], 2));
}

/// A capture file waits for the port that it is sent to.
#[test]
fn a_file_is_sent_once_its_partner_is_there() {
    let _alone = alone();
    let (bed, _) = added(ForwardMode::Io);
    let capture = bed.dir.path("in.pcap");
    let mut file = vec![0xD4, 0xC3, 0xB2, 0xA1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    file.extend([0xFF, 0xFF, 0, 0, 1, 0, 0, 0]);
    for i in 0..100 {
        file.extend([0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 60, 0, 0, 0]);
        file.extend([i; 60]);
    }
    std::fs::write(&capture, file).unwrap();
    let out = bed.dir.path("out.pcap");
    let spec = |text: String| port::parse(&text).unwrap();
    let bridge = bed.bridge();
    assert_eq!(bridge.add_port(&spec(format!("pcap:{}", capture.display()))).unwrap(), 4);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(bed.counters().ports[4].rx.packets, 0);
    let writer = spec(format!("pcap:/dev/null,out={}", out.display()));
    // No pcap file: refused, and the slot is free again.
    assert!(bridge.add_port(&writer).is_err());
    let empty = bed.dir.path("empty.pcap");
    std::fs::write(&empty, &std::fs::read(&capture).unwrap()[..24]).unwrap();
    let writer = format!("pcap:{},out={}", empty.display(), out.display());
    assert_eq!(bridge.add_port(&spec(writer)).unwrap(), 5);
    bed.expect("all of it", |s| s.ports[5].tx.packets == 100 && s.ports[4].rx.packets == 100);
    let gone = bridge.remove_port("5").unwrap();
    assert_eq!((gone.tx.packets, gone.tx.drops.total()), (100, 0));
    // On disk once the port is gone.
    let (written, given) = (std::fs::read(&out).unwrap(), std::fs::read(&capture).unwrap());
    assert_eq!(written.len(), given.len());
}
