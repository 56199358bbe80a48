//! A guest moves from one QEMU to another while packets come and go.

use crate::common::backend::Backend;
use crate::common::bridge::alone;
use crate::common::wait_until;
use crate::host::{GUEST_MAC, Host, configure};
use crate::relay;
use crate::scene::{assert_ordinary, socket, with};
use crate::vm::{LIMIT, Vm, require_guests};
use serde_json::json;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

const MIB: usize = 128;
const PAGE: usize = 4096;

/// Two QEMUs, a host beside each. Ports 0 and 1 belong to where the guest is, 2 and 3 to where
/// it goes.
struct Move {
    from: Vm,
    to: Vm,
    hosts: [Host; 2],
    backend: Backend,
}

impl Move {
    /// The guest runs; `from` is the socket that its QEMU connects to.
    fn prepare(backend: Backend, from: &str, options: &[&str]) -> Self {
        let hosts = [1, 3].map(|port| Host::connect(&backend.sockets()[port]));
        let memory = MIB.to_string();
        let mut args = vec!["--memory", &memory];
        args.extend(if options.is_empty() { &[][..] } else { &["--"][..] });
        args.extend(options);
        let mut from = Vm::boot(&backend.dir, "from", &with(from, &args));
        from.sh(&configure("eth0"));
        let way = format!("unix:{}", backend.dir.path("way").display());
        if options.is_empty() {
            args.push("--");
        }
        args.extend(["-S", "-incoming", &way]);
        let to = Vm::start(&backend.dir, "to", &with(&socket(&backend, 2), &args));
        Move { from, to, hosts, backend }
    }

    /// Migrate while packets of all sizes come and go; the number of pings answered meanwhile.
    fn migrate(&mut self) -> usize {
        self.hosts[0].ping(56);
        let way = format!("unix:{}", self.backend.dir.path("way").display());
        // Slowly: much is written after it was copied.
        let slow = json!({ "max-bandwidth": 40 << 20, "downtime-limit": 1000 });
        self.from.qmp("migrate-set-parameters", &slow);
        self.from.qmp("migrate", &json!({ "uri": way }));
        let mut answered = 0;
        let done = wait_until(LIMIT, || {
            let len = answered * 37 % 1400;
            answered += usize::from(self.hosts[0].ping_within(len, Duration::from_millis(200)));
            let status = self.from.qmp("query-migrate", &json!({}))["status"].clone();
            assert_ne!(status, "failed", "{}", self.to.stderr());
            status == "completed"
        });
        assert!(done, "the migration does not end");
        answered
    }

    /// Pages that are not the same in both.
    fn different(&self) -> Vec<usize> {
        let (from, to) = (self.from.memory(), self.to.memory());
        let read = |file: &File, page: usize| {
            let mut bytes = vec![0; PAGE];
            file.read_exact_at(&mut bytes, (page * PAGE) as u64).unwrap();
            bytes
        };
        let pages = 0..MIB * 1024 * 1024 / PAGE;
        pages.filter(|&page| read(&from, page) != read(&to, page)).collect()
    }

    /// Let the guest go on at its new place.
    fn arrive(&mut self) {
        self.to.qmp("cont", &json!({}));
        self.to.wait_event("RESUME");
    }
}

fn backend() -> Backend {
    Backend::start(4, "", &[])
}

#[test]
fn a_guest_moves_and_loses_nothing() {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let backend = backend();
    let from = socket(&backend, 0);
    let mut guest = Move::prepare(backend, &from, &[]);
    let answered = guest.migrate();
    assert!(answered > 50, "only {answered} pings while it moved");
    assert_eq!(guest.different(), [0; 0], "pages after {answered} pings");
    guest.arrive();
    // The guest announces itself, by ARP: it knows that it has moved.
    guest.hosts[1]
        .expect("the announcement", |frame| frame[6..12] == GUEST_MAC && frame[12..14] == [8, 6]);
    for len in 0..200 {
        guest.hosts[1].ping(len * 7);
    }
    guest.to.assert_no_virtio_error();
    assert_ordinary(&guest.backend.log());
}

#[test]
fn the_backend_announces_a_guest_that_does_not() {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let backend = backend();
    let from = socket(&backend, 0);
    let silent = ["-global", "virtio-net-device.guest_announce=off"];
    let mut guest = Move::prepare(backend, &from, &silent);
    guest.migrate();
    guest.arrive();
    // By RARP (SEND_RARP), to everybody.
    guest.hosts[1].expect("the announcement", |frame| {
        frame[..6] == [0xff; 6] && frame[6..12] == GUEST_MAC && frame[12..14] == [0x80, 0x35]
    });
    guest.hosts[1].ping(56);
    guest.to.assert_no_virtio_error();
    assert_ordinary(&guest.backend.log());
}

/// What the first test would see if we wrote and did not log it.
#[test]
fn without_the_log_memory_differs() {
    if !require_guests() {
        return;
    }
    let _alone = alone();
    let backend = backend();
    let from = backend.dir.path("relay");
    relay::without_log(&from, &backend.sockets()[0]);
    let mut guest = Move::prepare(backend, from.to_str().unwrap(), &[]);
    let answered = guest.migrate();
    assert!(answered > 50, "only {answered} pings while it moved");
    assert_ne!(guest.different(), [0; 0], "the other test proves nothing");
}
