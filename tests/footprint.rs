//! What `ringbridge run` costs while nothing happens, and how it ends.

mod common;

use common::backend::Backend;
use common::bridge::alone;
use ringbridge::frontend::{Guest, GuestOptions, Link, RawGuest};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

const SETTLE: Duration = Duration::from_millis(300);

/// The bridge may use one hundredth of a CPU for so many seconds.
fn expect_idle(backend: &Backend, seconds: u64, who: &str) {
    sleep(SETTLE);
    let (start, before) = (Instant::now(), backend.cpu_time());
    sleep(Duration::from_secs(seconds));
    let used = Duration::from_nanos(backend.cpu_time() - before);
    assert!(used * 100 < start.elapsed(), "{who}: {used:?} of {:?}", start.elapsed());
}

fn guest(backend: &Backend, options: GuestOptions) -> Guest {
    Guest::connect(&Link { options, ..Link::to(backend.sockets()) }).unwrap()
}

#[test]
fn silent_guests_cost_little_memory_and_no_time() {
    let _alone = alone();
    for event_idx in [false, true] {
        let backend = Backend::start(2, "", &["--json"]);
        let options = GuestOptions { event_idx, interrupts: true, ..GuestOptions::default() };
        let mut guest = guest(&backend, options);
        expect_idle(&backend, 3, "silent from the start");
        // And after it has been anything but silent.
        guest.txonly(64, Some(SETTLE), &AtomicBool::new(false)).unwrap();
        expect_idle(&backend, 1, "silent after packets");
        assert!(backend.rss_anon() < 20 << 10, "{} kB", backend.rss_anon());
    }
}

#[test]
fn without_guests_it_sleeps() {
    let _alone = alone();
    for mode in ["io", "txonly"] {
        expect_idle(&Backend::start(2, "", &["--forward", mode]), 1, mode);
    }
}

/// What is sent to a full ring is waited for, not polled.
#[test]
fn a_generator_sleeps_while_its_guest_does() {
    let _alone = alone();
    let backend = Backend::start(1, "", &["--forward", "txonly"]);
    let guest = guest(&backend, GuestOptions::default());
    expect_idle(&backend, 1, "a full ring");
    drop(guest);
}

/// A ring that lies is dead, and so are its kicks: they wake nobody for ever.
#[test]
fn a_kick_of_a_broken_ring_keeps_nobody_awake() {
    let _alone = alone();
    let backend = Backend::start(1, "", &[]);
    let mut raw = RawGuest::connect(&Link::to(backend.sockets())).unwrap();
    raw.start(0, 0).unwrap();
    raw.start(1, 0).unwrap();
    raw.rings[1].post_head(256);
    for ring in &raw.rings {
        ring.kick();
    }
    sleep(SETTLE);
    for ring in &raw.rings {
        ring.kick();
    }
    expect_idle(&backend, 1, "a broken ring");
}

#[test]
fn signals_end_it_with_totals_and_without_sockets() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let _alone = alone();
        let mut backend = Backend::start(2, "", &[]);
        let mut guest = guest(&backend, GuestOptions::default());
        let sent = guest.txonly(64, Some(SETTLE), &AtomicBool::new(false)).unwrap().tx_packets;
        assert!(sent > 0);
        backend.wait_idle();
        backend.signal(signal);
        let (status, said) = backend.wait();
        assert!(status.success(), "{status}");
        assert!(said.starts_with("Totals:\n"), "{said}");
        let words: Vec<_> = said.split_whitespace().collect();
        let received = words.windows(2).filter(|pair| pair[0] == "RX-packets:");
        let received: u64 = received.map(|pair| pair[1].parse::<u64>().unwrap()).sum();
        assert_eq!(received, sent, "{said}");
        assert!(backend.sockets().iter().all(|socket| !socket.exists()));
    }
}

#[test]
fn json_has_exactly_the_documented_keys() {
    let _alone = alone();
    let mut backend = Backend::start(2, "", &["--json", "--stats-interval", "50ms"]);
    let mut guest = guest(&backend, GuestOptions::default());
    let report = guest.txonly(64, Some(SETTLE), &AtomicBool::new(false)).unwrap();
    backend.wait_idle();
    let json = backend.finish();
    let keys = |value: &serde_json::Value| -> Vec<String> {
        let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(&json), ["ports", "workers"]);
    let ports = json["ports"].as_array().unwrap();
    assert_eq!(ports.len(), 2);
    let mut received = 0;
    for (port, socket) in ports.iter().zip(backend.sockets()) {
        let expected =
            ["drops", "name", "refused", "rx_bytes", "rx_packets", "tx_bytes", "tx_packets"];
        assert_eq!(keys(port), expected);
        assert_eq!(port["name"], format!("vhost:{}", socket.display()));
        let packets = port["rx_packets"].as_u64().unwrap();
        assert_eq!(port["rx_bytes"], 64 * packets);
        received += packets;
        // A guest that only sends has no room for what the other port sends.
        for (reason, n) in port["drops"].as_object().unwrap() {
            assert_eq!(reason, "no_buffers");
            assert!(n.as_u64().unwrap() > 0);
        }
    }
    assert_eq!(received, report.tx_packets);
    let workers = json["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 1);
    let expected = ["best_pps", "cpu", "cycles_per_packet", "cycles_per_packet_p10", "packets"];
    assert_eq!(keys(&workers[0]), expected);
    assert_eq!(workers[0]["packets"], received);
}

#[test]
fn a_duration_ends_it() {
    let _alone = alone();
    let mut backend = Backend::start(1, "", &["--duration", "200ms", "--json"]);
    let connection = UnixStream::connect(&backend.sockets()[0]);
    let (status, said) = backend.wait();
    assert!(status.success(), "{status}");
    let json: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(json["ports"][0]["rx_packets"], 0);
    assert!(!backend.sockets()[0].exists());
    drop(connection);
}
