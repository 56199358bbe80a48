//! DPDK's virtio-user as the frontend: its message order is accepted, its rings are started
//! and enabled, and its end is noticed.

use super::among_others;
use super::guest::{Held, spec, wait};
use ringbridge::config::VhostSpec;
use ringbridge::control::VhostPort;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running testpmd; killed when dropped.
struct Testpmd(Child);

impl Testpmd {
    /// `None` if there is no testpmd and none is required.
    fn start(socket: &Path, queues: u16, server: u8) -> Option<Self> {
        let vdev = format!(
            "net_virtio_user0,path={},server={server},queues={queues},queue_size=512,mrg_rxbuf=1",
            socket.display()
        );
        let prefix = format!("control{}-{queues}-{server}", std::process::id());
        let queues = queues.to_string();
        let started = Command::new("dpdk-testpmd")
            .args(["--lcores", "0@0,1@0", "--no-pci", "--no-huge", "-m", "256"])
            .args(["--file-prefix", &prefix, "--vdev", &vdev])
            .args(["--", "-i", "--nb-cores=1", "--forward-mode=rxonly", "--total-num-mbufs=4096"])
            .args(["--rxq", &queues, "--txq", &queues, "--auto-start"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match started {
            Ok(child) => Some(Testpmd(child)),
            Err(error) if std::env::var_os("RINGBRIDGE_REQUIRE").is_some_and(|v| v == "all") => {
                panic!("dpdk-testpmd: {error}")
            }
            Err(error) => {
                eprintln!("skipped: dpdk-testpmd: {error}");
                None
            }
        }
    }

    fn quit(mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"quit\n").unwrap();
        let child = std::cell::RefCell::new(&mut self.0);
        wait("testpmd ends", || child.borrow_mut().try_wait().unwrap().is_some());
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn rings_start_and_end(queues: u16, by_force: bool) {
    let _guard = among_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let held = Held::default();
    let spec = VhostSpec { queues, ..spec(&path) };
    let port = VhostPort::open("p", &spec, held.clone()).unwrap();
    let Some(testpmd) = Testpmd::start(&path, queues, 0) else { return };
    let all: Vec<_> = (0..2 * queues).map(|index| (index, true)).collect();
    wait("all rings enabled", || held.rings() == all);
    assert!((0..2 * queues).all(|index| held.size(index) == 512));
    if by_force {
        drop(testpmd);
    } else {
        testpmd.quit();
    }
    wait("rings taken back", || held.rings().is_empty());
    port.stop();
}

#[test]
fn one_queue_pair() {
    rings_start_and_end(1, false);
}

#[test]
fn two_queue_pairs_and_a_sudden_end() {
    rings_start_and_end(2, true);
}

#[test]
fn a_backend_that_comes_back_to_a_listening_frontend() {
    let _guard = among_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let Some(testpmd) = Testpmd::start(&path, 1, 1) else { return };
    for _ in 0..3 {
        let held = Held::default();
        let spec = VhostSpec { client: true, ..spec(&path) };
        let port = VhostPort::open("p", &spec, held.clone()).unwrap();
        wait("both rings enabled", || held.rings() == [(0, true), (1, true)]);
        port.stop();
        assert!(held.rings().is_empty());
    }
    testpmd.quit();
}
