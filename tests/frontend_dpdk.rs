//! The guest against DPDK's `net_vhost` backend: all modes, and both sides count the same.

mod common;

use common::testpmd::{Args, TOOL, Testpmd};
use common::{TempDir, require, wait_until};
use ringbridge::frontend::{
    Guest, GuestOptions, HeaderPlace, Layout, Link, Report, Sizes, Table, VerifyPlan,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
const RUN: Option<Duration> = Some(Duration::from_millis(200));

/// testpmd as a backend with a port on each socket, forwarding in `mode`, and a guest of it.
struct Pair {
    guest: Guest,
    backend: Testpmd,
    _dir: TempDir,
}

fn pair(mode: &str, ports: usize, options: GuestOptions, more: &[&str]) -> Pair {
    let dir = TempDir::new();
    let sockets: Vec<PathBuf> = (0..ports).map(|i| dir.path(&format!("s{i}"))).collect();
    let pairs = options.queue_pairs;
    let queues = [format!("--rxq={pairs}"), format!("--txq={pairs}")];
    let args = Args::backend(&sockets, &format!("queues={pairs}"))
        .forward(mode)
        .with(queues)
        .with(more.iter().copied());
    let mut backend = Testpmd::start(&args).unwrap();
    let guest = Guest::connect(&Link { options, ..Link::to(sockets) }).unwrap();
    for port in 0..ports {
        backend.wait_link_up(port).unwrap();
    }
    Pair { guest, backend, _dir: dir }
}

fn mergeable(on: bool) -> GuestOptions {
    GuestOptions { mergeable: on, ..GuestOptions::default() }
}

fn verify(guest: &mut Guest, min: usize, max: usize) -> Report {
    let plan = VerifyPlan { sizes: Sizes { min, max }, in_flight: 64 };
    let report = guest.verify(plan, RUN, &AtomicBool::new(false)).unwrap();
    assert!(report.rx_packets > 0, "{report:?}");
    assert_eq!(report.rx_packets, report.tx_packets, "{report:?}");
    assert_eq!((report.lost, report.corrupt, report.duplicated), (0, 0, 0), "{report:?}");
    assert_eq!(report.lost_interrupts, 0, "{report:?}");
    report
}

#[test]
fn rxonly_counts_what_testpmd_sent() {
    if !require(TOOL) {
        return;
    }
    for on in [true, false] {
        for size in ["64", "1518"] {
            let mut pair = pair("txonly", 1, mergeable(on), &["--txpkts", size]);
            let stop = AtomicBool::new(false);
            let report = std::thread::scope(|scope| {
                let guest = scope.spawn(|| pair.guest.rxonly(0, None, &stop).unwrap());
                std::thread::sleep(Duration::from_millis(300));
                let sent = pair.backend.stop().unwrap()[0].tx_packets;
                // The rings are empty long before this is over.
                std::thread::sleep(Duration::from_millis(200));
                stop.store(true, Ordering::Relaxed);
                let report = guest.join().unwrap();
                assert!(sent > 0);
                assert_eq!(report.rx_packets, sent);
                report
            });
            assert_eq!(report.rx_bytes, report.rx_packets * size.parse::<u64>().unwrap());
            pair.backend.quit().unwrap();
        }
    }
}

#[test]
fn txonly_counts_what_testpmd_received() {
    if !require(TOOL) {
        return;
    }
    for on in [true, false] {
        let mut pair = pair("rxonly", 1, mergeable(on), &[]);
        let mut packets = 0;
        let mut bytes = 0;
        // One connection for several sizes.
        for size in [60, 64, 512, 1518] {
            let report = pair.guest.txonly(size, RUN, &AtomicBool::new(false)).unwrap();
            assert!(report.tx_packets > 0);
            packets += report.tx_packets;
            bytes += report.tx_bytes;
            assert_eq!(report.tx_bytes, report.tx_packets * size as u64);
            assert_eq!(pair.guest.stop().unwrap()[0][1], packets as u16, "base of the tx ring");
            let bases = [vec![0, packets as u16]];
            pair.guest.start(&bases).unwrap();
            pair.backend.wait_link_up(0).unwrap();
        }
        let mut stats = || pair.backend.stats().unwrap()[0];
        assert!(wait_until(LIMIT, || stats().rx_packets == packets), "{:?} {packets}", stats());
        assert_eq!(stats().rx_bytes, bytes);
        pair.backend.quit().unwrap();
    }
}

#[test]
fn verify_through_io() {
    if !require(TOOL) {
        return;
    }
    let base = GuestOptions::default();
    let alone = Layout { header: HeaderPlace::Alone, data: 1 };
    let spread = Layout { header: HeaderPlace::WithData, data: 4 };
    let variants = [
        base.clone(),
        mergeable(false),
        GuestOptions { version_1: false, ..mergeable(false) },
        GuestOptions { layout: alone, ..base.clone() },
        GuestOptions { layout: spread, table: Table::Indirect, ..base.clone() },
        GuestOptions { event_idx: true, interrupts: true, ..base.clone() },
        GuestOptions { interrupts: true, queue_size: 64, ..base.clone() },
        GuestOptions { in_order: true, regions: 4, ..base.clone() },
        GuestOptions { first_index: 65500, queue_size: 1024, ..base.clone() },
        GuestOptions { buffer_size: Some(200), ..base.clone() },
    ];
    for options in variants {
        println!("{options:?}");
        let mut pair = pair("io", 1, options, &[]);
        verify(&mut pair.guest, 60, 1518);
        verify(&mut pair.guest, 64, 64);
        // Clear the rings, and go on.
        pair.guest.restart().unwrap();
        pair.backend.wait_link_up(0).unwrap();
        verify(&mut pair.guest, 60, 1518);
        pair.backend.quit().unwrap();
    }
}

#[test]
fn verify_large_packets() {
    if !require(TOOL) {
        return;
    }
    let options = GuestOptions { max_size: 9000, ..GuestOptions::default() };
    let mut pair = pair("io", 1, options, &[]);
    verify(&mut pair.guest, 60, 9000);
    pair.backend.quit().unwrap();
}

#[test]
fn verify_several_queue_pairs() {
    if !require(TOOL) {
        return;
    }
    let options = GuestOptions { queue_pairs: 2, ..GuestOptions::default() };
    let mut pair = pair("io", 1, options, &[]);
    verify(&mut pair.guest, 60, 1518);
    pair.backend.quit().unwrap();
}

#[test]
fn between_two_ports() {
    if !require(TOOL) {
        return;
    }
    for shared_memory in [true, false] {
        let options = GuestOptions { shared_memory, ..GuestOptions::default() };
        let mut pair = pair("io", 2, options, &[]);
        verify(&mut pair.guest, 60, 1518);
        let report = pair.guest.io(256, 128, RUN, &AtomicBool::new(false)).unwrap();
        assert!(report.rx_packets >= 128, "{report:?}");
        assert_eq!(report.rx_packets, report.tx_packets, "{report:?}");
        assert_eq!(report.lost, 0);
        verify(&mut pair.guest, 60, 1518);
        pair.backend.quit().unwrap();
    }
}

#[test]
fn a_backend_that_connects_to_us() {
    if !require(TOOL) {
        return;
    }
    let dir = TempDir::new();
    let sockets = [dir.path("s")];
    let link = Link { server: true, timeout: LIMIT, ..Link::to(sockets.clone()) };
    let guest = std::thread::spawn(move || Guest::connect(&link).map_err(|e| e.to_string()));
    assert!(wait_until(LIMIT, || sockets[0].exists()));
    let args = Args::backend(&sockets, "queues=1,client=1").forward("io");
    let mut backend = Testpmd::start(&args).unwrap();
    let mut guest = guest.join().unwrap().unwrap();
    backend.wait_link_up(0).unwrap();
    verify(&mut guest, 60, 1518);
    backend.quit().unwrap();
}
