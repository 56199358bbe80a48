//! The bridge is killed under a guest that goes on, and started again.

use crate::common::TempDir;
use crate::common::backend::Backend;
use crate::common::bridge::alone;
use crate::common::wait_until;
use crate::host::{Host, configure};
use crate::vm::{Vm, require_guests};
use std::time::{Duration, Instant};

/// Traffic is back within this.
const BACK: Duration = Duration::from_secs(10);

/// Crash three times: once the host alone sends, else it pings.
fn survives(vm: &mut Vm, backend: &mut Backend, port: usize) {
    vm.sh(&configure("eth0"));
    Host::connect(&backend.sockets()[port]).ping(56);
    for silent in [false, true, false] {
        let crashed = Instant::now();
        backend.crash_and_restart();
        let mut host = Host::connect(&backend.sockets()[port]);
        if silent {
            // The guest has nothing to say, so nothing of it can wake anything.
            let received = "/sys/class/net/eth0/statistics/rx_packets";
            let before = vm.number(received);
            let came = wait_until(BACK, || {
                host.send_silent(60);
                vm.number(received) > before
            });
            assert!(came, "nothing reaches the guest");
        } else {
            host.ping_until(BACK);
        }
        let back = crashed.elapsed();
        eprintln!("traffic back {} ms after kill -9, silent: {silent}", back.as_millis());
        assert!(back < BACK, "{back:?}");
        for _ in 0..300 {
            host.ping(1000);
        }
    }
    vm.assert_no_virtio_error();
}

#[test]
fn qemu_connects_again() {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let mut backend = Backend::start(2, "", &[]);
    let socket = backend.sockets()[0].display().to_string();
    let mut vm = Vm::boot(&backend.dir, "vm", &[&socket]);
    survives(&mut vm, &mut backend, 1);
}

#[test]
fn qemu_is_the_server() {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let dir = TempDir::new();
    let socket = dir.path("guest").display().to_string();
    // It goes on trying until QEMU listens; and QEMU boots nothing before somebody has come.
    let mut backend = Backend::start(1, "", &["-p", &format!("vhost:{socket},client")]);
    let mut vm = Vm::boot(&dir, "vm", &["--server", &socket]);
    survives(&mut vm, &mut backend, 0);
}
