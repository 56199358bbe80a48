//! A guest moves from one QEMU to another while packets come and go.

use crate::common::backend::Backend;
use crate::common::bridge::alone;
use crate::common::wait_until;
use crate::host::{GUEST_MAC, Host, configure};
use crate::relay;
use crate::scene::{assert_ordinary, socket, with};
use crate::vm::{LIMIT, Vm, require_guests};
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
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

    /// Migrate while packets come and go, from before the first page is copied until after the
    /// last.
    fn migrate(&mut self) {
        // A migration that is slower than the guest writes does not end by itself.
        self.from.sh("busy() { dd if=/dev/urandom of=/tmp/busy bs=64k count=64 conv=notrunc; }
            busy; (while busy; do :; done) 2>/dev/null &");
        self.bandwidth(8 << 20);
        let way = format!("unix:{}", self.backend.dir.path("way").display());
        self.from.qmp("migrate", &json!({ "uri": way }));
        self.traffic_until(1, 64);
        // From here on the ring is not filled anew between two copies: what is in its buffers
        // was written by us alone, after they were copied.
        self.traffic_until(4, 0);
        self.bandwidth(1 << 30);
        let done = wait_until(LIMIT, || {
            self.hosts[0].ping_within(1400, Duration::from_millis(200));
            self.status()["status"] == "completed"
        });
        assert!(done, "the migration does not end: {}", self.status());
    }

    /// Pings, each after so many frames without an answer, until memory was copied so often.
    /// Without them each is answered; a flood may leave the guest no buffer for a while.
    fn traffic_until(&mut self, copies: u64, frames: usize) {
        let copied = wait_until(LIMIT, || {
            for _ in 0..frames {
                self.hosts[0].send_silent(1514);
            }
            let answered = self.hosts[0].ping_within(1400, Duration::from_secs(2));
            assert!(answered || frames > 0, "a ping is lost while the guest moves");
            thread::sleep(Duration::from_millis(20));
            self.status()["ram"]["dirty-sync-count"].as_u64() > Some(copies)
        });
        assert!(copied, "memory is not copied: {}", self.status());
        assert_eq!(self.status()["status"], "active");
    }

    /// Bytes a second that the migration may take.
    fn bandwidth(&mut self, bandwidth: u64) {
        let limits = json!({ "max-bandwidth": bandwidth, "downtime-limit": 500 });
        self.from.qmp("migrate-set-parameters", &limits);
    }

    /// How far the migration is.
    fn status(&mut self) -> Value {
        let status = self.from.qmp("query-migrate", &json!({}));
        assert_ne!(status["status"], "failed", "{}", self.to.stderr());
        status
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
    guest.migrate();
    assert_eq!(guest.different(), [0; 0], "pages that were not copied");
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
    guest.migrate();
    assert_ne!(guest.different(), [0; 0], "the other test proves nothing");
}
