//! Vhost ports from outside: sockets, frontends that come and go, real DPDK.

#[path = "../common/mod.rs"]
mod common;
mod dpdk;
mod guest;
mod sockets;

use guest::{Held, Watched, journal, negotiate, share_memory, spec, start_rings, wait};
use ringbridge::control::{PortRings, VhostPort};
use ringbridge::worker::{Command, Inbox};
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use vhost::VhostBackend;
use vhost::vhost_user::message::FrontendReq;

/// Tests that look at the fds of the whole process write, all others read.
static FDS: RwLock<()> = RwLock::new(());

/// Hold this while a test runs among others.
fn among_others() -> impl Drop {
    FDS.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Hold this while a test counts fds or uses them up.
fn alone() -> impl Drop {
    FDS.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn open_fds() -> usize {
    // What is opened once, whoever comes first.
    ringbridge::sys::bell::prepare();
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn frontends_come_and_go_and_leave_nothing() {
    let _guard = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let before = open_fds();
    let held = Held::default();
    let port = VhostPort::open(&journal(), &spec(&path), held.clone()).unwrap();
    let connected = open_fds();
    for i in 0..200 {
        let mut frontend = negotiate(UnixStream::connect(&path).unwrap());
        if i % 2 == 0 {
            start_rings(&mut frontend);
            assert_eq!(held.rings(), [(0, true), (1, true)]);
        }
        if i % 4 == 0 {
            share_memory(&frontend);
            assert_eq!(held.rings(), [(0, true), (1, true)]);
        }
    }
    wait("rings taken back", || held.rings().is_empty());
    wait("fds closed", || open_fds() == connected);
    port.stop();
    assert_eq!(open_fds(), before);
}

#[test]
fn a_connecting_port_comes_back_whenever_the_listener_does() {
    let _guard = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let before = open_fds();
    let held = Held::default();
    let client = ringbridge::config::VhostSpec { client: true, ..spec(&path) };
    let port = VhostPort::open(&journal(), &client, held.clone()).unwrap();
    let connecting = open_fds();
    std::thread::sleep(Duration::from_millis(250));
    for _ in 0..4 {
        // Nobody listens in between: the socket file is stale, then gone.
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        for _ in 0..3 {
            let mut frontend = negotiate(accept(&listener));
            start_rings(&mut frontend);
            assert_eq!(held.rings().len(), 2);
            drop(frontend);
            wait("rings taken back", || held.rings().is_empty());
        }
        drop(listener);
        std::thread::sleep(Duration::from_millis(150));
        std::fs::remove_file(&path).unwrap();
    }
    wait("fds closed", || open_fds() == connecting);
    port.stop();
    assert_eq!(open_fds(), before);
    assert!(!path.exists());
}

fn accept(listener: &UnixListener) -> UnixStream {
    let accepted = std::cell::OnceCell::new();
    wait("the port connects", || {
        listener.accept().is_ok_and(|(stream, _)| accepted.set(stream).is_ok())
    });
    accepted.into_inner().unwrap()
}

#[test]
fn a_second_frontend_waits_for_the_first_to_go() {
    let _guard = among_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let held = Held::default();
    let port = VhostPort::open(&journal(), &spec(&path), held.clone()).unwrap();
    let mut first = negotiate(UnixStream::connect(&path).unwrap());
    start_rings(&mut first);
    let second = UnixStream::connect(&path).unwrap();
    drop(UnixStream::connect(&path).unwrap());
    let second = std::thread::spawn(move || negotiate(second));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!second.is_finished());
    assert_eq!(held.rings().len(), 2);
    first.get_features().unwrap();
    drop(first);
    let second = second.join().unwrap();
    assert!(held.rings().is_empty());
    second.get_features().unwrap();
    port.stop();
}

#[test]
fn stop_ends_a_port_whatever_it_waits_for() {
    let _guard = among_others();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let held = Held::default();
    let open = |name, client| {
        let spec = ringbridge::config::VhostSpec { client, ..spec(&path(name)) };
        VhostPort::open(&journal(), &spec, held.clone()).unwrap()
    };
    let ports = [open("idle", false), open("busy", false), open("half", false), open("no", true)];
    let mut busy = negotiate(UnixStream::connect(path("busy")).unwrap());
    start_rings(&mut busy);
    // A message that never becomes complete.
    let half = UnixStream::connect(path("half")).unwrap();
    Write::write_all(&mut &half, &[1, 0, 0]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let start = Instant::now();
    assert!(ports.into_iter().all(VhostPort::stop));
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(held.rings().is_empty());
    assert!(busy.get_features().is_err());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// QEMU looks for the used index as soon as it sees the end, and goes on from there.
#[test]
fn the_frontend_sees_the_end_when_its_rings_are_back() {
    let _guard = among_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let watched = Watched::default();
    let port = VhostPort::open(&journal(), &spec(&path), watched.clone()).unwrap();
    let stream = UnixStream::connect(&path).unwrap();
    let mut frontend = negotiate(stream.try_clone().unwrap());
    start_rings(&mut frontend);
    stream.set_nonblocking(true).unwrap();
    watched.frontend.set(stream).unwrap();
    assert!(port.stop());
    assert_eq!(*watched.read.lock().unwrap(), [Err(ErrorKind::WouldBlock); 2]);
    assert_eq!(watched.frontend.get().unwrap().read(&mut [0]).unwrap(), 0);
}

/// A frontend that reads no answers is not waited for.
#[test]
fn stop_ends_a_session_that_waits_to_answer() {
    let _guard = among_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let port = VhostPort::open(&journal(), &spec(&path), Held::default()).unwrap();
    let stream = UnixStream::connect(&path).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let question = [FrontendReq::GET_FEATURES as u32, 1, 0].map(u32::to_ne_bytes);
    while (&stream).write_all(question.as_flattened()).is_ok() {}
    let start = Instant::now();
    assert!(port.stop());
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn out_of_fds_is_survived() {
    let _guard = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let port = VhostPort::open(&journal(), &spec(&path), Held::default()).unwrap();
    let old = limit_fds(256);
    let mut hoard = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        hoard.push(file);
    }
    hoard.pop();
    // The last fd is the frontend's.
    let stream = UnixStream::connect(&path).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    hoard.clear();
    limit_fds(old);
    negotiate(stream).get_features().unwrap();
    port.stop();
}

/// Set the soft limit of open fds; returns what it was.
fn limit_fds(limit: u64) -> u64 {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `now` is readable and writable.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut now), 0);
        let old = std::mem::replace(&mut now.rlim_cur, limit);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const now), 0);
        old
    }
}

/// A worker that only keeps rings; ends at `Quit`.
fn keep_rings(inbox: &Inbox, parity: u16) {
    let mut rings = BTreeMap::new();
    loop {
        std::thread::sleep(Duration::from_millis(1));
        while let Some(command) = inbox.take() {
            match command {
                Command::StartRing { port, index, ring } => {
                    assert_eq!((port, index % 2), (7, parity));
                    rings.insert(index, ring);
                }
                Command::StopRing { port, index, reply } => {
                    assert_eq!((port, index % 2), (7, parity));
                    reply.send(rings.remove(&index)).unwrap();
                }
                Command::Inject { port, done, .. } => {
                    assert_eq!((port, parity), (7, 1));
                    done.send(()).unwrap();
                }
                Command::Quit => {
                    inbox.close();
                    return;
                }
                _ => panic!("a session asks for rings only"),
            }
        }
    }
}

#[test]
fn a_flood_of_messages_does_not_fill_an_inbox() {
    let _guard = among_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let inboxes = [0, 1].map(|_| Arc::new(Inbox::new().unwrap()));
    let rings = PortRings::new(7, Arc::clone(&inboxes[0]), Arc::clone(&inboxes[1]));
    let port = VhostPort::open(&journal(), &spec(&path), rings).unwrap();
    let raw = UnixStream::connect(&path).unwrap();
    let mut frontend = negotiate(raw.try_clone().unwrap());
    let started = AtomicBool::new(false);
    let held = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut held = BTreeMap::new();
            while !started.load(Ordering::Relaxed) {
                match inboxes.iter().find_map(|inbox| inbox.take()) {
                    Some(Command::StartRing { index, ring, .. }) => drop(held.insert(index, ring)),
                    Some(Command::StopRing { index, reply, .. }) => {
                        reply.send(held.remove(&index)).unwrap();
                    }
                    _ => std::thread::sleep(Duration::from_millis(1)),
                }
            }
            held
        });
        start_rings(&mut frontend);
        started.store(true, Ordering::Relaxed);
        worker.join().unwrap()
    });
    while inboxes[0].take().is_some() {}
    // The workers are busy with a burst while the frontend enables and disables.
    let flood = std::thread::spawn(move || {
        for i in 0..10_000u32 {
            let message = [FrontendReq::SET_VRING_ENABLE as u32, 1, 8, 0, i % 2];
            if (&raw).write_all(message.map(u32::to_ne_bytes).as_flattened()).is_err() {
                return;
            }
        }
    });
    std::thread::sleep(Duration::from_millis(300));
    let waiting = std::iter::from_fn(|| inboxes[0].take()).count();
    assert!((1..=4).contains(&waiting), "{waiting} commands wait for the worker");
    for inbox in &inboxes {
        inbox.close();
    }
    port.stop();
    flood.join().unwrap();
    drop(held);
}

#[test]
fn rings_go_to_their_workers_and_come_back() {
    let _guard = among_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let inboxes = [0, 1].map(|_| Arc::new(Inbox::new().unwrap()));
    let workers = [0u16, 1].map(|parity| {
        let inbox = Arc::clone(&inboxes[usize::from(parity)]);
        std::thread::spawn(move || keep_rings(&inbox, parity))
    });
    let rings = PortRings::new(7, Arc::clone(&inboxes[0]), Arc::clone(&inboxes[1]));
    let port = VhostPort::open(&journal(), &spec(&path), rings).unwrap();
    for _ in 0..3 {
        let mut frontend = negotiate(UnixStream::connect(&path).unwrap());
        start_rings(&mut frontend);
        frontend.set_vring_base(0, 5).unwrap();
        share_memory(&frontend);
        assert_eq!(frontend.get_vring_base(0).unwrap(), 5);
    }
    // Workers that have ended end the session, and nobody waits for them.
    let mut frontend = negotiate(UnixStream::connect(&path).unwrap());
    start_rings(&mut frontend);
    for inbox in &inboxes {
        inbox.post(Command::Quit);
    }
    for worker in workers {
        worker.join().unwrap();
    }
    let start = Instant::now();
    assert!(frontend.set_vring_base(1, 5).is_err());
    assert!(frontend.get_features().is_err());
    port.stop();
    assert!(start.elapsed() < Duration::from_secs(2));
}
