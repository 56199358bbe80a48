//! A network of the test's own.
//!
//! Promises: what is made in it is seen nowhere else, and is gone when the last thread and
//! process in it are.

use super::{require, require_root};
use std::process::Command;
use std::thread;

/// Run `test` in a thread in a network namespace of its own, with all threads and processes that
/// it starts; or say why not.
pub fn in_new_network(test: impl FnOnce() + Send + 'static) {
    if !require_root() || !require("ip") {
        return;
    }
    let run = move || {
        // SAFETY: a plain call; it concerns this thread alone.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "no network namespace");
        // Neighbour discovery is traffic that nobody expects.
        for which in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            let _ = std::fs::write(path, "1");
        }
        ip("link set lo up");
        test();
    };
    if let Err(panic) = thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

/// `ip` with these arguments, which must succeed.
pub fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {said}");
}

/// A pair of interfaces, each what the other's cable leads to.
pub fn veth(one: &str, other: &str, mtu: usize) {
    ip(&format!("link add {one} mtu {mtu} type veth peer name {other} mtu {mtu}"));
    for name in [one, other] {
        ip(&format!("link set {name} up"));
    }
}
