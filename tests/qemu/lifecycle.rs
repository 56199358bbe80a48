//! One guest that reboots, loses its driver, stops and dies.

use crate::common::backend::Backend;
use crate::common::bridge::alone;
use crate::host::{Host, configure};
use crate::vm::{Vm, require_guests};

fn socket(backend: &Backend, port: usize) -> String {
    backend.sockets()[port].display().to_string()
}

#[test]
fn a_guest_reboots_three_times() {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let mut backend = Backend::start(2, "", &["--json", "--forward", "io"]);
    let mut host = Host::connect(&backend.sockets()[1]);
    let mut vm = Vm::boot(&backend.dir, "vm", &[&socket(&backend, 0)]);
    for _ in 0..3 {
        vm.sh(&configure("eth0"));
        for len in [0, 56, 1400] {
            host.ping(len);
        }
        vm.assert_no_virtio_error();
        vm.begin("reboot -f");
        vm.wait_up();
    }
    drop(vm);
    eprintln!("{}", backend.log());
    eprintln!("{}", backend.finish());
}
