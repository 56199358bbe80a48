//! Where packets come from and end without a guest: generators, files, `null`, counters.

use super::common::TempDir;
use super::common::bridge::{Bed, LIMIT, Peer, alone};
use super::{GO_ON, assert_received, assert_sent, guest};
use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use ringbridge::config::{BridgeKeys, ForwardMode, PcapSpec, PollMode, PortKind, PortSpec};
use ringbridge::counters::Reason;
use ringbridge::frontend::{Frames, GuestOptions, Number};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

const RUN: Option<Duration> = Some(Duration::from_millis(150));

fn pcap(input: &Path, output: Option<&Path>, repeat: bool) -> PortSpec {
    let spec = PcapSpec { input: input.into(), output: output.map(Into::into), repeat, rate: None };
    PortSpec { name: "pcap".into(), kind: PortKind::Pcap(spec), bridge: BridgeKeys::default() }
}

/// Numbered frames of many lengths.
fn frames(n: u64) -> Vec<Vec<u8>> {
    let maker = Frames::new(1, false);
    let frame = |seq| {
        let mut frame = Vec::new();
        maker.build(Number { stream: 0, seq }, 14 + seq as usize * 37 % 1505, &mut frame);
        frame
    };
    (0..n).map(frame).collect()
}

fn write_pcap(path: &Path, frames: &[Vec<u8>]) {
    let mut writer = PcapWriter::new(File::create(path).unwrap()).unwrap();
    for frame in frames {
        let packet = PcapPacket::new(Duration::ZERO, frame.len() as u32, frame);
        writer.write_packet(&packet).unwrap();
    }
}

fn read_pcap(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        frames.push(packet.unwrap().data.into_owned());
    }
    frames
}

fn bytes(frames: &[Vec<u8>]) -> u64 {
    frames.iter().map(|frame| frame.len() as u64).sum()
}

/// Port 0 is a guest's, port 1 is a file's.
fn bed_with_file(poll: PollMode, input: &[Vec<u8>], repeat: bool) -> Bed {
    Bed::with(2, |config, dir: &TempDir| {
        let (from, to) = (dir.path("in.pcap"), dir.path("out.pcap"));
        write_pcap(&from, input);
        config.poll = poll;
        config.ports[1] = pcap(&from, Some(&to), repeat);
    })
}

#[test]
fn a_file_is_received_whole_once_the_guest_is_there() {
    let _alone = alone();
    for poll in [PollMode::Adaptive, PollMode::Busy] {
        let sent = frames(1000);
        let bed = bed_with_file(poll, &sent, false);
        // Without a guest the file waits.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(bed.counters().ports[1].rx.packets, 0);
        let mut peer = Peer::connect(&bed.socket(0));
        for frame in &sent {
            assert!(peer.receive() == *frame);
        }
        let bridge = bed.stop().0;
        assert_received(&bridge.ports[1], 1000, bytes(&sent), "in");
        assert_sent(&bridge.ports[0], 1000, bytes(&sent), "out");
        assert!(!peer.has_frame());
    }
}

#[test]
fn a_file_that_repeats_begins_again_in_order() {
    let _alone = alone();
    let sent = frames(7);
    let bed = bed_with_file(PollMode::Adaptive, &sent, true);
    let mut peer = Peer::connect(&bed.socket(0));
    for frame in sent.iter().cycle().take(500) {
        assert!(peer.receive() == *frame);
    }
    assert_eq!(bed.stop().0.ports[0].tx.drops.total(), 0);
}

#[test]
fn what_a_guest_sends_is_in_the_file() {
    let _alone = alone();
    let sent = frames(1000);
    let bed = bed_with_file(PollMode::Adaptive, &[], false);
    let mut peer = Peer::connect(&bed.socket(0));
    for frame in &sent {
        peer.send(frame);
    }
    bed.expect("all sent", |s| s.ports[1].tx.packets == 1000);
    // A worker that sleeps has written everything.
    let out = bed.dir.path("out.pcap");
    let written = super::common::wait_until(LIMIT, || {
        File::open(&out).is_ok_and(|f| f.metadata().unwrap().len() == 24 + 16_000 + bytes(&sent))
    });
    assert!(written);
    assert!(read_pcap(&out) == sent);
    let bridge = bed.stop().0;
    assert_received(&bridge.ports[0], 1000, bytes(&sent), "in");
    assert_sent(&bridge.ports[1], 1000, bytes(&sent), "out");
}

#[test]
fn null_takes_everything() {
    let _alone = alone();
    let bed = Bed::with(2, |config, _| {
        config.ports[1] =
            PortSpec { name: "null".into(), kind: PortKind::Null, bridge: BridgeKeys::default() };
    });
    let mut guest = guest(&bed, &[0], GuestOptions::default());
    let report = guest.txonly(300, RUN, &GO_ON).unwrap();
    let bridge = bed.stop().0;
    assert!(report.tx_packets > 0);
    assert_received(&bridge.ports[0], report.tx_packets, report.tx_bytes, "guest");
    assert_sent(&bridge.ports[1], report.tx_packets, report.tx_bytes, "null");
}

#[test]
fn rxonly_counts_what_guests_send() {
    let _alone = alone();
    for (size, queue_pairs) in [(14, 1), (64, 1), (1518, 1), (64, 2)] {
        let bed = Bed::with(1, |config, dir| {
            config.forward = ForwardMode::RxOnly;
            config.ports = vec![super::common::bridge::vhost(&dir.path("0"), 2)];
        });
        let options = GuestOptions { queue_pairs, ..GuestOptions::default() };
        let mut guest = guest(&bed, &[0], options);
        let report = guest.txonly(size, RUN, &GO_ON).unwrap();
        let bridge = bed.stop().0;
        assert!(report.tx_packets > 0);
        let bytes = size as u64 * report.tx_packets;
        assert_received(&bridge.ports[0], report.tx_packets, bytes, "guest");
        assert_sent(&bridge.ports[0], 0, 0, "nothing");
    }
}

#[test]
fn txonly_counts_what_guests_receive() {
    let _alone = alone();
    let kinds = [(14, 1, true), (64, 1, false), (1518, 1, true), (9000, 1, true), (64, 2, true)];
    for (size, queue_pairs, mergeable) in kinds {
        let bed = Bed::with(1, |config, dir| {
            config.forward = ForwardMode::TxOnly;
            config.size = size;
            config.ports = vec![super::common::bridge::vhost(&dir.path("0"), 2)];
        });
        let options =
            GuestOptions { queue_pairs, mergeable, max_size: size, ..GuestOptions::default() };
        let mut guest = guest(&bed, &[0], options);
        let report = guest.rxonly(size, RUN, &GO_ON).unwrap();
        let port = bed.stop().0.ports.remove(0);
        // The rings still hold what came after the guest had stopped to look.
        let rest = guest.rxonly(size, Some(Duration::ZERO), &GO_ON).unwrap();
        let received = report.rx_packets + rest.rx_packets;
        assert!(report.rx_packets > 0);
        assert_eq!((port.tx.packets, port.tx.bytes), (received, size as u64 * received));
        assert_eq!(report.rx_bytes + rest.rx_bytes, port.tx.bytes);
        // Paced by the guest's buffers; but a packet may need several, and with several queues
        // the flow decides which one it takes.
        let lost = port.tx.drops.total();
        assert_eq!(lost, port.tx.drops.of(Reason::NoBuffers));
        assert!(lost == 0 || size == 9000 || queue_pairs == 2, "{port:?}");
    }
}

/// What a guest sends in `txonly` has no output, and what is sent to a guest that does not
/// listen is counted, too.
#[test]
fn every_packet_that_goes_nowhere_has_a_reason() {
    let _alone = alone();
    let bed = Bed::with(1, |config, _| config.forward = ForwardMode::TxOnly);
    let mut peer = Peer::connect(&bed.socket(0));
    for frame in frames(10) {
        peer.send(&frame);
    }
    bed.expect("no output", |s| s.ports[0].rx.drops.of(Reason::NoOutput) == 10);
    drop((peer, bed.stop()));

    let bed = Bed::new(2);
    let mut peer = Peer::connect(&bed.socket(0));
    for frame in frames(10) {
        peer.send(&frame);
    }
    bed.expect("nobody there", |s| s.ports[1].tx.drops.of(Reason::NotConnected) == 10);
    let mut other = Peer::connect(&bed.socket(1));
    other.session.enable_ring(0, false).unwrap();
    other.session.enable_ring(1, false).unwrap();
    // Until the worker has heard of it.
    bed.expect("disabled", |_| {
        peer.send(&[0; 60]);
        bed.counters().ports[1].tx.drops.of(Reason::Disabled) > 0
    });
    other.send(&[1; 60]);
    bed.expect("drained", |s| s.ports[1].rx.drops.of(Reason::Disabled) == 1);
    other.discard();
    other.session.enable_ring(0, true).unwrap();
    bed.expect("enabled", |_| {
        peer.send(&[2; 60]);
        other.has_frame()
    });
    assert_eq!(other.receive(), [2; 60]);
    assert_eq!(bed.counters().ports[0].tx.packets, 0);
}
