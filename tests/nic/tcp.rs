//! TCP between two network namespaces through the bridge: the kernel leaves checksums and
//! segments to be made, and checks what it gets.

use crate::common::bridge::{Bed, alone};
use crate::common::net::{Elsewhere, in_new_network, ip};
use crate::common::{TempDir, require};
use ringbridge::config::{PortKind, port};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

const BLOB: usize = 20 << 20;
const LIMIT: Duration = Duration::from_mins(1);

fn blob() -> Vec<u8> {
    (0..BLOB).map(|i| (i * 31 + i / 509) as u8).collect()
}

/// `ethtool` with these arguments, which must succeed.
fn ethtool(arguments: &str) {
    let done = Command::new("ethtool").args(arguments.split_whitespace()).output().unwrap();
    assert!(
        done.status.success(),
        "ethtool {arguments}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// A host in a namespace of its own, on a cable whose other end is `outer`; its address.
fn host(outer: &str, address: &'static str, offloads: bool) -> Elsewhere {
    let host = Elsewhere::new(outer, "eth0");
    host.inside(move || {
        ip(&format!("addr add {address}/24 dev eth0"));
        if !offloads {
            ethtool("-K eth0 tx off tso off gso off");
        }
        ip("link set eth0 up");
    });
    host
}

/// From one to the other; what comes is what was sent.
fn transfer(from: &Elsewhere, to: &Elsewhere, address: [u8; 4]) {
    let (ready, listening) = std::sync::mpsc::channel();
    let received = to.begin(move || {
        let listener = TcpListener::bind((std::net::Ipv4Addr::from(address), 5000)).unwrap();
        ready.send(()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    });
    listening.recv_timeout(LIMIT).unwrap();
    from.inside(move || {
        let mut stream = TcpStream::connect_timeout(&(address, 5000).into(), LIMIT).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream.write_all(&blob()).unwrap();
    });
    assert!(received.recv_timeout(LIMIT).unwrap() == blob());
}

/// Both directions between hosts that leave work to others and hosts that do not.
#[test]
fn between_packet_sockets() {
    if !require("ethtool") {
        return;
    }
    for (left, right) in [(true, true), (true, false), (false, false)] {
        in_new_network(move || {
            let _alone = alone();
            let one = host("left", "10.7.0.1", left);
            let other = host("right", "10.7.0.2", right);
            let bed = Bed::with(0, |config, _| {
                config.ports =
                    ["af_packet:left", "af_packet:right"].map(|p| port::parse(p).unwrap()).into();
            });
            transfer(&one, &other, [10, 7, 0, 2]);
            transfer(&other, &one, [10, 7, 0, 1]);
            for port in bed.counters().ports {
                assert_eq!(port.rx.drops.of(ringbridge::counters::Reason::BadOffload), 0);
                assert_eq!(port.tx.drops.of(ringbridge::counters::Reason::OutputError), 0);
            }
        });
    }
}

/// A host on a cable, and this machine by a TAP.
#[test]
fn between_a_tap_and_a_packet_socket() {
    in_new_network(|| {
        let _alone = alone();
        let one = host("left", "10.7.0.1", true);
        let here = Elsewhere::here();
        let bed = Bed::with(0, |config, _| {
            config.ports = ["af_packet:left", "tap:tap0"].map(|p| port::parse(p).unwrap()).into();
        });
        ip("addr add 10.7.0.2/24 dev tap0");
        ip("link set tap0 up");
        transfer(&one, &here, [10, 7, 0, 2]);
        transfer(&here, &one, [10, 7, 0, 1]);
        drop(bed);
    });
}

/// What a host sends unfinished is finished in a capture: `tcpdump` finds no wrong checksum.
#[test]
fn a_capture_is_finished() {
    if !require("tcpdump") {
        return;
    }
    in_new_network(|| {
        let _alone = alone();
        let dir = TempDir::new();
        let empty = dir.path("empty.pcap");
        let header = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1].map(u32::to_ne_bytes);
        std::fs::write(&empty, header.concat()).unwrap();
        let out = dir.path("out.pcap");
        let one = host("left", "10.7.0.1", true);
        let bed = Bed::with(0, |config, _| {
            let file = format!("pcap:{},out={}", empty.display(), out.display());
            config.ports = ["af_packet:left", &file].map(|p| port::parse(p).unwrap()).into();
            assert!(matches!(config.ports[1].kind, PortKind::Pcap(_)));
        });
        // Nobody answers; a neighbour that is told of is enough for the first packets.
        one.inside(|| {
            ip("neigh add 10.7.0.2 lladdr 02:00:00:00:00:02 dev eth0");
            let socket = std::net::UdpSocket::bind("10.7.0.1:7").unwrap();
            for len in [0, 1, 100, 1400, 9000] {
                socket.send_to(&vec![7; len], "10.7.0.2:9").unwrap();
            }
            let _ =
                TcpStream::connect_timeout(&([10, 7, 0, 2], 80).into(), Duration::from_millis(50));
        });
        bed.expect("the packets", |now| now.ports[1].tx.packets >= 6);
        let (_, _dir) = bed.stop();
        let read = Command::new("tcpdump").args(["-vvnr"]).arg(&out).output().unwrap();
        let said = String::from_utf8_lossy(&read.stdout);
        assert!(said.contains("cksum") && said.contains("ok"), "{said}");
        for wrong in ["incorrect", "bad "] {
            assert!(!said.contains(wrong), "{said}");
        }
    });
}
