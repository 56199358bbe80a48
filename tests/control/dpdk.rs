//! DPDK's virtio-user as the frontend: its message order is accepted, its rings are started
//! and enabled, and its end is noticed.

use super::among_others;
use super::common::require;
use super::common::testpmd::{Args, TOOL, Testpmd};
use super::guest::{Held, journal, spec, wait};
use ringbridge::config::VhostSpec;
use ringbridge::control::VhostPort;
use std::path::Path;

/// `None` if there is no testpmd and none is required.
fn testpmd(socket: &Path, queues: u16, server: u8) -> Option<Testpmd> {
    let devargs = format!("server={server},queues={queues},queue_size=512,mrg_rxbuf=1");
    let both = [format!("--rxq={queues}"), format!("--txq={queues}")];
    let args = Args::guest(&[socket], &devargs).forward("rxonly").with(both);
    require(TOOL).then(|| Testpmd::start(&args).unwrap())
}

fn rings_start_and_end(queues: u16, by_force: bool) {
    let _guard = among_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let held = Held::default();
    let spec = VhostSpec { queues, ..spec(&path) };
    let port = VhostPort::open(&journal(), &spec, held.clone()).unwrap();
    let Some(guest) = testpmd(&path, queues, 0) else { return };
    let all: Vec<_> = (0..2 * queues).map(|index| (index, true)).collect();
    wait("all rings enabled", || held.rings() == all);
    assert!((0..2 * queues).all(|index| held.size(index) == 512));
    if by_force {
        drop(guest);
    } else {
        guest.quit().unwrap();
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
    let open = || {
        let held = Held::default();
        let spec = VhostSpec { client: true, ..spec(&path) };
        (VhostPort::open(&journal(), &spec, held.clone()).unwrap(), held)
    };
    // A guest that listens is not ready before its first backend has come.
    let mut backend = open();
    let Some(guest) = testpmd(&path, 1, 1) else { return };
    for _ in 0..3 {
        let (port, held) = backend;
        wait("both rings enabled", || held.rings() == [(0, true), (1, true)]);
        port.stop();
        assert!(held.rings().is_empty());
        backend = open();
    }
    guest.quit().unwrap();
}
