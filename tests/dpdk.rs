//! DPDK's virtio-user as the guest of `ringbridge run`: packets flow in every mode, and both
//! programs have counted the same.

mod common;

use common::backend::Backend;
use common::bridge::{LIMIT, alone};
use common::testpmd::{Args, PortStats, TOOL, Testpmd};
use common::{require, wait_until};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

/// Packets that a run moves before it is stopped.
const ENOUGH: u64 = 20_000;
/// After so long every message of a guest's start has been acted on.
const SETTLED: Duration = Duration::from_millis(300);

/// A kind of guest: devargs of virtio-user, and its queue pairs.
const KINDS: [(&str, u16); 7] = [
    ("mrg_rxbuf=0", 1),
    ("mrg_rxbuf=1", 1),
    ("mrg_rxbuf=0,in_order=1", 1),
    ("mrg_rxbuf=1,in_order=1", 1),
    ("mrg_rxbuf=1,packed_vq=0", 2),
    ("mrg_rxbuf=0,vectorized=1", 1),
    ("mrg_rxbuf=1,in_order=0,queue_size=1024", 2),
];

/// A guest with `mode`, on all sockets of the backend. It counts every packet it takes.
fn guest(backend: &Backend, (devargs, queues): (&str, u16), mode: &str, more: &[&str]) -> Testpmd {
    let size = if devargs.contains("queue_size") { "" } else { ",queue_size=256" };
    let devargs = format!("queues={queues}{size},{devargs}");
    let queues = [format!("--rxq={queues}"), format!("--txq={queues}")];
    let sockets: &[PathBuf] = backend.sockets();
    let args = Args::guest(sockets, &devargs).with([format!("--forward-mode={mode}")]);
    Testpmd::start(&args.with(queues).with(more.iter().copied())).unwrap()
}

fn backend(ports: usize, queues: u16, mode: &str, more: &[&str]) -> Backend {
    let args = [&["--forward", mode, "--json"], more].concat();
    Backend::start(ports, &format!(",queues={queues}"), &args)
}

/// A number of port `i` in the backend's totals.
fn total(json: &serde_json::Value, i: usize, name: &str) -> u64 {
    json["ports"][i][name].as_u64().unwrap()
}

/// The guest's statistics, once they are as they should be.
fn expect(guest: &mut Testpmd, what: &str, holds: impl Fn(&[PortStats]) -> bool) -> Vec<PortStats> {
    let mut last = Vec::new();
    let held = wait_until(LIMIT, || {
        last = guest.stats().unwrap();
        holds(&last)
    });
    assert!(held, "{}: {what}: {last:?}", guest.command_line());
    last
}

#[test]
fn txonly_to_rxonly() {
    if !require(TOOL) {
        return;
    }
    let _alone = alone();
    for (i, kind) in KINDS.into_iter().enumerate() {
        let size = [64u64, 1518][i % 2];
        let mut backend = backend(1, kind.1, "txonly", &["--size", &size.to_string()]);
        let mut guest = guest(&backend, kind, "rxonly", &[]);
        guest.command("start").unwrap();
        expect(&mut guest, "packets come", |ports| ports[0].rx_packets > ENOUGH);
        // The rings outlive the backend: the guest takes what is left in them.
        let json = backend.finish();
        let (sent, bytes) = (total(&json, 0, "tx_packets"), total(&json, 0, "tx_bytes"));
        assert_eq!(bytes, sent * size, "{kind:?}");
        // With several queues the device is told of the others just before the driver empties
        // all rings, without counting, as the last step of its start. What came in between is
        // at most what its rings hold.
        let emptied = if kind.1 > 1 { u64::from(kind.1) * 1024 } else { 0 };
        let all = |ports: &[PortStats]| {
            let received = ports[0].rx_packets;
            received <= sent && received + emptied >= sent && ports[0].rx_bytes == received * size
        };
        expect(&mut guest, &format!("all {sent} arrive"), all);
        let stats = guest.stats().unwrap()[0];
        assert_eq!((stats.rx_missed, total(&json, 0, "rx_packets")), (0, 0), "{kind:?}");
    }
}

#[test]
fn rxonly_from_txonly() {
    if !require(TOOL) {
        return;
    }
    let _alone = alone();
    let segments = ["64", "1518", "14,28,300,1000", "60,1,1"];
    for (i, kind) in KINDS.into_iter().enumerate() {
        let segments = segments[i % segments.len()];
        let size: u64 = segments.split(',').map(|len| len.parse::<u64>().unwrap()).sum();
        let mut backend = backend(1, kind.1, "rxonly", &[]);
        let mut guest = guest(&backend, kind, "txonly", &[&format!("--txpkts={segments}")]);
        // The guest does not wait for its rings to be enabled; what it sends before is discarded.
        thread::sleep(SETTLED);
        guest.command("start").unwrap();
        expect(&mut guest, "packets go", |ports| ports[0].tx_packets > ENOUGH);
        guest.stop().unwrap();
        backend.wait_idle();
        let sent = guest.stats().unwrap()[0];
        let json = backend.finish();
        let received = (total(&json, 0, "rx_packets"), total(&json, 0, "rx_bytes"));
        assert_eq!(received, (sent.tx_packets, sent.tx_bytes), "{kind:?} {segments}");
        assert_eq!(sent.tx_bytes, size * sent.tx_packets, "{kind:?} {segments}");
        assert_eq!(json["ports"][0]["drops"], serde_json::json!({}), "{kind:?} {segments}");
    }
}

/// Both programs forward what they get: some packets go round for ever.
fn io(ports: usize, kind: (&str, u16), size: u32) {
    let mut backend = backend(ports, kind.1, "io", &[]);
    let size = format!("--txpkts={size}");
    let mut guest = guest(&backend, kind, "io", &[&size, "--no-flush-rx"]);
    // The guest does not wait for its rings to be enabled; what it sends before is discarded.
    thread::sleep(SETTLED);
    guest.command("start tx_first 4").unwrap();
    expect(&mut guest, "packets go round", |p| p.iter().all(|p| p.rx_packets > ENOUGH));
    guest.stop().unwrap();
    backend.wait_idle();
    let json = backend.finish();
    // What had come back by then and was not taken.
    guest.command("set fwd rxonly").unwrap();
    guest.command("start").unwrap();
    let counted = |guest: &[PortStats]| {
        (0..ports).all(|i| {
            let total = |name| total(&json, i, name);
            let ours =
                [total("rx_packets"), total("tx_packets"), total("rx_bytes"), total("tx_bytes")];
            let theirs = &guest[i];
            ours == [theirs.tx_packets, theirs.rx_packets, theirs.tx_bytes, theirs.rx_bytes]
        })
    };
    expect(&mut guest, &format!("as many as in {json}"), counted);
    for i in 0..ports {
        assert_eq!(json["ports"][i]["drops"], serde_json::json!({}), "{kind:?}");
    }
}

#[test]
fn io_on_one_port() {
    if !require(TOOL) {
        return;
    }
    let _alone = alone();
    for (kind, size) in KINDS.into_iter().zip([64, 1518].into_iter().cycle()) {
        io(1, kind, size);
    }
}

#[test]
fn io_between_two_ports() {
    if !require(TOOL) {
        return;
    }
    let _alone = alone();
    for (kind, size) in KINDS.into_iter().zip([1518, 64].into_iter().cycle()).skip(1).step_by(2) {
        io(2, kind, size);
    }
}
