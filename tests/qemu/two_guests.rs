//! Two guests that talk to each other.

use crate::common::backend::Backend;
use crate::common::bridge::alone;
use crate::scene::{assert_ordinary, log_of, socket, with};
use crate::vm::{Vm, require_guests};

/// 20 MiB.
const BLOB: usize = 20 << 20;

/// Boot both, with the addresses 10.9.0.1 and 10.9.0.2.
fn boot(backend: &Backend, args: &[&str]) -> [Vm; 2] {
    let sockets = [socket(backend, 0), socket(backend, 1)];
    let mut second = vec!["--mac", "52:54:00:00:00:02"];
    second.extend(args);
    let mut vms = [
        Vm::start(&backend.dir, "one", &with(&sockets[0], args)),
        Vm::start(&backend.dir, "two", &with(&sockets[1], &second)),
    ];
    for (i, vm) in (1..).zip(&mut vms) {
        vm.wait_up();
        vm.sh(&format!("ip link set eth0 up; ip addr add 10.9.0.{i}/24 dev eth0"));
    }
    vms
}

/// Pings, a TCP transfer with equal checksums, and an ordinary life as seen by us and by them.
fn talk(mrg_rxbuf: &str) {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let mut backend = Backend::start(2, "", &["--json"]);
    let mut vms = boot(&backend, &["--mrg-rxbuf", mrg_rxbuf]);
    let [one, two] = &mut vms;
    for len in [0, 56, 1472, 20_000] {
        one.sh(&format!("ping -q -c 3 -i 0.1 -W 10 -s {len} 10.9.0.2"));
    }
    one.sh(&format!("head -c {BLOB} /dev/urandom >/tmp/blob; nc -l -p 5000 </tmp/blob & sleep 1"));
    // Each ends when the other has: this one's input, which has no end, is not what ends it.
    two.sh("mkfifo /tmp/endless; exec 3<>/tmp/endless; nc 10.9.0.1 5000 <&3 >/tmp/blob");
    let sum = |vm: &mut Vm| vm.sh("sha256sum </tmp/blob; wc -c </tmp/blob");
    let sent = sum(one);
    assert_eq!(sum(two), sent);
    assert!(sent.contains(&BLOB.to_string()), "{sent}");
    for vm in &mut vms {
        vm.assert_no_virtio_error();
        vm.begin("poweroff -f");
    }
    vms.into_iter().for_each(Vm::wait_end);
    let totals = backend.finish();
    assert!(totals["ports"][0]["rx_bytes"].as_u64().unwrap() > BLOB as u64, "{totals}");
    assert_eq!(totals["ports"][0]["rx_packets"], totals["ports"][1]["tx_packets"]);
    assert_eq!(totals["ports"][1]["rx_packets"], totals["ports"][0]["tx_packets"]);
    assert_one_life(&backend);
}

/// One line each, and no other.
fn assert_one_life(backend: &Backend) {
    assert_ordinary(&backend.log());
    for port in 0..2 {
        let mut log = log_of(backend, port);
        // The test's own look whether somebody listens.
        log.drain(..2);
        let features = log.remove(1);
        assert!(features.starts_with("features 0x1"), "{features}");
        let lines = [
            "frontend connected",
            "memory: 512 MiB, 1 region(s)",
            "ring 0 runs, 256 entries, enabled",
            "ring 1 runs, 256 entries, enabled",
            "link up",
            "ring 0 stopped",
            "link down",
            "ring 1 stopped",
            "frontend disconnected",
        ];
        assert_eq!(log, lines);
    }
}

#[test]
fn talk_with_mergeable_buffers() {
    talk("on");
}

#[test]
fn talk_without_mergeable_buffers() {
    talk("off");
}

/// Large frames, whole: the guest knows the MTU from its device.
fn jumbo(mrg_rxbuf: &str) {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let backend = Backend::start(2, "", &["--json"]);
    let mut vms = boot(&backend, &["--mtu", "9000", "--mrg-rxbuf", mrg_rxbuf]);
    let [one, two] = &mut vms;
    assert_eq!(one.number("/sys/class/net/eth0/mtu"), 9000);
    one.sh("ping -q -c 20 -i 0.1 -W 10 -s 8972 10.9.0.2");
    // In one piece each: requests, answers and a few of ARP.
    let packets = two.number("/sys/class/net/eth0/statistics/rx_packets");
    assert!((20..30).contains(&packets), "{packets} packets");
    for vm in &mut vms {
        vm.assert_no_virtio_error();
    }
}

#[test]
fn mtu_9000_with_mergeable_buffers() {
    jumbo("on");
}

#[test]
fn mtu_9000_without_mergeable_buffers() {
    jumbo("off");
}
