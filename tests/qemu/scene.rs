//! A bridge as a process, a guest at its first port and a host at its second.
//!
//! Promises: [`Scene::finish`] fails where the guest's kernel or our log tells of anything but
//! the ordinary.

use crate::common::backend::Backend;
use crate::host::{Host, configure};
use crate::vm::Vm;
use serde_json::Value;

/// The three of them; the guest has its address.
pub struct Scene {
    pub vm: Vm,
    pub host: Host,
    pub backend: Backend,
}

impl Scene {
    /// Boot the guest with these arguments of `qemu/guest`, one device and one queue pair.
    pub fn new(args: &[&str]) -> Self {
        let backend = Backend::start(2, "", &["--json", "--forward", "io"]);
        let host = Host::connect(&backend.sockets()[1]);
        let mut vm = Vm::boot(&backend.dir, "vm", &with(&socket(&backend, 0), args));
        vm.sh(&configure("eth0"));
        Scene { vm, host, backend }
    }

    /// End all; the bridge's counters.
    pub fn finish(self) -> Value {
        let Scene { mut vm, host, mut backend } = self;
        vm.assert_no_virtio_error();
        drop((vm, host));
        let totals = backend.finish();
        assert_ordinary(&backend.log());
        totals
    }
}

/// A port's socket, as an argument.
pub fn socket(backend: &Backend, port: usize) -> String {
    backend.sockets()[port].display().to_string()
}

/// The arguments of a guest on one socket; what is QEMU's own comes last.
pub fn with<'a>(socket: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec![socket];
    all.extend(args);
    all
}

/// What a port has logged, without time and name.
pub fn log_of(backend: &Backend, port: usize) -> Vec<String> {
    let name = format!("vhost:{}: ", socket(backend, port));
    let log = backend.log();
    let lines = log.lines().filter_map(|line| line.split_once(&name));
    lines.map(|(_, event)| event.to_string()).collect()
}

/// Nothing is logged but that frontends come, agree on features, share memory, start and stop
/// rings, and leave; and that there is no control socket.
pub fn assert_ordinary(log: &str) {
    let ordinary = [
        "frontend connected",
        "frontend disconnected",
        "features 0x",
        "memory: ",
        "ring ",
        "link up",
        "link down",
        "no control socket",
    ];
    for line in log.lines() {
        let known = line.contains(" INFO ") && ordinary.iter().any(|what| line.contains(what));
        assert!(known, "{line}\nin {log}");
    }
}
