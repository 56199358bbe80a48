//! The reference backend against DPDK's guest: both count the same, in every mode.
#![cfg(feature = "reference")]

mod common;

use common::testpmd::{Args, TOOL, Testpmd};
use common::{TempDir, require, wait_until};
use ringbridge::reference::{Reference, ReferenceConfig, ReferenceMode};
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
const ENOUGH: u64 = 10_000;

fn start(sockets: &[PathBuf], mode: ReferenceMode, mergeable: bool, size: usize) -> Reference {
    let sockets = sockets.to_vec();
    Reference::start(&ReferenceConfig { sockets, mode, size, mergeable, cpu: Some(0) }).unwrap()
}

fn guest(sockets: &[PathBuf], mergeable: bool, args: &[&str]) -> Testpmd {
    let options = format!("queues=1,queue_size=256,mrg_rxbuf={}", u8::from(mergeable));
    let args = Args::guest(sockets, &options).cpu(1).with(args.iter().copied());
    Testpmd::start(&args.with(["--no-flush-rx"])).unwrap()
}

fn txonly(mergeable: bool, size: usize) {
    let dir = TempDir::new();
    let sockets = [dir.path("s")];
    let backend = start(&sockets, ReferenceMode::TxOnly, mergeable, size);
    let mode = ["--forward-mode=rxonly", "--auto-start"];
    let mut guest = guest(&sockets, mergeable, &mode);
    assert!(wait_until(LIMIT, || guest.stats().unwrap()[0].rx_packets > ENOUGH));
    // The guest stops first; what the backend put into its ring after that it finds there.
    guest.stop().unwrap();
    let quiet = || {
        let before = backend.counters(0).tx.packets.get();
        std::thread::sleep(Duration::from_millis(50));
        before == backend.counters(0).tx.packets.get()
    };
    assert!(wait_until(LIMIT, quiet));
    let stats = guest.stats().unwrap()[0];
    let sent = backend.counters(0).tx.packets.get();
    assert_eq!(stats.rx_bytes, stats.rx_packets * size as u64);
    assert_eq!(backend.counters(0).tx.bytes.get(), sent * size as u64);
    assert!(stats.rx_packets <= sent && sent <= stats.rx_packets + 256, "{sent}, {stats:?}");
    assert_eq!(backend.counters(0).tx.dropped_total(), 0);
    backend.stop();
}

#[test]
fn txonly_into_single_buffers() {
    if require(TOOL) {
        txonly(false, 64);
    }
}

#[test]
fn txonly_into_merged_buffers() {
    if require(TOOL) {
        txonly(true, 5000);
    }
}

#[test]
fn rxonly_counts_what_the_guest_sends() {
    if !require(TOOL) {
        return;
    }
    let dir = TempDir::new();
    let sockets = [dir.path("s")];
    let backend = start(&sockets, ReferenceMode::RxOnly, true, 64);
    let mut guest =
        guest(&sockets, true, &["--forward-mode=txonly", "--auto-start", "--txpkts=300"]);
    let received = || backend.counters(0).rx.packets.get();
    assert!(wait_until(LIMIT, || received() > ENOUGH));
    let sent = guest.stop().unwrap()[0].tx_packets;
    assert!(wait_until(LIMIT, || received() == sent), "{} of {sent}", received());
    assert_eq!(backend.counters(0).rx.bytes.get(), 300 * sent);
}

#[test]
fn io_forwards_both_ways() {
    if !require(TOOL) {
        return;
    }
    let dir = TempDir::new();
    let sockets = [dir.path("a"), dir.path("b")];
    let backend = start(&sockets, ReferenceMode::Io, false, 64);
    let mut guest = guest(&sockets, false, &["--forward-mode=io", "--txpkts=400"]);
    guest.wait_link_up(0).unwrap();
    guest.wait_link_up(1).unwrap();
    guest.command("start tx_first 4").unwrap();
    let far = || (0..2).all(|port| backend.counters(port).tx.packets.get() > ENOUGH);
    assert!(wait_until(LIMIT, far));
    guest.stop().unwrap();
    let settled = || {
        let stats = guest.stats().unwrap();
        (0..2).all(|port| {
            let counters = backend.counters(port);
            counters.rx.packets.get() == stats[port].tx_packets
                && counters.tx.packets.get() == backend.counters(1 - port).rx.packets.get()
        })
    };
    assert!(wait_until(LIMIT, settled));
    assert_eq!(backend.counters(0).tx.dropped_total(), 0);
}

#[test]
fn a_cpu_that_does_not_exist_is_an_error() {
    let dir = TempDir::new();
    let config = ReferenceConfig {
        sockets: vec![dir.path("s")],
        mode: ReferenceMode::RxOnly,
        size: 64,
        mergeable: false,
        cpu: Some(100_000),
    };
    assert!(Reference::start(&config).is_err());
}
