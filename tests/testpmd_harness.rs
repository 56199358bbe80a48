//! The harness itself: DPDK's backend and DPDK's guest, through our eyes, agree.

mod common;

use common::testpmd::{Args, TOOL, Testpmd};
use common::{TempDir, require, wait_until};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);
const OPTIONS: &str = "queues=1,queue_size=256,mrg_rxbuf=1";

#[test]
fn dpdk_backend_and_dpdk_guest_count_the_same() {
    if !require(TOOL) {
        return;
    }
    let dir = TempDir::new();
    let sockets = [dir.path("s")];
    let args = Args::backend(&sockets, "queues=1").cpu(0);
    let args = args.with(["--forward-mode=txonly", "--txpkts=200"]);
    let mut backend = Testpmd::start(&args).unwrap();
    // What a guest flushes before it starts counts for its port, but not in its totals.
    let args = Args::guest(&sockets, OPTIONS).cpu(1).forward("rxonly").with(["--no-flush-rx"]);
    let mut guest = Testpmd::start(&args).unwrap();
    // DPDK's backend counts a few packets too many if it sends while the guest comes up.
    guest.wait_link_up(0).unwrap();
    backend.command("start").unwrap();
    assert!(wait_until(LIMIT, || guest.stats().unwrap()[0].rx_packets > 100_000));

    let sent = backend.stop().unwrap()[0].tx_packets;
    assert!(sent > 100_000);
    let received = || guest.stats().unwrap()[0].rx_packets == sent;
    assert!(wait_until(LIMIT, received), "{:?}, sent {sent}", guest.stats());
    let (out, into) = (backend.stats().unwrap()[0], guest.stats().unwrap()[0]);
    assert_eq!((out.tx_packets, out.tx_bytes), (sent, 200 * sent));
    assert_eq!((into.rx_packets, into.rx_bytes), (sent, 200 * sent));
    assert_eq!(guest.stop().unwrap()[0].rx_packets, sent);
    guest.quit().unwrap();
    backend.quit().unwrap();
}

#[test]
fn a_failed_start_says_why() {
    if !require(TOOL) {
        return;
    }
    let dir = TempDir::new();
    let error = Testpmd::start(&Args::guest(&[dir.path("nobody")], OPTIONS)).err().unwrap();
    assert!(error.to_string().contains("No such file"), "{error}");
}
