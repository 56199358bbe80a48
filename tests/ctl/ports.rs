//! Ports that come and go: nobody else notices, and every packet is accounted for.

use super::common::bridge::{Bed, LIMIT, Peer, alone, vhost};
use super::common::wait_until;
use super::neighbour::Street;
use ringbridge::config::port;
use ringbridge::counters::Reason;
use ringbridge::frontend::{Guest, GuestOptions, Link};
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

fn name(path: &Path) -> String {
    format!("vhost:{}", path.display())
}

/// Fds of this process, and its threads that serve a port.
fn in_use() -> (usize, usize) {
    let vhost = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == "vhost")
    };
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    (fs::read_dir("/proc/self/fd").unwrap().count(), tasks.filter(vhost).count())
}

#[test]
fn two_hundred_ports_come_and_go_and_a_neighbour_loses_nothing() {
    let _alone = alone();
    let street = Street::new();
    let bridge = street.bed.bridge();
    let path = street.bed.dir.path("new");
    let before = in_use();
    for round in 0..200 {
        let slot = bridge.add_port(&vhost(&path, 1 + round % 4)).unwrap();
        assert_eq!(slot, 4, "the lowest free one, each time");
        match round % 10 {
            0 => drop(Peer::connect(&path)),
            1 => {
                // It is still there when its port goes.
                let mut peer = Peer::connect(&path);
                peer.send(&[7; 60]);
                assert_eq!(bridge.remove_port(&name(&path)).unwrap().name, name(&path));
                bridge.add_port(&vhost(&path, 1)).unwrap();
            }
            _ => {}
        }
        bridge.remove_port(&name(&path)).unwrap();
        assert!(!path.exists());
    }
    assert!(wait_until(LIMIT, || in_use() == before), "{:?}, was {before:?}", in_use());
    assert_eq!(bridge.ports().len(), 4);
    street.finish();
}

/// All that port 0 has received has gone to port 1, which has nobody, or was lost with port 1.
#[test]
fn ports_are_deleted_while_a_guest_sends_at_full_speed() {
    let _alone = alone();
    let street = Street::new();
    let (bed, bridge) = (&street.bed, street.bed.bridge());
    let [sender, other] = [0, 1].map(|i| name(&bed.socket(i)));
    let stop = AtomicBool::new(false);
    let mut guest = Guest::connect(&Link::to([bed.socket(0)])).unwrap();
    thread::scope(|scope| {
        // It fails when its port goes, as it should.
        scope.spawn(|| guest.txonly(64, Some(6 * LIMIT), &stop));
        bed.expect("port 0 is received from", |s| s.ports[0].rx.packets > 10_000);
        let mut lost = 0;
        for _ in 0..3 {
            lost += bridge.remove_port(&other).unwrap().tx.drops.of(Reason::NotConnected);
            let already = bed.counters().ports[0].rx.drops.of(Reason::NotConnected);
            bed.expect("nobody is there", |s| {
                s.ports[0].rx.drops.of(Reason::NotConnected) > already
            });
            assert_eq!(bridge.add_port(&vhost(&bed.socket(1), 1)).unwrap(), 1);
            bed.expect("port 1 is there again", |s| s.ports[1].tx.drops.total() > 0);
        }
        let gone = bridge.remove_port(&sender).unwrap();
        stop.store(true, Ordering::Relaxed);
        lost += gone.rx.drops.total() + bridge.remove_port(&other).unwrap().tx.drops.total();
        assert_eq!(gone.rx.packets, lost);
        assert_eq!((gone.tx.packets, gone.tx.drops.total()), (0, 0));
    });
    for (slot, path) in [bed.socket(0), bed.socket(1)].iter().enumerate() {
        assert_eq!(bridge.add_port(&vhost(path, 1)).unwrap(), slot);
    }
    street.finish();
}

#[test]
fn a_port_is_deleted_whatever_its_frontend_is_in_the_middle_of() {
    let _alone = alone();
    let street = Street::new();
    let bridge = street.bed.bridge();
    let path = street.bed.dir.path("half");
    for _ in 0..5 {
        bridge.add_port(&vhost(&path, 1)).unwrap();
        let half = UnixStream::connect(&path).unwrap();
        (&half).write_all(&[1, 0, 0]).unwrap();
        // And one that waits for its turn.
        let waits = UnixStream::connect(&path).unwrap();
        let connected = || bridge.port(&name(&path)).unwrap().status.connected;
        assert!(wait_until(LIMIT, connected));
        bridge.remove_port(&name(&path)).unwrap();
        assert!(!path.exists());
        drop((half, waits));
    }
    street.finish();
}

#[test]
fn one_port_alone_gets_a_second_one_and_loses_it() {
    let _alone = alone();
    for workers in [1, 3] {
        let bed = Bed::with(1, |config, _| config.workers = vec![None; workers]);
        let (bridge, path) = (bed.bridge(), bed.dir.path("second"));
        let mut first = Peer::connect(&bed.socket(0));
        first.settle();
        first.send(&[1; 60]);
        assert_eq!(first.receive(), [1; 60], "with itself");
        assert_eq!(bridge.ports()[0].partner, Some(0));
        for round in 0..3 {
            bridge.add_port(&vhost(&path, 1)).unwrap();
            assert_eq!(
                bridge.ports().iter().map(|p| p.partner).collect::<Vec<_>>(),
                [Some(1), Some(0)]
            );
            let mut second = Peer::connect(&path);
            second.settle();
            first.send(&[2; 60]);
            assert_eq!(second.receive(), [2; 60]);
            second.send(&[3; 60]);
            assert_eq!(first.receive(), [3; 60]);
            bridge.remove_port(&name(&path)).unwrap();
            assert_eq!(bridge.ports()[0].partner, None);
            first.send(&[4; 60]);
            bed.expect("counted where it was received", |s| {
                s.ports[0].rx.drops.of(Reason::NotConnected) == round + 1
            });
        }
        assert!(!first.has_frame());
        let port = &bed.counters().ports[0];
        assert_eq!((port.rx.packets, port.rx.drops.total(), port.tx.packets), (7, 3, 4));
    }
}

#[test]
fn counters_begin_anew_and_a_new_port_in_an_old_slot_has_its_own() {
    let _alone = alone();
    let bed = Bed::new(2);
    let [mut a, mut b] = [0, 1].map(|i| Peer::connect(&bed.socket(i)));
    a.settle();
    b.settle();
    a.send(&[1; 60]);
    b.receive();
    bed.expect("counted", |s| s.ports[1].tx.packets == 1 && s.workers[0].packets == 1);
    bed.bridge().clear();
    let cleared = bed.counters();
    assert!(cleared.ports.iter().all(|p| p.rx.packets + p.tx.packets + p.tx.bytes == 0));
    assert_eq!((cleared.workers[0].packets, cleared.workers[0].best_pps), (0, 0));
    for i in 0..3 {
        a.send(&[i; 60]);
        b.receive();
    }
    let gone = bed.bridge().remove_port(&name(&bed.socket(1))).unwrap();
    assert_eq!((gone.tx.packets, gone.tx.bytes), (3, 180));
    bed.bridge().add_port(&vhost(&bed.socket(1), 1)).unwrap();
    let snapshot = bed.counters();
    assert_eq!((snapshot.ports[0].rx.packets, snapshot.ports[1].tx.packets), (3, 0));
    assert!(snapshot.table(&cleared).contains("Port 1: vhost:"));
    let guest = GuestOptions { interrupts: true, ..GuestOptions::default() };
    drop(Peer::with(&bed.socket(1), guest));
}

#[test]
fn what_cannot_be_added_or_deleted_is_said_in_one_line_and_changes_nothing() {
    let _alone = alone();
    let bed = Bed::new(2);
    let (bridge, dir) = (bed.bridge(), &bed.dir);
    // A thread has its name a moment after it was started.
    assert!(wait_until(LIMIT, || in_use().1 == 2));
    let before = in_use();
    let (taken, file, fifo) = (bed.socket(0), dir.path("file"), dir.path("fifo"));
    fs::write(&file, "precious").unwrap();
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let cases = [
        (name(&taken), format!("there is a port {} already", name(&taken))),
        (
            format!("pcap:{},out={}", file.display(), taken.display()),
            format!("{} is used twice; each use needs a file of its own", taken.display()),
        ),
        (
            "vhost:/no/such/dir".into(),
            "cannot create /no/such/dir: there is no directory /no/such".into(),
        ),
        (
            format!("pcap:{}", fifo.display()),
            format!(
                "{} is not a file, and only files are read while the bridge runs",
                fifo.display()
            ),
        ),
        (format!("vhost:{}", file.display()), format!("cannot open port vhost:{}", file.display())),
        (
            format!("pcap:{}", file.display()),
            format!(
                "\"{}\" is not a pcap file; give a capture such as tcpdump -w makes",
                file.display()
            ),
        ),
    ];
    for (spec, expected) in cases {
        let refused = bridge.add_port(&port::parse(&spec).unwrap()).unwrap_err().to_string();
        assert_eq!(refused.replace('"', ""), expected.replace('"', ""), "{spec}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    let refused = bridge.remove_port("vhost:/x").unwrap_err().to_string();
    assert_eq!(refused, "there is no port vhost:/x; see ctl ports");
    assert_eq!(bridge.ports().len(), 2);
    assert!(wait_until(LIMIT, || in_use() == before));
    bridge.stop();
    let late = bridge.add_port(&vhost(&dir.path("late"), 1)).unwrap_err().to_string();
    assert_eq!(late, "the bridge is ending");
}
